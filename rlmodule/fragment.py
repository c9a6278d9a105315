"""Fragment: the arrays that one call of a runner fills, made for several calls at once where these are short."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tree

from catalog.base import Tree
from rlmodule.columns import Columns
from rlmodule.module import RLModule
from rlmodule.rollout import allocate_observations, as_tensors, map_leaves, unbind_rows

BLOCK_ROWS = 64
"""Rows of fragments that are made at once, unless one alone has more;"""
BLOCK_BYTES = 2**20
"""fewer where their observations would be larger than this."""


@dataclass(kw_only=True, slots=True)
class Fragment:
    """``T`` rows to be filled; observations and ``starts`` have one more, for what comes after the last.

    Attributes:
        env_obs: What the env observes, arrays ``[T+1, N, ...]``.
        previous: What the module observes besides, by name: previous actions and rewards.
        seen: What the module observes, row by row, tensors ``[N, ...]``.
        starts: Which rows are the first of an episode.
        columns: Those of the rollout that are known before it begins: tensors of the same memory, without the last row.
        actions: As the distribution sampled them, arrays ``[T, N, ...]``; None before the first.
        final_index, final_obs: Row and slot of each truncation, and its true final observation.
        state_in: States before rows ``0, L, 2L, …`` of a recurrent module.
    """

    env_obs: Tree
    previous: dict[str, Tree]
    seen: list[Tree]
    starts: np.ndarray
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    valid: np.ndarray
    columns: dict[str, Tree]
    actions: Tree | None = None
    final_index: list[tuple[int, int]] = field(default_factory=list)
    final_obs: list[Tree] = field(default_factory=list)
    state_in: Tree | None = None


def allocate_fragments(module: RLModule, num_steps: int, num_envs: int) -> list[Fragment]:
    """Fragments of ``num_steps`` rows for ``module``, none of which shares a number with another."""
    row = sum(leaf.nbytes for leaf in tree.flatten(allocate_observations(module.input_space, num_envs)))
    count = max(1, min(BLOCK_ROWS // num_steps, BLOCK_BYTES // ((num_steps + 1) * row)))
    shape, length = (count, num_steps, num_envs), num_steps + 1
    obs = allocate_observations(module.input_space, count, length, num_envs)
    starts = np.zeros((count, length, num_envs), dtype=bool)
    arrays: dict[str, np.ndarray] = {
        Columns.REWARDS: np.zeros(shape, np.float32),
        Columns.TERMINATEDS: np.zeros(shape, dtype=bool),
        Columns.TRUNCATEDS: np.zeros(shape, dtype=bool),
        Columns.VALID: np.ones(shape, dtype=bool),
    }
    tensors = as_tensors(obs)
    seen = unbind_rows(map_leaves(lambda x: x.flatten(0, 1), tensors))
    columns = {name: unbind_rows(column) for name, column in as_tensors(arrays).items()}
    columns[Columns.OBS] = unbind_rows(map_leaves(lambda x: x[:, :-1], tensors))
    columns[Columns.STARTS] = unbind_rows(as_tensors(starts)[:, :-1])
    parts = unbind_rows(obs)
    return [
        Fragment(
            env_obs=module.env_part(parts[i]),
            previous=_without_env_part(module, parts[i]),
            seen=seen[i * length : (i + 1) * length],
            starts=starts[i],
            columns={name: column[i] for name, column in columns.items()},
            **{name: array[i] for name, array in arrays.items()},
        )
        for i in range(count)
    ]


def _without_env_part(module: RLModule, obs: Tree) -> dict[str, Any]:
    return {name: part for name, part in obs.items() if name != Columns.OBS} if module.sees_more_than_the_env else {}
