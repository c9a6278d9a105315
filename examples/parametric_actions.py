"""Actions that mean something else at each step: the observation has a vector for each, which the net chooses by.

Run it as ``python examples/parametric_actions.py``.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig

MOST, FEATURES, VISITS = 20, 4, 10


class Shop(gym.Env):
    """Recommend one of the items in stock to a customer, ten times. The stock is another one at each visit."""

    observation_space = Dict(
        taste=Box(-1, 1, (FEATURES,)), avail_actions=Box(-1, 1, (MOST, FEATURES)), action_mask=MultiBinary(MOST)
    )
    action_space = Discrete(MOST)

    def reset(self, **options: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(**options)
        self.visits = 0
        return self.observe(), {}

    def observe(self) -> dict[str, np.ndarray]:
        self.taste = self.np_random.uniform(-1, 1, FEATURES).astype(np.float32)
        self.items = self.np_random.uniform(-1, 1, (MOST, FEATURES)).astype(np.float32)
        self.stock = np.arange(MOST) < self.np_random.integers(1, MOST + 1)
        self.items[~self.stock] = 0
        return {"taste": self.taste, "avail_actions": self.items, "action_mask": self.stock.astype(np.int8)}

    def step(self, item: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        assert self.stock[item]  # the mask sees to it
        liking = self.items @ self.taste
        info = {"best": liking[self.stock].max()}
        self.visits += 1
        return self.observe(), float(liking[item]), self.visits == VISITS, False, info


shop = Shop()
shop.reset(seed=0)
best = [shop.step(int(shop.stock.argmax()))[-1]["best"] for _ in range(10_000)]
print(f"return of the best items: {VISITS * np.mean(best):.2f}, of random ones: 0")

runs = {
    "PPO by the vectors": PPOConfig(),
    "DQN by the vectors": DQNConfig(gamma=0.0, n_step=1, dueling=True),
    "PPO that reads them all": PPOConfig(model_config={"action_embeddings_key": None}),
}
for name, config in runs.items():
    with config.environment(Shop).evaluation(evaluation_duration=300).debugging(seed=1).build() as algo:
        algo.learn(num_env_steps=20_000)
        print(f"{name}: {algo.evaluate()['env_runners']['episode_return_mean']:.2f}")
