"""Describes which earlier observations, actions and rewards a module sees, and their spaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space

from catalog.model_config import DefaultModelConfig

OBS, PREV_OBS, PREV_ACTION, PREV_REWARD = "obs", "prev_obs", "prev_action", "prev_reward"
"""Keys of the dict that a module observes if it also sees earlier steps."""


@dataclass(frozen=True, kw_only=True)
class PastView:
    """Numbers of earlier observations, actions and rewards that a module sees.

    If any of them is positive, ``batch["obs"]`` is a dict: ``obs`` is the env's observation, and ``prev_obs``,
    ``prev_action`` and ``prev_reward`` hold the earlier steps. The shape of each is ``[..., *shape]`` for one step and
    ``[..., k, *shape]`` for ``k`` steps, oldest first. Actions are the sampled ones, before conversion for the env.
    Steps before the start of an episode are 0.

    Attributes:
        observations: Number of earlier observations.
        actions: Number of earlier actions.
        rewards: Number of earlier rewards.

    Raises:
        ValueError: If a number of steps is not an int >= 0.
    """

    observations: int = 0
    actions: int = 0
    rewards: int = 0

    def __post_init__(self) -> None:
        for name, steps in vars(self).items():
            if type(steps) is not int or steps < 0:
                raise ValueError(
                    f"PastView.{name}: expected an int >= 0, got {steps!r}. Say how many steps "
                    "back it sees; 0 for none."
                )

    @property
    def steps(self) -> dict[str, int]:
        """Number of earlier steps by key, such as ``prev_obs``; keys without earlier steps are left out."""
        fields = {PREV_OBS: self.observations, PREV_ACTION: self.actions, PREV_REWARD: self.rewards}
        return {name: steps for name, steps in fields.items() if steps}

    def with_settings(self, model_config: DefaultModelConfig) -> PastView:
        """Return this view with at least one action if ``lstm_use_prev_action`` is set, and at least one reward if
        ``lstm_use_prev_reward`` is."""
        actions = max(self.actions, int(model_config.lstm_use_prev_action))
        rewards = max(self.rewards, int(model_config.lstm_use_prev_reward))
        return dataclasses.replace(self, actions=actions, rewards=rewards)


def input_space(observation_space: Space, action_space: Space, past: PastView) -> Space:
    """Return the space that a module observes: ``observation_space`` itself, or a Dict of it and of the earlier steps
    if ``past`` has any.

    Raises:
        ValueError: If ``past`` asks for earlier observations that contain a Discrete or MultiDiscrete with a ``start``
            other than 0.
    """
    reward = spaces.Box(-np.inf, np.inf, (), np.float32)
    of_one = {PREV_OBS: observation_space, PREV_ACTION: sampled_space(action_space), PREV_REWARD: reward}
    more = {name: stacked_space(of_one[name], steps) for name, steps in past.steps.items()}
    return spaces.Dict({OBS: observation_space, **more}) if more else observation_space


def stacked_space(space: Space, steps: int) -> Space:
    """Return the space of ``steps`` samples of ``space``, each leaf stacked along a new first axis. For one step,
    return ``space``.

    Raises:
        ValueError: If ``space`` contains a Discrete or MultiDiscrete with a ``start`` other than 0, because 0 fills the
            steps before an episode.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return map_parts(lambda part: stacked_space(part, steps), space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        raise ValueError(
            f"past observations: expected choices from 0 on, got {space}. Let an env wrapper count "
            "them from 0, or leave past observations out."
        )
    if steps == 1:
        return space
    if isinstance(space, spaces.Box | spaces.Discrete):
        return batch_space(space, steps)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary((steps, *space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.stack([space.nvec] * steps), dtype=space.dtype)
    return space  # has no array form: the encoder table refuses it


def sampled_space(action_space: Space) -> Space:
    """Return the space of sampled actions before their conversion for the env. Choices start at 0, an integer Box
    becomes a MultiDiscrete of its numbers, and a Box of floats has no bounds."""
    if isinstance(action_space, spaces.Dict | spaces.Tuple):
        return map_parts(sampled_space, action_space)
    if isinstance(action_space, spaces.Discrete):
        return spaces.Discrete(int(action_space.n))
    if isinstance(action_space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(action_space.nvec)
    if isinstance(action_space, spaces.Box) and action_space.dtype is not None:
        if action_space.dtype.kind != "f":  # an integer Box is sampled as choices among its numbers
            return spaces.MultiDiscrete(action_space.high.astype(np.int64) - action_space.low.astype(np.int64) + 1)
        return spaces.Box(-np.inf, np.inf, action_space.shape, np.float32)
    return action_space


def map_parts(function: Callable[[Space], Space], space: spaces.Dict | spaces.Tuple) -> Space:
    """Return the Dict or Tuple ``space`` with ``function`` applied to each part."""
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([function(part) for part in space.spaces])
    return spaces.Dict([(key, function(part)) for key, part in space.spaces.items()])
