"""Prioritized replay: draw transitions with large TD errors more often (Schaul et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import from_numpy

from algorithms.replay.sum_tree import SumTree
from catalog.settings import Settings, setting


class PrioritizedReplay(Settings):
    """Settings of proportional prioritization (Schaul et al. 2016, section 3.3), in which a transition is drawn in
    proportion to its priority ``p = (|TD error| + eps)^alpha``.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range.
    """

    alpha: float = setting(0.6, "Exponent of the priorities: 0 draws uniformly, 1 in proportion to errors.", ge=0, le=1)
    eps: float = setting(1e-6, "Added to each absolute TD error, so that no priority is 0.", gt=0)


class Priorities:
    """Holds a priority for each of a fixed number of leaves, and draws leaves in proportion to their priorities.

    A leaf is an index: the place of a row in a ring or, if sequences are drawn, the number of a place where one may
    start.

    Args:
        settings: ``alpha`` and ``eps``: the priority of a leaf is ``(|error| + eps) ** alpha``.
        num_leaves: Number of leaves. No leaf can be drawn until :meth:`insert` has added it.
    """

    def __init__(self, settings: PrioritizedReplay, num_leaves: int) -> None:
        self.settings = settings
        self._tree = SumTree(num_leaves)
        self._greatest = 1.0

    def insert(self, leaves: np.ndarray) -> None:
        """Make ``leaves`` (int64 ``[B]``) drawable, with the greatest priority so far of any leaf, which is at least
        1."""
        self._tree.set(leaves, self._greatest)

    def remove(self, leaves: np.ndarray) -> None:
        """Stop drawing ``leaves`` (int64 ``[B]``)."""
        self._tree.set(leaves, 0.0)

    def relocate(self, leaves: np.ndarray, new_leaves: np.ndarray, num_leaves: int) -> None:
        """Set the number of leaves to ``num_leaves``, and move the priorities of ``leaves`` to ``new_leaves``, int64
        ``[B]`` each. The other leaves cannot be drawn."""
        priorities = self._tree.get(leaves)
        self._tree = SumTree(num_leaves)
        self._tree.set(new_leaves, priorities)

    def sample(self, num: int, beta: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw ``num`` leaves, one from each of ``num`` equal parts of the cumulative sum of the priorities.

        At least one leaf must be drawable.

        Args:
            num: Number of leaves. The same leaf may be drawn several times.
            beta: Exponent of the weights. 0 corrects none of the bias of uneven draws, 1 all of it.
            rng: Random stream, called once for ``num`` numbers.

        Returns:
            The leaves in ascending order, int64 ``[num]``, and their importance weights ``(N · P(i))^-beta``, divided
            by the greatest of them, float32 ``[num]`` (section 3.4).
        """
        mass = rng.random(num)
        mass += np.arange(num)
        mass *= self._tree.total / num
        leaves = self._tree.find(mass)
        priorities = self._tree.get(leaves)
        # N and the sum of all priorities cancel in the division by the greatest weight, that of the least priority.
        weights = (np.minimum.reduce(priorities) / priorities) ** beta
        return leaves, weights.astype(np.float32)

    def update(self, leaves: np.ndarray, errors: np.ndarray, owners: np.ndarray | None = None) -> None:
        """Set the priorities of ``leaves`` from their TD errors. If a leaf is given twice, the last error counts.

        Leaves that were removed since they were drawn stay removed.

        Args:
            leaves: Drawn leaves, int64 ``[B]``.
            errors: TD errors, one per leaf ``[B]``, or one per row ``[R]`` if ``owners`` is given.
            owners: For sequences: the index in ``leaves`` of each row's sequence, int64 ``[R]``. Each sequence has at
                least one row. The error of a sequence is 0.9 times the greatest plus 0.1 times the mean of its rows'
                absolute errors (Kapturowski et al. 2019, section 2.3).

        Raises:
            ValueError: If there is not one error for each leaf or row, or if an error is NaN or infinite. No priority
                is then changed.
        """
        expected = leaves.shape if owners is None else owners.shape
        if errors.shape != expected:
            raise ValueError(
                f"ReplayBuffer.update_priorities(td_errors): expected one for each row, {expected}, got shape "
                f"{errors.shape}. If a loss of yours reports td_error, report it without a mean over rows or critics."
            )
        sizes = np.abs(errors, dtype=np.float64)
        if not np.maximum.reduce(sizes, initial=0.0) < math.inf:  # also True if the maximum is NaN
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
        present = self._tree.get(leaves) > 0
        leaves, priorities = leaves[present], priorities[present]
        self._tree.set(leaves, priorities)
        self._greatest = max(self._greatest, float(np.maximum.reduce(priorities, initial=0.0)))

    def get_state(self) -> dict[str, Any]:
        """Return the priorities up to the last drawable leaf, and the greatest priority so far."""
        values = np.trim_zeros(self._tree.get(np.arange(self._tree.num_leaves)), "b")
        return {"values": from_numpy(values), "greatest": self._greatest}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`. Draws from an equal generator are then equal."""
        values = np.zeros(self._tree.num_leaves)
        values[: len(state["values"])] = state["values"].numpy()
        self._tree.set(np.arange(len(values)), values)
        self._greatest = float(state["greatest"])


def with_exponent(state: Mapping[str, Any], before: float, alpha: float) -> dict[str, Any]:
    """Return ``state``, from :meth:`Priorities.get_state`, with the exponent ``alpha`` in place of ``before``. If
    ``before`` is 0, all priorities stay 1, since it made all errors equal. Leaves that cannot be drawn stay so."""
    ratio = alpha / before if before else 0.0
    values = state["values"]
    return {
        "values": values.pow(ratio).where(values > 0, 0.0),
        "greatest": float(state["greatest"]) ** ratio,
    }
