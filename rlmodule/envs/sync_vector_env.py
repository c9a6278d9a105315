"""SyncEnvs: a vector env that steps single envs one after another in this process."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from catalog.base import Tree
from rlmodule.data.rollout import entry_of
from rlmodule.envs.infos import own_value


class SyncEnvs(SyncVectorEnv):
    """Steps single envs one after another, like Gymnasium's SyncVectorEnv with same-step autoreset, but with less
    overhead.

    The ``info`` of ``reset`` is empty. That of ``step`` has only the entries that a runner reads: ``final_obs`` and
    ``final_info``. Both are object arrays ``[N]`` with the values that envs returned at the end of an episode, and None
    for envs whose episode continues. The infos of different envs may have different keys. Each step overwrites the
    observations of the step before. Envs may share the array that they return.

    Args:
        env_fns: Functions that make one env each.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)

    # made late: until then, the catalog has refused spaces that are no arrays
    @functools.cached_property
    def _rows(self) -> list[Tree]:
        """Views of the observation of each env."""
        return [entry_of(self._observations, (i, ...)) for i in range(self.num_envs)]

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset every env: with its own of several seeds, or env ``i`` with the seed ``seed + i``."""
        if not isinstance(seed, Sequence):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        for i, env in enumerate(self.envs):
            obs, _ = env.reset(seed=seed[i], options=options)
            _write(self._rows[i], obs)
        return self._observations, {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every env with its action, reset those whose episode ends, and return arrays as the class documents."""
        num, finals = self.num_envs, {}
        rewards, terminateds, truncateds = np.empty(num), np.zeros(num, dtype=bool), np.zeros(num, dtype=bool)
        by_env = actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)
        for i, (env, action) in enumerate(zip(self.envs, by_env, strict=True)):
            obs, rewards[i], terminated, truncated, info = env.step(action)
            if terminated or truncated:
                terminateds[i], truncateds[i] = terminated, truncated
                if not finals:
                    finals = {"final_obs": np.empty(num, dtype=object), "final_info": np.empty(num, dtype=object)}
                finals["final_obs"][i], finals["final_info"][i] = obs, info and own_value(info)  # reset() may change it
                obs, _ = env.reset()
            _write(self._rows[i], obs)
        return self._observations, rewards, terminateds, truncateds, finals


def _write(row: Tree, obs: Any) -> None:
    """Copy ``obs`` into the arrays ``row``. Raise ValueError or TypeError where a shape or kind of numbers differs."""
    if isinstance(row, np.ndarray):
        if np.shape(obs) != row.shape:
            raise ValueError(f"obs: expected shape {row.shape}, got {np.shape(obs)}")
        np.copyto(row, obs)
        return
    for key in row if isinstance(row, dict) else range(len(row)):
        _write(row[key], obs[key])
