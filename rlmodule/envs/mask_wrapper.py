"""ActionMaskFromInfo: moves an action mask from ``info`` into the observation, where modules read it."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces

OBSERVATIONS = "observations"
"""Field of the new observation that holds the original observation."""


class ActionMaskFromInfo(gym.Wrapper[dict[str, Any], Any, Any, Any]):
    """Replaces each observation with ``{"observations": obs, "action_mask": info["action_mask"]}``. If the observation
    is a dict, adds the mask to it as another field instead. ``info`` stays unchanged.

    It wraps a single env, not a vector env, so that the last observation of an episode also gets its mask.

    Args:
        env: An env that returns the mask in the ``info`` of every ``reset()`` and ``step()``.
        mask_space: Space of the mask. None stands for a MultiBinary with an entry for each choice of a Discrete or
            MultiDiscrete action.
        embeddings_space: Space of the action embeddings (``catalog.actions.embeddings``); None if the env does not
            return embeddings.
        mask_key: Name of the mask in ``info`` and in the observation.
        embeddings_key: Name of the embeddings in ``info`` and in the observation.

    Raises:
        ValueError: If the actions are of another space and there is no ``mask_space``, if the observation already has
            a field of that name, or, from ``reset`` and ``step``, if ``info`` lacks the mask or the embeddings.
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
        super().__init__(env)
        self._name = type(env.unwrapped).__name__
        actions = env.action_space
        if mask_space is None and isinstance(actions, spaces.Discrete | spaces.MultiDiscrete):
            mask_space = spaces.MultiBinary(spaces.flatdim(actions))
        if mask_space is None:
            raise ValueError(
                f"mask_space of {self._name}: expected a space, since the actions are {actions}, got None. Pass the "
                f"space of info[{mask_key!r}]."
            )
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
        return self._observed(obs, info), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observed(obs, info), reward, terminated, truncated, info

    def _observed(self, obs: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        for key in self._keys:
            if key not in info:
                raise ValueError(
                    f"info of {self._name}: expected a field {key!r}, got the fields {[*info]}. Have the "
                    "env return it from every reset() and step(), also from those that end an episode; mask_key "
                    "and embeddings_key set its name."
                )
        entries = obs if self._is_dict else {OBSERVATIONS: obs}
        return {**entries, **{key: info[key] for key in self._keys}}
