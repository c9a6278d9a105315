"""Small configs that the tests of SAC share."""

from typing import Any

import gymnasium as gym
import numpy as np

from algorithms.sac import SACConfig

OBS = gym.spaces.Box(-1, 1, (4,), np.float32)
BOX = gym.spaces.Box(-2, 2, (2,), np.float32)
ARM = gym.spaces.Dict(
    bend=gym.spaces.Box(-2, 2, (1, 2), np.float32), grip=gym.spaces.Tuple([gym.spaces.Discrete(3, start=1)])
)


def tiny(env: Any = "Pendulum-v1", **values: Any) -> SACConfig:
    """Settings of runs that take a moment."""
    quick = {
        "num_envs_per_env_runner": 2,
        "train_batch_size_per_learner": 16,
        "num_steps_sampled_before_learning_starts": 32,
        "num_env_steps_per_iteration": 64,
        "replay_capacity": 256,
        "training_intensity": None,
        "seed": 3,
        "model_config": {"fcnet_hiddens": [16]},
    }
    return SACConfig(**quick | values).environment(env)
