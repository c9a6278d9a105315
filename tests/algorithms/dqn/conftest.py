"""Small configs that the tests of DQN share."""

from typing import Any

import gymnasium as gym
import numpy as np

from algorithms.dqn import DQNConfig

SPACES = (gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3))


def tiny(env: Any = "CartPole-v1", **values: Any) -> DQNConfig:
    """Settings of runs that take a moment."""
    quick = {
        "num_envs_per_env_runner": 2,
        "train_batch_size_per_learner": 16,
        "num_steps_sampled_before_learning_starts": 32,
        "num_env_steps_per_iteration": 64,
        "replay_capacity": 256,
        "target_network_update_freq": 20,
        "training_intensity": None,
        "n_step": 1,
        "seed": 3,
        "model_config": {"fcnet_hiddens": [16]},
    }
    return DQNConfig(**quick | values).environment(env)
