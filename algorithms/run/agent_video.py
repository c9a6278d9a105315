"""Adapters that give a multi-agent env and its policies the interface of a single-agent env and policy, for videos."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch

from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.multi_agent_env import AgentID, MultiAgentEnv
from rlmodule.agents.policy import MultiAgentPolicy


class TeamEnv(gym.Env[Any, Any]):
    """A Gymnasium env around a multi-agent env, in which a :class:`Team` plays.

    An observation is a tuple of three: the observations of the agents that act next, by agent; the reward of each agent
    since it last acted; and the list of agents that ended in the last step. An action is a dict of actions by agent.
    The reward is the sum over agents.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        self._env, self._rewards = AgentEnvGuard(env), dict[AgentID, float]()
        self.metadata, self.render_mode = dict(env.metadata), env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = self._env.reset(seed=seed)
        self._rewards = dict.fromkeys(self._env.possible_agents, 0.0)
        return self._seen(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._rewards |= dict.fromkeys(action, 0.0)
        obs, rewards, _, _, _ = self._env.step(action)
        for agent, reward in rewards.items():
            self._rewards[agent] += reward
        return self._seen(obs), sum(rewards.values()), self._env.is_over, False, {}

    def _seen(self, obs: Any) -> Any:
        return {agent: obs[agent] for agent in self._env.acting}, self._rewards, list(self._env.ended)

    def render(self) -> Any:
        return self._env.env.render()

    def close(self) -> None:
        self._env.close()


class Team:
    """Acts in a :class:`TeamEnv` for all agents, with the interface of a single policy."""

    def __init__(self, policies: MultiAgentPolicy) -> None:
        self._policies = policies

    def with_generator(self, generator: torch.Generator) -> Team:
        """Return a team with the same modules, which draws actions from ``generator``."""
        return Team(self._policies.with_generator(generator))

    def act(self, obs: Any, state: Any = None, *, reward: float | None = None, explore: bool = False) -> Any:
        """Return the actions by agent, and the state for the next call. ``obs`` is an observation of a
        :class:`TeamEnv`; ``reward`` is ignored, because ``obs`` holds the rewards of the agents."""
        seen, rewards, ended = obs
        state = {agent: memory for agent, memory in (state or {}).items() if agent not in ended}
        return self._policies.act(seen, state, rewards=rewards, explore=explore)
