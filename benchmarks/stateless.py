"""CartPole without its velocities, for nets with a memory: `benchmarks.stateless:StatelessCartPole-v0`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

POSITIONS = [0, 2]
"""Of the cart and of the pole, in an observation."""


class StatelessCartPole(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Shows the positions of the cart and of the pole alone."""

    def __init__(self) -> None:
        env = CartPoleEnv()
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = gym.spaces.Box(space.low[POSITIONS], space.high[POSITIONS], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[POSITIONS]


gym.register("StatelessCartPole-v0", "benchmarks.stateless:StatelessCartPole", max_episode_steps=500)
