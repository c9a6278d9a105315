"""What a module sees of earlier steps, filled row by row while a runner acts."""

from __future__ import annotations

from typing import Any

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.rollout import write_row
from rlmodule.modules.rl_module import RLModule


class PastRows:
    """One field of the view of the past, arrays or tensors, over ``T + 1`` rows of ``N`` envs.

    Args:
        whole: ``[T+1, N, ...]`` for one step back, ``[T+1, N, k, ...]`` for ``k``, the oldest first.
        steps: How many.
    """

    __slots__ = ("_newest", "_shifts", "_steps", "whole")

    def __init__(self, whole: Tree, steps: int) -> None:
        self.whole, self._steps = whole, steps
        self._newest, self._shifts = whole, list[tuple[Any, Any]]()
        if steps > 1:
            self._newest = tree.map_structure(lambda x: x[:, :, -1], whole)
            # views of all entries but the newest, and of all but the oldest
            self._shifts = [(x[:, :, :-1], x[:, :, 1:]) for x in tree.flatten(whole)]

    @staticmethod
    def of(module: RLModule, obs: Tree) -> dict[str, PastRows]:
        """Each field that ``module`` asks for, within its observations ``[T+1, N, ...]``."""
        return {name: PastRows(obs[name], steps) for name, steps in module.past_view.steps.items()}

    def write(self, row: int, value: Tree) -> None:
        """Fill ``row`` with what the row before it saw, and ``value`` ``[N, ...]`` as the newest entry."""
        write_row(self._newest, row, value)
        for older, younger in self._shifts:
            older[row] = younger[row - 1]

    def clear(self, row: int, slots: Any = slice(None)) -> None:
        """Set the entries of ``slots`` in ``row`` to zero."""
        for leaf in tree.flatten(self.whole):
            leaf[row][slots] = 0

    def after(self, rows: Tensor, slots: Tensor, column: Tree) -> Tree:
        """What is seen after these rows and slots ``[K]``, tensors ``[K, ...]``; ``column`` ``[T, N, ...]`` has the
        entries that are added."""

        def take(entries: Tree) -> Tree:
            return tree.map_structure(lambda x: torch.as_tensor(x)[rows, slots], entries)

        return with_newest(take(self.whole), take(column), self._steps)


def with_newest(past: Tree, newest: Tree, steps: int) -> Tree:
    """``past`` ``[N, steps, ...]`` one step later; ``newest`` ``[N, ...]`` itself for a single step."""
    if steps == 1:
        return newest
    return tree.map_structure(lambda x, new: torch.cat([x[:, 1:], new[:, None]], 1), past, newest)
