"""TensorRolloutStorage: the tensors that one call of a tensor env runner fills, on their device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.past import OBS, PREV_ACTION, PREV_OBS
from rlmodule.data.rollout import allocate_observations, as_tensors, map_leaves, unbind_rows
from rlmodule.modules.past_rows import PastRows
from rlmodule.modules.rl_module import RLModule


@dataclass(kw_only=True, slots=True)
class TensorRolloutStorage:
    """``T`` rows to be filled. Where there is a row more, it is for what comes after the last.

    Attributes:
        obs: What the module observes ``[T+1, N, ...]``.
        env_obs: Of that what the env observes.
        previous: Of that what the module sees of earlier steps, by name.
        seen: ``obs``, row by row.
        starts: Which rows are the first of an episode ``[T+1, N]``.
        ended: Which envs had ended their episode when the row began ``[T+1, N]``.
        rewards, terminateds, truncateds, valid: ``[T, N]``.
        actions: As the distribution sampled them, row by row.
        dist_inputs: Inputs of the distribution, row by row.
        has_finals: Whether the env gave final observations, row by row.
        infos: The ``info`` of each row, if it is asked for.
        state_in: States before rows ``0, L, 2L, …`` of a recurrent module.
    """

    obs: Tree
    env_obs: Tree
    previous: dict[str, PastRows]
    seen: list[Tree]
    starts: Tensor
    ended: Tensor
    rewards: Tensor
    terminateds: Tensor
    truncateds: Tensor
    valid: Tensor
    actions: list[Tree] = field(default_factory=list)
    dist_inputs: list[Tensor] = field(default_factory=list)
    has_finals: list[bool] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    state_in: Tree | None = None

    @classmethod
    def allocate(cls, module: RLModule, num_steps: int, num_envs: int, device: torch.device) -> TensorRolloutStorage:
        """One of ``num_steps`` rows for ``module``."""
        none = as_tensors(allocate_observations(module.input_space, 0))  # of the right dtypes and shapes
        obs = map_leaves(lambda x: x.new_empty((num_steps + 1, num_envs, *x.shape[1:]), device=device), none)

        def flags(length: int) -> Tensor:
            return torch.zeros(length, num_envs, dtype=torch.bool, device=device)

        return cls(
            obs=obs,
            env_obs=module.env_part(obs),
            previous=PastRows.of(module, obs),
            seen=unbind_rows(obs),
            starts=flags(num_steps + 1),
            ended=flags(num_steps + 1),
            rewards=torch.zeros(num_steps, num_envs, device=device),
            terminateds=flags(num_steps),
            truncateds=flags(num_steps),
            valid=~flags(num_steps),
        )

    def mark(self, begin: int, end: int, resets_in_a_step: bool) -> None:
        """Tell from the flags of rows ``begin`` to ``end`` which envs have ended and what starts an episode."""
        rows, after = slice(begin, end), slice(begin + 1, end + 1)
        torch.logical_or(self.terminateds[rows], self.truncateds[rows], out=self.ended[after])
        self.starts[after] = self.ended[rows if resets_in_a_step else after]

    def mark_resets(self) -> None:
        """The step after an end resets the env, and is no transition."""
        torch.logical_not(self.ended[:-1], out=self.valid)
        self.rewards.masked_fill_(self.ended[:-1], 0.0)

    def write_previous(self, t: int) -> None:
        """Put what was seen, done and given in row ``t`` next to the next observation, if the episode goes on."""
        started = self.starts[t + 1]
        for name, part in self.previous.items():
            part.write(t + 1, {PREV_ACTION: self.actions[t], PREV_OBS: self.seen[t][OBS]}.get(name, self.rewards[t]))
            for leaf in tree.flatten(part.whole):
                row = leaf[t + 1]
                row.masked_fill_(started.view(-1, *[1] * (row.dim() - 1)), 0)

    def all_actions(self) -> Tree:
        """``[T, N, ...]``."""
        first = self.actions[0]
        if isinstance(first, Tensor):
            return torch.stack(self.actions)
        return tree.map_structure(lambda *x: torch.stack(x), *self.actions)


@dataclass(kw_only=True, slots=True)
class OnHost:
    """What the host must know of a fragment: arrays ``[T, N]``, and any ``verdicts`` asked for."""

    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    verdicts: list[bool]

    @classmethod
    def of(cls, data: TensorRolloutStorage, verdicts: list[Tensor]) -> OnHost:
        """Of ``data`` and truth values ``[]`` on its device, all in one copy."""
        parts = [data.rewards, data.terminateds, data.truncateds, torch.stack(verdicts)]
        joined = torch.cat([part.flatten().view(torch.uint8) for part in parts]).cpu().numpy()
        shape, size = tuple(data.rewards.shape), data.rewards.numel()
        numbers, flags = joined[: 4 * size].view(np.float32), joined[4 * size :].view(bool)
        return cls(
            rewards=numbers.reshape(shape),
            terminateds=flags[:size].reshape(shape),
            truncateds=flags[size : 2 * size].reshape(shape),
            verdicts=flags[2 * size :].tolist(),
        )

    @property
    def ended(self) -> np.ndarray:
        """Which rows are the last of an episode."""
        return self.terminateds | self.truncateds
