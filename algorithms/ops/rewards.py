"""What becomes of rewards before they are learned from."""

import dataclasses
from typing import Literal

from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout


def clipped_rewards(rollout: Rollout, clip: Literal["sign"] | float) -> Rollout:
    """``rollout`` with its rewards clipped one by one, and its statistics as they are.

    Args:
        rollout: What was sampled; it stays as it is.
        clip: "sign" leaves -1, 0 or 1 of each reward (Mnih et al. 2015, Methods), a number is the largest magnitude.
    """
    rewards = rollout[Columns.REWARDS]
    clipped = rewards.sign() if clip == "sign" else rewards.clamp(-clip, clip)
    return dataclasses.replace(rollout, columns=rollout.columns | {Columns.REWARDS: clipped})
