"""A simulator as rsl_rl and Isaac Lab have it: batched tensors, time-outs without a final observation, a log.

Run it as ``python examples/simulator.py``. PPO trains on it, and then SAC."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from algorithms.ppo import PPOConfig
from algorithms.sac import SACConfig

NUM_ENVS, LENGTH = 32, 50


class Hover(gym.Env):
    """Many craft, each to be kept at height 0. The critic also sees the wind."""

    def __init__(self) -> None:
        self.num_envs = NUM_ENVS
        group = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)  # height, speed
        wind = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_observation_space = gym.spaces.Dict({"policy": group, "critic": wind})
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _observe(self) -> dict[str, torch.Tensor]:
        return {"policy": self.state[:, :2].clone(), "critic": self.state[:, 2:].clone()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            torch.manual_seed(seed)
        self.state = torch.randn(NUM_ENVS, 3) * 0.5
        self.age = torch.randint(LENGTH, (NUM_ENVS,))
        return self._observe(), {}

    def step(self, action: torch.Tensor) -> Any:  # [N, 1]
        height, speed, wind = self.state.unbind(1)
        speed = speed + 0.2 * (action[:, 0] + 0.5 * wind)
        moved = torch.stack([height + 0.2 * speed, speed, wind], 1)
        self.age = self.age + 1
        lost, late = moved[:, 0].abs() > 3, self.age >= LENGTH
        ended = lost | late
        self.state = torch.where(ended[:, None], torch.randn(NUM_ENVS, 3) * 0.5, moved)
        self.age = self.age.masked_fill(ended, 0)
        info = {"time_outs": late, "log": {"height": moved[:, 0].abs().mean()}}
        return self._observe(), 1 - moved[:, 0].abs(), lost, late, info


ppo = PPOConfig().environment(lambda config: Hover()).env_runners(num_envs_per_env_runner=NUM_ENVS)
ppo.training(train_batch_size_per_learner=32 * NUM_ENVS, minibatch_size=512)
ppo.rl_module(model_config={"critic_only_keys": ["critic"], "vf_share_layers": False})
sac = SACConfig().environment(lambda config: Hover()).env_runners(num_envs_per_env_runner=NUM_ENVS)
sac.training(num_steps_sampled_before_learning_starts=256).reporting(num_env_steps_per_iteration=128)
sac.rl_module(model_config={"fcnet_hiddens": [64, 64]})
for config, num_env_steps in ((ppo, 10_000), (sac, 320)):
    with config.debugging(seed=1).build() as algo:
        result = algo.learn(num_env_steps, progress=True)
        print(f"{result['env_runners']['episode_return_mean']:.1f}", result["custom_metrics"])
