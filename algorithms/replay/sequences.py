"""Sequences from a replay buffer, for recurrent modules (Kapturowski et al. 2019, R2D2).

A sequence begins at an *anchor*: a place of the ring whose row is a multiple of the length of the sequences, and whose
recurrent state is kept. From there come ``burn_in`` rows that only bring up the state, ``length`` rows that are
trained, and the rows that their n-step windows reach into. A module runs over all of them, across the ends of
episodes, where it zeroes its state; so what followed a row must stand right after it. Where an episode was truncated,
its true final observation is put in as a row of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tree
from torch import Tensor

from algorithms.replay.candidates import Candidates
from algorithms.replay.prioritized import PrioritizedReplay
from catalog.base import Tree
from catalog.checks import Bounds, check_value
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves

if TYPE_CHECKING:
    from algorithms.replay.buffer import ReplayBuffer
    from algorithms.replay.layout import ReplayLayout


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceReplay:
    """Samples are sequences.

    Attributes:
        length: ``L``, rows of a sequence that are trained: the ``max_seq_len`` that rollouts are recorded with.
        burn_in: Rows before them that only bring up the recurrent state, which was recorded with older weights.
        initial_state: The module's ``get_initial_state()``: a tree of tensors without a batch dim.

    Raises:
        TypeError: For a value of another type.
        ValueError: If a value is out of range.
    """

    length: int
    burn_in: int = 0
    initial_state: Tree

    def __post_init__(self) -> None:
        doc = "Count it in steps."
        check_value("SequenceReplay.length", self.length, int, Bounds(ge=1), doc)
        check_value("SequenceReplay.burn_in", self.burn_in, int, Bounds(ge=0), doc)

    def reach(self, n_step: int) -> int:
        """From the first row of a sequence to the observation after its last window: rows that must be written."""
        return self.burn_in + self.length + n_step - 1

    @property
    def state_bytes(self) -> int:
        """Of one recurrent state."""
        return sum(x.numel() * x.element_size() for x in tree.flatten(self.initial_state))


class Anchors(Candidates):
    """The anchors of a ring ``[R, N]``: their recurrent states, and which of them can be sampled.

    Anchor ``i`` is at row ``i // N * length`` of column ``i % N``. It can be sampled if all rows of the sequence are
    there, and one of them is trained.

    Args:
        settings: Length, burn-in and state.
        layout: Of the ring, whose rows are a multiple of the length.
        n_step: The greatest number of steps in a window.
        prioritized: Draw by priorities; None draws evenly.

    Raises:
        ValueError: If there would not always be one, were the ring full.
    """

    def __init__(
        self,
        settings: SequenceReplay,
        layout: ReplayLayout,
        n_step: int,
        prioritized: PrioritizedReplay | None,
    ) -> None:
        num_envs, kept_rows = layout.num_envs, layout.kept_rows
        super().__init__(layout.rows // settings.length, num_envs, prioritized)
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
        """The states before the anchors in ``rollout``, leaf by leaf ``[anchors, n, ...]``, if it is written from row
        ``head`` on; None if there is no anchor in it. Initial states where none were recorded.

        Raises:
            ValueError: If the state before an anchor cannot be known, or the states do not fit.
        """
        (steps, slots), length = rollout.shape, self.settings.length
        first = -head % length
        if (steps % length and length % steps) or 0 < first < steps:
            raise ValueError(
                "rollout_fragment_length: expected a divisor or a multiple of the length of "
                f"sequences, {length}, always the same, got {steps} steps from row {head} on. Set "
                "one that fits max_seq_len."
            )
        if first:
            return None
        count = -(-steps // length)
        if rollout.state_in is None:
            return [x.expand(count, slots, *x.shape) for x in self._initial]
        states = tree.flatten(rollout.state_in)
        expected = [(count, slots, *x.shape) for x in self._initial]
        if [tuple(x.shape) for x in states] != expected:
            got = [tuple(x.shape) for x in states]
            raise ValueError(
                f"Rollout.state_in: expected states shaped {expected}, one row before each "
                f"{length} steps, got {got}. Sample with the module and the max_seq_len that the "
                "replay buffer was made for."
            )
        return states

    def advance(
        self,
        head: int,
        steps: int,
        columns: slice,
        states: Sequence[Tensor] | None,
        trained: np.ndarray,
    ) -> None:
        """Note that ``steps`` rows from ``head`` on were written: offer the sequences that are complete now, and
        withdraw those of which rows are gone.

        Args:
            head: The row that was next to be written.
            steps: How many were.
            columns: Of which envs.
            states: What :meth:`read_states` gave.
            trained: bool ``[R, N]``: the rows that can be trained.
        """
        length, after = self.settings.length, head + steps
        if states is not None:
            rows = np.arange(head, after, length) // length % len(self.sampleable)
            for kept, new in zip(self._states, states, strict=True):
                kept[torch.from_numpy(rows), columns] = new
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

    def _anchors_between(self, begin: int, end: int) -> range:
        """The rows of anchors, counted on beyond the ring's ends, that are at rows from ``begin`` up to ``end``."""
        length = self.settings.length
        return range(-(-begin // length), -(-end // length))

    def forget(self, columns: slice) -> None:
        """Empty these columns."""
        self._written[columns] = 0
        self.withdraw(0, len(self.sampleable), columns)

    def places(self, anchors: np.ndarray) -> np.ndarray:
        """Their places in the ring."""
        rows, columns = np.divmod(anchors, self._num_envs)
        return rows * (self.settings.length * self._num_envs) + columns

    def states(self, anchors: np.ndarray) -> Tree:
        """The recurrent states ``[B, ...]`` before ``anchors`` ``[B]``."""
        index = torch.from_numpy(anchors)
        found = [kept.flatten(0, 1).index_select(0, index) for kept in self._states]
        return tree.unflatten_as(self.settings.initial_state, found)

    def describe(self) -> str:
        """What two buffers must have in common to exchange their states."""
        settings = self.settings
        return (
            f"of {settings.length} after {settings.burn_in}, {self._reach} up to the last window, "
            f"with {settings.state_bytes} bytes of state"
        )

    def get_state(self, rows: int) -> dict[str, Any]:
        """What is kept of the first ``rows`` of the ring; tensors that share the memory."""
        used = -(-rows // self.settings.length)
        return {
            "states": [kept[:used] for kept in self._states],
            "sampleable": torch.from_numpy(self.sampleable[:used]),
            "written": torch.from_numpy(self._written),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, after :meth:`forget` of all columns."""
        for kept, saved in zip(self._states, state["states"], strict=True):
            kept[: len(saved)] = saved
        self.restore(state["sampleable"].numpy())
        self._written[:] = state["written"].numpy()


def gather_sequences(ring: ReplayBuffer, anchors: Anchors, drawn: np.ndarray) -> tuple[dict[str, Tree], np.ndarray]:
    """The sequences that begin at the anchors ``drawn`` ``[B]``.

    Rows that are trained are the valid ones among ``L`` in a row. ``L'`` rows are those, up to what the last of their
    windows reaches, and inserted ones: as many as the sequence with the most of these has.

    Returns:
        ``obs`` ``[L', B, ...]``, ``starts`` ``[L', B]``; ``state_in`` ``[B, ...]`` before the first row, of the burn-in
        if there is one; ``valid_rows`` ``[R]``, the places ``t·B + b`` of trained rows; ``next_rows`` ``[R]``, those of
        what was observed after the window of each; at the trained rows ``actions``, ``rewards`` summed over the window
        and ``discounts``, elsewhere zeros; ``burn_in``: ``obs`` and ``starts`` ``[burn_in, B, ...]``, if there is one.
        And for each trained row the sequence it is of, int64 ``[R]``.
    """
    settings, batch_size = anchors.settings, len(drawn)
    span = np.arange(settings.reach(ring.max_steps) + 1)[:, None] * ring.num_envs
    places = (anchors.places(drawn) + span) % (ring.rows * ring.num_envs)
    before, places = places[: settings.burn_in], places[settings.burn_in :]
    truncated = ring.has_final(places)
    truncated[-1] = False  # of the last row only the observation counts
    spread, positions, inserted = _with_finals(places, truncated)
    shape, spread = spread.shape, spread.reshape(-1)
    obs = ring.observations(spread)
    if len(inserted):
        index, finals = torch.from_numpy(inserted), ring.following_observations(spread[inserted])
        obs = tree.map_structure(lambda x, final: x.index_copy_(0, index, final), obs, finals)

    def lay_out(rows: np.ndarray, values: np.ndarray) -> Tensor:
        column = np.zeros((len(spread), *values.shape[1:]), values.dtype)
        column[rows] = values
        return torch.from_numpy(column.reshape(*shape, *values.shape[1:]))

    trained = ring.sampleable.reshape(-1).take(places[: settings.length]).reshape(-1).nonzero()[0]
    own = places.reshape(-1)[trained]
    rows = positions.reshape(-1)[trained]
    _, steps, rewards, discounts = ring.windows(own)
    following = positions.reshape(-1)[trained + (steps - 1) * batch_size] + batch_size
    # The last row starts no episode that a window reaches into, and its own flag need not be written yet.
    starts = ring.starts.reshape(-1).take(places[:-1].reshape(-1))
    batch = {
        Columns.OBS: map_leaves(lambda x: x.unflatten(0, shape), obs),
        Columns.STARTS: lay_out(positions[:-1].reshape(-1), starts),
        Columns.STATE_IN: anchors.states(drawn),
        Columns.ACTIONS: map_leaves(lambda x: lay_out(rows, x.numpy()), ring.actions(own)),
        Columns.REWARDS: lay_out(rows, rewards),
        Columns.DISCOUNTS: lay_out(rows, discounts),
        Columns.VALID_ROWS: torch.from_numpy(rows),
        Columns.NEXT_ROWS: torch.from_numpy(following),
    }
    if settings.burn_in:
        obs = ring.observations(before.reshape(-1))
        batch[Columns.BURN_IN] = {
            Columns.OBS: map_leaves(lambda x: x.unflatten(0, before.shape), obs),
            Columns.STARTS: torch.from_numpy(ring.starts.reshape(-1).take(before)),
        }
    return batch, rows % batch_size


def _with_finals(places: np.ndarray, truncated: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Insert a row for the true final observation after each step that was truncated.

    Args:
        places: Of the rows of sequences ``[M, B]``.
        truncated: In which of them steps were truncated, bool ``[M, B]``.

    Returns:
        The place in the ring of each row, ``[L', B]``; of an inserted row that of the step which was truncated. The
        last row again where a sequence has fewer of them than others. Where the rows that there were now stand among
        these ``L'·B``, ``[M, B]``. And where the inserted ones stand, int64.
    """
    steps, batch = places.shape
    positions = np.arange(steps * batch).reshape(steps, batch)
    until = np.add.accumulate(truncated, 0, dtype=np.int64)
    positions += (until - truncated) * batch
    spread = np.repeat(places[-1:], steps + int(until[-1].max()), 0)
    inserted = positions[truncated] + batch
    spread.reshape(-1)[positions] = places
    spread.reshape(-1)[inserted] = places[truncated]
    return spread, positions, inserted
