"""MultiRollout: the rollouts that an :class:`AgentRunner` returns, one for each module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves


@dataclass(kw_only=True)
class MultiRollout(Mapping[str, Rollout]):
    """Maps the id of each trained module to its rollout. A slot of a rollout is one agent of one env, and its rows are
    that agent's own steps, without gaps. The rows after its last step are invalid: they repeat the observation that
    followed that step, and are zero otherwise.

    Attributes:
        modules: The rollouts of trained modules by id. A module whose agents completed no row has no rollout.
        slots: For each rollout, the env (its index in the run) and the agent (its index among the possible agents) of
            each of the ``N`` slots, ``[N, 2]`` int64.
        num_env_steps: Number of steps of all envs. A step counts once, regardless of how many agents act in it.
        policy_version: Number of updates that had produced the weights that chose the actions.
        first_env_index: Index of the runner's first env in the run.
        stats: Measurements of the runner; see :meth:`AgentRunner.sample`.
    """

    modules: dict[str, Rollout]
    slots: dict[str, np.ndarray]
    num_env_steps: int
    policy_version: int = 0
    first_env_index: int = 0
    stats: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, module_id: str) -> Rollout:
        """Return the rollout of the module ``module_id``."""
        return self.modules[module_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    @classmethod
    def concat(cls, rollouts: Sequence[MultiRollout]) -> MultiRollout:
        """Concatenate rollouts along the slots, without ``stats``. The rollouts of each module are padded to the
        longest of them. The policy version is the lowest one."""
        if len(rollouts) == 1:
            return rollouts[0]
        modules, slots = {}, {}
        for module_id in dict.fromkeys(name for rollout in rollouts for name in rollout.modules):
            parts = [rollout for rollout in rollouts if module_id in rollout.modules]
            of_module = [part.modules[module_id] for part in parts]
            longest = max(of_module, key=lambda rollout: rollout.shape[0])
            modules[module_id] = Rollout.concat([_padded(rollout, longest) for rollout in of_module])
            slots[module_id] = np.concatenate([part.slots[module_id] for part in parts])
        return cls(
            modules=modules,
            slots=slots,
            num_env_steps=sum(rollout.num_env_steps for rollout in rollouts),
            policy_version=min(rollout.policy_version for rollout in rollouts),
            first_env_index=rollouts[0].first_env_index,
        )

    def map(self, function: Callable[[Rollout], Rollout]) -> MultiRollout:
        """Return a copy with ``function`` applied to the rollout of each module."""
        return dataclasses.replace(self, modules={name: function(rollout) for name, rollout in self.modules.items()})


def _padded(rollout: Rollout, longest: Rollout) -> Rollout:
    """Return ``rollout`` with as many rows and recurrent states as ``longest``. The new rows are invalid and repeat the
    last observation; the new states are zeros."""
    num_rows = longest.shape[0] - rollout.shape[0]
    if not num_rows:
        return rollout

    def pad(x: Tensor, longer: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(len(longer) - len(x), *x.shape[1:])])

    columns = map_leaves(pad, rollout.columns, longest.columns)
    columns[Columns.OBS] = map_leaves(
        lambda x, last: torch.cat([x, last.expand(num_rows, *last.shape)]), rollout[Columns.OBS], rollout.last_obs
    )
    states = map_leaves(pad, rollout.state_in, longest.state_in)
    return dataclasses.replace(rollout, columns=columns, state_in=states)
