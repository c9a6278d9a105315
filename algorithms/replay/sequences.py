"""Sample sequences from a replay buffer, for recurrent modules (R2D2, Kapturowski et al. 2019).

A sequence begins at an *anchor*: a row whose recurrent state is stored. It has ``burn_in`` rows that only warm up the
state, followed by ``length`` rows that are trained on, and by the rows that their n-step windows reach. A module runs
over all rows of a sequence, and zeroes its state where an episode starts. The observation after a row must therefore be
in the next row. After a truncated step, an extra row is inserted for the true final observation.

Env runners record a state at the start of each rollout and after every ``length`` rows of it. Not all of these become
anchors: an anchor is followed by the last recorded state that lies at most ``length`` rows after it. So every row
is trained on, whatever the length of the rollouts, and if that divides the sequence length, sequences do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import tree
from torch import Tensor, from_numpy

from algorithms.replay.draws import Draws
from algorithms.replay.layout import ReplayLayout
from algorithms.replay.ring import START, ColumnIndex, Ring
from algorithms.replay.windows import Windows
from catalog.base import Tree
from catalog.checks import Bounds, check_value
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout, map_leaves


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceReplay:
    """Settings of a buffer that samples sequences.

    Attributes:
        length: ``L``, the rows of a sequence that are trained on. Equal to the ``max_seq_len`` of the rollouts.
        burn_in: Rows before the ``length`` rows, which only warm up the state that was recorded with older weights.
        initial_state: The module's ``get_initial_state()``, a tree of tensors without a batch dimension.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range.
    """

    length: int
    burn_in: int = 0
    initial_state: Tree

    def __post_init__(self) -> None:
        for name, value, least in (("length", self.length, 1), ("burn_in", self.burn_in, 0)):
            check_value(f"SequenceReplay.{name}", value, int, Bounds(ge=least), "Count it in steps.")

    def reach(self, n_step: int) -> int:
        """Return the number of rows that must be written from an anchor on before its sequence can be sampled."""
        return self.burn_in + self.length + n_step - 1

    @property
    def state_bytes(self) -> int:
        """Bytes of one recurrent state."""
        return sum(x.numel() * x.element_size() for x in tree.flatten(self.initial_state))


class Anchors:
    """Keeps the anchors of a ring with ``N`` columns, and draws them.

    The anchors of a column are numbered in order of time, and anchor ``i`` is kept in row ``i % A`` of a ring of their
    own, ``[A, N]``. It can be drawn as long as the ring of transitions holds its burn-in, the ``length`` rows after it
    and their n-step windows.

    Args:
        settings: Length, burn-in and initial state of the sequences.
        layout: Layout of the ring, including the settings of prioritized draws.
        n_step: Number of steps in the longest n-step window that may wait for later rows.

    Attributes:
        draws: Which anchors can be drawn.
        rows: int64 ``[A, N]``: the number of transitions that were written to the column before each anchor.

    Raises:
        ValueError: If the ring is too short to hold a complete sequence at all times once it is full.
    """

    def __init__(self, settings: SequenceReplay, layout: ReplayLayout, n_step: int) -> None:
        num_envs, kept_rows = layout.num_envs, layout.kept_rows
        self.settings, self._layout = settings, layout
        self._reach = settings.reach(n_step)
        needed = self._reach + settings.length - 1
        if kept_rows < needed:
            raise ValueError(
                f"ReplayBuffer(capacity): expected at least {needed} steps of each of {num_envs} "
                f"envs, for sequences of {settings.length} with a burn-in of {settings.burn_in}, "
                f"got {kept_rows} of each. Raise the capacity or take more data, or lower max_seq_len, burn_in_len, "
                "n_step or the number of envs."
            )
        self._initial = [x.detach().cpu() for x in tree.flatten(settings.initial_state)]
        self._columns = np.arange(num_envs)
        self._allocate(layout.num_anchors)

    def _allocate(self, size: int) -> None:
        """Begin without anchors. Allocate ``size`` for each column."""
        num_envs = len(self._columns)
        self._num = np.zeros(num_envs, np.int64)  # of anchors there ever were
        # Before there is an anchor, the next one is due, as if the newest one were a sequence back.
        self.rows = np.full((size, num_envs), -self.settings.length)
        self._states = [x.new_zeros(size, num_envs, *x.shape) for x in self._initial]
        self.draws = Draws(size, num_envs, self._layout.prioritized)

    def read_states(self, rollout: Rollout) -> list[Tensor]:
        """Return the recurrent states recorded in a rollout ``[T, n]``, one tensor ``[ceil(T / L), n, ...]`` per leaf:
        the initial state if its ``state_in`` is None. Raise ``ValueError`` if their shapes do not fit."""
        (steps, slots), length = rollout.shape, self.settings.length
        count = -(-steps // length)
        if rollout.state_in is None:
            return [x.expand(count, slots, *x.shape) for x in self._initial]
        states = tree.flatten(rollout.state_in)
        got = [tuple(x.shape) for x in states]
        expected = [(count, slots, *x.shape) for x in self._initial]
        if got != expected:
            raise ValueError(
                f"Rollout.state_in: expected states shaped {expected}, one row for every "
                f"{length} steps, got {got}. Sample with the module and the max_seq_len that the "
                "replay buffer was built for."
            )
        return states

    def add(self, states: Sequence[Tensor], numbers: np.ndarray, columns: ColumnIndex, written: np.ndarray) -> None:
        """Choose anchors among the states recorded in a rollout, make those of complete sequences drawable, and stop
        drawing those whose rows were overwritten.

        Args:
            states: The result of :meth:`read_states`.
            numbers: The result of :meth:`Ring.numbers`, ``[T + 1, n]``.
            columns: The column of each slot.
            written: The number of transitions that were ever written to each column, ``[N]``.
        """
        written = written.copy()
        # A state was recorded before the first transition at or after its row. The next one is at the next rollout.
        recorded = np.concatenate([numbers[: -1 : self.settings.length], numbers[-1:]])
        for i, (row, next_row) in enumerate(pairwise(recorded)):
            newest = self.rows[(self._num - 1) % len(self.rows), self._columns][columns]
            slots = np.flatnonzero((next_row > row) & (next_row - newest > self.settings.length))
            if len(slots):
                self._begin(self._columns[columns][slots], row[slots], [x[i, slots] for x in states])
            written[columns] = next_row
            begin = self._first_from(written - self._layout.kept_rows, self.draws.begin)
            self.draws.move(begin, self._first_from(written - self._reach + 1, self.draws.end))

    def complete_last(self, written: np.ndarray) -> None:
        """Let the last sequence of each column begin early enough to end with the ``written`` transitions, ``[N]``,
        after which none follow. It overlaps the one before. All recorded states must be equal, as those of data are."""
        end = self.draws.end
        is_cut = end < self._num
        columns = np.flatnonzero(is_cut)
        self.rows[end[columns] % len(self.rows), columns] = (written - self._reach)[columns]
        self.draws.move(self.draws.begin, end + is_cut)

    def _begin(self, columns: np.ndarray, rows: np.ndarray, states: Sequence[Tensor]) -> None:
        """Add an anchor to each of ``columns`` ``[k]``, at ``rows`` ``[k]`` and with ``states`` ``[k, ...]``."""
        if (self._num - self.draws.begin)[columns].max() >= len(self.rows):
            # Rollouts of some lengths put anchors closer together than others. Anchor `i` of the table of twice the
            # size is one of the two copies of the one it was.
            self.rows = np.concatenate([self.rows, self.rows])
            self._states = [torch.cat([kept, kept]) for kept in self._states]
            self.draws.double()
        where = self._num[columns] % len(self.rows)
        self.rows[where, columns] = rows
        for kept, new in zip(self._states, states, strict=True):
            kept[where, columns] = new
        self._num[columns] += 1

    def _first_from(self, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the number of each column's first anchor at or after ``rows`` ``[N]``. It is at least ``numbers``
        ``[N]``."""
        while True:
            comes_before = (numbers < self._num) & (self.rows[numbers % len(self.rows), self._columns] < rows)
            if not comes_before.any():
                return numbers
            numbers = numbers + comes_before

    def places(self, anchors: np.ndarray, ring: Ring) -> np.ndarray:
        """Return the places of the rows of ``anchors`` ``[B]`` in ``ring``, int64 ``[B]``."""
        return self.rows.take(anchors) % ring.rows * ring.num_columns + anchors % ring.num_columns

    def states(self, anchors: np.ndarray) -> Tree:
        """Return the recurrent states before the rows of ``anchors`` ``[B]``, a tree of tensors ``[B, ...]``."""
        found = [kept.flatten(0, 1)[anchors] for kept in self._states]
        return tree.unflatten_as(self.settings.initial_state, found)

    def describe(self) -> str:
        """Describe the sequence settings that two buffers must share before one can load the state of the other."""
        settings = self.settings
        return (
            f"of {settings.length} after {settings.burn_in}, {self._reach} up to the last window, "
            f"with {settings.state_bytes} bytes of state"
        )

    def get_state(self) -> dict[str, Any]:
        """Return the anchors, as tensors that share the memory of this object."""
        used = min(len(self.rows), int(self._num.max()))
        return {
            "size": len(self.rows),
            "rows": from_numpy(self.rows[:used]),
            "states": [kept[:used] for kept in self._states],
            "num": from_numpy(self._num),
            "begin": from_numpy(self.draws.begin),
            "end": from_numpy(self.draws.end),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`, but for the priorities, which are lost."""
        self._allocate(state["size"])
        self.rows[: len(state["rows"])] = state["rows"].numpy()
        for kept, saved in zip(self._states, state["states"], strict=True):
            kept[: len(saved)] = saved
        self._num[:] = state["num"].numpy()
        self.draws.move(state["begin"].numpy(), state["end"].numpy())


def gather_sequences(
    ring: Ring,
    windows: Windows,
    anchors: Anchors,
    drawn: np.ndarray,
    rng: np.random.Generator,
) -> tuple[Batch, np.ndarray]:
    """Return a batch of the ``B`` sequences that begin at the anchors ``drawn`` ``[B]``.

    The batch has ``L'`` rows: the ``L`` rows after the burn-in, the rows that their windows reach, and the rows
    inserted for true final observations, as many as any of the sequences needs. The ``V = L·B`` valid rows, which are
    trained on, are the ``L`` rows of each. Index ``t·B + b`` means row ``t`` of sequence ``b``.

    Args:
        ring: The ring to read.
        windows: The n-step windows.
        anchors: The anchors of the ring.
        drawn: Places of anchors, int64.
        rng: Random stream of the numbers of steps of windows.

    Returns:
        A dict of columns, and the sequence in ``[0, B)`` of each valid row, int64 ``[V]``. The columns are

        - ``obs`` ``[L', B, ...]`` and ``starts`` ``[L', B]``;
        - ``state_in`` ``[B, ...]``, the state before the burn-in, or before the first row if there is none;
        - those of :meth:`Windows.take`, ``[L', B, ...]``, 0 outside the valid rows;
        - ``valid_rows`` ``[V]``, the indices of the valid rows;
        - ``next_rows`` ``[V]``, the index of the observation after the window of each valid row;
        - ``burn_in``, if the sequences have one: its ``obs`` and ``starts`` ``[burn_in, B, ...]``.
    """
    settings, batch_size = anchors.settings, len(drawn)
    span = np.arange(settings.reach(windows.most) + 1)[:, None] * ring.num_columns
    places = (anchors.places(drawn, ring) + span) % ring.num_places
    before, places = places[: settings.burn_in], places[settings.burn_in :]
    ended = ring.has(ring.ends_with_finals, places)
    ended[-1] = False  # the last row is only there for its observation, no window crosses its step
    spread, positions, inserted = _with_finals(places, ended)
    shape, spread = spread.shape, spread.reshape(-1)
    obs = ring.obs.at(spread)
    if len(inserted):
        index, finals = from_numpy(inserted), ring.obs.following(spread[inserted])
        obs = tree.map_structure(lambda x, final: x.index_copy_(0, index, final), obs, finals)

    # `places` and `trained` count ring rows; `positions` translates them to rows of the batch, with inserted ones.
    def lay_out(rows: np.ndarray, values: np.ndarray) -> Tensor:
        column = np.zeros((len(spread), *values.shape[1:]), values.dtype)
        column[rows] = values
        return from_numpy(column.reshape(*shape, *values.shape[1:]))

    trained = np.arange(settings.length * batch_size)
    rows = positions.take(trained)
    columns, _, steps = windows.take(ring, places.take(trained), rng)
    # one row after the window's last step, which is an inserted row if that step was truncated
    following = positions.take(trained + (steps - 1) * batch_size) + batch_size
    # No window reaches into an episode that starts at the last row, and its flag may not be written yet.
    starts = ring.has(START, places[:-1].reshape(-1))
    batch = {
        Columns.OBS: map_leaves(lambda x: x.unflatten(0, shape), obs),
        Columns.STARTS: lay_out(positions[:-1].reshape(-1), starts),
        Columns.STATE_IN: anchors.states(drawn),
        **map_leaves(lambda x: lay_out(rows, x.numpy()), columns),
        Columns.VALID_ROWS: from_numpy(rows),
        Columns.NEXT_ROWS: from_numpy(following),
    }
    if settings.burn_in:
        obs = ring.obs.at(before.reshape(-1))
        batch[Columns.BURN_IN] = {
            Columns.OBS: map_leaves(lambda x: x.unflatten(0, before.shape), obs),
            Columns.STARTS: from_numpy(ring.has(START, before)),
        }
    return batch, rows % batch_size


def _with_finals(places: np.ndarray, truncated: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Insert a row for the true final observation after each truncated step.

    Args:
        places: Places of the rows of the sequences, ``[M, B]``.
        truncated: bool ``[M, B]``: the step was truncated.

    Returns:
        spread: The place of each of ``L'`` rows, ``[L', B]``. An inserted row has the place of the truncated step. A
            sequence with fewer inserted rows than another is padded with its last row.
        positions: Index ``t·B + b`` of each given row among the ``L'`` rows, ``[M, B]``.
        inserted: Index ``t·B + b`` of each inserted row, int64 ``[K]`` for ``K`` truncated steps.
    """
    steps, batch = places.shape
    positions = np.arange(steps * batch).reshape(steps, batch)
    # A row moves down by the number of truncated steps before it in its own column.
    until = np.add.accumulate(truncated, 0, dtype=np.int64)
    positions += (until - truncated) * batch
    spread = np.repeat(places[-1:], steps + int(until[-1].max()), 0)
    inserted = positions[truncated] + batch
    spread.put(positions, places)
    spread.put(inserted, places[truncated])
    return spread, positions, inserted
