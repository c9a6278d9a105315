"""An observation of an image and a vector: each part gets its own encoder and settings, and a dense layer joins them.

Run it as ``python examples/catalog/image_and_vector.py``.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from algorithms.ppo import PPOConfig


class Pointer(gym.Env):
    """Does the bright spot on the noisy image lie left (0) or right (1) of where the vector points?"""

    observation_space = Dict(camera=Box(0, 255, (42, 42, 3), np.uint8), pointer=Box(-1, 1, (2,)))
    action_space = Discrete(2)

    def reset(self, **options: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(**options)
        camera = self.np_random.integers(0, 150, (42, 42, 3), np.uint8)
        row, column = self.np_random.integers(36, size=2)
        camera[row : row + 6, column : column + 6] = 255
        pointer = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.right_action = int(column / 18 - 1 > pointer[0])
        self.observation = {"camera": camera, "pointer": pointer}
        return self.observation, {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        return self.observation, float(action == self.right_action), True, False, {}


model_config = {
    "leaf_overrides": {
        "camera": {"conv_filters": [[16, 8, 4], [32, 4, 2]], "conv_dense_dim": 64},
        "pointer": {"fcnet_hiddens": [16], "fcnet_activation": "relu"},
    },
    "fusionnet_hiddens": [64],  # over both latents, side by side
    "vf_share_layers": True,
    # "flatten_observations": True in place of all this: one MLP over all 5,294 numbers
}
config = PPOConfig().environment(Pointer).rl_module(model_config=model_config).debugging(seed=1)
config.training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=4, lr=1e-3)

with config.build() as algo:
    print(algo.explain())
    algo.learn(num_env_steps=20_000, target_return=0.9, progress=True)
    print(f"share of right decisions: {algo.evaluate()['env_runners']['episode_return_mean']:.2f}")
