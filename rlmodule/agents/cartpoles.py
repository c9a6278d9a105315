"""A multi-agent env of CartPoles, as a first task to try: ``.environment("rlmodule.agents.cartpoles")``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlmodule.agents.multi_agent_env import MultiAgentEnv


class CartPoles(MultiAgentEnv):
    """One CartPole for each agent. An agent whose pole has fallen does not act again until all agents have finished and
    the env is reset.

    Args:
        num_agents: Number of agents.
    """

    def __init__(self, num_agents: int = 4) -> None:
        self.envs = {f"cart_{i}": gym.make("CartPole-v1") for i in range(num_agents)}
        self.possible_agents = [*self.envs]
        self.observation_spaces = {agent: env.observation_space for agent, env in self.envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self.envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all CartPoles, and return observations and infos. The CartPole of agent ``i`` gets the seed ``seed +
        i``."""
        seeds = [None] * len(self.envs) if seed is None else range(seed, seed + len(self.envs))
        results = [env.reset(seed=env_seed) for env, env_seed in zip(self.envs.values(), seeds, strict=True)]
        return tuple(dict(zip(self.envs, part, strict=True)) for part in zip(*results, strict=True))

    def step(self, actions: dict[str, Any]) -> Any:
        """Step the CartPole of each agent that acts, and return the results by agent."""
        obs, reward, terminated, truncated, info = {}, {}, {}, {}, {}
        for agent, action in actions.items():
            obs[agent], reward[agent], terminated[agent], truncated[agent], info[agent] = self.envs[agent].step(action)
        return obs, reward, terminated, truncated, info


env = CartPoles
