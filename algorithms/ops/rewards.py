"""Transformations of rewards before learning."""

import dataclasses
from typing import Literal

from torch import Tensor

from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout


def clipped(rewards: Tensor, clip: Literal["sign"] | float) -> Tensor:
    """Return clipped ``rewards``: their signs for "sign" (Mnih et al. 2015, Methods), or the nearest numbers in
    ``[-c, c]`` for a number ``c``."""
    return rewards.sign() if clip == "sign" else rewards.clamp(-clip, clip)


def clipped_rewards(rollout: Rollout, clip: Literal["sign"] | float) -> Rollout:
    """Return a copy of ``rollout`` with each reward clipped. Its episode statistics still hold the env's own rewards.

    Args:
        rollout: The rollout, which is not changed.
        clip: As :func:`clipped`.
    """
    rewards = {Columns.REWARDS: clipped(rollout[Columns.REWARDS], clip)}
    return dataclasses.replace(rollout, columns=rollout.columns | rewards)
