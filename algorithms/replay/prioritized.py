"""Prioritized replay: what surprised more is drawn more often (Schaul et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from algorithms.replay.sum_tree import SumTree
from catalog.settings import Settings, setting


class PrioritizedReplay(Settings):
    """Proportional prioritization (Schaul et al. 2016, section 3.3): ``p = (|TD error| + eps)^alpha``.

    Raises:
        TypeError: For a value of another type.
        ValueError: If a value is out of range.
    """

    alpha: float = setting(0.6, "0 draws uniformly, 1 in proportion to the TD errors.", ge=0, le=1)
    eps: float = setting(1e-6, "What is added to the TD errors, so that everything can be drawn again.", gt=0)


class Priorities:
    """Draws among leaves in proportion to their priorities. What a leaf stands for is for the caller to know.

    Args:
        settings: How priorities follow from TD errors.
        num_leaves: How many leaves there are; none can be drawn before :meth:`insert`.
    """

    def __init__(self, settings: PrioritizedReplay, num_leaves: int) -> None:
        self.settings = settings
        self._tree = SumTree(num_leaves)
        self._greatest = 1.0

    def insert(self, leaves: np.ndarray) -> None:
        """Let ``leaves`` (int64) be drawn, with the greatest priority that any leaf has had (1 at first)."""
        self._tree.set(leaves, self._greatest)

    def remove(self, leaves: np.ndarray) -> None:
        """Let ``leaves`` be drawn no more."""
        self._tree.set(leaves, 0.0)

    def sample(self, num: int, beta: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw ``num`` leaves, one from each of as many equal shares of the sum of the priorities, in their order.

        Args:
            num: How many; the same leaf may be drawn several times.
            beta: How far the weights make up for the uneven draws: 0 not at all, 1 fully.
            rng: What is drawn from: one call for ``num`` numbers.

        Returns:
            The leaves, int64 ``[num]``, and their importance weights, float32 ``[num]``: ``(N · P(i))^-beta``, divided
            by the greatest among them (section 3.4). At least one leaf must have been inserted.
        """
        mass = rng.random(num)
        mass += np.arange(num)
        mass *= self._tree.total / num
        leaves = self._tree.find(mass)
        priorities = self._tree.get(leaves)
        # N and the sum of all priorities cancel out in the division by the greatest weight.
        weights = (np.minimum.reduce(priorities) / priorities) ** beta
        return leaves, weights.astype(np.float32)

    def update(self, leaves: np.ndarray, errors: np.ndarray, owners: np.ndarray | None = None) -> None:
        """Give ``leaves`` ``[B]`` the priorities of their TD errors; of equal leaves the last counts.

        Leaves that were removed since they were drawn stay so.

        Args:
            leaves: What was drawn.
            errors: TD errors ``[B]``, or ``[R]`` of rows.
            owners: Which of ``leaves`` each row belongs to, ``[R]``, of each at least one. The error of a leaf is 0.9
                times the greatest and 0.1 times the mean of its own in size (Kapturowski et al. 2019, section 2.3).

        Raises:
            ValueError: If an error is NaN or infinite; nothing is changed then.
        """
        sizes = np.abs(errors, dtype=np.float64)
        if not np.maximum.reduce(sizes, initial=0.0) < math.inf:  # the maximum is NaN if one is
            row = int(np.flatnonzero(~np.isfinite(sizes))[0])
            raise ValueError(
                f"ReplayBuffer.update_priorities(td_errors)[{row}]: expected a finite number, got "
                f"{errors[row]}. The learner diverged: lower lr, or clip gradients or rewards."
            )
        if owners is not None:
            greatest, num = np.zeros(len(leaves)), len(leaves)
            np.maximum.at(greatest, owners, sizes)
            means = np.bincount(owners, sizes, num) / np.bincount(owners, minlength=num)
            sizes = 0.9 * greatest + 0.1 * means
        priorities = (sizes + self.settings.eps) ** self.settings.alpha
        there = self._tree.get(leaves) > 0
        if np.count_nonzero(there) < len(there):
            leaves, priorities = leaves[there], priorities[there]
        self._tree.set(leaves, priorities)
        self._greatest = max(self._greatest, float(np.maximum.reduce(priorities, initial=0.0)))

    def take_over(self, leaves: np.ndarray, other: Priorities, theirs: np.ndarray) -> None:
        """Give ``leaves`` ``[B]`` the priorities that ``theirs`` ``[B]`` have in ``other``."""
        self._tree.set(leaves, other._tree.get(theirs))
        self._greatest = other._greatest

    def get_state(self) -> dict[str, Any]:
        """The priorities up to the last leaf in use, and the greatest there was."""
        values = np.trim_zeros(self._tree.get(np.arange(self._tree.num_leaves)), "b")
        return {"values": torch.from_numpy(values), "greatest": self._greatest}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave: draws from equal generators are then the same."""
        values = np.zeros(self._tree.num_leaves)
        values[: len(state["values"])] = state["values"].numpy()
        self._tree.set(np.arange(len(values)), values)
        self._greatest = float(state["greatest"])
