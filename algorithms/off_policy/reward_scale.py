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
        self.register_buffer("returns", torch.zeros(num_columns, dtype=torch.float64))
        self.register_buffer("largest", torch.zeros((), dtype=torch.float64))

    def update(self, rollout: Rollout, columns: ColumnIndex) -> None:
        """Add the returns of the valid rows of ``rollout`` ``[T, n]``, whose slots go on with the episodes of
        ``columns``."""
        returns, seen = self.returns[columns], list[Tensor]()
        for rewards, starts, valid in zip(
            rollout[Columns.REWARDS], rollout[Columns.STARTS], rollout.valid, strict=True
        ):
            after = torch.where(starts, 0.0, self._gamma * returns) + rewards
            returns = torch.where(valid, after, returns)
            seen.append(after[valid])
        self.returns[columns] = returns
        new = torch.cat([self.largest[None], *seen])
        self.moments.update(new[1:])
        self.largest.copy_(new.abs().max())

    @property
    def divisor(self) -> Tensor:
        """What rewards are divided by, a scalar."""
        return torch.maximum(self.moments.std, self.largest / LARGEST)

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict()``. Other envs than those of the saved run begin new episodes."""
        fits = state["returns"].shape == self.returns.shape
        self.load_state_dict(state if fits else state | {"returns": self.returns})
