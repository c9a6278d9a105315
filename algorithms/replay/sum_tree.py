"""Sums over many numbers, kept up to date, and the search for the number at which a sum passes a given value."""

import numpy as np

_SHIFT = 3
_BRANCH = 1 << _SHIFT
"""Children of a node. With more there are fewer levels, but all children of a node are read on the way down."""

_MAX_TOP = 4096
"""Nodes of the top level, which is summed up anew in every search: faster than further levels."""


class SumTree:
    """Numbers ``>= 0``, the leaves, above them the sums of each eight, and so on up to a top level of a few thousand.

    A sum is always made from the numbers below it, never by adding what changed, so sums do not drift; and they are
    the same bits whatever the order in which the leaves were set.

    Args:
        num_leaves: How many there are; all are 0 at first.
    """

    def __init__(self, num_leaves: int) -> None:
        self.num_leaves = num_leaves
        self._levels: list[np.ndarray] = []  # [nodes above, _BRANCH], the leaves first
        width = num_leaves
        while width > _MAX_TOP or not self._levels:
            width = -(-width // _BRANCH)
            self._levels.append(np.zeros((width, _BRANCH)))
        self._flat = [level.reshape(-1) for level in self._levels] + [np.zeros(width)]
        self._cumulative = np.zeros(width + 1)

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Give ``leaves`` (int64 ``[B]``) the ``values`` (``[B]`` or one for all). Of equal leaves the last counts."""
        self._flat[0][leaves] = values
        for level, above in zip(self._levels, self._flat[1:], strict=True):
            leaves = leaves >> _SHIFT
            if len(leaves) < len(level):
                above[leaves] = np.add.reduce(level.take(leaves, 0), 1)
            else:
                above[: len(level)] = np.add.reduce(level, 1)

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """The values of ``leaves``, float64."""
        return self._flat[0].take(leaves)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(np.add.reduce(self._flat[-1]))

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaves in whose interval of the cumulative sum ``mass`` lies, int64 ``[B]``.

        Leaf ``i`` has the interval from the sum of the leaves before it up to, and without, that sum and its own
        value. A leaf of value 0 has none and is never found, also where rounding puts ``mass`` at an edge.

        Args:
            mass: float64 ``[B]``, from 0 to :attr:`total`, which must be greater than 0. Fastest if sorted.
        """
        cumulative = self._cumulative
        ends = np.add.accumulate(self._flat[-1], out=cumulative[1:])
        # Below the end of the last child, so that the first end above the mass is that of a child greater than 0.
        mass = np.minimum(mass, np.nextafter(ends[-1], 0))
        nodes = ends.searchsorted(mass, "right")
        mass = mass - cumulative.take(nodes)
        offsets = np.arange(0, len(mass) * _BRANCH, _BRANCH)
        for level in reversed(self._levels):
            children = level.take(nodes, 0)
            ends = np.add.accumulate(children, 1)
            np.minimum(mass, np.nextafter(ends[:, -1], 0), out=mass)
            child = (ends > mass[:, None]).argmax(1)
            nodes = nodes * _BRANCH + child
            if level is not self._levels[0]:
                places = offsets + child
                mass -= ends.reshape(-1).take(places) - children.reshape(-1).take(places)
                np.maximum(mass, 0, out=mass)
        return nodes
