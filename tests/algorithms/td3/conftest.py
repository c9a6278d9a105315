"""Small configs that the tests of TD3 share."""

from typing import Any

import gymnasium as gym
import numpy as np

from algorithms.td3 import TD3Config

SPACES = (gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Box(-2, 3, (2,), np.float32))
QUICK: dict[str, Any] = {
    "num_envs_per_env_runner": 2,
    "train_batch_size_per_learner": 16,
    "num_steps_sampled_before_learning_starts": 32,
    "num_env_steps_per_iteration": 64,
    "replay_capacity": 256,
    "training_intensity": None,
    "seed": 3,
    "model_config": {"fcnet_hiddens": [16]},
}


def tiny(env: Any = "Pendulum-v1", **values: Any) -> TD3Config:
    """Settings of runs that take a moment."""
    return TD3Config(**QUICK | values).environment(env)
