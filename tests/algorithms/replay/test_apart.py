"""Slots that advance apart, as those of several agents do, against lists of the steps of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.replay import PrioritizedReplay, ReplayBuffer
from rlmodule import Rollout
from rlmodule.agents.multi_rollout import MultiRollout
from rlmodule.testing.data import clone, differences
from tests.algorithms.replay import test_sequences as sequences
from tests.algorithms.replay.streams import Stream
from tests.algorithms.replay.test_buffer import check_row, make, where_stored


def joined(rollouts: Mapping[int, Rollout]) -> tuple[Rollout, np.ndarray]:
    """Return the rollouts of single slots as one rollout, padded to the longest, and the column of each slot."""
    parts = [
        MultiRollout(modules={"m": rollout}, slots={"m": np.array([[0, column]])}, num_env_steps=0)
        for column, rollout in rollouts.items()
    ]
    whole = MultiRollout.concat(parts)
    return whole["m"], whole.slots["m"][:, 1]


def check(buffer: ReplayBuffer, streams: list[Stream], n_steps: range) -> None:
    """See that the buffer offers the newest steps of each stream, in the column of its number, and what follows."""
    expected = {p: (c, i) for c, one in enumerate(streams) for p, i in where_stored(buffer, one, 0, c).items()}
    offered = np.flatnonzero(buffer.sampleable)
    assert offered.tolist() == sorted(expected)
    assert buffer.num_transitions == buffer.num_drawable == len(offered)
    if buffer.priorities is not None:
        there = buffer.priorities._tree.get(np.arange(buffer.sampleable.size))
        assert np.flatnonzero(there).tolist() == sorted(expected)
    batch = buffer.gather_rows(offered)
    for row, place in enumerate(offered.tolist()):
        column, i = expected[place]
        check_row(batch, row, streams[column], 0, i, n_steps)


@given(
    seed=st.integers(0, 2**32 - 1),
    num=st.integers(1, 5),
    kept_rows=st.integers(3, 12),
    adds=st.integers(1, 25),
    n_step=st.sampled_from([1, 3, (1, 3)]),
    restart=st.sampled_from([0.0, 0.3]),
    frames=st.sampled_from([(1, None), (3, 0), (2, -1)]),
    prioritized=st.sampled_from([None, PrioritizedReplay()]),
)
@settings(max_examples=15, deadline=None)
def test_each_column_holds_the_steps_of_its_slot(
    seed: int,
    num: int,
    kept_rows: int,
    adds: int,
    n_step: int | tuple[int, int],
    restart: float,
    frames: tuple[int, int | None],
    prioritized: PrioritizedReplay | None,
) -> None:
    rng = np.random.default_rng(seed)
    streams = [Stream(seed + c, 1, frames=frames[0], axis=frames[1]) for c in range(num)]
    capacity = {"num_envs": num, "capacity": kept_rows * num}
    buffer = make(streams[0], **capacity, n_step=n_step, prioritized=prioritized)
    low, high = n_step if isinstance(n_step, tuple) else (n_step, n_step)
    for number in range(adds):
        who = rng.permutation(num)[: rng.integers(1, num + 1)].tolist()
        buffer.add(*joined({c: streams[c].rollout(int(rng.integers(1, buffer.rows)), restart) for c in who}))
        if number % 4 == adds % 4:
            check(buffer, streams, range(low, high + 1))
        if prioritized is not None:
            drawn = buffer.sample(1)
            buffer.update_priorities(drawn, rng.random(1))
    again = make(streams[0], **capacity, n_step=n_step, prioritized=prioritized, seed=9)
    again.set_state(clone(buffer.get_state()))
    assert differences(again.get_state(), buffer.get_state()) == []
    check(again, streams, range(low, high + 1))


@given(
    seed=st.integers(0, 2**32 - 1),
    num=st.integers(1, 4),
    length=st.integers(1, 4),
    burn=st.integers(0, 3),
    n_step=st.sampled_from([(1, 1), (1, 3)]),
    several=st.booleans(),
    frames=st.sampled_from([1, 3]),
    prioritized=st.sampled_from([None, PrioritizedReplay()]),
    spare=st.integers(0, 6),
)
@settings(max_examples=20, deadline=None)
def test_every_sequence_is_what_its_slot_went_through(
    seed: int,
    num: int,
    length: int,
    burn: int,
    n_step: tuple[int, int],
    several: bool,
    frames: int,
    prioritized: PrioritizedReplay | None,
    spare: int,
) -> None:
    """Slots advance by one row, or by any number of rows."""
    rng = np.random.default_rng(seed)
    streams = [Stream(seed + c, 1, frames=frames, axis=0 if frames > 1 else None) for c in range(num)]
    kept_rows = burn + 2 * length + n_step[1] - 2 + spare
    options: dict[str, Any] = {"n_step": n_step, "prioritized": prioritized, "burn": burn}
    buffer = sequences.buffer_for(streams[0], length=length, num_envs=num, capacity=num * kept_rows, **options)
    walk = sequences.Walk(buffer, streams, n_step)
    for number in range(24):
        rollouts = {}
        for c in rng.permutation(num)[: rng.integers(1, num + 1)].tolist():
            first, steps = len(streams[c].steps[0]), 1
            if several:
                steps = int(rng.integers(1, buffer.rows))
            rollout = sequences.with_numbered_states(streams[c].rollout(steps, 0.1), first, length)
            states: Any = rollout.state_in
            sign = torch.tensor([1.0, -1])
            rollout.state_in = {"h": states["h"] + 1000 * c * sign, "more": (states["more"][0] + 1000 * c,)}
            rollouts[c] = rollout
            walk.note(c, first, steps)
        buffer.add(*joined(rollouts))
        if number % 6 == 5:
            sequences.check_all(buffer, walk)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    stream = Stream(1, 1)
    buffer = make(stream, 10, num_envs=2)
    buffer.add(*joined({1: stream.rollout(4)}))
    before = clone(buffer.get_state())
    for column, steps, message in (
        (2, 1, "expected envs 0 to 1, got envs 2 to 2"),
        (1, 6, "expected a rollout of at most 5 rows, got 6 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            buffer.add(*joined({column: stream.rollout(steps)}))
    assert differences(buffer.get_state(), before) == []
