"""WithState: adds the state of the whole env to the observations of its agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rlmodule.agents.multi_agent_env import AgentEnvWrapper, AgentID, Start, Step
from rlmodule.agents.pettingzoo import adapted

OBS = "obs"


class WithState(AgentEnvWrapper):
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
        self.env, self._key = adapted(env), key
        self.state_space = found = self.env.state_space if state_space is None else state_space
        if not isinstance(found, spaces.Box):
            remedy = "Set state_space to the space of what state() returns, in the env or here."
            raise ValueError(f"{type(env).__name__}.state_space: expected a Box, got {found}. {remedy}")
        self._dtype = found.dtype
        self.possible_agents, self.action_spaces = self.env.possible_agents, self.env.action_spaces
        self.observation_spaces = {agent: self._with_state(agent, found) for agent in self.possible_agents}
        self.metadata, self.render_mode = self.env.metadata, self.env.render_mode

    def _with_state(self, agent: AgentID, state_space: spaces.Box) -> spaces.Dict:
        inner = self.env.observation_spaces[agent]
        fields = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {OBS: inner}
        if self._key in fields:
            got = f"expected no field {self._key!r}, got one. Set key."
            raise ValueError(f"observation space of agent {agent!r}: {got}")
        return spaces.Dict([*fields.items(), (self._key, state_space)])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        obs, infos = self.env.reset(seed=seed, options=options)
        self.possible_agents = self.env.possible_agents
        return self._added(obs), infos

    def step(self, actions: dict[Any, Any]) -> Step:
        obs, *rest = self.env.step(actions)
        return self._added(obs), *rest

    def _added(self, obs: Mapping[Any, Any]) -> dict[Any, Any]:
        state = {self._key: np.asarray(self.env.state(), self._dtype)}
        is_dict = {agent: isinstance(self.env.observation_spaces[agent], spaces.Dict) for agent in obs}
        return {agent: {**(value if is_dict[agent] else {OBS: value}), **state} for agent, value in obs.items()}
