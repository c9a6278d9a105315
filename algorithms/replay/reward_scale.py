"""RewardScale: divides rewards by the running deviation of discounted returns."""

import torch
from torch import Tensor, nn

from algorithms.replay.ring import ColumnIndex
from catalog.encoders.preprocessing import RunningMoments
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout

LARGEST = 5.0
"""Largest magnitude of the discounted return of divided rewards."""


class RewardScale(nn.Module):
    """Divides rewards by the running standard deviation of discounted returns, but at least by a fifth of the largest
    return, so that returns lie within ±5 (Lee et al. 2025, "Hyperspherical Normalization for Scalable Deep
    Reinforcement Learning").

    The return up to a step is the step's reward, plus gamma times the return up to the step before it in its episode.

    Override points: none.

    Args:
        num_columns: Number of columns of the replay buffer, each of which holds one episode after another.
        gamma: Discount per step.
    """

    returns: Tensor
    largest: Tensor

    def __init__(self, num_columns: int, gamma: float) -> None:
        super().__init__()
        self._gamma = gamma
        self.moments = RunningMoments()
        self.register_buffer("returns", torch.zeros(num_columns).double())
        self.register_buffer("largest", torch.zeros(()).double())

    def update(self, rollout: Rollout, columns: ColumnIndex) -> None:
        """Add the returns of the valid rows of ``rollout`` ``[T, n]``, whose slots go on with the episodes of
        ``columns``."""
        returns = self.returns[columns]
        rows = zip(rollout[Columns.REWARDS], rollout[Columns.STARTS], rollout.valid, strict=True)
        for rewards, starts, valid in rows:
            after = torch.where(starts, 0.0, self._gamma * returns) + rewards
            returns = torch.where(valid, after, returns)
            self.moments.update(after[valid])
            self.largest = torch.maximum(self.largest, returns.abs().max())
        self.returns[columns] = returns

    def divide(self, rewards: Tensor) -> None:
        """Divide ``rewards`` in place."""
        rewards.div_(torch.maximum(self.moments.std, self.largest / LARGEST))
