"""Storage of observations and actions in a ring ``[R, N]``: nested spaces, stacked frames, true final observations.

A place in the ring is ``row * N + column``, int64. A nested observation is stored as one array ``[R, N, ...]`` per
leaf. If observations stack frames, only the newest frame is stored; the older frames are in the rows before. Two things
are in no row, and are kept in separate arrays for the few places that need them: the older frames of an observation
that begins a stack, such as the first of an episode; and the true final observation after a truncated step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tree
from gymnasium import Space
from torch import Tensor, from_numpy

from algorithms.replay.layout import StoredLeaf
from catalog.base import Tree
from rlmodule.data.rollout import allocate_observations

Arrays = Sequence[np.ndarray]
"""Leaves of a tree of arrays, in the order of ``tree.flatten``."""

Index: TypeAlias = "int | slice | np.ndarray"
"""Rows or columns of a ring. If rows and columns are both arrays ``[K]``, they mean ``K`` places."""

CHECKED_ROWS = 100
"""Number of first rows of each env in which to check that observations stack frames along the given axis."""


class TreeRows:
    """Stores observations or actions of a nested space in a ring ``[R, N]``.

    Args:
        leaves: How each leaf is stored.
        space: The space of the observations or actions.
        rows: ``R``.
        num_envs: ``N``.
    """

    def __init__(self, leaves: Sequence[StoredLeaf], space: Space, rows: int, num_envs: int) -> None:
        self.leaves = leaves
        # zeros() claims memory from the system only as rows are written
        self.arrays = [np.zeros((rows, num_envs, *leaf.kept_shape), leaf.dtype) for leaf in leaves]
        self.flat = [array.reshape(rows * num_envs, *array.shape[2:]) for array in self.arrays]
        self._template = allocate_observations(space, 0)

    def read(self, name: str, column: Tree, leading: tuple[int, ...]) -> list[np.ndarray]:
        """Return the leaves of a rollout's column, arrays ``[*leading, *leaf.shape]``.

        Args:
            name: The column's name in errors.
            column: A tree of arrays.
            leading: The expected leading dimensions of each array.

        Raises:
            ValueError: If the structure, a shape or a dtype differs from the space.
        """
        remedy = "Build the replay buffer with the spaces of the env that the rollouts come from."
        if isinstance(column, np.ndarray) and isinstance(self._template, np.ndarray):
            arrays = [column]
        else:
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

    def take(self, places: np.ndarray) -> list[np.ndarray]:
        """Return the entries of the ring at ``places``, one array ``[*places.shape, *kept_shape]`` per leaf.

        Args:
            places: ``row * N + column`` of each entry, int64 of any shape.
        """
        return [flat.take(places, 0) for flat in self.flat]

    def write(self, rows: Index, columns: Index, values: Arrays, part: Any) -> None:
        """For each leaf, write the entries that the NumPy index ``part`` selects from its array in ``values`` to the
        ring at ``rows`` and ``columns``. If the leaf stacks frames, write only the newest frame of each entry."""
        for leaf, array, value in zip(self.leaves, self.arrays, values, strict=True):
            array[rows, columns] = leaf.newest_frame(value)[part]  # the frame first, since `part` may copy

    def build(self, arrays: Arrays) -> Tree:
        """Return the tree of tensors whose leaves are ``arrays``."""
        if isinstance(self._template, np.ndarray):
            return from_numpy(arrays[0])
        return tree.unflatten_as(self._template, [from_numpy(array) for array in arrays])

    def get_rows(self, rows: int) -> list[Tensor]:
        """Return the first ``rows`` rows of each leaf, as tensors that share the memory of the ring."""
        return [from_numpy(array[:rows]) for array in self.arrays]

    def set_rows(self, state: Sequence[Tensor]) -> None:
        """Restore the first rows of each leaf from a result of :meth:`get_rows`."""
        for array, saved in zip(self.arrays, state, strict=True):
            array[: len(saved)] = saved.numpy()


class SparseRows:
    """Stores values for a few places of a ring ``[R, N]``, in tables that double in size when they are full.

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

    def __len__(self) -> int:
        return len(self.tables[0]) - len(self._free)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated for the tables, including unused space but not the index."""
        return sum(table.nbytes for table in self.tables)

    def insert(self, places: np.ndarray, values: Arrays) -> None:
        """Store ``values``, one array ``[K, ...]`` per table, for ``places`` ``[K]``, which must have no values yet."""
        while len(self._free) < len(places):
            size = len(self.tables[0])
            more = max(8, size)
            self.tables = [np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)]) for x in self.tables]
            self._free += range(size, size + more)
        kept = len(self._free) - len(places)
        slots = self._free[kept:]
        del self._free[kept:]
        self.index.put(places, slots)
        for table, value in zip(self.tables, values, strict=True):
            table[slots] = value

    def release(self, rows: Index, columns: Index) -> None:
        """Remove the values of all places in ``rows`` and ``columns``."""
        if len(self):
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


class ObservationRows(TreeRows):
    """Stores observations in a ring ``[R, N]``, with their stacks of frames and true final observations.

    Args:
        leaves: How each leaf is stored: ``ReplayLayout.obs``.
        space: The observation space.
        rows: ``R``.
        num_envs: ``N``.

    Attributes:
        has_stacks: Whether a leaf stacks frames.
        finals: The true final observations of steps that ended an episode, each at the place of its step. The next row
            may hold the first observation of the next episode instead.
        older: The older frames of observations whose older frames are not in the rows before, such as the first of an
            episode, each at the place of its observation. The ring has only the newest frame of each observation.
    """

    def __init__(self, leaves: Sequence[StoredLeaf], space: Space, rows: int, num_envs: int) -> None:
        super().__init__(leaves, space, rows, num_envs)
        self._rows, self._num_envs = rows, num_envs
        self.has_stacks = any(leaf.axis is not None for leaf in leaves)
        self.finals = SparseRows(rows, num_envs, [(leaf.shape, leaf.dtype) for leaf in leaves])
        kinds = [((leaf.num_frames - 1, *leaf.kept_shape), leaf.dtype) for leaf in leaves]
        self.older = SparseRows(rows, num_envs if self.has_stacks else 0, kinds)
        self._checked = np.zeros(num_envs, np.int64)

    def begin_stacks(self, places: np.ndarray, obs: Arrays, at: tuple[np.ndarray, ...]) -> None:
        """Store the older frames of observations that begin a stack, because the row before is from a different
        episode.

        Args:
            places: Places of the observations, ``[K]``.
            obs: Leaves ``[T, n, ...]`` of the observations of a rollout.
            at: Row and slot of these observations in the rollout, ``[K]`` each.
        """
        if len(places):
            stacks = zip(self.leaves, obs, strict=True)
            self.older.insert(places, [leaf.frames_of(values[at])[:, :-1] for leaf, values in stacks])

    def release(self, rows: Index, columns: Index) -> None:
        """Remove the final observations and older frames of rows that are about to be overwritten."""
        self.finals.release(rows, columns)
        if self.has_stacks:
            self.older.release(rows, columns)

    def take(self, places: np.ndarray) -> list[np.ndarray]:
        """Return the observations at ``places`` ``[B]``, one array ``[B, *leaf.shape]`` per leaf."""
        return [self._stacks(places, *kept) for kept in zip(self.leaves, self.flat, self.older.tables, strict=True)]

    def _stacks(self, places: np.ndarray, leaf: StoredLeaf, flat: np.ndarray, older: np.ndarray) -> np.ndarray:
        """Return one leaf's observations at the flat indices ``places`` ``[B]`` of the ring, as ``[B, *leaf.shape]``.

        If the leaf stacks frames, the ring keeps only the newest frame of each observation, and the others are those of
        the rows before it. But the first observation of an episode begins a stack with frames that no row holds.

        Args:
            places: ``row * N + column`` of each observation.
            leaf: How the leaf is stored.
            flat: The leaf's entries in the ring, ``[R * N, *kept_shape]``.
            older: The older frames of each first observation, ``[entries, num_frames - 1, ...]``. ``self.older.index``
                has the entry of each place, or -1.
        """
        if leaf.axis is None:
            return flat.take(places, 0)
        last = leaf.num_frames - 1
        window = places[:, None] - np.arange(last, -1, -1) * self._num_envs  # negative places wrap to the ring's end
        frames = flat.take(window, 0, mode="wrap")
        if last and len(self.older):
            entries = self.older.index.take(window[:, 1:], mode="wrap")
            begins = entries >= 0
            rows = np.flatnonzero(begins.any(1))
            since = begins[rows, ::-1].argmax(1)  # steps since the stack's start, which has `last` older frames
            entry = entries[rows, last - 1 - since]
            # Each step since the start pushed one older frame out, so position p shows older frame p + since.
            which, position = np.nonzero(np.arange(last) + since[:, None] < last)
            frames[rows[which], position] = older[entry[which], position + since[which]]
        return np.moveaxis(frames, 1, 1 + leaf.axis)

    def take_following(self, places: np.ndarray) -> list[np.ndarray]:
        """Return the observations after the steps at ``places`` ``[B]``, one array ``[B, *leaf.shape]`` per leaf.

        After a truncated step, the result is the true final observation, else the observation in the next row.
        """
        following = self.take((places + self._num_envs) % (self._rows * self._num_envs))
        if len(self.finals):
            entries = self.finals.index.take(places)
            if len(found := np.flatnonzero(entries >= 0)):
                for values, finals in zip(following, self.finals.tables, strict=True):
                    values[found] = finals[entries[found]]
        return following

    def check_stacks(self, columns: Index, obs: Arrays, last: Arrays, cuts: np.ndarray) -> None:
        """Check that the frames of a stack move on by one place from step to step.

        Only the first :data:`CHECKED_ROWS` rows that are added for each env are checked.

        Args:
            columns: The envs.
            obs: Leaves ``[T, n, ...]`` of the observations.
            last: Leaves ``[n, ...]`` of the observations after the last row.
            cuts: bool ``[T, n]``: the next observation belongs to another episode, or to none.

        Raises:
            ValueError: If frames do not move on by one place.
        """
        steps = min(CHECKED_ROWS - int(self._checked[columns].min()), len(cuts)) if self.has_stacks else 0
        if steps <= 0:
            return
        self._checked[columns] += steps
        for leaf, values, after in zip(self.leaves, obs, last, strict=True):
            if leaf.axis is None:
                continue
            known = np.concatenate([values[: steps + 1], after[None]])[: steps + 1]
            frames = leaf.frames_of(known)
            same = (frames[1:, :, :-1] == frames[:-1, :, 1:]).reshape(steps, cuts.shape[1], -1).all(-1)
            wrong = np.argwhere(~(cuts[:steps] | same))
            if len(wrong):
                where = "frame_stack_axis" + (f"[{leaf.path!r}]" if leaf.path else "")
                raise ValueError(
                    f"{where}: expected observations that stack frames along axis {leaf.axis}, "
                    f"oldest first, got frames that did not move on by one at row {wrong[0][0]} of "
                    f"env {np.arange(self._num_envs)[columns][wrong[0][1]]}. Name the axis along which frames are "
                    "stacked, or None to store whole observations."
                )

    def get_state(self, rows: int) -> dict[str, Any]:
        """Return the first ``rows`` rows of the ring and the values of the tables. The rows share the ring's memory."""
        return {
            "columns": self.get_rows(rows),
            "finals": self.finals.get_state(),
            "older": self.older.get_state() if self.has_stacks else None,
            "checked": from_numpy(self._checked),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`. The tables must be empty."""
        self.set_rows(state["columns"])
        self.finals.set_state(state["finals"])
        if self.has_stacks:
            self.older.set_state(state["older"])
        self._checked[:] = state["checked"].numpy()
