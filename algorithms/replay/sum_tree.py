"""A sum tree: keep sums of many numbers up to date, and find where the cumulative sum passes a value."""

from itertools import pairwise

import numpy as np

_SHIFT = 3
# Children of a node. More children make fewer levels, but a search reads all children of each node it passes.
_BRANCH = 1 << _SHIFT

# Most nodes of the top level. Each search sums them again, which up to this number is faster than another level.
_MAX_TOP = 4096


class SumTree:
    """Holds nonnegative numbers, the leaves, and finds leaves by their cumulative sum in logarithmic time.

    Each node above the leaves is the sum of eight nodes of the level below, up to a top level of at most 4,096 nodes. A
    node is always summed from its children, never changed by a difference. So sums do not drift, and their bits do not
    depend on the order in which leaves were set.

    Args:
        num_leaves: Number of leaves, all 0 at first.
    """

    def __init__(self, num_leaves: int) -> None:
        self.num_leaves = num_leaves
        self._levels: list[np.ndarray] = []  # [nodes above, _BRANCH], the leaves first; and the top level [nodes]
        width = num_leaves
        while width > _MAX_TOP or not self._levels:
            width = -(-width // _BRANCH)
            self._levels.append(np.zeros((width, _BRANCH)))
        self._levels.append(np.zeros(width))
        self._cumulative = np.zeros(width + 1)

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Set ``leaves`` (int64 ``[B]``) to ``values`` (``[B]``, or one value for all). If a leaf is given twice, the
        last value counts."""
        self._levels[0].put(leaves, values)
        for level, above in pairwise(self._levels):
            leaves = leaves >> _SHIFT
            if len(leaves) < len(level):
                above.put(leaves, np.add.reduce(level.take(leaves, 0), 1))
            else:  # as many leaves as nodes: summing the whole level is faster than looking up its nodes
                above.reshape(-1)[: len(level)] = np.add.reduce(level, 1)

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Return the values of ``leaves`` (int64), float64 of the same shape."""
        return self._levels[0].take(leaves)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(np.add.reduce(self._levels[-1]))

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Return the leaves whose intervals of the cumulative sum contain ``mass``, int64 ``[B]``.

        The interval of a leaf begins at the sum of all leaves before it, and is as long as the leaf's value. The end of
        the interval is excluded. A leaf of value 0 is never returned, even if rounding moves ``mass`` to an edge.

        Args:
            mass: float64 ``[B]``, from 0 to :attr:`total`, which must be positive. The search is fastest if it is
                sorted.
        """
        cumulative = self._cumulative
        ends = np.add.accumulate(self._levels[-1], out=cumulative[1:])
        # Keep the mass below the last end, on each level: a node whose end is greater must exist, and the first one
        # is greater than 0, since its end exceeds the end before it.
        mass = np.minimum(mass, np.nextafter(ends[-1], 0))
        nodes = ends.searchsorted(mass, "right")
        mass = mass - cumulative.take(nodes)
        offsets = np.arange(0, len(mass) * _BRANCH, _BRANCH)
        for level in self._levels[-2::-1]:
            children = level.take(nodes, 0)
            ends = np.add.accumulate(children, 1)
            np.minimum(mass, np.nextafter(ends[:, -1], 0), out=mass)
            child = (ends > mass[:, None]).argmax(1)
            nodes = nodes * _BRANCH + child
            if level is not self._levels[0]:
                places = offsets + child
                mass -= ends.take(places) - children.take(places)
                np.maximum(mass, 0, out=mass)
        return nodes
