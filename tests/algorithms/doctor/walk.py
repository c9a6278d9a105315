"""A healthy env of one agent and one of two, from which the planted faults derive."""

from typing import Any

import gymnasium as gym
import numpy as np

from rlmodule.agents.multi_agent_env import MultiAgentEnv

LENGTH = 50


class Walk(gym.Env):
    """Walk left or right to a goal that each episode draws, within 50 steps."""

    def __init__(self) -> None:
        self.observation_space: gym.Space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(3)
        self.position, self.goal, self.age = 0.0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.age = 0.0, 0
        self.goal = float(self.np_random.uniform(-1, 1))
        return self.observed(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.age += 1
        self.position = float(np.clip(self.position + self.moved(action), -1, 1))
        return self.observed(), self.reward(), False, self.age == LENGTH, {}

    def moved(self, action: Any) -> float:
        return (float(action) - 1) / 10

    def reward(self) -> Any:
        return -abs(self.position - self.goal)

    def observed(self) -> Any:
        return np.array([self.position, self.goal], np.float32)


class PushedWalk(Walk):
    """The same with a force in [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def moved(self, action: Any) -> float:
        return float(action[0]) / 10


class MaskedWalk(Walk):
    """The same with a mask that forbids to leave the track."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Dict(
            walk=gym.spaces.Box(-1, 1, (2,), np.float32), action_mask=gym.spaces.MultiBinary(3)
        )

    def observed(self) -> Any:
        return {"walk": super().observed(), "action_mask": self.allowed()}

    def allowed(self) -> Any:
        return np.array([self.position > -1, True, self.position < 1], np.int8)


class Walks(MultiAgentEnv):
    """Two agents walk to goals of their own."""

    def __init__(self, names: tuple[str, ...] = ("left", "right")) -> None:
        self.walks = {name: Walk() for name in names}
        self.possible_agents = [*names]
        self.observation_spaces = {name: walk.observation_space for name, walk in self.walks.items()}
        self.action_spaces = {name: walk.action_space for name, walk in self.walks.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seeds = [None if seed is None else seed + number for number in range(len(self.walks))]
        pairs = zip(self.walks.items(), seeds, strict=True)
        return {name: walk.reset(seed=own)[0] for (name, walk), own in pairs}, {}

    def step(self, actions: dict[Any, Any]) -> Any:
        results = {name: self.walks[name].step(action) for name, action in actions.items()}
        return tuple({name: result[part] for name, result in results.items()} for part in range(5))
