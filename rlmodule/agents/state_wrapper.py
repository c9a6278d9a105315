"""WithState: adds the state of the whole env to the observations of its agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rlmodule.agents.multi_agent_env import AgentFieldWrapper
from rlmodule.agents.pettingzoo import adapted

OBS = "obs"


class WithState(AgentFieldWrapper):
    """Adds ``env.state()`` to each observation, for a critic that sees more than the agents do. Set
    ``model_config={"critic_only_keys": ["state"]}``, so that only the critic reads the state. A dict observation gets
    the state as an additional field. Any other observation becomes ``{"obs": obs, "state": state}``.

    Source: Lowe et al. 2017, Multi-agent actor-critic for mixed cooperative-competitive environments.

    Args:
        env: A `MultiAgentEnv` with ``state()``, or an env of PettingZoo.
        key: Name of the field for the state.
        state_space: Space of the state, a Box; None uses ``env.state_space``.

    Raises:
        ValueError: If the state space is not a Box, or an observation space already has a field `key`.
    """

    def __init__(self, env: Any, *, key: str = "state", state_space: Space[Any] | None = None) -> None:
        super().__init__(adapted(env), key, OBS)
        self.state_space = found = self.state_space if state_space is None else state_space
        if not isinstance(found, spaces.Box):
            remedy = "Set state_space to the space of what state() returns, in the env or here."
            raise ValueError(f"{type(env).__name__}.state_space: expected a Box, got {found}. {remedy}")
        self._dtype = found.dtype
        self.observation_spaces = {agent: self._space_with(agent, found, "Set key.") for agent in self.possible_agents}

    def set_episode_state(self, state: Any) -> dict[Any, Any]:
        return self._added(super().set_episode_state(state), {})

    def _added(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        state = np.asarray(self.env.state(), self._dtype)
        return {agent: self._with(agent, value, state) for agent, value in obs.items()}
