"""PastRows: the earlier steps that a module sees, filled row by row while a runner acts."""

from __future__ import annotations

from typing import Any

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.rollout import write_row
from rlmodule.modules.rl_module import RLModule


class PastRows:
    """Fills one field of a module's view of the past (previous observations, actions or rewards) for ``N`` envs.

    Args:
        whole: Arrays or tensors to fill: ``[T+1, N, ...]`` for one step back, ``[T+1, N, k, ...]`` for ``k`` steps, the
            oldest first.
        steps: ``k``, the number of steps back.
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
        """Return each field that ``module`` asks for, as views into its observations ``[T+1, N, ...]``."""
        return {name: PastRows(obs[name], steps) for name, steps in module.past_view.steps.items()}

    def write(self, row: Any, value: Tree, before: Any = None) -> None:
        """Fill ``row`` with the entries of the row before, shifted by one, and ``value`` ``[N, ...]`` as the newest.

        Args:
            row: A row, or the index of some of its entries.
            value: The newest entry.
            before: Index of the row before; None for ``row - 1``, which only works for a whole row.
        """
        write_row(self._newest, row, value)
        for older, younger in self._shifts:
            older[row] = younger[row - 1 if before is None else before]

    def clear(self, row: int, slots: Any = slice(None)) -> None:
        """Set the entries of ``slots`` in ``row`` to zero."""
        for leaf in tree.flatten(self.whole):
            leaf[row][slots] = 0

    def after(self, rows: Tensor, slots: Tensor, column: Tree) -> Tree:
        """Return the value of the field after the steps at ``rows`` and ``slots`` ``[K]``, as tensors ``[K, ...]``.
        ``column`` ``[T, N, ...]`` has the newest entries."""

        def take(entries: Tree) -> Tree:
            return tree.map_structure(lambda x: torch.as_tensor(x)[rows, slots], entries)

        return with_newest(take(self.whole), take(column), self._steps)


def with_newest(past: Tree, newest: Tree, steps: int) -> Tree:
    """Drop the oldest entry of ``past`` ``[N, steps, ...]`` and append ``newest`` ``[N, ...]``. A single step has no
    such dim: the result is ``newest``."""
    if steps == 1:
        return newest
    return tree.map_structure(lambda x, new: torch.cat([x[:, 1:], new[:, None]], 1), past, newest)
