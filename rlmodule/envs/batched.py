"""Envs that compute many envs at once without being a :class:`gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


def as_vector_env(env: gym.Env) -> VectorEnv | None:
    """Return ``env`` as a vector env if it is a batch of envs: if it has ``num_envs`` and the spaces of one of them,
    ``single_observation_space`` and ``single_action_space``, as simulators on GPUs do. Return None for a single env."""
    has = {*dir(env.unwrapped)}
    return BatchedEnv(env) if {"num_envs", "single_observation_space", "single_action_space"} <= has else None


class BatchedEnv(VectorEnv):
    """A batched ``gymnasium.Env`` as a vector env, with same-step autoreset.

    Each step takes and returns a row for each env, as the env's own tensors or arrays; flags may have any dtype. An env
    that truncates episodes returns their last observations in ``info["final_obs"]``.

    Args:
        env: The env.
    """

    def __init__(self, env: gym.Env) -> None:
        batch: Any = env.unwrapped  # its class declares none of these
        self.env, self.num_envs = env, int(batch.num_envs)
        self.single_observation_space = batch.single_observation_space
        self.single_action_space = batch.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        return obs, rewards, terminated != 0, truncated != 0, info

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()
