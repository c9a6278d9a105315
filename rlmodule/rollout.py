"""Rollout: what a runner returns and a learner consumes, as whole columns over time and envs.

``T`` steps, ``N`` slots (a slot is an env), ``K`` truncated episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tree
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree
from rlmodule.columns import Columns


@dataclass(kw_only=True)
class Rollout:
    """Columns ``[T, N, ...]`` and what follows them.

    Attributes:
        columns: Column name → tree of tensors ``[T, N, ...]``; see :class:`Columns`.
        last_obs: Observation after the last step, ``[N, ...]``.
        final_index: ``[K, 2]`` int64: row and slot of every step that truncated (and did not terminate) an episode.
        final_obs: The true final observations of those episodes, ``[K, ...]``.
        policy_version: How many updates the acting weights had seen.
        stats: What the runner measured on the way: returns and lengths of finished episodes, seconds per phase.
    """

    columns: dict[str, Tree]
    last_obs: Tree
    final_index: Tensor
    final_obs: Tree
    policy_version: int = 0
    stats: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tree:
        """The column called ``name``."""
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    @classmethod
    def concat(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """Rollouts of equal length side by side, their slots in the given order; the oldest policy version counts."""
        if len(rollouts) == 1:
            return rollouts[0]
        offsets = np.cumsum([0] + [rollout.shape[1] for rollout in rollouts[:-1]])
        shifted = [r.final_index + torch.tensor([0, int(n)]) for r, n in zip(rollouts, offsets, strict=True)]

        def join(parts: Sequence[Tree], dim: int) -> Tree:
            return tree.map_structure(lambda *tensors: torch.cat(tensors, dim), *parts)

        return cls(
            columns={name: join([r.columns[name] for r in rollouts], 1) for name in rollouts[0].columns},
            last_obs=join([r.last_obs for r in rollouts], 0),
            final_index=torch.cat(shifted),
            final_obs=join([r.final_obs for r in rollouts], 0),
            policy_version=min(r.policy_version for r in rollouts),
        )

    @property
    def valid(self) -> Tensor:
        """``[T, N]`` bool: rows that are transitions of the task. Every statistic and loss is over these alone."""
        return self.columns[Columns.VALID]

    @property
    def shape(self) -> tuple[int, int]:
        """``(T, N)``."""
        return self.valid.shape[0], self.valid.shape[1]

    @property
    def num_env_steps(self) -> int:
        """Number of valid rows."""
        return int(self.valid.sum())

    def valid_rows(self, names: Iterable[str]) -> dict[str, Tree]:
        """The named columns flattened to ``[B, ...]``, invalid rows left out."""
        keep = self.valid.flatten()
        everything = bool(keep.all())

        def flatten(column: Tensor) -> Tensor:
            rows = column.flatten(0, 1)
            return rows if everything else rows[keep]

        return {name: tree.map_structure(flatten, self.columns[name]) for name in names}

    def rows_to_value(self) -> Tree:
        """Every observation whose value a learner needs, in one batch ``[T·N + N + K, ...]``: the steps, the
        observation after the last step, and the true final observations. :meth:`split_values` takes it apart."""
        return tree.map_structure(
            lambda obs, last, final: torch.cat([obs.flatten(0, 1), last, final]),
            self.columns[Columns.OBS],
            self.last_obs,
            self.final_obs,
        )

    def split_values(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[T, N]`` of the observations and of what followed each step, from those of :meth:`rows_to_value`.

        What followed a truncated step is the episode's own last observation, not the first of the next one. What
        followed a terminated step is meaningless and for the caller to ignore.
        """
        steps, slots = self.shape
        own = values[: steps * slots].view(steps, slots)
        following = torch.cat([own[1:], values[None, steps * slots : steps * slots + slots]])
        following[self.final_index[:, 0], self.final_index[:, 1]] = values[steps * slots + slots :]
        return own, following


def allocate_observations(space: Space, *leading: int) -> Tree:
    """Empty numpy arrays ``[*leading, ...]`` for observations of ``space``; float64 is stored as float32."""
    if isinstance(space, spaces.Dict):
        return {key: allocate_observations(child, *leading) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(allocate_observations(child, *leading) for child in space.spaces)
    dtype = np.float32 if space.dtype == np.float64 else space.dtype
    return np.empty((*leading, *(space.shape or ())), dtype)


def write_row(buffer: Tree, row: int, obs: Tree) -> None:
    """Copy one batched observation into row ``row`` of what :func:`allocate_observations` made."""
    if isinstance(buffer, dict):
        for key in buffer:
            write_row(buffer[key], row, obs[key])
    elif isinstance(buffer, tuple):
        for part, value in zip(buffer, obs, strict=True):
            write_row(part, row, value)
    else:
        buffer[row] = obs


def take_slot(batch: Tree, slot: int) -> Tree:
    """Entry ``slot`` of a batched tree of arrays, or of gymnasium's object array of single observations."""
    if isinstance(batch, dict):
        return {key: take_slot(value, slot) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take_slot(value, slot) for value in batch)
    return batch[slot]


def as_tensors(arrays: Tree) -> Tree:
    """Torch views of a tree of numpy arrays."""
    return tree.map_structure(torch.from_numpy, arrays)
