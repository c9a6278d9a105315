"""VectorGuard: check the batched arrays of ready vector envs, whose sub-envs cannot be wrapped, and keep what they
log."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tree
from torch import Tensor

from rlmodule.envs.batched import BatchedEnv
from rlmodule.envs.checks import (
    Where,
    check_info,
    check_member,
    describe,
    is_due,
    to_array,
)

# A check of tensors waits for their device. So they are checked in the first two fragments alone, or in this number of
# steps if fragments are short.
_CHECKED_STEPS = 48


class VectorGuard:
    """Checks the batched arrays of a ready vector env, whose sub-envs cannot be wrapped.

    Args:
        vector_env: The vector env; observations must be members of its batched ``observation_space``.
        first_env_index: Index of the vector env's first env in the run.

    Attributes:
        lacks_finals: Whether the env says that it returns no true final observations, with ``info["time_outs"]`` or
            ``metadata["final_obs"] = False``, and has returned none.
    """

    def __init__(self, vector_env: gym.vector.VectorEnv, first_env_index: int = 0) -> None:
        self._space = vector_env.observation_space
        self._num_envs, self._first = vector_env.num_envs, first_env_index
        self._last_step: Any = None
        self._dtypes: Any = None  # of the last rewards and flags
        self._steps = self._resets = self._fragments = 0
        env = vector_env.unwrapped
        self._env: Any = env.simulator if isinstance(env, BatchedEnv) else env
        self.lacks_finals = vector_env.metadata.get("final_obs") is False
        self._has_finals = False
        self._log: dict[str, list[Tensor]] = {}
        self._ages: np.ndarray | None = None  # of the open episodes, if the env shows them

    def check_step(self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, info: Any) -> None:
        """Check the results of one vector step: `info` always, and the other results if a check is due or a dtype has
        changed. No check of tensors is due after two fragments. The leaves of `obs` are ``[N, ...]``, rewards and flags
        ``[N]``, all of NumPy or torch.

        Raises:
            TypeError, ValueError: If a value is wrong; names the step, the leaf and, for an observation outside the
                bounds, the env.
        """
        self._steps += 1
        self._last_step = obs, rewards, terminateds, truncateds
        check_info(f"vector env, step {self._steps}", info)
        is_new = self._fragments < 2 or self._steps <= _CHECKED_STEPS
        try:
            dtypes = rewards.dtype, terminateds.dtype, truncateds.dtype
        except AttributeError:  # a list, say: the check below raises and names it
            dtypes = None
        if dtypes != self._dtypes or (is_due(self._steps) and (is_new or not isinstance(rewards, Tensor))):
            self.check_last()
        self._dtypes = dtypes
        self._has_finals |= "final_obs" in info
        self.lacks_finals = not self._has_finals and (self.lacks_finals or "time_outs" in info)
        if isinstance(log := info.get("log"), Mapping):
            self._note_log(log)
        if is_new:
            self._check_resets(obs, to_array(terminateds != 0) | to_array(truncateds != 0), info)

    def _note_log(self, log: Mapping[str, Any]) -> None:
        """Keep the mean of each number, or array of numbers, in ``log``. Leave out other values, and the masks that
        Gymnasium adds, whose names begin with an underscore."""
        for name, value in log.items():
            is_number = isinstance(value, int | float | Tensor) or (
                isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
            )
            if is_number and not name.startswith("_"):
                self._log.setdefault(name, []).append(torch.as_tensor(value).detach().float().mean())

    def _check_resets(self, obs: Any, ended: np.ndarray, info: Any) -> None:
        """Raise ValueError if an env was reset without a flag, or if its final observations are those after its
        resets."""
        where = f"vector env, step {self._steps}"
        finals = info.get("final_obs")
        if np.count_nonzero(ended) > 1 and finals is not None and tree.is_nested(finals) == tree.is_nested(obs):
            after = [to_array(leaf)[ended] for leaf in tree.flatten(obs)]
            last = [to_array(leaf) for leaf in tree.flatten(finals)]
            differ = any((leaf != leaf[:1]).any() for leaf in after)  # a constant says nothing
            same = all(x.dtype != object and np.array_equal(x[ended], y) for x, y in zip(last, after, strict=True))
            if differ and same:
                raise ValueError(
                    f"{where}, info['final_obs']: expected the last observations of the ended episodes, got the first "
                    "ones of the next. Copy the observations before the reset, or set metadata['final_obs'] = False."
                )
        if "episode_length_buf" not in dir(self._env):
            return
        ages = to_array(self._env.episode_length_buf).copy()
        if self._ages is not None and (silent := np.flatnonzero((ages < self._ages) & ~ended)).size:
            raise ValueError(
                f"env {self._first + silent[0]}, step {self._steps}: expected a flag where an episode ends, got a "
                "reset without one (episode_length_buf fell). Set terminated or truncated there."
            )
        self._ages = ages

    def end_fragment(self) -> dict[str, float]:
        """Return the mean of each number in ``info["log"]`` since the last call. A GPU is waited for once."""
        self._fragments += 1
        log, self._log = self._log, {}
        if not log:
            return {}
        means = [torch.stack(values).mean() for values in log.values()]
        device = max((mean.device for mean in means), key=lambda device: device.type != "cpu")
        return dict(zip(log, torch.stack([mean.to(device) for mean in means]).tolist(), strict=True))

    def check_last(self) -> None:
        """Check the results of the last vector step even if no check was due. Raise as `check_step` does."""
        if self._last_step is None:
            return
        obs, *outcome = self._last_step
        check_member(self._space, obs, self._where(when := f"step {self._steps}"), steps=self._steps)
        for name, values in zip(("rewards", "terminateds", "truncateds"), outcome, strict=True):
            is_array = isinstance(values, np.ndarray | Tensor) and values.shape == (self._num_envs,)
            if isinstance(values, Tensor) and values.dtype is torch.bfloat16:
                values = values.float()  # NumPy lacks the type
            is_right = is_array and to_array(values).dtype.kind in "biuf"
            what = "real numbers" if name == "rewards" else "0s and 1s"
            if not is_right or (name != "rewards" and not np.isin(to_array(values), (0, 1)).all()):
                raise TypeError(
                    f"vector env, {when}, {name}: expected an array of {what} of shape ({self._num_envs},), "
                    f"got {describe(values)}. Correct what the vector env returns."
                )

    def check_reset(self, obs: Any, info: Any) -> None:
        """Check the results of a reset: `info` always, `obs` if a check is due. Raise as `check_step` does."""
        self._resets += 1
        self._ages = None
        on, off = getattr(self._env, "device", None), [x.device for x in tree.flatten(obs) if isinstance(x, Tensor)]
        if on is not None and off and torch.device(on).type != off[0].type:
            raise ValueError(
                f"vector env, reset after step {self._steps}, obs: expected tensors on {on}, the env's device, got "
                f"some on {off[0]}. Return them where the env computes; a copy would wait for it in each step."
            )
        check_info(f"vector env, reset after step {self._steps}", info)
        if is_due(self._resets):
            check_member(self._space, obs, self._where(f"reset after step {self._steps}"), steps=self._steps)

    def _where(self, when: str) -> Where:
        return lambda index: f"env {self._first + index[0]}, {when}" if index else f"vector env, {when}"
