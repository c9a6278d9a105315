"""Windows of n steps, whose rewards are summed before the value of the observation after them."""

from __future__ import annotations

import numpy as np

from algorithms.replay.ring import CUT, TERMINATED, Ring


class Windows:
    """Takes n-step windows from a ring.

    Args:
        least, most: The least and the greatest number of steps of a window. If they differ, a number is drawn for each.
        gamma: Discount per step.
    """

    def __init__(self, least: int, most: int, gamma: float) -> None:
        self.least, self.most = least, most
        self._powers = np.power(float(gamma), np.arange(most + 1)).astype(np.float32)
        self._offsets = np.arange(most)[:, None]

    def take(
        self, ring: Ring, places: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | int, np.ndarray, np.ndarray]:
        """Return the windows that begin at ``places`` ``[B]``. A window has fewer steps if its episode ends or the
        newest row is reached.

        Returns:
            Four arrays ``[B]``: the place of each window's last row and its number of steps, int64; the discounted sum
            of its rewards, and the discount of the value of the observation after it, float32.
        """
        most = self.most
        if most == 1:
            last, steps, power = places, 1, self._powers[1]
            rewards = ring.rewards.take(places)
        else:
            window = places + self._offsets * ring.num_columns  # [n, B], may pass the last place: "wrap" it
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
        return last, steps, rewards, np.multiply(going, power, dtype=np.float32)
