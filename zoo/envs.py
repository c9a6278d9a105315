"""Environments of the zoo that Gymnasium does not register: factories, for ``rlmodule train ppo zoo.envs:taxi``."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlmodule import ActionMaskFromInfo

_POSITIONS = [0, 2]  # of the cart and of the pole, in an observation of CartPole


def cart_positions(env_config: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make CartPole-v1 without its velocities, for nets with a memory."""
    env = gym.make("CartPole-v1", **env_config)
    limits: Any = env.observation_space
    space = gym.spaces.Box(limits.low[_POSITIONS], limits.high[_POSITIONS], dtype=np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[_POSITIONS], space)


def taxi(env_config: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make Taxi-v4 with a mask of the moves that change something."""
    return ActionMaskFromInfo(gym.make("Taxi-v4", **env_config))
