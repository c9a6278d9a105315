"""RolloutStorage: the arrays that one call of an env runner fills; for short rollouts, allocated for several calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.errors import explain_error
from catalog.past import PREV_ACTION, PREV_OBS
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import allocate_observations, as_tensors, map_leaves, take_slot, unbind_rows, write_row
from rlmodule.envs.infos import last_infos
from rlmodule.envs.restarting import FAULT
from rlmodule.modules.past_rows import PastRows
from rlmodule.modules.rl_module import RLModule

logger = logging.getLogger("rlmodule.envs.make")

BLOCK_ROWS = 64
"""Rows of fragments that are made at once, unless one alone has more;"""
BLOCK_BYTES = 2**20
"""fewer where their observations would be larger than this."""


@dataclass(kw_only=True, slots=True)
class RolloutStorage:
    """``T`` rows to be filled; observations and ``starts`` have one more, for what comes after the last.

    Attributes:
        env_obs: What the env observes, arrays ``[T+1, N, ...]``.
        previous: What the module sees of earlier steps, by name.
        seen: What the module observes, row by row, tensors ``[N, ...]``.
        starts: Which rows are the first of an episode.
        columns: Those of the rollout that are known before it begins: tensors of the same memory, without the last row.
        actions: As the distribution sampled them, arrays ``[T, N, ...]``; None before the first.
        final_index, final_obs: Row and slot of each truncation, and its true final observation.
        faults: Row and slot of each step that raised, which is a truncation until :meth:`cut_at_faults`.
        state_in: States before rows ``0, L, 2L, …`` of a recurrent module.
    """

    env_obs: Tree
    previous: dict[str, PastRows]
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
    faults: list[tuple[int, int]] = field(default_factory=list)
    state_in: Tree | None = None

    def begin_previous(self, last: Mapping[str, Tree]) -> None:
        """Put what the last fragment ended with next to the first observation; zeros if it left nothing."""
        for name, part in self.previous.items():
            if name in last:
                write_row(part.whole, 0, last[name])
            else:
                _clear(part.whole, 0)

    def write_previous(self, t: int) -> None:
        """Put what was seen, done and given in row ``t`` next to the next observation, if the episode goes on."""
        started = self.starts[t + 1]
        for name, part in self.previous.items():
            part.write(t + 1, take_slot(self._column(name), t))
            if np.count_nonzero(started):
                _clear(part.whole, (t + 1, started))

    def _column(self, name: str) -> Tree:
        """What the field ``name`` of the view of the past shows later."""
        return {PREV_ACTION: self.actions, PREV_OBS: self.env_obs}.get(name, self.rewards)

    def note_finals(self, t: int, finals: Tree) -> None:
        """Keep the true final observation of every episode that was truncated in row ``t``."""
        if np.count_nonzero(self.truncateds[t]):
            for slot in np.flatnonzero(self.truncateds[t] & ~self.terminateds[t]):
                self.final_index.append((t, int(slot)))
                self.final_obs.append(tree.map_structure(np.array, take_slot(finals, int(slot))))

    def check_finals(self, env_name: str) -> None:
        """Whether the env handed over the last observation of every episode that was truncated.

        Raises:
            ValueError: If not.
        """
        missing = np.count_nonzero(self.truncateds & ~self.terminateds) - len(self.final_index)
        if missing:
            raise ValueError(
                explain_error(
                    f"info of {env_name}.step()",
                    expected="final_obs whenever an episode ends, as same-step autoreset has it",
                    got=f"{missing} truncated episodes without it",
                    remedy="Put the last observation of each ended episode into info['final_obs'], or declare another "
                    "autoreset mode in the env's metadata.",
                )
            )

    def note_faults(self, t: int, info: Mapping[str, Any]) -> None:
        """Keep which steps of row ``t`` raised, as their ``info`` says. Their envs observed nothing more: the final
        observation, which goes into ``info``, is the one before."""
        ended = self.truncateds[t]
        for slot, of_env in zip(np.flatnonzero(ended).tolist(), last_infos(info, ended, True), strict=True):
            if FAULT in of_env:
                self.faults.append((t, slot))
                info["final_obs"][slot] = tree.map_structure(lambda x, slot=slot: x[t, slot], self.env_obs)
                logger.warning("%s. It is made anew.", of_env[FAULT].partition("\n\n")[0])

    def finals(self, module: RLModule) -> tuple[Tensor, Tree]:
        """Row and slot of each truncation ``[K, 2]`` and the true final observations ``[K, ...]``, next to them what
        each episode saw, did and was given last."""
        index = np.array(self.final_index, dtype=np.int64)
        finals = allocate_observations(module.input_space, len(index))
        env_part = module.env_part(finals)
        for row, final in enumerate(self.final_obs):
            write_row(env_part, row, final)
        rows, slots = index.T
        for name, part in self.previous.items():
            write_row(finals[name], slice(None), part.after(rows, slots, self._column(name)))
        return torch.from_numpy(index), as_tensors(finals)

    def cut_at_faults(self) -> None:
        """Take steps that raised for none. Such a row is invalid, and its observation the true final one of an episode
        that was truncated in the row before; in row 0 there is no row before, but what the last fragment ended with
        was that observation already. The next row starts an episode. One without any step leaves nothing."""
        finals = dict(zip(self.final_index, self.final_obs, strict=True))
        for t, slot in self.faults:
            final = finals.pop((t, slot))
            self.valid[t, slot] = self.truncateds[t, slot] = False
            if t and not self.starts[t, slot]:
                self.truncateds[t - 1, slot] = True
                finals[t - 1, slot] = final
        self.final_index = sorted(finals)
        self.final_obs = [finals[index] for index in self.final_index]


def allocate_storages(module: RLModule, num_steps: int, num_envs: int) -> list[RolloutStorage]:
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
        RolloutStorage(
            env_obs=module.env_part(parts[i]),
            previous=PastRows.of(module, parts[i]),
            seen=seen[i * length : (i + 1) * length],
            starts=starts[i],
            columns={name: column[i] for name, column in columns.items()},
            **{name: array[i] for name, array in arrays.items()},
        )
        for i in range(count)
    ]


def _clear(column: Tree, index: Any) -> None:
    """Set the entries at ``index`` of all arrays to zero."""
    for array in tree.flatten(column):
        array[index] = 0
