"""AgentMasksFromInfo: moves the action masks of agents from their infos into their observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from rlmodule.agents.multi_agent_env import AgentEnvWrapper, AgentID, Start, Step
from rlmodule.agents.pettingzoo import adapted
from rlmodule.envs.mask_wrapper import OBSERVATIONS


class AgentMasksFromInfo(AgentEnvWrapper):
    """Replaces each observation with ``{"observations": obs, "action_mask": infos[agent]["action_mask"]}``. If the
    observation is a dict, adds the mask to it as another field instead. Infos stay unchanged.

    Args:
        env: A `MultiAgentEnv`, or an env of PettingZoo, such as an OpenSpiel game from Shimmy. The actions of its
            agents must be Discrete, and an agent's info must have its mask whenever the agent observes.
        mask_key: Name of the mask in the infos and in the observations.

    Raises:
        ValueError: If an action space is not Discrete, an observation space already has a field `mask_key`, or, from
            ``reset`` and ``step``, if an info lacks the mask.
    """

    def __init__(self, env: Any, *, mask_key: str = "action_mask") -> None:
        self.env, self._key = adapted(env), mask_key
        self.possible_agents, self.action_spaces = self.env.possible_agents, self.env.action_spaces
        self.observation_spaces = {agent: self._masked_space(agent) for agent in self.possible_agents}
        self.metadata, self.render_mode = self.env.metadata, self.env.render_mode
        self.state_space = self.env.state_space

    def _masked_space(self, agent: AgentID) -> spaces.Dict:
        inner, actions = self.env.observation_spaces[agent], self.action_spaces[agent]
        if not isinstance(actions, spaces.Discrete):
            remedy = "Return the mask in the observations of the env."
            raise ValueError(f"action space of agent {agent!r}: expected a Discrete space, got {actions}. {remedy}")
        fields = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {OBSERVATIONS: inner}
        if self._key in fields:
            remedy = "Leave the wrapper out if it is the mask; else set mask_key."
            raise ValueError(
                f"observation space of agent {agent!r}: expected no field {self._key!r}, got one. {remedy}"
            )
        return spaces.Dict([*fields.items(), (self._key, spaces.MultiBinary(int(actions.n)))])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        obs, infos = self.env.reset(seed=seed, options=options)
        self.possible_agents = self.env.possible_agents
        return self._masked(obs, infos), infos

    def step(self, actions: dict[Any, Any]) -> Step:
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        return self._masked(obs, infos), rewards, terminateds, truncateds, infos

    def _masked(self, obs: Mapping[Any, Any], infos: Mapping[Any, Mapping[str, Any]]) -> dict[Any, Any]:
        masked = {}
        for agent, value in obs.items():
            info = infos.get(agent, {})
            if self._key not in info:
                got = f"the fields {[*info]}. Have the env return it whenever the agent observes, also when it ends."
                raise ValueError(f"info of agent {agent!r}: expected a field {self._key!r}, got {got}")
            own = value if isinstance(self.env.observation_spaces[agent], spaces.Dict) else {OBSERVATIONS: value}
            masked[agent] = {**own, self._key: info[self._key]}
        return masked
