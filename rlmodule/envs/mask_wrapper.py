"""ActionMaskFromInfo: moves an action mask from ``info`` into the observation, where modules read it."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

OBSERVATIONS = "observations"
"""Field of the new observation that holds the original observation."""


class ActionMaskFromInfo(gym.Wrapper[dict[str, Any], Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Replaces each observation with ``{"observations": obs, "action_mask": info["action_mask"]}``. If the observation
    is a dict, adds the mask to it as another field instead. ``info`` stays unchanged.

    It wraps a single env, not a vector env, so that the last observation of an episode also gets its mask.

    Args:
        env: An env that returns the mask in the ``info`` of every ``reset()`` and ``step()``.
        mask_space: Space of the mask. None derives it from the mask of one ``reset()``: a MultiBinary for bools, or an
            unbounded Box of the same shape and dtype for numbers.
        embeddings_space: Space of the action embeddings (``catalog.actions.embeddings``); None if the env does not
            return embeddings.
        mask_key: Name of the mask in ``info`` and in the observation.
        embeddings_key: Name of the embeddings in ``info`` and in the observation.

    Raises:
        ValueError: If ``info`` lacks the mask or the embeddings (names the call and the step), if the mask is not an
            array of bools or numbers, or if the observation already has a field of that name.
    """

    def __init__(
        self,
        env: gym.Env,
        *,
        mask_space: spaces.Space | None = None,
        embeddings_space: spaces.Space | None = None,
        mask_key: str = "action_mask",
        embeddings_key: str = "avail_actions",
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self,
            mask_space=mask_space,
            embeddings_space=embeddings_space,
            mask_key=mask_key,
            embeddings_key=embeddings_key,
        )
        super().__init__(env)
        self._name, self._step = type(env.unwrapped).__name__, 0
        if mask_space is None:
            mask = self._fields([mask_key], env.reset()[1], "reset()")[mask_key]
            mask_space = _space_of(mask, f"info[{mask_key!r}] of {self._name}")
        added = {mask_key: mask_space}
        if embeddings_space is not None:
            added[embeddings_key] = embeddings_space
        self._keys = [*added]
        inner = env.observation_space
        self._is_dict = isinstance(inner, spaces.Dict)
        fields = inner.spaces if isinstance(inner, spaces.Dict) else {OBSERVATIONS: inner}
        if taken := [key for key in added if key in fields]:
            raise ValueError(
                f"observation_space of {self._name}: expected none of the fields {taken}, got the "
                f"fields {[*fields]}. Leave the wrapper out if they are what it would add; else rename them in info."
            )
        self.observation_space = spaces.Dict([*fields.items(), *added.items()])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._step = 0
        return self._observed(obs, info, "reset()"), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._step += 1
        return self._observed(obs, info, f"step() {self._step} of its episode"), reward, terminated, truncated, info

    def _observed(self, obs: Any, info: Mapping[str, Any], call: str) -> dict[str, Any]:
        entries = obs if self._is_dict else {OBSERVATIONS: obs}
        return {**entries, **self._fields(self._keys, info, call)}

    def _fields(self, keys: Sequence[str], info: Mapping[str, Any], call: str) -> dict[str, Any]:
        for key in keys:
            if key not in info:
                raise ValueError(
                    f"info of {self._name}, {call}: expected a field {key!r}, got the fields {[*info]}. Have the "
                    "env return it from every reset() and step(), also from those that end an episode; mask_key "
                    "and embeddings_key set its name."
                )
        return {key: info[key] for key in keys}


def _space_of(value: Any, where: str) -> spaces.Space:
    """Return the space of all arrays with the shape and dtype of ``value``."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "b":
            return spaces.MultiBinary(array.shape)
        if array.dtype.kind == "f":
            return spaces.Box(-np.inf, np.inf, array.shape, array.dtype.type)
        limits = np.iinfo(array.dtype)
    except ValueError as error:  # rows have different lengths, or the dtype is not a number
        raise ValueError(
            f"{where}: expected an array of bools or numbers, got {value!r}. Pass the space of another "
            "kind of mask as mask_space."
        ) from error
    return spaces.Box(limits.min, limits.max, array.shape, array.dtype.type)
