"""A simulator that computes with torch: observations, actions and rewards stay on its device, be it a GPU.

Run it as ``python examples/gpu_vector_env.py``. PPO finds out from the first reset that the env speaks tensors.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from algorithms.ppo import PPOConfig

NUM_ENVS, LENGTH = 256, 50


class Hover(gym.vector.VectorEnv):
    """Many craft, each to be kept at height 0: thrust up or down against a wind of its own."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, num_envs: int, device: str) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)  # height, speed, wind
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.generator = torch.Generator(self.device)

    def _fresh(self) -> torch.Tensor:
        return torch.randn(self.num_envs, 3, generator=self.generator, device=self.device) * 0.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state = self._fresh()
        self.age = torch.randint(LENGTH, (self.num_envs,), generator=self.generator, device=self.device)
        return self.state, {}

    def step(self, actions: torch.Tensor) -> Any:  # [N, 1], on the device
        height, speed, wind = self.state.unbind(1)
        speed = speed + 0.2 * (actions[:, 0] + 0.5 * wind)
        moved = torch.stack([height + 0.2 * speed, speed, wind], 1)
        self.age = self.age + 1
        lost, late = moved[:, 0].abs() > 3, self.age >= LENGTH
        ended = lost | late  # never `if ended.any()`: that would wait for the device
        self.state = torch.where(ended[:, None], self._fresh(), moved)
        self.age = self.age.masked_fill(ended, 0)
        return self.state, 1 - moved[:, 0].abs(), lost, late, {"final_obs": moved}


num_gpus, device = (1, "cuda") if torch.cuda.is_available() else (0, "cpu")
config = PPOConfig().environment(lambda config: Hover(NUM_ENVS, device)).env_runners(num_envs_per_env_runner=NUM_ENVS)
config.training(train_batch_size_per_learner=64 * NUM_ENVS, minibatch_size=2048).learners(num_gpus_per_learner=num_gpus)
with config.debugging(seed=1).build() as algo:
    algo.learn(num_env_steps=500_000, progress=True)
    print(f"return on {device}: {algo.train()['env_runners']['episode_return_mean']:.1f} of at most {LENGTH}")
