"""What a replay buffer of another shape takes over, against lists of steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.replay import PrioritizedReplay, ReplayBuffer
from rlmodule import Columns
from rlmodule.testing.data import clone
from tests.algorithms.replay.streams import Stream, add_in_parts
from tests.algorithms.replay.test_buffer import check_row, make


def steps_by_first_number(stream: Stream) -> dict[tuple[float, ...], tuple[int, int]]:
    """Env and number of every valid step, by what was observed before it."""
    return {
        tuple(stream.observe(step.stack).ravel().tolist()): (env, i)
        for env, steps in enumerate(stream.steps)
        for i, step in enumerate(steps)
        if step.valid
    }


def held(buffer: ReplayBuffer, stream: Stream, n_step: int) -> list[tuple[int, int]]:
    """The steps that ``buffer`` offers, each seen to be whole, with a window of at most ``n_step``."""
    known = steps_by_first_number(stream)
    batch = buffer.gather_rows(np.flatnonzero(buffer.sampleable))
    found = [known[tuple(obs.ravel().tolist())] for obs in batch[Columns.OBS].numpy()]
    for row, place in enumerate(found):
        check_row(batch, row, stream, *place, range(1, n_step + 1))
    return found


@given(
    seed=st.integers(0, 2**32 - 1),
    envs=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    capacities=st.tuples(st.integers(15, 60), st.integers(15, 60)),
    fragments=st.lists(st.integers(1, 20), min_size=0, max_size=8),
    mode=st.sampled_from(["same_step", "next_step"]),
    n_step=st.integers(1, 3),
    frames=st.sampled_from([(1, None), (3, 0), (2, -1)]),
)
@settings(max_examples=20, deadline=None)
def test_takes_over_whole_steps(
    seed: int,
    envs: tuple[int, int],
    capacities: tuple[int, int],
    fragments: list[int],
    mode: str,
    n_step: int,
    frames: tuple[int, int | None],
) -> None:
    stream, later = (Stream(seed + k, num, mode=mode, frames=frames[0], axis=frames[1]) for k, num in enumerate(envs))
    later._count = 100_000  # so that its frames are others
    old = make(stream, capacities[0], n_step=n_step)
    for fragment in fragments:
        add_in_parts(old, stream, fragment, 0.2)
    there = held(old, stream, n_step)
    new = make(stream, capacities[1], num_envs=envs[1], n_step=n_step)
    add_in_parts(new, Stream(1, envs[1], mode=mode, frames=frames[0], axis=frames[1]), 7)  # which is forgotten
    new.set_state(clone(old.get_state()))
    took = held(new, stream, n_step)
    assert len(took) == len({*took}) == new.num_transitions
    assert {*took} <= {*there}
    assert new.num_transitions >= min(len(there), new.kept_rows * envs[1]) - envs[1] + 1
    # and it goes on: what was taken over is overwritten bit by bit
    both = {**steps_by_first_number(stream), **steps_by_first_number(later)}
    for _ in range(3):
        add_in_parts(new, later, 5, 0.1)
    both |= steps_by_first_number(later)
    batch = new.gather_rows(np.flatnonzero(new.sampleable))
    for row, obs in enumerate(batch[Columns.OBS].numpy()):
        key = tuple(obs.ravel().tolist())
        source = later if key in steps_by_first_number(later) else stream
        check_row(batch, row, source, *both[key], range(1, n_step + 1))


def test_columns_are_dealt_out_in_equal_parts() -> None:
    stream = Stream(3, 2)
    old, new = make(stream, 20), make(stream, 20, num_envs=4)
    old.add(stream.rollout(6))
    new.set_state(old.get_state())
    numbers = [[int(new.observations(np.array([row * 4 + env]))[0, 0]) for row in range(3)] for env in range(4)]
    expected = [[stream.steps[env][i].stack[0] for i in part] for env in range(2) for part in (range(3), range(3, 6))]
    assert numbers == expected
    assert new.heads.tolist() == [3, 3, 3, 3]
    # the last step of the first half goes on in another column: its window ends, but not its episode
    if not stream.steps[0][2].ended:
        assert new.following_observations(np.array([8]))[0, 0] == stream.steps[0][2].following[0]


def test_priorities_and_draws_go_on() -> None:
    stream, prioritized = Stream(3, 2), PrioritizedReplay(alpha=1.0)
    old, new = make(stream, 20, prioritized=prioritized), make(stream, 20, num_envs=4, seed=9, prioritized=prioritized)
    old.add(stream.rollout(6))
    sample = old.sample(12)
    old.update_priorities(sample, np.arange(12.0))
    new.set_state(old.get_state())
    assert old.priorities is not None
    assert new.priorities is not None

    def by_step(buffer: ReplayBuffer) -> dict[tuple[int, int], float]:
        assert buffer.priorities is not None
        places = np.flatnonzero(buffer.sampleable)
        return dict(zip(held(buffer, stream, 1), buffer.priorities._tree.get(places).tolist(), strict=True))

    assert by_step(new) == by_step(old)
    assert new._rng.bit_generator.state == old._rng.bit_generator.state
    assert new.priorities.get_state()["greatest"] == old.priorities.get_state()["greatest"]


def test_rows_that_stand_apart_are_brought_together() -> None:
    streams = Stream(3, 2), Stream(4, 2)
    old = make(streams[0], 40, num_envs=4)
    old.add(streams[0].rollout(6))
    old.add(streams[1].rollout(4), 2)
    for together, equal in ((2, False), (4, True), (1, False)):
        new = make(streams[0], 40, num_envs=4)
        new.set_state(old.get_state(), together=together)
        assert (new.heads.tolist() == [5, 5, 5, 5]) is equal
        assert new.num_transitions == 20
