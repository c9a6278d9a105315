"""Draws: know which entries of a ring can be drawn, and draw them uniformly or by priority."""

from __future__ import annotations

import numpy as np

from algorithms.replay.prioritized import Priorities, PrioritizedReplay


class Draws:
    """Draws entries of a ring ``[R, N]``.

    The entries of a column are numbered in order of time, from 0 on. Entry ``i`` lies in row ``i % R``. Its *place* is
    ``row * N + column``. At any time, the entries of a column that can be drawn have consecutive numbers.

    Args:
        rows: ``R``.
        num_columns: ``N``.
        prioritized: Settings for drawing by priority; None draws uniformly.

    Attributes:
        begin, end: int64 ``[N]``: the number of the oldest entry of each column that can be drawn, and the number after
            that of the newest.
        num: Number of entries that can be drawn.
        priorities: The priority of each place. None for uniform draws.
    """

    def __init__(self, rows: int, num_columns: int, prioritized: PrioritizedReplay | None) -> None:
        self._rows, self._num_columns = rows, num_columns
        self.priorities = None if prioritized is None else Priorities(prioritized, rows * num_columns)
        self.begin = self.end = np.zeros(num_columns, np.int64)
        self.move(self.begin, self.end)

    def move(self, begin: np.ndarray, end: np.ndarray) -> None:
        """Set ``begin`` and ``end``. Neither ever decreases, unless all priorities are set next."""
        if self.priorities is not None:
            # removed first, since a new entry may take the place of an old one
            self.priorities.remove(self._places(self.begin, np.minimum(begin, self.end)))
            self.priorities.insert(self._places(np.maximum(begin, self.end), end))
        self.begin, self.end = begin, end
        self._until = np.add.accumulate(end - begin)  # entries that can be drawn in each column and those before it
        self.num = int(self._until[-1])
        self._is_aligned = bool((end == end[0]).all() and (begin == begin[0]).all())

    def double(self) -> None:
        """Double the number of rows."""
        before = self._places(self.begin, self.end)
        self._rows *= 2
        if self.priorities is not None:
            self.priorities.relocate(before, self._places(self.begin, self.end), self._rows * self._num_columns)

    def _places(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the places of the entries of each column with the numbers ``begin`` to before ``end``, ``[N]``
        each."""
        counts = np.maximum(end - begin, 0)
        columns = np.repeat(np.arange(self._num_columns), counts)
        counts_before = np.add.accumulate(counts) - counts
        numbers = np.arange(len(columns)) + (begin - counts_before).take(columns)
        return numbers % self._rows * self._num_columns + columns

    def sample(self, num: int, beta: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw ``num`` entries with replacement. At least one must be drawable.

        Args:
            num: Number of entries.
            beta: Exponent of the importance weights; see :meth:`Priorities.sample`.
            rng: Random stream of the draws.

        Returns:
            The places of the entries, int64 ``[num]``, and their importance weights ``[num]``, or None instead of
            weights if draws are uniform.
        """
        if self.priorities is not None:
            return self.priorities.sample(num, beta, rng)
        drawn = (rng.random(num) * self.num).astype(np.int64)
        if self._is_aligned:  # row by row, the entries lie next to each other
            drawn += int(self.begin[0]) * self._num_columns
            return drawn % (self._rows * self._num_columns), None
        columns = self._until.searchsorted(drawn, "right")
        drawn += (self.end - self._until).take(columns)
        return drawn % self._rows * self._num_columns + columns, None
