"""Storage of observations and actions in a ring ``[R, N]``: nested spaces, stacked frames, true final observations.

A place in the ring is ``row * N + column``, int64. A nested observation is stored as one array ``[R, N, ...]`` per
leaf. If observations stack frames, only the newest frame is stored; the older frames are in the rows before. Two things
are in no row, and are kept in separate arrays for the few places that need them: the older frames of an observation
that begins a stack, such as the first of an episode; and the true final observation after a truncated step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tree
from gymnasium import Space
from torch import from_numpy

from algorithms.replay.layout import StoredLeaf, axis_of
from catalog.base import Tree
from rlmodule.data.rollout import allocate_observations

Arrays = Sequence[np.ndarray]
"""Leaves of a tree of arrays, in the order of ``tree.flatten``."""

Index: TypeAlias = "slice | np.ndarray"
"""Rows or columns of a ring. If rows and columns are both arrays ``[K]``, they mean ``K`` places."""

CHECKED_ROWS = 100
"""Number of first transitions of each env in which to check that observations stack frames along the given axis."""


class SparseRows:
    """Stores values for a few places of a ring ``[R, N]``, in tables that grow when they are full.

    Args:
        rows: ``R``.
        num_envs: ``N``.
        kinds: For each table, the shape and dtype of an entry.

    Attributes:
        index: int32 ``[R, N]``: the table row of each place, -1 for places without values.
        tables: One array ``[entries, ...]`` per kind of value.
    """

    def __init__(self, rows: int, num_envs: int, kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self.index = np.full((rows, num_envs), -1, np.int32)
        self.tables = [np.zeros((0, *shape), dtype) for shape, dtype in kinds]
        self._free: list[int] = []

    @property
    def num_places(self) -> int:
        """Number of places that have values."""
        return len(self.tables[0]) - len(self._free)

    def insert(self, places: np.ndarray, values: Arrays) -> None:
        """Store ``values``, one array ``[K, ...]`` per table, for ``places`` ``[K]``, which must have no values yet."""
        if len(self._free) < len(places):
            size = len(self.tables[0])
            new_size = 2 * size + len(places)
            self.tables = [np.resize(table, (new_size, *table.shape[1:])) for table in self.tables]
            self._free += range(size, new_size)
        slots = [self._free.pop() for _ in places]
        self.index.put(places, slots)
        for table, value in zip(self.tables, values, strict=True):
            table[slots] = value

    def release(self, rows: Index, columns: Index) -> None:
        """Remove the values of the places ``[rows, columns]`` of the ring, indexed as in NumPy: two arrays ``[K]`` name
        ``K`` places, and with a slice in either the result is a block. Places without values are ignored."""
        if self.num_places:
            index = self.index[rows, columns]
            if len(slots := index[index >= 0]):
                self._free += slots.tolist()
                self.index[rows, columns] = -1

    def get_state(self) -> dict[str, Any]:
        """Return the places that have values, and the values."""
        places = np.flatnonzero(self.index >= 0)
        slots = self.index.take(places)
        values = [from_numpy(table[slots]) for table in self.tables]
        return {"places": from_numpy(places), "values": values}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`. The tables must be empty."""
        self.insert(state["places"].numpy(), [value.numpy() for value in state["values"]])


class TreeRows:
    """Stores observations or actions of a nested space in a ring ``[R, N]``. For observations, it also stores stacks of
    frames and true final observations.

    Args:
        leaves: How each leaf is stored.
        space: The space of the observations or actions.
        rows: ``R``.
        num_envs: ``N``.
        have_finals: Whether there are true final observations.

    Attributes:
        arrays: One array ``[R, N, *kept_shape]`` per leaf. If the leaf stacks frames, an entry is only the newest.
        has_stacks: Whether a leaf stacks frames.
        finals: The true final observations of steps that ended an episode, each at the place of its step. The next row
            may hold the first observation of the next episode instead.
        older: The older frames of observations whose older frames are not in the rows before, such as the first of an
            episode, each at the place of its observation. The ring has only the newest frame of each observation.
    """

    def __init__(
        self, leaves: Sequence[StoredLeaf], space: Space, rows: int, num_envs: int, *, have_finals: bool
    ) -> None:
        self.leaves, self._num_envs = leaves, num_envs
        # zeros() claims memory from the system only as rows are written
        self.arrays = [np.zeros((rows, num_envs, *leaf.kept_shape), leaf.dtype) for leaf in leaves]
        self._flat = [array.reshape(rows * num_envs, *array.shape[2:]) for array in self.arrays]
        self._template = allocate_observations(space, 0)
        self.has_stacks = any(leaf.axis is not None for leaf in leaves)
        kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self.finals = SparseRows(rows, num_envs if have_finals else 0, kinds)
        kinds = [((leaf.num_frames - 1, *leaf.kept_shape), leaf.dtype) for leaf in leaves]
        self.older = SparseRows(rows, num_envs if self.has_stacks else 0, kinds)

    def read(self, name: str, column: Tree, leading: tuple[int, ...]) -> Arrays:
        """Return the leaves of a rollout's column, arrays ``[*leading, *leaf.shape]``.

        Args:
            name: The column's name in errors.
            column: A tree of arrays.
            leading: The expected leading dimensions of each array.

        Raises:
            ValueError: If the structure, a shape or a dtype differs from the space.
        """
        remedy = "Build the replay buffer with the spaces of the env that the rollouts come from."
        arrays = [column]
        if not isinstance(column, np.ndarray) or not isinstance(self._template, np.ndarray):
            try:
                tree.assert_same_structure(self._template, column, check_types=False)
            except (TypeError, ValueError) as error:
                expected = f"a tree of {', '.join(leaf.path for leaf in self.leaves)}"
                message = f"{name}: expected {expected}, got another structure ({error}). {remedy}"
                raise ValueError(message) from error
            arrays = tree.flatten(column)
        for leaf, array in zip(self.leaves, arrays, strict=True):
            fits = array.dtype == leaf.dtype or np.can_cast(array.dtype, leaf.dtype, "same_kind")
            if array.shape != leading + leaf.shape or not fits:
                where = f"{name} at {leaf.path!r}" if leaf.path else name
                raise ValueError(
                    f"{where}: expected {leaf.dtype} shaped {(*leading, *leaf.shape)}, got {array.dtype} "
                    f"shaped {array.shape}. {remedy}"
                )
        return arrays

    # ------------------------------------------------------------------------------------------------ writing

    def newest(self, obs: Arrays) -> Arrays:
        """Return the parts of observations, leaves ``[..., *leaf.shape]``, that ``arrays`` store: the newest frames."""
        if not self.has_stacks:
            return obs
        return [leaf.frames_of(values)[-1] for leaf, values in zip(self.leaves, obs, strict=True)]

    def begin_stacks(self, places: np.ndarray, obs: Arrays) -> None:
        """Store the older frames of observations, leaves ``[K, *leaf.shape]``, that begin a stack at ``places``
        ``[K]``, because the row before is from a different episode."""
        frames = [leaf.frames_of(values)[:-1] for leaf, values in zip(self.leaves, obs, strict=True)]
        self.older.insert(places, [np.moveaxis(values, 0, 1) for values in frames])

    def end(self, places: np.ndarray) -> None:
        """Store the observations after the steps at ``places`` ``[K]`` as the true final ones of their episodes."""
        self.finals.insert(places, [self.leaf_following(number, places) for number in range(len(self.leaves))])

    def release(self, rows: Index, columns: Index) -> None:
        """Remove the final observations and older frames of rows that are about to be overwritten."""
        self.finals.release(rows, columns)
        self.older.release(rows, columns)

    # ------------------------------------------------------------------------------------------------ reading

    def at(self, places: np.ndarray) -> Tree:
        """Return the entries at ``places`` (int64 ``[B]``), a tree of tensors ``[B, ...]``. Places past either end of
        the ring count from the other one."""
        return self._tree_of(self._leaf_at, places)

    def following(self, places: np.ndarray) -> Tree:
        """Return the observations after the steps at ``places`` ``[B]``, a tree of tensors ``[B, ...]``.

        After a truncated step, the result is the true final observation. After a terminated step, it is arbitrary,
        unless the rollout had its final observation.
        """
        return self._tree_of(self.leaf_following, places)

    def _tree_of(self, leaf: Callable[[int, np.ndarray], np.ndarray], places: np.ndarray) -> Tree:
        """Return a tree of tensors, each from ``leaf(number, places)``."""
        tensors = [from_numpy(leaf(number, places)) for number in range(len(self.leaves))]
        return tensors[0] if isinstance(self._template, np.ndarray) else tree.unflatten_as(self._template, tensors)

    def leaf_following(self, number: int, places: np.ndarray) -> np.ndarray:
        """Return leaf ``number`` of what :meth:`following` does, for ``places`` of any shape unless the leaf stacks
        frames, ``[*places.shape, ...]``."""
        values = self._leaf_at(number, places + self._num_envs)
        if self.finals.num_places:  # in tasks without a time limit there are none to look up
            entries = self.finals.index.take(places)
            found = (entries >= 0).nonzero()
            if len(found[0]):
                values[found] = self.finals.tables[number][entries[found]]
        return values

    def _leaf_at(self, number: int, places: np.ndarray) -> np.ndarray:
        """Return leaf ``number`` of the entries at ``places`` of any shape, or ``[B]`` if the leaf stacks frames, as
        ``[*places.shape, *leaf.shape]``.

        If the leaf stacks frames, the ring keeps only the newest frame of each observation, and the others are those of
        the rows before it. But the first observation of an episode begins a stack with frames that no row holds.
        """
        leaf, flat = self.leaves[number], self._flat[number]
        if leaf.axis is None:
            return flat.take(places, 0, mode="wrap")
        older = self.older.tables[number]  # of each observation that begins a stack: [entries, num_frames - 1, ...]
        last = leaf.num_frames - 1
        window = places[:, None] - np.arange(last, -1, -1) * self._num_envs  # negative places wrap to the ring's end
        frames = flat.take(window, 0, mode="wrap")
        # The stack may have begun in any of these rows. The nearest beginning counts, so it is the last to be written.
        for steps_since in range(last - 1, -1, -1):
            num_older = last - steps_since  # each step pushed one older frame out
            entries = self.older.index.take(window[:, num_older], mode="wrap")
            begun = np.flatnonzero(entries >= 0)
            frames[begun, :num_older] = older[entries[begun], steps_since:]
        return np.moveaxis(frames, 1, 1 + leaf.axis)

    def check_stacks(self, obs: Arrays, last: Arrays, cuts: np.ndarray, columns: np.ndarray) -> None:
        """Check that the frames of a stack move on by one place from step to step.

        Args:
            obs: Leaves ``[T, n, ...]`` of the observations.
            last: Leaves ``[n, ...]`` of the observations after the last row.
            cuts: bool ``[S, n]``, for the first ``S`` rows, which are checked: the next observation belongs to another
                episode, or to none.
            columns: The column of each slot, for errors.

        Raises:
            ValueError: If frames do not move on by one place.
        """
        steps = len(cuts)
        for leaf, values, after in zip(self.leaves, obs, last, strict=True):
            frames = leaf.frames_of(np.concatenate([values, after[None]])[: steps + 1])
            same = (frames[1:, :-1] == frames[:-1, 1:]).all((0, *range(3, frames.ndim)))
            wrong = np.argwhere(~(cuts | same))
            if len(wrong):
                raise ValueError(
                    f"{axis_of(leaf.path)}: expected observations that stack frames along axis {leaf.axis}, "
                    f"oldest first, got frames that did not move on by one at row {wrong[0][0]} of "
                    f"env {columns[wrong[0][1]]}. Name the axis along which frames are "
                    "stacked, or None to store whole observations."
                )
