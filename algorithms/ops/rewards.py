"""Transformations of rewards before learning."""

import dataclasses
from typing import Literal

from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout


def clipped_rewards(rollout: Rollout, clip: Literal["sign"] | float) -> Rollout:
    """Return a copy of ``rollout`` with each reward clipped. Its episode statistics still hold the env's own rewards.

    Args:
        rollout: The rollout, which is not changed.
        clip: "sign" replaces each reward with its sign (Mnih et al. 2015, Methods). A number ``c`` clips to
            ``[-c, c]``.
    """
    rewards = rollout[Columns.REWARDS]
    clipped = rewards.sign() if clip == "sign" else rewards.clamp(-clip, clip)
    return dataclasses.replace(rollout, columns=rollout.columns | {Columns.REWARDS: clipped})
