"""SyncEnvs: a vector env that steps single envs one after another in this process."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from rlmodule.envs.checks import is_due, to_array
from rlmodule.envs.infos import own_value


class SyncEnvs(SyncVectorEnv):
    """Steps single envs one after another, like Gymnasium's SyncVectorEnv with same-step autoreset, but with less
    overhead.

    The ``info`` of ``reset`` is empty. That of ``step`` has only the entries that a runner reads: ``final_obs`` and
    ``final_info``. Both are object arrays ``[N]`` with the values that envs returned at the end of an episode, and None
    for envs whose episode continues. The infos of different envs may have different keys. Each step overwrites the
    observations of the step before.

    Args:
        env_fns: Functions that make one env each.

    Raises:
        ValueError: From ``step``, if an env wrote into the observation of another env. Checked in the first 100 steps,
            and then in every 100th step.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        space, batch = self.single_observation_space, self._observations
        self._rows: np.ndarray | None = None
        if isinstance(space, spaces.Box) and space.shape and isinstance(batch, np.ndarray):
            # all observations along one axis: np.concatenate fills it in a single call
            self._rows = batch.reshape(-1, *space.shape[1:])
        self._steps = 0

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every env with its action, reset those whose episode ends, and return arrays as the class documents."""
        self._steps += 1
        all_obs: list[Any] = self._env_obs
        copies: list[Any] | None = [] if is_due(self._steps) else None
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
            all_obs[i] = obs
            if copies is not None:
                copies.append(copy.deepcopy(obs))
        if copies is not None:
            self._check_unchanged(copies)
        if self._rows is None:
            self._observations = concatenate(self.single_observation_space, all_obs, self._observations)
        else:
            np.concatenate(all_obs, out=self._rows)
        return self._observations, rewards, terminateds, truncateds, finals

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        # Gymnasium's reset() would merge the infos, which is impossible if their shapes differ; no runner reads them
        return vector_infos

    def _check_unchanged(self, copies: Sequence[Any]) -> None:
        """Raise ValueError unless each observation still equals its copy, which was made when its env returned it."""
        for env, returned, now in zip(self.envs, copies, self._env_obs, strict=True):
            leaves = zip(tree.flatten(returned), tree.flatten(now), strict=True)
            if any(to_array(before).tobytes() != to_array(after).tobytes() for before, after in leaves):
                raise ValueError(
                    f"env {env.get_wrapper_attr('env_index')}, step {self._steps}, obs: expected "
                    "memory that only this env uses, got an array that another env wrote into. Create the "
                    "array in the env's __init__, or return a copy of it."
                )
