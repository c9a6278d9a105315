"""Draws: know which entries of a ring can be drawn, and draw them uniformly or by priority."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from algorithms.replay.prioritized import Priorities, PrioritizedReplay

ColumnIndex: TypeAlias = "slice | np.ndarray"
"""Columns of a ring, no two of them the same."""


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
        priorities: The priority of each place. None for uniform draws.
    """

    def __init__(self, rows: int, num_columns: int, prioritized: PrioritizedReplay | None) -> None:
        self.rows, self._num_columns = rows, num_columns
        self.begin, self.end = np.zeros((2, num_columns), np.int64)
        self.priorities = None if prioritized is None else Priorities(prioritized, rows * num_columns)
        self._until: np.ndarray | None = None  # entries that can be drawn in each column and those before it
        self._is_aligned = True

    def move(self, columns: ColumnIndex, begin: np.ndarray, end: np.ndarray) -> None:
        """Set ``begin`` and ``end`` of ``n`` columns to the arrays ``[n]``. Neither ever decreases."""
        was_aligned = self._is_aligned
        old_begin, old_end = self.begin[columns].copy(), self.end[columns].copy()
        self.begin[columns] = begin
        self.end[columns] = end
        self.refresh()
        if self.priorities is not None:
            places = self._aligned_places if was_aligned and self._is_aligned else self._places
            # removed first, since a new entry may take the place of an old one
            self.priorities.remove(places(columns, old_begin, np.minimum(begin, old_end)))
            self.priorities.insert(places(columns, np.maximum(begin, old_end), end))

    def refresh(self) -> None:
        """Take note of new values in ``begin`` and ``end``."""
        self._until = None
        self._is_aligned = bool((self.end == self.end[0]).all() and (self.begin == self.begin[0]).all())

    def _aligned_places(self, columns: ColumnIndex, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Do the same as :meth:`_places` for numbers that are equal in all columns. Such places lie next to each
        other."""
        first, after = int(begin[0]) * self._num_columns, int(end[0]) * self._num_columns
        return np.arange(first, after) % (self.rows * self._num_columns)

    def _places(self, columns: ColumnIndex, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the places of the entries with numbers ``begin`` ``[n]`` to before ``end`` ``[n]`` in ``n``
        columns."""
        counts = np.maximum(end - begin, 0)
        counts_before = np.add.accumulate(counts) - counts
        numbers = np.repeat(begin - counts_before, counts)
        numbers += np.arange(len(numbers))
        return numbers % self.rows * self._num_columns + np.repeat(np.arange(self._num_columns)[columns], counts)

    @property
    def num(self) -> int:
        """Number of entries that can be drawn."""
        return int(self._counted()[-1])

    def _counted(self) -> np.ndarray:
        """Return the number of entries that can be drawn in each column and those before it, ``[N]``."""
        if self._until is None:
            self._until = np.add.accumulate(self.end - self.begin)
        return self._until

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
        until = self._counted()
        drawn = (rng.random(num) * until[-1]).astype(np.int64)
        if self._is_aligned:  # row by row, the entries lie next to each other
            drawn += int(self.begin[0]) * self._num_columns
            return drawn % (self.rows * self._num_columns), None
        columns = until.searchsorted(drawn, "right")
        drawn += (self.end - until).take(columns)
        return drawn % self.rows * self._num_columns + columns, None
