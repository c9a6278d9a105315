"""Level-based foraging (Papoudakis et al. 2021) as an env of several agents. It needs `pip install lbforaging`.

Agents walk on a grid and load food together, whose level is at most the sum of theirs. A reward is the agent's share of
all food of the episode, so the sum over agents is at most 1.
"""

from typing import Any

import gymnasium as gym

from rlmodule.agents import MultiAgentEnv
from rlmodule.agents.multi_agent_env import Step


class Foraging(MultiAgentEnv):
    """Gives each player of the env the name `player_0`, `player_1` …

    Args:
        env_id: The id with which `lbforaging` registers it.
    """

    def __init__(self, env_id: str) -> None:
        import lbforaging  # noqa: F401  # pyright: ignore[reportMissingImports]

        # its checker knows one reward per step only
        self._env: Any = gym.make(env_id, disable_env_checker=True).unwrapped
        players = self._env.observation_space
        self.possible_agents = [f"player_{i}" for i in range(len(players))]
        self.observation_spaces = dict(zip(self.possible_agents, players, strict=True))
        self.action_spaces = dict(zip(self.possible_agents, self._env.action_space, strict=True))
        self._max_steps = self._env._max_episode_steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        observations, _ = self._env.reset(seed=seed, options=options)
        return self._by_agent(observations), {}

    def step(self, actions: dict[Any, Any]) -> Step:
        chosen = [int(actions[agent]) for agent in self.possible_agents]
        observations, rewards, ended, _, _ = self._env.step(chosen)
        # it reports the end of its time as a termination
        out_of_time = self._env.current_step >= self._max_steps and bool(self._env.field.any())
        terminated, truncated = {"__all__": bool(ended) and not out_of_time}, {"__all__": out_of_time}
        return self._by_agent(observations), self._by_agent(map(float, rewards)), terminated, truncated, {}

    def _by_agent(self, values: Any) -> dict[Any, Any]:
        return dict(zip(self.possible_agents, values, strict=True))


def parallel_env(env_id: str = "Foraging-8x8-2p-2f-coop-v3") -> Foraging:
    """Return the env; called with `env_config`."""
    return Foraging(env_id)
