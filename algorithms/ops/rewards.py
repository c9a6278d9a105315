"""Transformations of rewards before learning."""

import dataclasses
from typing import Literal

from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout


def clipped_rewards(rollout: Rollout, clip: Literal["sign"] | float) -> Rollout:
    """Return a copy of ``rollout`` with each reward clipped. Its statistics still have the rewards of the env.

    Args:
        rollout: The rollout, which is not changed.
        clip: "sign" replaces each reward by its sign (Mnih et al. 2015, Methods). A number is the greatest magnitude.
    """
    rewards = rollout[Columns.REWARDS]
    clipped = rewards.sign() if clip == "sign" else rewards.clamp(-clip, clip)
    return dataclasses.replace(rollout, columns=rollout.columns | {Columns.REWARDS: clipped})
