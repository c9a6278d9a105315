"""Actions with bounds: a Gaussian clipped to them, one that tanh squashes between them, and a Beta distribution.

Run it as ``python examples/catalog/bounded_actions.py``.
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from algorithms.ppo import PPOConfig


class Valve(gym.Env):
    """Open a valve as far as is asked for, from 0 to 10."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(0, 10, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.ask(), {}

    def step(self, action):
        reward = -abs(float(action[0]) - 10 * self.asked)
        self.steps += 1
        return self.ask(), reward, False, self.steps == 20, {}

    def ask(self):
        self.asked = self.np_random.random()
        return np.array([self.asked], np.float32)


for name in (None, "SquashedGaussian", "Beta"):
    config = (
        PPOConfig()
        .environment(Valve)
        .rl_module(model_config={"custom_action_dist": name})
        .training(train_batch_size_per_learner=1024)
        .debugging(seed=1)
    )
    with config.build() as algo:
        sampled = algo.learn(num_env_steps=40_000, progress=True)["env_runners"]["episode_return_mean"]
        greedy = algo.evaluate()["env_runners"]["episode_return_mean"]
        distribution = algo.get_module().action_dist_cls.__name__
    print(f"{distribution:17} return {sampled:6.1f} sampled, {greedy:6.1f} greedy")
