"""Class for an episode of one agent, or a chunk of an episode, of ``L`` steps, for custom code and offline data.

``Rollout.from_episodes`` and ``Rollout.to_episodes`` convert episodes to and from rollouts, which env runners return
and learners consume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import tree
from torch import Tensor

from catalog.base import Tree
from catalog_rl import closest
from rlmodule.data.columns import Columns

Indices = int | Sequence[int] | np.ndarray | slice | None
RESERVED = (
    Columns.OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.VALID,
    Columns.STARTS,
)
"""Columns of a rollout that an episode stores in another form. Additional columns of an episode must not have these
names."""


class Episode:
    """Stores the observations ``o_0 … o_L``, actions ``a_0 … a_{L-1}``, rewards and additional columns of an episode or
    a chunk of an episode.

    Arrays are stored without a copy. Python lists must have one entry per step, and their entries are stacked.
    ``Episode()`` is empty; fill it with :meth:`add_reset` and :meth:`add_step`. Getters and slices return views, so
    writing to a view changes the episode. Adding steps may detach earlier views.

    Args:
        observations: Tree of arrays ``[L+1, ...]``, or a list of ``L+1`` observations.
        actions: Tree of arrays ``[L, ...]``, or a list of ``L`` actions. Learners need actions as the distribution
            samples them: choices counted from 0, and the numbers of a bounded Box in [-1, 1].
        rewards: Rewards of the steps, ``[L]``.
        columns: Additional columns by name (``action_logp``, …), each a tree of arrays ``[L, ...]`` or a list.
        terminated: Whether the last step ended the episode by the rules of the task.
        truncated: Whether a cause outside the task, such as a time limit, ended the episode at the last step.
        id: Id of the episode, which all its chunks share; None generates a new id.
        t_started: Number of steps of the episode before this chunk.

    Raises:
        ValueError: If the lengths do not fit together, the entries of a list have different shapes, an episode without
            steps is ``terminated`` or ``truncated``, or an additional column has a name in :data:`RESERVED`.
    """

    def __init__(
        self,
        observations: Tree | None = None,
        actions: Tree | None = None,
        rewards: Sequence[float] | np.ndarray | Tensor | None = None,
        *,
        columns: Mapping[str, Tree] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        id: str | None = None,
        t_started: int = 0,
    ) -> None:
        self.id = uuid4().hex if id is None else id
        self.t_started = int(t_started)
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        _check_names(columns or {})
        # the number of rewards is that of the steps, with which all other columns must agree
        self._columns: dict[str, Tree] = {Columns.REWARDS: _as_rewards([] if rewards is None else rewards)}
        self._length = len(self._columns[Columns.REWARDS])
        for name, value in {Columns.OBS: observations, Columns.ACTIONS: actions, **(columns or {})}.items():
            empty = value is None or (isinstance(value, list) and not value)
            if empty and not self._length:
                continue
            self._columns[name] = np.empty(0) if empty else _as_column(name, value)
            expected = self._length + (name == Columns.OBS)
            lengths = {x.shape[0] if x.ndim else "no" for x in tree.flatten(self._columns[name])}
            if lengths != {expected}:
                remedy = "Give one entry per step, and one more observation than steps."
                got = " or ".join(map(str, lengths))
                raise ValueError(_explain(name, f"{expected} entries for {self._length} rewards", got, remedy))
        if self.is_finished and not self._length:
            raise ValueError(_explain("an end", "at least one step before it", "none", "Leave out the flag."))

    def add_reset(self, obs: Tree) -> None:
        """Begin the episode with ``obs``, the observation that ``env.reset()`` returned.

        Raises:
            RuntimeError: If the episode already has an observation.
        """
        if self.is_reset:
            raise RuntimeError(_explain("add_reset()", "an empty episode", self, "Begin another with Episode()."))
        first = _as_arrays(obs)
        self._columns[Columns.OBS] = _append(_no_rows(first), 0, first)

    def add_step(
        self, action: Tree, obs: Tree, reward: float, terminated: bool = False, truncated: bool = False, **columns: Tree
    ) -> None:
        """Add a step, in amortised constant time.

        Args:
            action: The action chosen for the last observation.
            obs: The observation that followed the action.
            reward: The reward of the step.
            terminated: Whether the step ended the episode by the rules of the task.
            truncated: Whether a cause outside the task, such as a time limit, ended the episode.
            columns: Entries of the additional columns by name. The names must be the same at every step.

        Raises:
            RuntimeError: If the episode is finished or has no first observation.
            ValueError: If the entries differ from those of earlier steps in name, structure or shape, or an additional
                column has a name in :data:`RESERVED`.
        """
        self._check_begun("add_step()", may_be_finished=False)
        _check_names(columns)
        known = self.column_names
        if known != sorted(columns) and (known or self._length):
            remedy = "Give the same columns at every step."
            raise ValueError(_explain("add_step()", f"the columns {known}", sorted(columns), remedy))
        row = _as_arrays({Columns.OBS: obs, Columns.ACTIONS: action, Columns.REWARDS: float(reward), **columns})
        grown = {name: self._columns.get(name, _no_rows(value)) for name, value in row.items()}
        for name, value in row.items():  # all are checked before one is written
            _check_fits(name, grown[name], value)
        for name, value in row.items():
            self._columns[name] = _append(grown[name], self._length + (name == Columns.OBS), value)
        self._length += 1
        self.terminated, self.truncated = bool(terminated), bool(truncated)

    def __len__(self) -> int:
        return self._length

    @property
    def is_reset(self) -> bool:
        """Whether the episode or chunk has an observation to begin with, so that steps can be added."""
        return Columns.OBS in self._columns

    @property
    def is_finished(self) -> bool:
        """Whether the last step terminated or truncated the episode."""
        return self.terminated or self.truncated

    @property
    def t(self) -> int:
        """Number of steps from the start of the episode to the end of this chunk."""
        return self.t_started + self._length

    @property
    def column_names(self) -> list[str]:
        """Names of the additional columns, sorted."""
        return sorted(name for name in self._columns if name not in RESERVED)

    def get_observations(self, indices: Indices = None) -> Tree:
        """Return all observations ``[L+1, ...]``, or those at ``indices``; see :meth:`get_columns`."""
        return self.get_columns(Columns.OBS, indices)

    def get_actions(self, indices: Indices = None) -> Tree:
        """Return all actions ``[L, ...]``, or those at ``indices``; see :meth:`get_columns`."""
        return self.get_columns(Columns.ACTIONS, indices)

    def get_rewards(self, indices: Indices = None) -> Any:
        """Return all rewards ``[L]``, or those at ``indices``; see :meth:`get_columns`."""
        return self.get_columns(Columns.REWARDS, indices)

    def get_columns(self, name: str, indices: Indices = None) -> Tree:
        """Return the column ``name``, whole or in part.

        Args:
            name: Name of the column: ``"obs"``, ``"actions"``, ``"rewards"``, or the name of an additional column.
            indices: An int selects one entry, without a leading dim. A list or array of ints copies the entries in that
                order. A slice returns a view of the entries, and None a view of the whole column. Negative indices
                count from the end of the column.

        Raises:
            KeyError: If the episode does not have the column, or does not have it yet.
            IndexError: If an index is out of range or not an int.
        """
        if name not in self._columns:
            remedy = f"It comes with add_reset() or add_step().{closest(name, self._columns)}"
            raise KeyError(_explain("get_columns()", f"one of {sorted(self._columns)}", repr(name), remedy))
        index = _as_index(name, indices, length := self._length + (name == Columns.OBS))
        return tree.map_structure(lambda x: x[:length][index], self._columns[name])

    def __getitem__(self, steps: slice) -> Episode:
        """Return the steps ``[a:b]``, and the observation that followed them, as a chunk of views. The chunk is
        terminated or truncated only if the episode is and the chunk contains its last step.

        Raises:
            TypeError: If ``steps`` is not a slice with step 1.
            RuntimeError: If the episode has no observation yet.
        """
        if not isinstance(steps, slice) or steps.step not in (None, 1):
            raise TypeError(_explain("[...]", "a slice [a:b]", steps, "Get single entries with get_actions(i) etc."))
        self._check_begun("[a:b]")
        start, stop, _ = steps.indices(self._length)
        stop = max(start, stop)
        columns = {n: self.get_columns(n, slice(start, stop + (n == Columns.OBS))) for n in self._columns}
        to_end = start < stop == self._length
        return self._like_this(columns, self.t_started + start, self.terminated and to_end, self.truncated and to_end)

    def cut(self, lookback: int = 0) -> Episode:
        """Return a new chunk that continues this chunk. Unless ``lookback`` is given, it begins with the last
        observation of this chunk. Add the following steps to the new chunk with :meth:`add_step`.

        Args:
            lookback: Number of steps to repeat. The new chunk then begins with the last ``lookback`` steps of this
                chunk. :meth:`concat` drops the repeated steps, but training on both chunks uses them twice.

        Raises:
            RuntimeError: If the episode is finished or has no observation yet.
            ValueError: If the chunk has fewer steps than ``lookback``.
        """
        self._check_begun("cut()", may_be_finished=False)
        if not 0 <= lookback <= self._length:
            raise ValueError(_explain("cut(lookback)", f"0 to {self._length}", lookback, "Repeat fewer steps."))
        return self[self._length - lookback :]

    def concat(self, *others: Episode) -> Episode:
        """Join this chunk and the ``others``, which follow it, into one episode. Steps that two chunks share are kept
        once.

        Raises:
            RuntimeError: If this chunk has no observation yet.
            ValueError: If a chunk does not continue the chunk before it. This is so if their ids or columns differ, if
                steps are missing between them, if the earlier chunk is finished, or if their observations differ where
                they meet.
        """
        self._check_begun("concat()")
        parts: list[Episode] = [self]
        for other in others:
            parts.append(_continuation(parts[-1], other))
        # an empty chunk may lack columns that come with its first step
        filled = [part for part in parts if len(part)] or [self]
        steps = [{n: part.get_columns(n, slice(len(part))) for n in part._columns} for part in filled]
        expected = _shapes(steps[0])
        if other := [shapes for shapes in map(_shapes, steps) if shapes != expected]:
            raise ValueError(_explain("concat()", f"columns {expected}", other[0], "Record the same in all chunks."))
        columns = concatenated(steps)
        columns[Columns.OBS] = concatenated([columns[Columns.OBS], parts[-1].get_observations(slice(-1, None))])
        return self._like_this(columns, self.t_started, parts[-1].terminated, parts[-1].truncated)

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of this chunk."""
        return float(np.sum(self.get_rewards(), dtype=np.float64))

    def __eq__(self, other: object) -> bool:
        """Return whether the ids, ``t_started``, end flags and columns are equal. NaN equals NaN, and dtypes may
        differ."""
        return isinstance(other, Episode) and _same(self._contents(), other._contents())

    def __repr__(self) -> str:
        ends = " and ".join(name for name in ("terminated", "truncated") if getattr(self, name))
        end = ends or ("unfinished" if self.is_reset else "not reset")
        return f"Episode({self.id[:8]}, steps {self.t_started}..{self.t}, total_reward={self.total_reward:g}, {end})"

    def _contents(self) -> dict[str, Any]:
        # without the rows of columns that are allocated for later steps
        return {**vars(self), "_columns": {name: self.get_columns(name) for name in self._columns}}

    def _like_this(self, columns: Mapping[str, Tree], t_started: int, terminated: bool, truncated: bool) -> Episode:
        """Return an episode with this episode's id and the given ``columns``, whose lengths are not checked."""
        episode = Episode(id=self.id, t_started=t_started)
        episode._columns, episode._length = dict(columns), len(columns[Columns.REWARDS])
        episode.terminated, episode.truncated = terminated, truncated
        return episode

    def _check_begun(self, where: str, *, may_be_finished: bool = True) -> None:
        if not self.is_reset or (self.is_finished and not may_be_finished):
            remedy = "Begin another with Episode()." if self.is_reset else "Call add_reset() first."
            raise RuntimeError(_explain(where, "an episode that was reset and has not ended", self, remedy))


def _explain(where: str, expected: str, got: object, remedy: str) -> str:
    return f"Episode: {where}: expected {expected}, got {got}. {remedy}"


def _check_names(columns: Mapping[str, Tree]) -> None:
    for name in sorted({*columns} & {*RESERVED}):
        remedy = "Choose another name, or use the argument of that name."
        raise ValueError(_explain("columns", f"names other than {RESERVED}", repr(name), remedy))


def _as_arrays(value: Tree) -> Tree:
    """Convert the leaves of nested dicts and tuples to arrays. A list is a leaf."""
    if isinstance(value, Mapping):
        return {key: _as_arrays(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_arrays(child) for child in value)
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


def _as_rewards(values: Any) -> np.ndarray:
    rewards = np.asarray(_as_arrays(values))
    if rewards.ndim != 1 or rewards.dtype.kind not in "fiub":
        got = f"{rewards.dtype} of shape {rewards.shape}"
        raise ValueError(_explain("rewards", "numbers of shape [L]", got, "Give one number per step."))
    return rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)


def _as_column(name: str, value: Tree) -> Tree:
    """Return column ``name`` as a tree of arrays ``[L, ...]``. If ``value`` is a list of entries, stack the entries."""
    if not isinstance(value, list):
        return _as_arrays(value)
    entries = [*map(_as_arrays, value)]
    for row, entry in enumerate(entries):
        _check_fits(f"{name}[{row}]", _no_rows(entries[0]), entry)
    return tree.map_structure(lambda *x: np.stack(x), *entries)


def _as_index(name: str, indices: Any, length: int) -> Any:
    if indices is None or isinstance(indices, slice):
        return indices or slice(None)
    index = np.asarray(indices)
    fits = index.dtype.kind in "iu" or not index.size
    if not fits or ((index < -length) | (index >= length)).any():
        expected = f"ints from {-length} to {length - 1}, a slice or None"
        remedy = "Look at its length; turn a mask into indices with np.flatnonzero()."
        raise IndexError(_explain(f"indices of {name!r}", expected, repr(indices), remedy))
    return index.astype(np.int64) if index.ndim else int(index)


def _no_rows(entry: Tree) -> Tree:
    return tree.map_structure(lambda x: np.empty((0, *x.shape), x.dtype), entry)


def _append(column: Tree, row: int, entry: Tree) -> Tree:
    """Write ``entry`` into row ``row`` of ``column``, and return the column. An array that is too short or whose dtype
    cannot represent the entry is replaced with a copy that is longer or has a wider dtype."""

    def write(array: np.ndarray, value: np.ndarray) -> np.ndarray:
        dtype = np.promote_types(array.dtype, value.dtype)
        if row >= len(array) or dtype != array.dtype:
            grown = np.empty((max(8, 2 * row), *array.shape[1:]), dtype)
            grown[:row] = array[:row]
            array = grown
        array[row] = value
        return array

    return tree.map_structure(write, column, entry)


def _check_fits(name: str, column: Tree, entry: Tree) -> None:
    if (expected := _shapes(column)) != (got := tree.map_structure(np.shape, entry)):
        raise ValueError(_explain(name, f"shape {expected}", got, "Give all entries of a column the same shape."))


def _shapes(column: Tree) -> Tree:
    return tree.map_structure(lambda x: x.shape[1:], column)


def concatenated(parts: Iterable[Tree]) -> Tree:
    """Concatenate trees of arrays ``[L, ...]`` along the first dim."""
    return tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def _same(a: Tree, b: Tree) -> bool:
    try:
        pairs = zip(tree.flatten(a), tree.flatten_up_to(a, b), strict=True)
        return all(np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f") for x, y in pairs)
    except (TypeError, ValueError):  # the structures differ
        return False


def _continuation(before: Episode, after: Episode) -> Episode:
    """Return the steps of ``after`` that follow ``before``, where ``after`` may repeat the last steps of ``before``.
    Raise ValueError unless both are chunks of one episode, without a gap and with the same observation where they
    meet."""
    overlap = before.t - after.t_started
    fits = after.is_reset and before.id == after.id and before.t_started <= after.t_started
    if before.is_finished or not fits or not 0 <= overlap <= len(after) - after.is_finished:
        expected = f"a chunk of the unfinished episode {before.id!r} from step {before.t} on"
        problem = expected, f"{after!r} after {before!r}"
    elif not _same(before.get_observations(-1), after.get_observations(overlap)):
        problem = f"the same observation at step {before.t} in both", "different ones"
    else:
        return after[overlap:]
    raise ValueError(_explain("concat()", *problem, "Pass the chunks of one episode, in their order."))
