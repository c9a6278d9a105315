"""Sample sequences from a replay buffer, for recurrent modules (R2D2, Kapturowski et al. 2019).

A sequence begins at an *anchor*: a place of the ring whose row is a multiple of the sequence length, and whose
recurrent state is stored. A sequence has ``burn_in`` rows that only warm up the state, followed by ``length`` rows that
are trained on, and by the rows that their n-step windows reach. A module runs over all rows of a sequence, and zeroes
its state where an episode starts. The observation after a row must therefore be in the next row. After a truncated
step, an extra row is inserted for the true final observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tree
from torch import Tensor, from_numpy

from algorithms.replay.candidates import Candidates
from catalog.base import Tree
from catalog.checks import Bounds, check_value
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout, map_leaves

if TYPE_CHECKING:
    from algorithms.replay.buffer import ReplayBuffer
    from algorithms.replay.layout import ReplayLayout


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

    def fits(self, steps: int) -> bool:
        """Return whether rollouts of ``steps`` rows can be cut into sequences: whether ``steps`` is a divisor or a
        multiple of their length."""
        return not (steps % self.length and self.length % steps)

    @property
    def state_bytes(self) -> int:
        """Bytes of one recurrent state."""
        return sum(x.numel() * x.element_size() for x in tree.flatten(self.initial_state))


class Anchors(Candidates):
    """Stores recurrent states at the anchors of a ring ``[R, N]``, the rows where sequences begin, and draws anchors.

    Anchor ``i`` is row ``i // N * length`` of column ``i % N``. It can be drawn if the ring holds its burn-in,
    the ``length`` rows after it and their n-step windows, and at least one of the ``length`` rows can be trained on.

    Args:
        settings: Length, burn-in and initial state of the sequences.
        layout: Layout of the ring, including the settings of prioritized draws.
        n_step: Number of steps in the longest n-step window.

    Raises:
        ValueError: If the ring is too short to hold a complete sequence at all times once it is full.
    """

    def __init__(self, settings: SequenceReplay, layout: ReplayLayout, n_step: int) -> None:
        num_envs, kept_rows = layout.num_envs, layout.kept_rows
        super().__init__(layout.rows // settings.length, num_envs, layout.prioritized)
        self.settings = settings
        self._rows, self._kept_rows, self._num_envs = layout.rows, kept_rows, num_envs
        self._reach = settings.reach(n_step)
        needed = self._reach + settings.length - 1
        if kept_rows < needed:
            raise ValueError(
                f"ReplayBuffer(capacity): expected at least {needed} steps of each of {num_envs} "
                f"envs, for sequences of {settings.length} with a burn-in of {settings.burn_in}, "
                f"got {kept_rows} of each. Raise the capacity, or lower the burn-in, the length or "
                "the number of envs."
            )
        self._written = np.zeros(num_envs, np.int64)
        self._initial = [x.detach().cpu() for x in tree.flatten(settings.initial_state)]
        self._states = [x.new_zeros(*self.sampleable.shape, *x.shape) for x in self._initial]

    def read_states(self, rollout: Rollout, head: int) -> list[Tensor] | None:
        """Return the recurrent states at the anchors in ``rollout``, one tensor ``[anchors, n, ...]`` per leaf.

        Args:
            rollout: The rollout to write from row ``head`` on. If its ``state_in`` is None, return the initial state
                for each anchor.
            head: Ring row of the rollout's first step.

        Returns:
            The leaves of the states, or None if the rollout contains no anchor.

        Raises:
            ValueError: If an anchor lies where env runners record no state, that is, not in row 0, L, 2L, … of the
                rollout. Also if the shapes of the states do not fit the buffer.
        """
        (steps, slots), length = rollout.shape, self.settings.length
        first = -head % length
        # Runners record states before rows 0, L, 2L, … of a rollout, so anchors must fall on these.
        if not self.settings.fits(steps):
            raise ValueError(
                f"rollout_fragment_length: expected a divisor or a multiple of the sequence length {length}, got "
                f"{steps} steps. Set one that divides max_seq_len, or a multiple of it."
            )
        if 0 < first < steps:
            raise ValueError(
                f"rollout_fragment_length: expected rollouts that begin where a sequence of {length} steps begins, or "
                f"end before the next one, got {steps} steps from row {head} on. Sample rollouts of one length into a "
                "buffer: keep the rollout_fragment_length of the checkpoint, or set replay_in_checkpoints=False."
            )
        if first:
            return None
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

    def advance(
        self, head: int, steps: int, columns: slice, states: Sequence[Tensor] | None, trained: np.ndarray
    ) -> None:
        """Update the anchors after rows were written. Store ``states``, make the anchors of newly complete sequences
        drawable, and stop drawing anchors whose rows were overwritten.

        Args:
            head: First row that was written.
            steps: Number of rows that were written.
            columns: The columns (envs) that were written.
            states: The result of :meth:`read_states` for the rollout; None if no anchor is in these rows.
            trained: bool ``[R, N]``: the rows that can be trained on.
        """
        length, after = self.settings.length, head + steps
        if states is not None:
            rows = np.arange(head, after, length) // length % len(self.sampleable)
            for kept, new in zip(self._states, states, strict=True):
                kept[from_numpy(rows), columns] = new
        # Row numbers go beyond the ring's end here; offer() and withdraw() wrap them. Each call covers exactly the
        # anchors that became incomplete or complete with these rows, so none is offered twice.
        gone = self._anchors_between(head - self._kept_rows, after - self._kept_rows)
        self.withdraw(gone.start, len(gone), columns)
        written = min(int(self._written[columns.start]) + steps, self._kept_rows)
        self._written[columns] = written
        begin = max(head + 1 - self._reach, after - written)
        complete = self._anchors_between(begin, after + 1 - self._reach)
        if complete:
            first = np.array(complete)[:, None] * length + self.settings.burn_in
            places = (first + np.arange(length)) % self._rows
            self.offer(complete.start, columns, np.logical_or.reduce(trained[places, columns], 1))

    def read_states_at(self, rollout: Rollout, rows: np.ndarray, steps: np.ndarray, slots: np.ndarray) -> list[Tensor]:
        """Return the recurrent states at the anchors among ``rows``, one tensor ``[anchors, ...]`` per leaf.

        Args:
            rollout: A rollout for :meth:`ReplayBuffer.add_apart`. If its ``state_in`` is None, return the initial state
                for each anchor.
            rows: Ring row ``[K]`` to which each valid row of the rollout is written.
            steps, slots: Row and slot ``[K]`` of each valid row in the rollout.

        Raises:
            ValueError: If an anchor lies where env runners record no state; see :meth:`read_states`.
        """
        length, due = self.settings.length, rows % self.settings.length == 0
        steps, slots = steps[due], slots[due]
        if np.count_nonzero(steps % length):
            raise ValueError(
                "rollout_fragment_length: expected 1 for sequences of slots that advance apart, so that the state "
                f"before each row is known, got {len(rollout.valid)} steps."
            )
        if rollout.state_in is None:
            return [x.expand(len(steps), *x.shape) for x in self._initial]
        return [x[steps // length, slots] for x in tree.flatten(rollout.state_in)]

    def advance_at(
        self,
        rows: np.ndarray,
        where: np.ndarray,
        after: np.ndarray,
        columns: np.ndarray,
        lengths: np.ndarray,
        states: Sequence[Tensor],
        trained: np.ndarray,
    ) -> None:
        """Update the anchors as :meth:`advance` does, after rows were written in columns that advance apart.

        The numbers in ``rows`` and ``after`` continue past the ring's end: ``R`` is row 0 of the ring, ``R + 1`` is
        row 1, and so on.

        Args:
            rows, where: Row and column of each row that was written, ``[K]``.
            after: For each row that was written, the row after the last row written in its column, ``[K]``.
            columns, lengths: The columns, and the number of rows written in each, ``[n]``.
            states: The result of :meth:`read_states_at`.
            trained: bool ``[R, N]``: the rows that can be trained on.
        """
        length = self.settings.length

        def anchors_of(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
            return rows[which] // length % len(self.sampleable) * self._num_envs + where[which]

        anchors = from_numpy(anchors_of(rows, rows % length == 0))
        for kept, new in zip(self._states, states, strict=True):
            kept.flatten(0, 1)[anchors] = new
        # Each row takes the place of one a whole ring before it, so the sequence that began there is lost.
        overwritten = rows - self._kept_rows
        self.withdraw_at(anchors_of(overwritten, overwritten % length == 0))
        self._written[columns] = np.minimum(self._written[columns] + lengths, self._kept_rows)
        # A row completes the sequence that began ``reach - 1`` rows before it, if that row is still in the ring.
        begin = rows + 1 - self._reach
        complete = (begin % length == 0) & (begin >= after - self._written[where])
        places = (begin[complete][:, None] + self.settings.burn_in + np.arange(length)) % self._rows
        complete[complete] = trained[places, where[complete][:, None]].any(1)
        self.offer_at(anchors_of(begin, complete))

    def _anchors_between(self, begin: int, end: int) -> range:
        """Return the indices ``row // length`` of the anchor rows from row ``begin`` to before row ``end``."""
        length = self.settings.length
        return range(-(-begin // length), -(-end // length))

    def clear(self) -> None:
        """Forget all rows that were written, so that no anchor can be drawn."""
        self._written[:] = 0
        self.withdraw(0, len(self.sampleable), slice(0, self._num_envs))

    def places(self, anchors: np.ndarray) -> np.ndarray:
        """Return the places of ``anchors`` ``[B]`` in the ring, int64 ``[B]``."""
        rows, columns = np.divmod(anchors, self._num_envs)
        return rows * (self.settings.length * self._num_envs) + columns

    def states(self, anchors: np.ndarray) -> Tree:
        """Return the recurrent states before the rows of ``anchors`` ``[B]``, a tree of tensors ``[B, ...]``."""
        index = from_numpy(anchors)
        found = [kept.flatten(0, 1).index_select(0, index) for kept in self._states]
        return tree.unflatten_as(self.settings.initial_state, found)

    def describe(self) -> str:
        """Describe the sequence settings that two buffers must share before one can load the state of the other."""
        settings = self.settings
        return (
            f"of {settings.length} after {settings.burn_in}, {self._reach} up to the last window, "
            f"with {settings.state_bytes} bytes of state"
        )

    def get_state(self, rows: int) -> dict[str, Any]:
        """Return the recurrent states of the anchors in the first ``rows`` rows of the ring, and whether each can be
        drawn. The tensors share the memory of this object."""
        used = -(-rows // self.settings.length)
        return {
            "states": [kept[:used] for kept in self._states],
            "sampleable": from_numpy(self.sampleable[:used]),
            "written": from_numpy(self._written),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`. The caller must call :meth:`clear` first."""
        for kept, saved in zip(self._states, state["states"], strict=True):
            kept[: len(saved)] = saved
        self.offer(0, slice(0, self._num_envs), state["sampleable"].numpy())
        self._written[:] = state["written"].numpy()


def gather_sequences(ring: ReplayBuffer, anchors: Anchors, drawn: np.ndarray) -> tuple[Batch, np.ndarray]:
    """Return a batch of the ``B`` sequences that begin at the anchors ``drawn`` ``[B]``.

    The batch has ``L'`` rows: the ``L`` rows after the burn-in, the rows that their windows reach, and the rows
    inserted for true final observations, as many as any of the sequences needs. The ``V`` valid rows, which are trained
    on, are those of the ``L`` rows that are sampleable. Index ``t·B + b`` means row ``t`` of sequence ``b``.

    Args:
        ring: The buffer to read.
        anchors: The anchors of the buffer.
        drawn: Indices of anchors, int64.

    Returns:
        A dict of columns, and the sequence in ``[0, B)`` of each valid row, int64 ``[V]``. The columns are

        - ``obs`` ``[L', B, ...]`` and ``starts`` ``[L', B]``;
        - ``state_in`` ``[B, ...]``, the state before the burn-in, or before the first row if there is none;
        - ``actions``, ``rewards`` (summed over the window) and ``discounts`` ``[L', B]``, 0 outside the valid rows;
        - ``valid_rows`` ``[V]``, the indices of the valid rows;
        - ``next_rows`` ``[V]``, the index of the observation after the window of each valid row;
        - ``burn_in``, if the sequences have one: its ``obs`` and ``starts`` ``[burn_in, B, ...]``.
    """
    settings, batch_size = anchors.settings, len(drawn)
    span = np.arange(settings.reach(ring.max_steps) + 1)[:, None] * ring.num_envs
    places = (anchors.places(drawn) + span) % (ring.rows * ring.num_envs)
    before, places = places[: settings.burn_in], places[settings.burn_in :]
    truncated = ring.has_final(places)
    truncated[-1] = False  # the last row is only there for its observation, no window crosses its step
    spread, positions, inserted = _with_finals(places, truncated)
    shape, spread = spread.shape, spread.reshape(-1)
    obs = ring.observations(spread)
    if len(inserted):
        index, finals = from_numpy(inserted), ring.following_observations(spread[inserted])
        obs = tree.map_structure(lambda x, final: x.index_copy_(0, index, final), obs, finals)

    # `places` and `trained` count ring rows; `positions` translates them to rows of the batch, with inserted ones.
    def lay_out(rows: np.ndarray, values: np.ndarray) -> Tensor:
        column = np.zeros((len(spread), *values.shape[1:]), values.dtype)
        column[rows] = values
        return from_numpy(column.reshape(*shape, *values.shape[1:]))

    trained = np.flatnonzero(ring.sampleable.take(places[: settings.length]))
    trained_places, rows = places.take(trained), positions.take(trained)
    _, steps, rewards, discounts = ring.windows(trained_places)
    # one row after the window's last step, which is an inserted row if that step was truncated
    following = positions.take(trained + (steps - 1) * batch_size) + batch_size
    # No window reaches into an episode that starts at the last row, and its flag may not be written yet.
    starts = ring.starts.take(places[:-1].reshape(-1))
    batch = {
        Columns.OBS: map_leaves(lambda x: x.unflatten(0, shape), obs),
        Columns.STARTS: lay_out(positions[:-1].reshape(-1), starts),
        Columns.STATE_IN: anchors.states(drawn),
        Columns.ACTIONS: map_leaves(lambda x: lay_out(rows, x.numpy()), ring.actions(trained_places)),
        Columns.REWARDS: lay_out(rows, rewards),
        Columns.DISCOUNTS: lay_out(rows, discounts),
        Columns.VALID_ROWS: from_numpy(rows),
        Columns.NEXT_ROWS: from_numpy(following),
    }
    if settings.burn_in:
        obs = ring.observations(before.reshape(-1))
        batch[Columns.BURN_IN] = {
            Columns.OBS: map_leaves(lambda x: x.unflatten(0, before.shape), obs),
            Columns.STARTS: from_numpy(ring.starts.take(before)),
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
