"""SyncEnvs: single envs, stepped one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from rlmodule.infos import own_info


class SyncEnvs(SyncVectorEnv):
    """Gymnasium's own, which begins the next episode in the step that ends one, with less beside the envs' steps.

    Of ``info`` there is what a runner reads: ``final_obs`` and ``final_info`` of episodes that end, arrays ``[N]`` of
    what each env returned, and None for the others; infos of envs need not have anything in common. Observations are
    memory that the next step writes anew.

    Args:
        env_fns: Make one env each.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        space, batch = self.single_observation_space, self._observations
        self._rows: np.ndarray | None = None
        if isinstance(space, spaces.Box) and space.shape and isinstance(batch, np.ndarray):
            self._rows = batch.reshape(-1, *space.shape[1:])  # as if all were one observation

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every env with its part of ``actions``: observations, rewards, terminateds, truncateds, ``info``."""
        all_obs: list[Any] = self._env_obs
        num, finals = self.num_envs, dict[str, Any]()
        rewards, terminateds, truncateds = np.empty(num), np.zeros(num, dtype=bool), np.zeros(num, dtype=bool)
        each = actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)
        for i, (env, action) in enumerate(zip(self.envs, each, strict=True)):
            obs, rewards[i], terminated, truncated, info = env.step(action)
            if terminated or truncated:
                terminateds[i], truncateds[i] = terminated, truncated
                if not finals:
                    finals = {"final_obs": np.empty(num, dtype=object), "final_info": np.empty(num, dtype=object)}
                finals["final_obs"][i], finals["final_info"][i] = obs, own_info(info)
                obs, _ = env.reset()
            all_obs[i] = obs
        if self._rows is None:
            self._observations = concatenate(self.single_observation_space, all_obs, self._observations)
        else:
            np.concatenate(all_obs, out=self._rows)
        return self._observations, rewards, terminateds, truncateds, finals
