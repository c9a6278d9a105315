"""Episode: one episode of one agent, or a chunk of one, for users, offline data and custom code.

Runners and learners work on rollouts; ``Rollout.from_episodes`` and ``Rollout.to_episodes`` lead from one to the other.
``L`` is the number of steps.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.errors import closest, explain_error
from rlmodule.columns import Columns

Indices = int | Sequence[int] | np.ndarray | slice | None
RESERVED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.VALID)
"""Columns of a rollout that an episode holds in its own way; no further column may be called so."""


class Episode:
    """Observations ``o_0 … o_L``, actions ``a_0 … a_{L-1}``, rewards and further columns of one episode or chunk.

    Whole arrays given here are kept, not copied; Python lists are taken step by step. ``Episode()`` is empty, to be
    filled with :meth:`add_reset` and :meth:`add_step`. Getters and slices are views: what is written to them changes
    the episode, until steps are added.

    Args:
        observations: Tree of arrays ``[L+1, ...]``, or a list of ``L+1`` observations.
        actions: Tree of arrays ``[L, ...]``, or a list of ``L`` actions.
        rewards: ``[L]``.
        columns: Further columns by name (``action_logp``, …), each a tree of arrays ``[L, ...]`` or a list.
        terminated: The last step ended the episode in the task's own terms.
        truncated: The last step ended it for outer reasons, such as a time limit.
        id: Common to all chunks of an episode; a new one by default.
        t_started: Number of steps of the episode before this chunk.

    Raises:
        ValueError: If the lengths or the entries of a list do not fit, steps come without observations, an end without
            steps, or a column has a name in :data:`RESERVED`.
    """

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it changes, and is compared by content

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
        self._length = 0 if rewards is None else len(rewards)
        self._columns: dict[str, Tree] = {Columns.REWARDS: _as_rewards([] if rewards is None else rewards)}
        given = {Columns.OBS: observations, Columns.ACTIONS: actions, **(columns or {})}
        for name, value in given.items():
            if value is not None and not (isinstance(value, list) and not value):
                self._columns[name] = _as_column(name, value)
        for name, column in self._columns.items():
            self._check_length(name, column)
        for name in (Columns.OBS, Columns.ACTIONS):
            if self._length and name not in self._columns:
                raise ValueError(_explain(name, f"some for {self._length} rewards", "none", "Give them too."))
        if self.is_finished and not self._length:
            raise ValueError(_explain("an end", "at least one step before it", "none", "Leave out the flag."))

    def add_reset(self, obs: Tree) -> None:
        """Begin with the observation ``obs`` that ``env.reset()`` gave.

        Raises:
            RuntimeError: If there is one already.
        """
        if self.is_reset:
            text = _explain("add_reset()", "an episode without observations", repr(self), "Begin another with Episode().")
            raise RuntimeError(text)
        first = _as_arrays(obs)
        self._columns[Columns.OBS] = _append(_no_rows(first), 0, first)

    def add_step(
        self,
        action: Tree,
        obs: Tree,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        **columns: Tree,
    ) -> None:
        """Add a step. It costs the same however long the episode is, on average.

        Args:
            action: What was done on the last observation.
            obs: What was observed after it, also at the end of the episode.
            reward: What it gave.
            terminated: It ended the episode in the task's own terms.
            truncated: It ended the episode for outer reasons.
            columns: Further columns; the same names at every step.

        Raises:
            RuntimeError: If the episode is finished or lacks a first observation.
            ValueError: If the columns differ from those of earlier steps, in name, structure or shape.
        """
        if not self.is_reset or self.is_finished:
            remedy = "Begin another with Episode()." if self.is_finished else "Call add_reset() first."
            raise RuntimeError(_explain("add_step()", "an episode that was reset and goes on", repr(self), remedy))
        _check_names(columns)
        known = self.column_names
        if sorted(known) != sorted(columns) and (known or self._length):
            raise ValueError(_explain("add_step()", f"the columns {known}", str(sorted(columns)), "Give the same always."))
        row = {Columns.OBS: obs, Columns.ACTIONS: action, Columns.REWARDS: _as_reward(reward), **columns}
        arrays = {name: _as_arrays(value) for name, value in row.items()}
        for name, value in arrays.items():  # all are checked before the first is added
            self._columns.setdefault(name, _no_rows(value))
            _check_fits(name, self._columns[name], value)
        for name, value in arrays.items():
            self._columns[name] = _append(self._columns[name], self._length + (name == Columns.OBS), value)
        self._length += 1
        self.terminated, self.truncated = bool(terminated), bool(truncated)

    def __len__(self) -> int:
        """``L``, the number of steps."""
        return self._length

    @property
    def is_reset(self) -> bool:
        """It has a first observation."""
        return Columns.OBS in self._columns

    @property
    def is_finished(self) -> bool:
        """Its last step terminated or truncated the episode."""
        return self.terminated or self.truncated

    @property
    def t(self) -> int:
        """Number of steps of the episode up to the end of this chunk."""
        return self.t_started + self._length

    @property
    def column_names(self) -> list[str]:
        """Names of the further columns, sorted."""
        return sorted(name for name in self._columns if name not in RESERVED)

    def get_observations(self, indices: Indices = None) -> Tree:
        """Observations ``[L+1, ...]``, or those at ``indices``; see :meth:`get_columns`."""
        return self.get_columns(Columns.OBS, indices)

    def get_actions(self, indices: Indices = None) -> Tree:
        """Actions ``[L, ...]``, or those at ``indices``; see :meth:`get_columns`."""
        return self.get_columns(Columns.ACTIONS, indices)

    def get_rewards(self, indices: Indices = None) -> Any:
        """Rewards ``[L]``, or those at ``indices``; see :meth:`get_columns`."""
        return self.get_columns(Columns.REWARDS, indices)

    def get_columns(self, name: str, indices: Indices = None) -> Tree:
        """The column ``name``, whole or in part.

        Args:
            name: ``"obs"``, ``"actions"``, ``"rewards"`` or a further column.
            indices: An int gives one entry without a leading dim; a list, a copy of the entries in that order; a slice
                or None, a view. Negative ones count from the end of the column.

        Raises:
            KeyError: If there is no such column (yet).
            IndexError: If an index is out of range.
            TypeError: If ``indices`` are no indices.
        """
        if name not in self._columns:
            remedy = f"It comes with add_reset() or add_step().{closest(name, self._columns)}"
            raise KeyError(_explain("get_columns()", f"one of {sorted(self._columns)}", repr(name), remedy))
        length = self._length + (name == Columns.OBS)
        column = tree.map_structure(lambda x: x[:length], self._columns[name])
        if indices is None:
            return column
        index = indices if isinstance(indices, slice) else _as_index(name, indices, length)
        return tree.map_structure(lambda x: x[index], column)

    def __getitem__(self, steps: slice) -> Episode:
        """Steps ``[a:b]`` as a chunk, a view, with the observation that followed them. It ends as the episode does only
        if the last step is in it.

        Raises:
            TypeError: If ``steps`` is not a slice with step 1.
            RuntimeError: If there is no observation yet.
        """
        if not isinstance(steps, slice) or steps.step not in (None, 1):
            raise TypeError(_explain("[...]", "a slice [a:b]", str(steps), "Single steps come from get_actions(i) etc."))
        self._need_observation("[a:b]")
        start, stop, _ = steps.indices(self._length)
        stop = max(start, stop)
        to_end = start < stop == self._length
        return self.from_state(
            {
                "id": self.id,
                "t_started": self.t_started + start,
                "terminated": self.terminated and to_end,
                "truncated": self.truncated and to_end,
                "length": stop - start,
                "columns": {
                    name: self.get_columns(name, slice(start, stop + (name == Columns.OBS))) for name in self._columns
                },
            }
        )

    def cut(self, lookback: int = 0) -> Episode:
        """The chunk to go on with: it begins at the last observation, where this one ends.

        Args:
            lookback: Number of last steps to repeat in it. They are steps like any other: :meth:`concat` leaves them
                out again, but who trains on both chunks trains on them twice.

        Raises:
            RuntimeError: If the episode is finished or has no observation yet.
            ValueError: If there are fewer steps than ``lookback``, or it is negative.
        """
        self._need_observation("cut()")
        if self.is_finished:
            raise RuntimeError(_explain("cut()", "an unfinished episode", repr(self), "Begin another with Episode()."))
        if not 0 <= lookback <= self._length:
            raise ValueError(_explain("cut(lookback)", f"0 to {self._length}", str(lookback), "Repeat fewer steps."))
        return self[self._length - lookback :]

    def concat(self, *others: Episode) -> Episode:
        """This chunk and those that follow it as a new one. Steps that a chunk repeats are taken once.

        Raises:
            ValueError: If one does not continue the one before it: another id, a gap, another observation at the seam,
                a finished episode, or other columns.
        """
        parts = [self]
        self._need_observation("concat()")
        for other in others:
            parts.append(_continuation(parts[-1], other))
        steps = [part for part in parts if part._length] or [self]
        columns = {name: _concatenate([part.get_columns(name) for part in steps]) for name in steps[0]._columns}
        seams = [part.get_observations(slice(0, len(part))) for part in parts]
        columns[Columns.OBS] = _concatenate([*seams, parts[-1].get_observations(slice(-1, None))])
        length = sum(len(part) for part in parts)
        ends = {"terminated": parts[-1].terminated, "truncated": parts[-1].truncated}
        return self.from_state(
            {"id": self.id, "t_started": self.t_started, "length": length, "columns": columns, **ends}
        )

    @property
    def total_reward(self) -> float:
        """Sum of the rewards."""
        return self.get_return()

    def get_return(self, gamma: float = 1.0) -> float:
        """``Σ gamma^t · r_t`` from the first step of the chunk."""
        rewards = self.get_rewards()
        return float(np.sum(rewards * np.power(float(gamma), np.arange(len(rewards))), dtype=np.float64))

    def returns_to_go(self, gamma: float = 1.0) -> np.ndarray:
        """``G_t = r_t + gamma · G_{t+1}``, ``[L]`` float64. Nothing is assumed to follow the last step."""
        result = self.get_rewards().astype(np.float64)
        for t in range(len(result) - 2, -1, -1):
            result[t] += gamma * result[t + 1]
        return result

    def get_state(self) -> dict[str, Any]:
        """A copy of everything, as plain values and trees of arrays."""
        columns = {name: tree.map_structure(np.copy, self.get_columns(name)) for name in self._columns}
        names = ("id", "t_started", "terminated", "truncated")
        return {name: getattr(self, name) for name in names} | {"length": self._length, "columns": columns}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Episode:
        """The episode that :meth:`get_state` gave; its arrays are kept, not copied."""
        episode = cls(id=state["id"], t_started=state["t_started"])
        episode.terminated, episode.truncated = state["terminated"], state["truncated"]
        episode._length, episode._columns = state["length"], dict(state["columns"])
        return episode

    def __eq__(self, other: object) -> bool:
        """Same id, place, end and content; NaN equals NaN, dtypes may differ."""
        if not isinstance(other, Episode):
            return NotImplemented
        names = ("id", "t_started", "terminated", "truncated", "_length")
        return all(getattr(self, name) == getattr(other, name) for name in names) and _same(
            {name: self.get_columns(name) for name in self._columns},
            {name: other.get_columns(name) for name in other._columns},
        )

    def __repr__(self) -> str:
        end = [name for name in ("terminated", "truncated") if getattr(self, name)]
        end = " and ".join(end) or ("unfinished" if self.is_reset else "not reset")
        return f"Episode({self.id[:8]}, steps {self.t_started}..{self.t}, total_reward={self.total_reward:g}, {end})"

    def _check_length(self, name: str, column: Tree) -> None:
        expected = self._length + (name == Columns.OBS)
        lengths = {x.shape[0] if x.ndim else "no" for x in tree.flatten(column)}
        if lengths != {expected}:
            remedy = "An episode has a reward, an action and so on per step, and one observation more."
            got = " and ".join(str(length) for length in lengths)
            raise ValueError(_explain(name, f"{expected} entries for {self._length} rewards", got, remedy))

    def _need_observation(self, where: str) -> None:
        if not self.is_reset:
            raise RuntimeError(_explain(where, "an episode with an observation", "none yet", "Call add_reset() first."))


def _explain(where: str, expected: str, got: str, remedy: str) -> str:
    return explain_error(f"Episode: {where}", expected=expected, got=got, remedy=remedy)


def _check_names(columns: Mapping[str, Tree]) -> None:
    for name in columns:
        if name in RESERVED:
            text = _explain(f"column {name!r}", f"a name that is none of {RESERVED}", "one", "Give it by its argument.")
            raise ValueError(text)


def _as_arrays(value: Tree) -> Tree:
    """Dicts and tuples stay; everything else, lists too, becomes an array."""
    if isinstance(value, Mapping):
        return {key: _as_arrays(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_arrays(child) for child in value)
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


def _as_column(name: str, value: Tree) -> Tree:
    """Tree of arrays with a leading dim, also from a list with an entry per step."""
    if not isinstance(value, list):
        return _as_arrays(value)
    entries = [_as_arrays(entry) for entry in value]
    column = _no_rows(entries[0])
    for row, entry in enumerate(entries):
        _check_fits(f"{name}[{row}]", column, entry)
        column = _append(column, row, entry)
    return tree.map_structure(lambda x: x[: len(entries)], column)


def _as_rewards(values: Any) -> np.ndarray:
    rewards = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    if rewards.ndim != 1 or (rewards.size and rewards.dtype.kind not in "fiub"):
        got = f"{rewards.dtype} of shape {rewards.shape}"
        raise ValueError(_explain("rewards", "numbers of shape [L]", got, "Give one number per step."))
    return rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)


def _as_reward(value: Any) -> np.ndarray:
    reward = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    return _as_rewards(reward[None])[0:1].reshape(())


def _as_index(name: str, indices: Any, length: int) -> Any:
    """An int or an int array, each within ``-length <= i < length``."""
    try:
        index = np.asarray(operator.index(indices)) if np.ndim(indices) == 0 else np.asarray(indices)
    except TypeError:
        index = np.asarray(indices)
    if index.size and index.dtype.kind not in "iu":
        remedy = "Turn a mask into indices with np.flatnonzero()."
        raise TypeError(_explain(f"indices of {name!r}", "an int, a list of ints, a slice or None", repr(indices), remedy))
    if ((index < -length) | (index >= length)).any():
        raise IndexError(_explain(f"indices of {name!r}", f"-{length} to {length - 1}", repr(indices), "Look at len()."))
    return int(index) if index.ndim == 0 else index.astype(np.int64)


def _no_rows(entry: Tree) -> Tree:
    """A column for entries like this one."""
    return tree.map_structure(lambda x: np.empty((0, *x.shape), x.dtype), entry)


def _append(column: Tree, row: int, entry: Tree) -> Tree:
    """The column with ``entry`` in row ``row``: the same arrays, or copies twice as long or of a wider dtype."""

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
    expected = tree.map_structure(lambda x: x.shape[1:], column)
    got = tree.map_structure(np.shape, entry)
    if expected != got:
        remedy = "All entries of a column have one structure and shape."
        raise ValueError(_explain(name, f"shape {expected}", str(got), remedy))


def _concatenate(parts: list[Tree]) -> Tree:
    return tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def _same(a: Tree, b: Tree) -> bool:
    def equal(x: np.ndarray, y: np.ndarray) -> bool:
        return np.array_equal(x, y, equal_nan=x.dtype.kind == y.dtype.kind == "f")

    try:
        return all(tree.flatten(tree.map_structure(equal, a, b)))
    except (TypeError, ValueError):  # other structures
        return False


def _continuation(before: Episode, after: Episode) -> Episode:
    """The steps of ``after`` that follow ``before``; ValueError if it does not continue it."""
    overlap = before.t - after.t_started
    problem = None
    if before.is_finished:
        problem = "an unfinished chunk before it", repr(before)
    elif before.id != after.id:
        problem = f"the id {before.id!r}", repr(after.id)
    elif not after.is_reset or not 0 <= overlap <= len(after) or after.t_started < before.t_started:
        problem = f"a chunk from step {before.t} on", repr(after)
    elif not _same(before.get_observations(-1), after.get_observations(overlap)):
        problem = f"the same observation at step {before.t} in both", "different ones"
    elif len(before) and len(after) > overlap and _columns_of(before) != _columns_of(after):
        problem = f"columns with the shapes {_columns_of(before)}", str(_columns_of(after))
    if problem:
        raise ValueError(_explain("concat()", *problem, "Pass the chunks of one episode, in their order."))
    return after[overlap:]


def _columns_of(episode: Episode) -> dict[str, Tree]:
    names = [Columns.ACTIONS, *episode.column_names]
    return {name: tree.map_structure(lambda x: x.shape[1:], episode.get_columns(name)) for name in names}
