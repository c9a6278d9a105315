"""What a ring of rows ``[R, N]`` holds besides numbers and flags: trees of arrays, stacks of frames, true final
observations.

A place in the ring is ``row * N + column``, int64. A tree is kept as one array ``[R, N, ...]`` per leaf. Of an
observation that stacks frames only the newest frame is kept; the older ones stand in the rows before. What no row
holds is kept aside for the few places that need it: the older frames of the first observation of an episode, and the
observation after an episode was truncated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tree
from gymnasium import Space
from torch import Tensor

from algorithms.replay.layout import StoredLeaf
from catalog.base import Tree
from rlmodule.data.rollout import allocate_observations

Arrays = Sequence[np.ndarray]
"""The leaves of a tree of arrays, in the order of ``tree.flatten``."""

CHECKED_ROWS = 100
"""So many of the first rows of each env are checked to be stacks of frames indeed."""


class TreeRows:
    """A ring ``[R, N]`` of trees.

    Args:
        leaves: What an entry consists of.
        space: Whose structure it has.
        rows: ``R``.
        num_envs: ``N``.
    """

    def __init__(self, leaves: Sequence[StoredLeaf], space: Space, rows: int, num_envs: int) -> None:
        self.leaves = leaves
        # zeros, since they are pages not yet claimed from the system
        self.arrays = [np.zeros((rows, num_envs, *leaf.kept_shape), leaf.dtype) for leaf in leaves]
        self.flat = [array.reshape(rows * num_envs, *array.shape[2:]) for array in self.arrays]
        self._template = allocate_observations(space, 0)

    def read(self, name: str, column: Tree, leading: tuple[int, ...]) -> list[np.ndarray]:
        """The leaves of a rollout's column ``[*leading, ...]``.

        Raises:
            ValueError: If it is no such tree; ``name`` tells which.
        """
        remedy = "Make the replay buffer for the spaces that the rollouts come from."
        columns = [column]
        if not (isinstance(column, Tensor) and isinstance(self._template, np.ndarray)):
            try:
                tree.assert_same_structure(self._template, column, check_types=False)
            except (TypeError, ValueError) as error:
                expected = f"a tree of {', '.join(leaf.path for leaf in self.leaves)}"
                message = f"{name}: expected {expected}, got another one ({error}). {remedy}"
                raise ValueError(message) from error
            columns = tree.flatten(column)
        arrays = [x.numpy() for x in columns]
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
        """What the rows hold at ``places``, leaf by leaf ``[*places.shape, *kept_shape]``."""
        return [flat.take(places, 0) for flat in self.flat]

    def write(self, rows: slice | int, columns: slice, values: Arrays, part: slice) -> None:
        """Put ``part`` of ``values``, along the first axis, into ``rows`` of the ring."""
        for leaf, array, value in zip(self.leaves, self.arrays, values, strict=True):
            array[rows, columns] = leaf.newest_frame(value[part])

    def build(self, arrays: Arrays) -> Tree:
        """A tree of tensors of its leaves."""
        if isinstance(self._template, np.ndarray):
            return torch.from_numpy(arrays[0])
        return tree.unflatten_as(self._template, [torch.from_numpy(array) for array in arrays])

    def get_rows(self, rows: int) -> list[Tensor]:
        """The first ``rows``, leaf by leaf; tensors that share the memory of the ring."""
        return [torch.from_numpy(array[:rows]) for array in self.arrays]

    def set_rows(self, state: Sequence[Tensor]) -> None:
        """Restore what :meth:`get_rows` gave."""
        for array, saved in zip(self.arrays, state, strict=True):
            array[: len(saved)] = saved.numpy()


class SparseRows:
    """Entries for few places of a ring ``[R, N]``: where each is, and tables that double when they are full.

    Attributes:
        index: int32 ``[R, N]``: row of the tables, -1 where there is none.
        tables: One array ``[entries, ...]`` per kind of value.
    """

    def __init__(self, rows: int, num_envs: int, kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self.index = np.full((rows, num_envs), -1, np.int32)
        self.tables = [np.zeros((0, *shape), dtype) for shape, dtype in kinds]
        self._flat_index = self.index.reshape(-1)
        self._free: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size - len(self._free)

    @property
    def num_table_bytes(self) -> int:
        """Bytes of the tables."""
        return sum(table.nbytes for table in self.tables)

    def insert(self, places: np.ndarray, values: Arrays) -> None:
        """Keep ``values``, one array ``[K, ...]`` per table, for ``places`` ``[K]``, which hold none yet."""
        while len(self._free) < len(places):
            more = max(8, self._size)
            rooms = [np.zeros((more, *table.shape[1:]), table.dtype) for table in self.tables]
            self.tables = [np.concatenate(pair) for pair in zip(self.tables, rooms, strict=True)]
            self._free += range(self._size, self._size + more)
            self._size += more
        kept = len(self._free) - len(places)
        slots = self._free[kept:]
        del self._free[kept:]
        self._flat_index[places] = slots
        for table, value in zip(self.tables, values, strict=True):
            table[slots] = value

    def release(self, rows: slice, columns: slice) -> None:
        """Forget what is kept for these places."""
        if len(self):
            index = self.index[rows, columns]
            slots = index[index >= 0]
            if len(slots):
                self._free += slots.tolist()
                index[:] = -1

    def find(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of ``places`` ``[B]`` have something kept, and the rows of the tables where it stands."""
        if not len(self):
            return _NONE, _NONE
        slots = self._flat_index.take(places)
        found = np.flatnonzero(slots >= 0)
        return found, slots[found]

    def get_state(self) -> dict[str, Any]:
        """Places and values."""
        places = np.flatnonzero(self._flat_index >= 0)
        slots = self._flat_index[places]
        return {
            "places": torch.from_numpy(places),
            "values": [torch.from_numpy(table[slots]) for table in self.tables],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, where nothing is kept."""
        self.insert(state["places"].numpy(), [value.numpy() for value in state["values"]])


_NONE = np.empty(0, np.int64)


class ObservationRows(TreeRows):
    """A ring ``[R, N]`` of observations, and what followed truncated steps.

    Args:
        leaves: How they are kept: those of a :class:`ReplayLayout`.
        space: Of the observations.
        rows: ``R``.
        num_envs: ``N``.

    Attributes:
        finals: The true final observations, at the places of the steps that came to them.
        older: The older frames of observations that do not follow the row before them, such as the first ones of
            episodes.
    """

    def __init__(self, leaves: Sequence[StoredLeaf], space: Space, rows: int, num_envs: int) -> None:
        super().__init__(leaves, space, rows, num_envs)
        self._rows, self._num_envs = rows, num_envs
        self._has_stacks = any(leaf.axis is not None for leaf in leaves)
        self.finals = SparseRows(rows, num_envs, [(leaf.shape, leaf.dtype) for leaf in leaves])
        kinds = [((leaf.num_frames - 1, *leaf.kept_shape), leaf.dtype) for leaf in leaves]
        self.older = SparseRows(rows, num_envs if self._has_stacks else 0, kinds)
        self._checked = np.zeros(num_envs, np.int64)

    @property
    def num_table_bytes(self) -> int:
        """What is kept aside at present, with the room for more that is allocated."""
        return self.finals.num_table_bytes + self.older.num_table_bytes

    def begin_stacks(self, head: int, columns: slice, obs: Arrays, starts: np.ndarray, cut_before: np.ndarray) -> None:
        """Keep the older frames of the rows of ``obs`` ``[T, n, ...]``, written from ``head`` on, that follow no other:
        those that start an episode, bool ``[T, n]``, and the first row where there is a cut before it, bool ``[n]``."""
        if not self._has_stacks:
            return
        starts = starts.copy()
        starts[0] |= cut_before
        if np.count_nonzero(starts):
            at = starts.nonzero()
            places = (head + at[0]) % self._rows * self._num_envs + columns.start + at[1]
            stacks = zip(self.leaves, obs, strict=True)
            self.older.insert(places, [leaf.frames_of(values[at])[:, :-1] for leaf, values in stacks])

    def release(self, rows: slice, columns: slice) -> None:
        """Forget what is kept aside for rows that are about to be overwritten."""
        self.finals.release(rows, columns)
        self.older.release(rows, columns)

    def take(self, places: np.ndarray) -> list[np.ndarray]:
        """The observations at ``places`` ``[B]``, leaf by leaf ``[B, ...]``, frames stacked."""
        kept = zip(self.leaves, self.flat, self.older.tables, strict=True)
        return [self._stacks(places, leaf, flat, older) for leaf, flat, older in kept]

    def _stacks(self, places: np.ndarray, leaf: StoredLeaf, flat: np.ndarray, older: np.ndarray) -> np.ndarray:
        """What a leaf holds at ``places``; stacks are rebuilt from the rows before and the ``older`` frames."""
        if leaf.axis is None:
            return flat.take(places, 0)
        last = leaf.num_frames - 1
        window = places[:, None] - np.arange(last, -1, -1) * self._num_envs  # negative ones count from the ring's end
        frames = flat.take(window, 0, mode="wrap")
        if last and len(self.older):
            entries = self.older.index.reshape(-1).take(window[:, 1:], mode="wrap")
            begins = entries >= 0
            rows = np.flatnonzero(begins.any(1))
            since = begins[rows, ::-1].argmax(1)  # steps from the episode's first row, which holds `last` older frames
            entry = entries[rows, last - 1 - since]
            which, position = np.nonzero(np.arange(last) + since[:, None] < last)
            frames[rows[which], position] = older[entry[which], position + since[which]]
        return np.moveaxis(frames, 1, 1 + leaf.axis)

    def take_following(self, places: np.ndarray) -> list[np.ndarray]:
        """What was observed after each of the steps at ``places`` ``[B]``: the true final observation where that is
        kept, else the observation in the next row."""
        following = self.take((places + self._num_envs) % (self._rows * self._num_envs))
        found, entries = self.finals.find(places)
        if len(found):
            for values, finals in zip(following, self.finals.tables, strict=True):
                values[found] = finals[entries]
        return following

    def check_stacks(self, columns: slice, obs: Arrays, last: Arrays, cuts: np.ndarray) -> None:
        """Look at the first rows of each env: do frames move on by one place from step to step?

        Args:
            columns: The envs.
            obs: Leaves ``[T, n, ...]``.
            last: Leaves ``[n, ...]`` of the observations after them.
            cuts: ``[T, n]`` bool: the next observation is of another episode, or of none.

        Raises:
            ValueError: If they do not.
        """
        if not self._has_stacks:
            return
        steps = min(CHECKED_ROWS - int(self._checked[columns].min()), len(cuts))
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
                    f"env {columns.start + wrong[0][1]}. Name the axis along which frames are "
                    "stacked, or None to store whole observations."
                )

    def get_state(self, rows: int) -> dict[str, Any]:
        """The first ``rows`` of the ring and what is kept aside; tensors that share its memory."""
        return {
            "columns": self.get_rows(rows),
            "finals": self.finals.get_state(),
            "older": self.older.get_state() if self._has_stacks else None,
            "checked": torch.from_numpy(self._checked),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, where nothing is kept aside."""
        self.set_rows(state["columns"])
        self.finals.set_state(state["finals"])
        if self._has_stacks:
            self.older.set_state(state["older"])
        self._checked[:] = state["checked"].numpy()
