"""The view of the past: which earlier observations, actions and rewards a module sees next to the present one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gymnasium import Space, spaces

from catalog.model_config import DefaultModelConfig

OBS, PREV_OBS, PREV_ACTION, PREV_REWARD = "obs", "prev_obs", "prev_action", "prev_reward"
"""Fields of the observation of a module that sees more than the env's own."""


@dataclass(frozen=True, kw_only=True)
class PastView:
    """How many steps back a module sees observations, actions and rewards.

    What it asks for stands in ``batch["obs"]`` next to ``obs``, the env's observation, as ``prev_obs``,
    ``prev_action`` and ``prev_reward``: ``[..., *shape]`` for one step, ``[..., k, *shape]`` for ``k`` of them, the
    oldest first. Actions are those that were sampled. What lies before the first step of an episode is 0.

    Raises:
        ValueError: If a number of steps is no int >= 0.
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
        """Number of steps of each field asked for, in the order of the fields."""
        fields = {PREV_OBS: self.observations, PREV_ACTION: self.actions, PREV_REWARD: self.rewards}
        return {name: steps for name, steps in fields.items() if steps}

    def with_settings(self, model_config: DefaultModelConfig) -> PastView:
        """This view and what ``lstm_use_prev_action`` and ``lstm_use_prev_reward`` ask for."""
        actions = max(self.actions, int(model_config.lstm_use_prev_action))
        rewards = max(self.rewards, int(model_config.lstm_use_prev_reward))
        return dataclasses.replace(self, actions=actions, rewards=rewards)


def input_space(observation_space: Space, action_space: Space, past: PastView) -> Space:
    """Space of what a module observes: the env's, or a Dict of it and the part of the past it asks for.

    Raises:
        ValueError: If past observations have choices that do not start at 0.
    """
    reward = spaces.Box(-np.inf, np.inf, (), np.float32)
    of_one = {PREV_OBS: observation_space, PREV_ACTION: sampled_space(action_space), PREV_REWARD: reward}
    more = {name: stacked_space(of_one[name], steps) for name, steps in past.steps.items()}
    return spaces.Dict({OBS: observation_space, **more}) if more else observation_space


def stacked_space(space: Space, steps: int) -> Space:
    """Space of ``steps`` entries of ``space``, one behind the other in a first axis; ``space`` itself for one.

    Raises:
        ValueError: If it has choices that do not start at 0, since 0 stands for what was not yet.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return map_parts(lambda part: stacked_space(part, steps), space)
    is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    if is_choice and np.any(space.start):
        raise ValueError(
            f"past observations: expected choices from 0 on, got {space}. Let an env wrapper count "
            "them from 0, or leave past observations out."
        )
    if steps == 1:
        return space
    if isinstance(space, spaces.Box):
        low, high = (np.stack([bound] * steps) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary((steps, *space.shape))
    if is_choice:
        nvec = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return spaces.MultiDiscrete(np.stack([np.asarray(nvec)] * steps), dtype=space.dtype)
    return space  # without array form, which the table of encoders says


def sampled_space(action_space: Space) -> Space:
    """Space of what a distribution samples for ``action_space``: choices start at 0, Boxes have no bounds."""
    if isinstance(action_space, spaces.Dict | spaces.Tuple):
        return map_parts(sampled_space, action_space)
    if isinstance(action_space, spaces.Discrete):
        return spaces.Discrete(int(action_space.n))
    if isinstance(action_space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(action_space.nvec)
    if isinstance(action_space, spaces.Box) and action_space.dtype is not None:
        if action_space.dtype.kind != "f":  # chosen among the numbers there are
            return spaces.MultiDiscrete(action_space.high.astype(np.int64) - action_space.low.astype(np.int64) + 1)
        return spaces.Box(-np.inf, np.inf, action_space.shape, np.float32)
    return action_space


def map_parts(function: Callable[[Space], Space], space: spaces.Dict | spaces.Tuple) -> Space:
    """Return ``space`` with what ``function`` makes of each part in its place."""
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([function(part) for part in space.spaces])
    return spaces.Dict([(key, function(part)) for key, part in space.spaces.items()])
