"""Class that stores the earlier steps that a neural module sees, row by row while an env runner acts."""

from __future__ import annotations

from typing import Any

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.past import PREV_ACTION, PREV_OBS
from rlmodule.data.rollout import write_row
from rlmodule.modules.rl_module import RLModule


class PastRows:
    """Fills one field of a module's view of the past (previous observations, actions or rewards) for ``N`` envs.

    Args:
        whole: Tree of arrays or tensors to fill: ``[T+1, N, ...]`` if the module sees one earlier step, or
            ``[T+1, N, k, ...]`` if it sees ``k > 1`` earlier steps, the oldest first.
        steps: The number ``k`` of earlier steps.
    """

    __slots__ = ("_newest", "_shifts", "_steps", "whole")

    def __init__(self, whole: Tree, steps: int) -> None:
        self.whole, self._steps = whole, steps
        self._newest, self._shifts = whole, list[tuple[Any, Any]]()
        if steps > 1:
            self._newest = tree.map_structure(lambda x: x[:, :, -1], whole)
            # views of all entries but the newest, and of all but the oldest: a step copies the second to the first
            self._shifts = [(x[:, :, :-1], x[:, :, 1:]) for x in tree.flatten(whole)]

    @staticmethod
    def of(module: RLModule, obs: Tree) -> dict[str, PastRows]:
        """Return an object for each field of the past that ``module`` sees, by field name. The objects fill views of
        ``obs``, the module's observations ``[T+1, N, ...]``."""
        return {name: PastRows(obs[name], steps) for name, steps in module.past_view.steps.items()}

    def write(self, row: Any, value: Tree, before: Any = None) -> None:
        """Fill ``row`` with the entries of the row before it except the oldest entry, followed by ``value`` as the
        newest entry.

        Args:
            row: Index of a row, or of some envs in a row.
            value: The newest entry, ``[N, ...]``.
            before: Index of the row before; None takes ``row - 1``, for which ``row`` must be a whole row.
        """
        write_row(self._newest, row, value)
        for older, younger in self._shifts:
            older[row] = younger[row - 1 if before is None else before]

    def clear(self, at: Any) -> None:
        """Set all entries to zero at the index ``at``: a row, or a pair of rows and envs."""
        for leaf in tree.flatten(self.whole):
            leaf[at] = 0

    def after(self, rows: Tensor, slots: Tensor, column: Tree) -> Tree:
        """Return what the module would see in this field after some steps. Use it for final observations, where the
        next row belongs to another episode.

        Args:
            rows, slots: Row and env of each step, ``[K]``.
            column: The entry that each step adds, such as its action, for all steps: ``[T, N, ...]``.

        Returns:
            A tree of tensors ``[K, ...]`` if the module sees one earlier step, or ``[K, k, ...]`` if it sees ``k > 1``.
        """

        def take(entries: Tree) -> Tree:
            return tree.map_structure(lambda x: torch.as_tensor(x)[rows, slots], entries)

        return with_newest(take(self.whole), take(column), self._steps)


def past_column(name: str, actions: Tree, obs: Tree, rewards: Tree) -> Tree:
    """Return the column whose earlier rows the observation field ``name`` repeats: the actions for ``prev_action``, the
    env's observations for ``prev_obs``, and the rewards for ``prev_reward``."""
    return {PREV_ACTION: actions, PREV_OBS: obs}.get(name, rewards)


def with_newest(past: Tree, newest: Tree, steps: int) -> Tree:
    """Return ``past`` ``[N, steps, ...]`` without its oldest entry and with ``newest`` ``[N, ...]`` appended. If
    ``steps`` is 1, ``past`` has no such dim and the result is ``newest``."""
    if steps == 1:
        return newest
    return tree.map_structure(lambda x, new: torch.cat([x[:, 1:], new[:, None]], 1), past, newest)
