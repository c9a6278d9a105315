"""Episode: one episode of one agent, or a chunk of one, for users, offline data and custom code; ``L`` steps long.
``Rollout.from_episodes`` and ``Rollout.to_episodes`` convert to what runners and learners work on, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.errors import closest
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
"""Columns of a rollout that an episode holds in its own way; no further column may be called so."""


class Episode:
    """Observations ``o_0 … o_L``, actions ``a_0 … a_{L-1}``, rewards and further columns of one episode or chunk.

    Whole arrays given here are kept, not copied; Python lists are read step by step. Getters and slices are views:
    what is written to them changes the episode.

    Args:
        observations: Tree of arrays ``[L+1, ...]``, or a list of ``L+1`` observations.
        actions: Tree of arrays ``[L, ...]``, or a list of ``L`` actions.
        rewards: ``[L]``.
        columns: Further columns by name (``action_logp``, …), each a tree of arrays ``[L, ...]`` or a list.
        terminated, truncated: The last step ended the episode in the task's own terms, or for outer reasons.
        id: Common to all chunks of an episode; a new one by default.
        t_started: Number of steps of the episode before this chunk.

    Raises:
        ValueError: If the lengths or the entries of a list do not fit, or a column has a name in :data:`RESERVED`.
    """

    def __init__(
        self,
        observations: Tree,
        actions: Tree,
        rewards: Sequence[float] | np.ndarray | Tensor,
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
        given = {} if columns is None else columns
        if taken := sorted({*given} & {*RESERVED}):
            raise ValueError(f"Episode: columns: expected other names than {RESERVED}, got {taken}. Rename them.")
        self.column_names = sorted(given)
        """Names of the further columns."""
        values = np.asarray(rewards)
        if values.dtype.kind != "f":
            values = values.astype(np.float64)
        self._length = len(values)
        self._columns: dict[str, Tree] = {Columns.REWARDS: values}
        for name, value in {Columns.OBS: observations, Columns.ACTIONS: actions, **given}.items():
            self._columns[name] = _as_column(value)
            expected = self._length + (name == Columns.OBS)
            lengths = {x.shape[0] if x.ndim else "no" for x in tree.flatten(self._columns[name])}
            if lengths != {expected} or values.ndim != 1:
                raise ValueError(
                    f"Episode: {name}: expected {expected} entries for rewards of shape {values.shape}, got "
                    f"{' or '.join(map(str, lengths))}. A step has one reward, an action and so on; observations "
                    "are one more."
                )

    def __len__(self) -> int:
        return self._length

    @property
    def t(self) -> int:
        """Number of steps of the episode up to the end of this chunk."""
        return self.t_started + self._length

    @property
    def total_reward(self) -> float:
        """Sum of the rewards."""
        return float(np.sum(self.get_rewards(), dtype=np.float64))

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
        """The column ``name`` (``"obs"``, ``"actions"``, ``"rewards"`` or a further one), whole or in part.

        An int gives one entry without a leading dim, a list a copy of the entries in that order, a slice or None a
        view. Negative indices count from the end of the column. KeyError if there is no such column, IndexError if an
        index is out of range.
        """
        if name not in self._columns:
            known = sorted(self._columns)
            raise KeyError(f"Episode: expected a column of {known}, got {name!r}.{closest(name, known)}")
        return tree.map_structure(lambda x: x[slice(None) if indices is None else indices], self._columns[name])

    def __getitem__(self, steps: slice) -> Episode:
        """Steps ``[a:b]`` as a chunk, a view, with the observation that followed them. It ends as the episode does only
        if the last step is in it. TypeError for anything but a slice with step 1."""
        if not isinstance(steps, slice) or steps.step not in (None, 1):
            raise TypeError(f"Episode: expected a slice [a:b], got {steps}. Read single entries by get_actions(i) etc.")
        start, stop, _ = steps.indices(self._length)
        stop = max(start, stop)
        to_end = start < stop == self._length
        return Episode(
            self.get_observations(slice(start, stop + 1)),
            self.get_actions(slice(start, stop)),
            self.get_rewards(slice(start, stop)),
            columns={name: self.get_columns(name, slice(start, stop)) for name in self.column_names},
            terminated=self.terminated and to_end,
            truncated=self.truncated and to_end,
            id=self.id,
            t_started=self.t_started + start,
        )

    def __repr__(self) -> str:
        end = " and ".join(name for name in ("terminated", "truncated") if getattr(self, name)) or "unfinished"
        return f"Episode({self.id[:8]}, steps {self.t_started}..{self.t}, total_reward={self.total_reward:g}, {end})"


def _as_arrays(value: Tree) -> Tree:
    """Dicts and tuples stay; everything else, lists too, becomes an array."""
    if isinstance(value, Mapping):
        return {key: _as_arrays(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_arrays(child) for child in value)
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


def _as_column(value: Tree) -> Tree:
    """Tree of arrays with a leading dim, also from a list with an entry per step."""
    if isinstance(value, list) and value:
        return tree.map_structure(lambda *entries: np.stack(entries), *map(_as_arrays, value))
    return _as_arrays(value)
