"""Candidates: which entries of a ring can be drawn, and the draws among them."""

from __future__ import annotations

import numpy as np

from algorithms.replay.prioritized import Priorities, PrioritizedReplay

_MAX_DRAWS = 1 << 20


def spans(begin: int, count: int, size: int) -> list[tuple[slice, slice]]:
    """The slices of the ``count <= size`` rows from ``begin`` on in a ring of ``size`` rows, each with the slice of
    what goes there: one pair, or two where the ring ends."""
    begin %= size
    end = begin + count
    if end <= size:
        return [(slice(begin, end), slice(0, count))]
    first = size - begin
    return [(slice(begin, size), slice(0, first)), (slice(0, end - size), slice(first, count))]


class Candidates:
    """The entries of a ring ``[R, N]`` that can be drawn. Their numbers are ``row * N + column``.

    Args:
        rows: ``R``.
        num_envs: ``N``.
        prioritized: Draw by priorities; None draws evenly.

    Attributes:
        sampleable: bool ``[R, N]``: which entries can be drawn.
        num: How many are.
        priorities: By number, if ``prioritized``.
    """

    def __init__(self, rows: int, num_envs: int, prioritized: PrioritizedReplay | None) -> None:
        self.sampleable = np.zeros((rows, num_envs), dtype=bool)
        self.num = 0
        self.priorities = None if prioritized is None else Priorities(prioritized, self.sampleable.size)

    def offer(self, begin: int, columns: slice, block: np.ndarray) -> None:
        """Let what is true in ``block``, which lies in ``columns`` from row ``begin`` on, be drawn, and nothing else
        there. No entry there could be drawn before."""
        self.num += int(np.count_nonzero(block))
        for rows, part in spans(begin, len(block), len(self.sampleable)):
            self.sampleable[rows, columns] = block[part]
            if self.priorities is not None:
                self.priorities.insert(self._numbers(rows, columns, block[part]))

    def withdraw(self, begin: int, count: int, columns: slice) -> None:
        """Let nothing in ``columns`` of the ``count`` rows from ``begin`` on be drawn."""
        for rows, _ in spans(begin, count, len(self.sampleable)):
            block = self.sampleable[rows, columns]
            if num := np.count_nonzero(block):
                self.num -= int(num)
                if self.priorities is not None:
                    self.priorities.remove(self._numbers(rows, columns, block))
                block[:] = False

    def _numbers(self, rows: slice, columns: slice, block: np.ndarray) -> np.ndarray:
        """The numbers of what is true in ``block``, which lies in these rows and columns."""
        row, column = block.nonzero()
        return (row + rows.start) * self.sampleable.shape[1] + (column + columns.start)

    def sample(
        self, num: int, beta: float, rows_in_use: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw ``num`` entries, with replacement. At least one can be drawn, and none beyond ``rows_in_use``.

        Returns:
            Their numbers, int64 ``[num]``. By priorities: their weights, see :meth:`Priorities.sample`.
        """
        if self.priorities is not None:
            return self.priorities.sample(num, beta, rng)
        # drawn among all entries, and again where they are not sampleable
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

    def restore(self, sampleable: np.ndarray) -> None:
        """Let what is true in these first rows be drawn, where nothing could be drawn before; without priorities."""
        self.sampleable[: len(sampleable)] = sampleable
        self.num = int(np.count_nonzero(sampleable))
