"""Windows of n steps, whose rewards are summed before the value of the observation after them."""

from __future__ import annotations

import numpy as np
from torch import from_numpy

from algorithms.replay.ring import CUT, TERMINATED, Ring
from rlmodule.data.columns import Batch, Columns


class Windows:
    """Takes n-step windows from a ring.

    Args:
        least, most: The least and the greatest number of steps of a window. If they differ, a number is drawn for each.
        gamma: Discount per step.
        next_actions: Whether to read the actions after windows, too.
    """

    def __init__(self, least: int, most: int, gamma: float, next_actions: bool) -> None:
        self.least, self.most = least, most
        self._reads_next_actions = next_actions
        self._powers = np.power(float(gamma), np.arange(most + 1)).astype(np.float32)
        self._offsets = np.arange(most)[:, None]

    def take(
        self, ring: Ring, places: np.ndarray, rng: np.random.Generator
    ) -> tuple[Batch, np.ndarray, np.ndarray | int]:
        """Return the windows that begin at ``places`` ``[B]``. A window has fewer steps if its episode ends or the
        newest row is reached.

        Returns:
            columns: ``actions`` of the first steps; ``rewards`` ``[B]``, the discounted sums over the windows;
                ``discounts`` ``[B]``, gamma to the power of the number of steps, or 0 if the window ends with
                termination. If asked for, also ``next_actions``, the actions after the windows, and
                ``has_next_action``.
            last: The place of each window's last row, int64 ``[B]``.
            steps: The number of steps of each window, int64 ``[B]``, or 1 if that is the greatest number.
        """
        most = self.most
        if most == 1:
            last, steps, power = places, 1, self._powers[1]
            rewards = ring.rewards.take(places)
        else:
            # time comes first, since NumPy is slow along short last axes; places past the last one wrap
            window = places + self._offsets * ring.num_columns
            if self.least < most:
                most = rng.integers(self.least, most + 1, len(places))
            cuts = ring.flags.take(window, mode="wrap") & CUT > 0
            cuts[-1] = True  # so that argmax finds one in every window
            steps = np.minimum(np.minimum(ring.steps_after(places), cuts.argmax(0)) + 1, most)
            last = (places + (steps - 1) * ring.num_columns) % ring.num_places
            rewards = ring.rewards.take(window, mode="wrap")
            rewards *= self._powers[:-1, None]
            rewards *= self._offsets < steps
            rewards, power = np.ascontiguousarray(rewards.T).sum(1), self._powers.take(steps)
        going = ring.flags.take(last) & TERMINATED == 0
        columns = {
            Columns.ACTIONS: ring.actions.at(places),
            Columns.REWARDS: from_numpy(rewards),
            Columns.DISCOUNTS: from_numpy(np.multiply(going, power, dtype=np.float32)),
        }
        if self._reads_next_actions:
            columns[Columns.NEXT_ACTIONS], is_known = ring.actions_after(last)
            columns[Columns.HAS_NEXT_ACTION] = from_numpy(is_known)
        return columns, last, steps
