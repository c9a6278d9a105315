"""Envs that compute many envs at once without being a ``gymnasium.vector.VectorEnv``, as vector envs.

Each adapter is chosen by what an object has, so nothing is imported that the user does not have.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tree
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


def as_vector_env(env: Any) -> VectorEnv | None:
    """Return ``env`` as a vector env if it is one or a batch of envs, otherwise None.

    A batch of envs has ``num_envs`` and the spaces of one of them, ``single_observation_space`` and
    ``single_action_space``, as the simulators of Isaac Lab do; or it has the methods of rsl_rl's ``VecEnv``, of an env
    of EnvPool, or of an env of Brax.
    """
    has = {*dir(_unwrapped(env))}
    if {"send", "recv", "all_env_ids", "config"} <= has:
        return PoolEnvs(env)
    if isinstance(env, VectorEnv):
        return env
    if {"num_envs", "single_observation_space", "single_action_space"} <= has:
        return BatchedEnv(env)
    if isinstance(env, gym.Env):  # a single env, which may give its own sizes the names that Brax has
        return None
    if {"num_envs", "num_actions", "get_observations", "step"} <= has:
        return RslEnvs(env)
    return JaxEnvs(env) if {"observation_size", "action_size", "reset", "step"} <= has else None


class BatchedEnv(VectorEnv):
    """A batched ``gymnasium.Env`` as a vector env, with same-step autoreset.

    Each step takes and returns a row for each env, as the env's own tensors or arrays; flags may have any dtype. An env
    that truncates episodes returns their last observations in ``info["final_obs"]``, or marks that it has none; see
    :class:`rlmodule.sampling.env_runner.EnvRunner`.

    Args:
        env: The env.
    """

    def __init__(self, env: Any) -> None:
        batch = _unwrapped(env)
        self._adopt(env, batch.num_envs, batch.single_observation_space, batch.single_action_space)

    def _adopt(self, env: Any, num_envs: int, obs_space: gym.Space, action_space: gym.Space) -> None:
        self.env, self.num_envs = env, int(num_envs)
        self.simulator = _unwrapped(env)
        self.single_observation_space, self.single_action_space = obs_space, action_space
        self.observation_space = batch_space(obs_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.metadata = {**getattr(env, "metadata", {}), "autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        return obs, rewards, terminated != 0, truncated != 0, info

    def close_extras(self, **kwargs: Any) -> None:
        if "close" in dir(self.env):
            self.env.close()


class RslEnvs(BatchedEnv):
    """A ``VecEnv`` of rsl_rl as a vector env (rsl-rl-lib 5.5.1, ``rsl_rl/env/vec_env.py``).

    Its observation space is a dict of the groups of ``get_observations()``, a dict or TensorDict. Its actions are
    unbounded, and ``extras["time_outs"]`` marks the ended episodes that a time limit cut off. ``reset()`` and
    ``seed(seed)`` are called if the env has them.
    """

    def __init__(self, env: Any) -> None:
        groups = dict(env.get_observations())
        obs_space = gym.spaces.Dict({name: _unbounded(leaf.shape[1:]) for name, leaf in groups.items()})
        self._adopt(env, env.num_envs, obs_space, _unbounded((env.num_actions,)))

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        has = dir(self.env)
        if seed is not None and "seed" in has:
            self.env.seed(seed)
        if "reset" in has:
            self.env.reset()
        return dict(self.env.get_observations()), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, rewards, dones, extras = self.env.step(actions)
        if "time_outs" not in extras:
            raise ValueError(
                f"extras of {type(self.env).__name__}.step(): expected time_outs, got {[*extras]}. Say there which "
                "episodes a time limit ended, or all zeros if there is none."
            )
        late, ended = extras["time_outs"] != 0, dones != 0
        return dict(obs), rewards, ended & ~late, ended & late, dict(extras)


class PoolEnvs(BatchedEnv):
    """An env of EnvPool as a vector env (EnvPool 1.2.5, ``envpool/python/gymnasium_envpool.py``), with next-step
    autoreset. Its spaces are those of one env, and its seed is the one that it was made with."""

    def __init__(self, env: Any) -> None:
        self._adopt(env, env.config["num_envs"], env.observation_space, env.action_space)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        dtype = self.single_action_space.dtype  # EnvPool converts none
        return super().step(tree.map_structure(lambda x: np.asarray(x, dtype), actions))


class JaxEnvs(BatchedEnv):
    """A batched env of Brax as a vector env of tensors that share JAX's memory (Brax 0.14.2, ``brax/envs/base.py`` and
    ``brax/envs/wrappers/training.py``). Actions are from -1 to 1.

    Args:
        env: The env, made with ``auto_reset`` and ``batch_size``: ``brax.envs.create("ant", batch_size=4096)``.

    Raises:
        ValueError: If the env is not batched, or does not limit the time of episodes.
    """

    def __init__(self, env: Any) -> None:
        jax = import_module("jax")  # which an env of Brax has imported
        self._jax, self._key = jax, jax.random.PRNGKey(0)
        self._jitted_reset, self._jitted_step = jax.jit(env.reset), jax.jit(env.step)
        state = jax.eval_shape(env.reset, self._key)
        if state.reward.ndim != 1 or "truncation" not in state.info:
            raise ValueError(
                f"{type(env).__name__}: expected a batch of envs with a time limit, got rewards of shape "
                f"{state.reward.shape} and {[*state.info]} in info. Make it by brax.envs.create(name, batch_size=...)."
            )
        obs_space: Any = tree.map_structure(lambda leaf: _unbounded(leaf.shape[1:]), state.obs)
        if isinstance(obs_space, dict):
            obs_space = gym.spaces.Dict(obs_space)
        action_space = gym.spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)
        self._adopt(env, state.reward.shape[0], obs_space, action_space)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._key = self._jax.random.PRNGKey(seed)
        self._key, key = self._jax.random.split(self._key)
        self._state = self._jitted_reset(key)
        return tree.map_structure(torch.from_dlpack, self._state.obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._state = state = self._jitted_step(self._state, self._jax.dlpack.from_dlpack(actions.contiguous()))
        results = state.obs, state.reward, state.done, state.info["truncation"], state.metrics
        in_torch: Any = tree.map_structure(torch.from_dlpack, results)
        obs, rewards, dones, late, log = in_torch
        return obs, rewards, dones != late, late != 0, {"time_outs": late, "log": log}


def _unwrapped(env: Any) -> Any:
    return env.unwrapped if isinstance(env, gym.Env) else env


def _unbounded(shape: Any) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)
