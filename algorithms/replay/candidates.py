"""Candidates: keep track of which entries of a ring can be drawn, and draw them."""

from __future__ import annotations

import numpy as np

from algorithms.replay.prioritized import Priorities, PrioritizedReplay

_MAX_DRAWS = 1 << 20


def spans(begin: int, count: int, size: int) -> list[tuple[slice, slice]]:
    """Split ``count <= size`` consecutive rows of a ring of ``size`` rows where the ring ends.

    Args:
        begin: First row; may be negative or beyond ``size``, because the ring is periodic.
        count: Number of rows.
        size: Rows of the ring.

    Returns:
        One or two pairs of slices: a slice of the ring, and the slice of the ``count`` rows that lie there.
    """
    begin %= size
    end = begin + count
    if end <= size:
        return [(slice(begin, end), slice(0, count))]
    first = size - begin
    return [(slice(begin, size), slice(0, first)), (slice(0, end - size), slice(first, count))]


class Candidates:
    """Draws entries of a ring ``[R, N]``, uniformly or by priority. The place of an entry is ``row * N + column``.

    Args:
        rows: ``R``.
        num_envs: ``N``.
        prioritized: Settings for drawing by priority; None draws uniformly.

    Attributes:
        sampleable: bool ``[R, N]``: the entries that can be drawn.
        num: Number of entries that can be drawn.
        priorities: The priority of each entry. None for uniform draws.
    """

    def __init__(self, rows: int, num_envs: int, prioritized: PrioritizedReplay | None) -> None:
        self.sampleable = np.zeros((rows, num_envs), dtype=bool)
        self.num = 0
        self.priorities = None if prioritized is None else Priorities(prioritized, self.sampleable.size)

    def offer(self, begin: int, columns: slice, block: np.ndarray) -> None:
        """Make entries drawable, in rows that have no drawable entry in ``columns``.

        Args:
            begin: First row.
            columns: The columns.
            block: bool ``[rows, columns]``: the entries from row ``begin`` on that can be drawn from now on.
        """
        self.num += int(np.count_nonzero(block))
        for rows, part in spans(begin, len(block), len(self.sampleable)):
            self.sampleable[rows, columns] = block[part]
            if self.priorities is not None:
                self.priorities.insert(self._places(rows, columns, block[part]))

    def withdraw(self, begin: int, count: int, columns: slice) -> None:
        """Make entries not drawable: those in ``columns`` of the ``count`` rows that begin at row ``begin``."""
        for rows, _ in spans(begin, count, len(self.sampleable)):
            block = self.sampleable[rows, columns]
            if num := np.count_nonzero(block):
                self.num -= int(num)
                if self.priorities is not None:
                    self.priorities.remove(self._places(rows, columns, block))
                block[:] = False

    def offer_at(self, places: np.ndarray) -> None:
        """Make the entries at ``places`` ``[K]`` drawable. None of them may be drawable already."""
        self.num += len(places)
        self.sampleable.put(places, True)
        if self.priorities is not None:
            self.priorities.insert(places)

    def withdraw_at(self, places: np.ndarray) -> None:
        """Make the entries at ``places`` ``[K]`` not drawable. No two places are the same."""
        there = places[self.sampleable.take(places)]
        self.num -= len(there)
        self.sampleable.put(there, False)
        if self.priorities is not None:
            self.priorities.remove(there)

    def _places(self, rows: slice, columns: slice, block: np.ndarray) -> np.ndarray:
        """Return the places ``[K]`` of the ``K`` True entries of ``block``, which covers ``rows`` and ``columns``."""
        row, column = block.nonzero()
        return (row + rows.start) * self.sampleable.shape[1] + (column + columns.start)

    def sample(
        self, num: int, beta: float, rows_in_use: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw ``num`` entries with replacement. At least one must be drawable.

        Args:
            num: Number of entries.
            beta: Exponent of the importance weights; see :meth:`Priorities.sample`.
            rows_in_use: Number of rows, from row 0 on, that contain all drawable entries.
            rng: Random stream of the draws.

        Returns:
            The places of the entries, int64 ``[num]``, and their importance weights ``[num]``, or None instead of
            weights if draws are uniform.
        """
        if self.priorities is not None:
            return self.priorities.sample(num, beta, rng)
        # Draw among all entries and reject those that are not drawable: nearly all are, and listing them costs more.
        flags, total = self.sampleable.reshape(-1), rows_in_use * self.sampleable.shape[1]
        numbers = (rng.random(num) * total).astype(np.int64)
        good = flags.take(numbers)
        if np.count_nonzero(good) == num:
            return numbers, None
        drawn = [numbers[good]]
        missing = num - len(drawn[0])
        while missing:
            tries = min(_MAX_DRAWS, missing * total // self.num + 8)
            numbers = (rng.random(tries) * total).astype(np.int64)
            drawn.append(numbers[flags.take(numbers)][:missing])
            missing -= len(drawn[-1])
        return np.concatenate(drawn), None
