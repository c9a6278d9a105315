"""AsyncEnvs: a vector env that steps single envs, each in a separate process."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rlmodule.envs.infos import own_value


class AsyncEnvs(AsyncVectorEnv):
    """Steps single envs, each in a separate process, like Gymnasium's AsyncVectorEnv with same-step autoreset, but does
    not merge their infos.

    ``info`` has the same entries as that of :class:`SyncEnvs`: ``final_obs`` and ``final_info``, object arrays ``[N]``
    with the values that envs returned at the end of an episode, and None for envs whose episode continues. No info
    that an env returns, under any key, can replace them. Each step overwrites the observations of the step before.

    Args:
        env_fns: Functions that make one env each.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        makers = [lambda env_fn=env_fn: _LastInfo(env_fn()) for env_fn in env_fns]
        super().__init__(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        # Gymnasium would merge the infos into arrays of the dtype and shape of the first env's. Thanks to `_LastInfo`,
        # `env_info` has only the entries of autoreset, final_obs and final_info.
        for name, value in env_info.items():
            by_env = vector_infos.setdefault(name, np.empty(self.num_envs, dtype=object))
            by_env[env_num] = value
        return vector_infos


class _LastInfo(gym.Wrapper):
    """Returns the ``info`` of the last step of each episode, and an empty dict from all other calls.

    A runner reads no other infos, so they need not be sent to its process. Also, Gymnasium adds ``final_obs`` and
    ``final_info`` to the ``info`` of a reset, whose own entries would replace them.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        # a copy, since the reset comes before the info is sent, and may write into it
        last_info = own_value(info) if terminated or truncated else {}
        return obs, reward, terminated, truncated, last_info

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, _ = self.env.reset(**kwargs)
        return obs, {}
