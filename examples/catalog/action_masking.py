"""Actions that are not always allowed: the env says which are, in its observation, and no other is ever sampled.

Run it as ``python examples/catalog/action_masking.py``.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from algorithms.ppo import PPOConfig

NUM_JOBS = 8


class Jobs(gym.Env):
    """Do every job once. Each waits for those before it, so the shortest should come first."""

    observation_space = Dict(hours=Box(0, 1, (NUM_JOBS,)), action_mask=MultiBinary(NUM_JOBS))
    action_space = Discrete(NUM_JOBS)
    num_actions = 0

    def reset(self, **options: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(**options)
        self.hours = self.np_random.random(NUM_JOBS, np.float32)
        self.open = np.ones(NUM_JOBS, np.int8)
        return self.observation, {}

    @property
    def observation(self) -> dict[str, np.ndarray]:
        return {"hours": self.hours * self.open, "action_mask": self.open.copy()}

    def step(self, job: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        if not self.open[job]:
            raise ValueError(f"job {job} has been done")
        Jobs.num_actions += 1
        self.open[job] = 0
        waiting = self.hours[job] * self.open.sum()
        return self.observation, -float(waiting), not self.open.any(), False, {}


config = PPOConfig().environment(Jobs).evaluation(evaluation_duration=500).training(lr=1e-3).debugging(seed=1)
with config.build() as algo:
    print(algo.explain())
    algo.learn(num_env_steps=50_000, progress=True)
    hours = -algo.evaluate()["env_runners"]["episode_return_mean"]
print(f"{Jobs.num_actions:,} jobs given to the env, which raises on one that is done: none was")
print(f"hours of waiting: {hours:.2f}; on average 14 in random order, 9.33 with the shortest first")
