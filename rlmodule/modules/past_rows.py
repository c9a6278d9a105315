"""What a module sees of earlier steps, filled row by row while a runner acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.rollout import write_row
from rlmodule.modules.rl_module import RLModule


@dataclass(frozen=True, slots=True)
class PastRows:
    """One field of the view of the past, arrays or tensors, over ``T + 1`` rows of ``N`` envs.

    Attributes:
        whole: ``[T+1, N, ...]`` for one step back, ``[T+1, N, k, ...]`` for ``k``, the oldest first.
        newest: Views of the newest entries, ``[T+1, N, ...]``.
        shifts: For each leaf the views of all entries but the newest, and of all but the oldest; none for one step.
    """

    whole: Tree
    newest: Tree
    shifts: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, module: RLModule, obs: Tree) -> dict[str, PastRows]:
        """Each field that ``module`` asks for, within its observations ``[T+1, N, ...]``."""
        return {name: cls._of(obs[name], steps) for name, steps in module.past_view.steps.items()}

    @classmethod
    def _of(cls, whole: Tree, steps: int) -> PastRows:
        if steps == 1:
            return cls(whole, whole, ())
        newest = tree.map_structure(lambda x: x[:, :, -1], whole)
        return cls(whole, newest, tuple((x[:, :, :-1], x[:, :, 1:]) for x in tree.flatten(whole)))

    def write(self, row: int, value: Tree) -> None:
        """Fill ``row`` with what the row before it saw, and ``value`` ``[N, ...]`` as the newest entry."""
        write_row(self.newest, row, value)
        for older, younger in self.shifts:
            older[row] = younger[row - 1]

    def clear(self, row: int, slots: Any = slice(None)) -> None:
        """Set the entries of ``slots`` in ``row`` to zero."""
        for leaf in tree.flatten(self.whole):
            leaf[row][slots] = 0

    def after(self, rows: Tensor, slots: Tensor, column: Tree) -> Tree:
        """What is seen after these rows and slots ``[K]``, tensors ``[K, ...]``; ``column`` ``[T, N, ...]`` has the
        entries that are added."""

        def leaf(whole: Any, values: Any) -> Tensor:
            value = torch.as_tensor(values)[rows, slots]
            if not self.shifts:
                return value
            seen = torch.as_tensor(whole)[rows, slots][:, [*range(1, whole.shape[2]), 0]]
            seen[:, -1] = value
            return seen

        return tree.map_structure(leaf, self.whole, column)
