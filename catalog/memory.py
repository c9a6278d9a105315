"""What a recurrent net may see besides the observation: the action and the reward of the step before."""

import numpy as np
from gymnasium import Space, spaces

from catalog.model_config import DefaultModelConfig

OBS, PREV_ACTION, PREV_REWARD = "obs", "prev_action", "prev_reward"
"""Fields of the observation a module gets if it asks for more than the env's own."""


def input_space(observation_space: Space, action_space: Space, model_config: DefaultModelConfig) -> Space:
    """Space of what a module observes: the env's, or a Dict of it and the previous action and reward asked for."""
    extra: dict[str, Space] = {}
    if model_config.lstm_use_prev_action:
        extra[PREV_ACTION] = sampled_space(action_space)
    if model_config.lstm_use_prev_reward:
        extra[PREV_REWARD] = spaces.Box(-np.inf, np.inf, (), np.float32)
    return spaces.Dict({OBS: observation_space, **extra}) if extra else observation_space


def sampled_space(action_space: Space) -> Space:
    """Space of what a distribution samples for ``action_space``: choices start at 0, Boxes have no bounds."""
    if isinstance(action_space, spaces.Dict):
        return spaces.Dict([(key, sampled_space(child)) for key, child in action_space.spaces.items()])
    if isinstance(action_space, spaces.Tuple):
        return spaces.Tuple([sampled_space(child) for child in action_space.spaces])
    if isinstance(action_space, spaces.Discrete):
        return spaces.Discrete(int(action_space.n))
    if isinstance(action_space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(action_space.nvec)
    if isinstance(action_space, spaces.Box) and action_space.dtype is not None:
        if action_space.dtype.kind != "f":  # chosen among the numbers there are
            return spaces.MultiDiscrete(action_space.high.astype(np.int64) - action_space.low.astype(np.int64) + 1)
        return spaces.Box(-np.inf, np.inf, action_space.shape, np.float32)
    return action_space
