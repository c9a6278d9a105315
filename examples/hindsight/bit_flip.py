"""The bit-flip env of the paper on hindsight (Andrychowicz et al. 2017): reach a row of bits by flipping one at a time.

Every step but the last costs 1. Among 32,768 rows of 15 bits, random actions hardly ever meet the goal, so no
reward shows where it is.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class BitFlip(gym.Env[dict[str, np.ndarray], int]):
    """Flip one of ``num_bits`` bits in each step, until they equal the goal or as many steps are over."""

    def __init__(self, num_bits: int = 15) -> None:
        bits = spaces.MultiBinary(num_bits)
        self.num_bits = num_bits
        self.observation_space = spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)
        self.action_space = spaces.Discrete(num_bits)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.num_bits), np.int8)
        self.bits[0] ^= np.array_equal(self.bits, self.goal)  # never begin at the goal
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self.bits[action] ^= 1
        self.num_steps += 1
        reached = bool(self.compute_terminated(self.bits, self.goal, {}))
        return self._observation(), float(reached) - 1.0, reached, self.num_steps == self.num_bits, {}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Return the rewards for goals ``[..., num_bits]``."""
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Return whether a step that achieved such goals ends the episode."""
        return (achieved_goal == desired_goal).all(-1)

    def _observation(self) -> dict[str, np.ndarray]:
        return {"observation": self.bits.copy(), "achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}
