"""VectorGuard: check the batched arrays of ready vector envs, whose sub-envs cannot be wrapped."""

from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from rlmodule.envs.checks import (
    Where,
    check_info,
    check_member,
    describe,
    is_due,
    to_array,
)


class VectorGuard:
    """Checks the batched arrays of a ready vector env, whose sub-envs cannot be wrapped.

    Args:
        vector_env: The vector env; observations must be members of its batched ``observation_space``.
        first_env_index: Index of the vector env's first env in the run.
    """

    def __init__(self, vector_env: gym.vector.VectorEnv, first_env_index: int = 0) -> None:
        self._space = vector_env.observation_space
        self._num_envs, self._first = vector_env.num_envs, first_env_index
        self._last_step: Any = None
        self._dtypes: tuple[Any, Any, Any] | None = None  # dtypes of the last checked rewards and flags
        self._steps = self._resets = 0

    def check_step(self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, info: Any) -> None:
        """Check the results of one vector step: `info` always, and the other results if a check is due or a dtype has
        changed. The leaves of `obs` are ``[N, ...]``, rewards and flags ``[N]``, all of NumPy or torch.

        Raises:
            TypeError, ValueError: If a value is wrong; names the step, the leaf and, for an observation outside the
                bounds, the env.
        """
        self._steps += 1
        self._last_step = obs, rewards, terminateds, truncateds
        check_info(f"vector env, step {self._steps}", info)
        try:
            dtypes = rewards.dtype, terminateds.dtype, truncateds.dtype
        except AttributeError:  # a list, say: the check below raises and names it
            dtypes = None
        if dtypes != self._dtypes or is_due(self._steps):
            self.check_last()
        self._dtypes = dtypes

    def check_last(self) -> None:
        """Check the results of the last vector step even if no check was due. Raise as `check_step` does."""
        if self._last_step is None:
            return
        obs, rewards, terminateds, truncateds = self._last_step
        check_member(self._space, obs, self._where(when := f"step {self._steps}"), steps=self._steps)
        flags = ("terminateds", terminateds, "b", "bools"), ("truncateds", truncateds, "b", "bools")
        for name, values, kinds, what in (("rewards", rewards, "biuf", "real numbers"), *flags):
            is_array = isinstance(values, np.ndarray | Tensor) and values.shape == (self._num_envs,)
            if not is_array or to_array(values).dtype.kind not in kinds:
                raise TypeError(
                    f"vector env, {when}, {name}: expected an array of {what} of shape ({self._num_envs},), "
                    f"got {describe(values)}. Correct what the vector env returns."
                )

    def check_reset(self, obs: Any, info: Any) -> None:
        """Check the results of a reset: `info` always, `obs` if a check is due. Raise as `check_step` does."""
        self._resets += 1
        check_info(f"vector env, reset after step {self._steps}", info)
        if is_due(self._resets):
            check_member(self._space, obs, self._where(f"reset after step {self._steps}"), steps=self._steps)

    def _where(self, when: str) -> Where:
        return lambda index: f"env {self._first + index[0]}, {when}" if index else f"vector env, {when}"
