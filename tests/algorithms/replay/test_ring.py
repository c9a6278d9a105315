"""One ring for all: envs together or apart, whatever their ends, faults and rollouts; and a pause in the middle."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.replay import PrioritizedReplay, ReplayBuffer, ReplaySample, SequenceReplay
from algorithms.replay.sequences import gather_sequences
from rlmodule import Columns, EnvRunner, Rollout
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.testing.data import clone, differences
from tests.algorithms.replay import test_sequences as sequences
from tests.algorithms.replay.streams import Stream
from tests.algorithms.replay.test_apart import check, joined
from tests.algorithms.replay.test_buffer import make
from tests.rlmodule.sampling.test_env_runner import SOURCES
from tests.rlmodule.sampling.test_final_observations import Breaks, EndedSettings, with_module
from tests.rlmodule.toys import Settings, counters_one_by_one
from tests.turns import taking_turns

# --- one path --------------------------------------------------------------------------------------------------------


def with_states(rollout: Rollout, first_row: int) -> Rollout:
    return sequences.with_numbered_states(rollout, first_row, 4)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("is_recurrent", [False, True])
def test_columns_by_number_are_columns_in_a_row_byte_for_byte(mode: str, frames: int, is_recurrent: bool) -> None:
    stream = Stream(1, 3, mode=mode, frames=frames, axis=0 if frames > 1 else None)
    options: dict[str, Any] = {"num_envs": 5, "capacity": 5 * 17, "n_step": 2}
    if is_recurrent:
        options["sequences"] = SequenceReplay(length=4, burn_in=1, initial_state=sequences.STATE)
    in_a_row, by_number = (make(stream, options.pop("capacity", 85), **options) for _ in range(2))
    for steps in (1, 1, 1, 5, 1, 9, 16, 1, 1, 3, 3, 16, 1):
        first_row = len(stream.steps[0])
        rollout = stream.rollout(steps, 0.1)
        if is_recurrent:
            rollout = with_states(rollout, first_row)
        in_a_row.add(rollout, 1)
        by_number.add(rollout, np.arange(1, 4))
        assert differences(in_a_row.get_state(), by_number.get_state()) == []


def slots(rollout: Rollout, which: slice) -> Rollout:
    """Return some slots of a rollout."""
    chosen = range(rollout.shape[1])[which]
    inside = torch.tensor([slot in chosen for slot in rollout.final_index[:, 1].tolist()], dtype=torch.bool)
    return Rollout(
        columns={name: column[:, which] for name, column in rollout.columns.items()},
        last_obs=rollout.last_obs[which],
        final_index=rollout.final_index[inside] - torch.tensor([0, chosen.start]),
        final_obs=rollout.final_obs[inside],
    )


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_two_runners_have_the_rows_of_one(mode: str) -> None:
    stream = Stream(2, 5, mode=mode)
    together, apart = make(stream, 60), make(stream, 60)
    for steps in (1, 1, 4, 1, 11, 2, 1, 7):
        rollout = stream.rollout(steps, 0.1)
        together.add(rollout)
        apart.add(slots(rollout, slice(3, 5)), 3)
        apart.add(slots(rollout, slice(0, 3)))
        assert differences(together.get_state()["written"], apart.get_state()["written"]) == []
        places = np.flatnonzero(together.sampleable)
        assert np.flatnonzero(apart.sampleable).tolist() == places.tolist()
        assert differences(together.gather_rows(places), apart.gather_rows(places)) == []
        assert together.sample(9).indices.tolist() == apart.sample(9).indices.tolist()


def idle(stream: Stream, steps: int) -> Rollout:
    """A rollout in which a slot has no valid row: it is not stored, whatever it says."""
    rollout = copy.deepcopy(stream).rollout(steps)
    flags = (Columns.VALID, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.STARTS)
    columns = rollout.columns | {name: torch.zeros_like(rollout[name]) for name in flags}
    return dataclasses.replace(
        rollout, columns=columns, final_index=rollout.final_index[:0], final_obs=rollout.final_obs[:0]
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    num=st.integers(1, 4),
    kept_rows=st.integers(3, 12),
    adds=st.integers(1, 20),
    n_step=st.sampled_from([1, 3]),
    frames=st.sampled_from([(1, None), (3, 0)]),
    mode=st.sampled_from(["same_step", "next_step"]),
    prioritized=st.sampled_from([None, PrioritizedReplay()]),
)
@settings(max_examples=15, deadline=None)
def test_slots_may_have_any_number_of_rows_or_none(
    seed: int,
    num: int,
    kept_rows: int,
    adds: int,
    n_step: int,
    frames: tuple[int, int | None],
    mode: str,
    prioritized: PrioritizedReplay | None,
) -> None:
    rng = np.random.default_rng(seed)
    streams = [Stream(seed + c, 1, mode=mode, frames=frames[0], axis=frames[1]) for c in range(num)]
    buffer = make(streams[0], kept_rows * num, num_envs=num, n_step=n_step, prioritized=prioritized)
    for _ in range(adds):
        rollouts = {}
        for column in rng.permutation(num).tolist():
            steps = int(rng.integers(0, buffer.rows))
            rollouts[column] = streams[column].rollout(steps, 0.2) if steps else idle(streams[column], 1)
        buffer.add(*joined(rollouts))
        check(buffer, streams, range(n_step, n_step + 1))


def test_a_rollout_without_a_valid_row_changes_nothing() -> None:
    stream = Stream(1, 2)
    buffer = make(stream, 20)
    buffer.add(stream.rollout(3))
    before = clone(buffer.get_state())
    for columns in (0, np.arange(2)):
        buffer.add(idle(stream, 1), columns)
        nothing = idle(stream, 1)
        no_rows = {name: column[:0] for name, column in nothing.columns.items()}
        buffer.add(dataclasses.replace(nothing, columns=no_rows), columns)
        assert differences(buffer.get_state(), before) == []


# --- what runners bring ----------------------------------------------------------------------------------------------

WITH_FAULTS: dict[str, Callable[[], Any]] = SOURCES | {"faults": lambda: counters_one_by_one(Breaks)}


@pytest.mark.parametrize("cls", [Settings, EndedSettings])
@pytest.mark.parametrize("source", WITH_FAULTS)
@pytest.mark.parametrize("fragments", [[1] * 90, [3] * 30, [1, 8, 2, 1, 30, 1, 1, 5, 30]], ids=["1", "3", "mixed"])
def test_every_step_is_followed_by_what_followed_it(cls: type[Settings], source: str, fragments: list[int]) -> None:
    """An observation is (env, episode, step), so what follows a step is known without looking."""
    with_faults = source == "faults"
    settings = cls(env=WITH_FAULTS[source](), restart_failed_sub_environments=with_faults)
    runner = with_module(EnvRunner(settings, run_seed=0))
    buffer = ReplayBuffer(
        runner.observation_space,
        runner.action_space,
        capacity=3 * 40,
        num_envs=3,
        gamma=1.0,
        seed=np.random.SeedSequence(0),
    )
    valid = np.zeros(3, np.int64)
    for fragment in fragments:
        rollout = runner.sample(fragment)
        valid += rollout.valid.sum(0).numpy()
        buffer.add(rollout)
        assert buffer.sampleable.sum(0).tolist() == np.minimum(valid, 40).tolist()
        places = np.flatnonzero(buffer.sampleable)
        batch = buffer.gather_rows(places)
        is_known = batch[Columns.DISCOUNTS] > 0
        # the observation after a terminated step is kept apart once the next episode begins
        newest = torch.from_numpy(places // 3 == (buffer.ring.written[places % 3] - 1) % buffer.rows)
        if cls is EndedSettings:
            is_known |= True
        expected = batch[Columns.OBS] + torch.tensor([0.0, 0.0, 1.0])
        assert torch.equal(batch[Columns.NEXT_OBS][is_known], expected[is_known])
        assert newest.sum() == 3
    assert (valid > 40).all()


# --- sequences -------------------------------------------------------------------------------------------------------

LENGTH = 5


@pytest.mark.parametrize("burn", [0, 3])
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize("steps", taking_turns([1, 3, 7, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH + 3]))
def test_every_row_is_trained_on_whatever_the_length_of_rollouts(steps: int, mode: str, burn: int) -> None:
    streams = [Stream(1, 2, mode=mode), Stream(2, 1, mode=mode)]
    options: dict[str, Any] = {"n_step": 2, "prioritized": PrioritizedReplay() if burn else None, "burn": burn}
    buffer = sequences.buffer_for(streams[0], length=LENGTH, num_envs=3, capacity=3 * 40, **options)
    walk, anchors, ring = sequences.Walk(buffer, streams, (2, 2)), sequences.anchors_of(buffer), buffer.ring
    rng, reach = np.random.default_rng(0), LENGTH + burn + 1
    trained = np.zeros((3, 400), np.int64)
    in_pass = np.zeros_like(trained)
    for number_of_add in range(100 // steps):
        first = 0
        for stream in streams:
            first_row = len(stream.steps[0])
            rollout = sequences.with_numbered_states(stream.rollout(steps), first_row, LENGTH)
            numbers: Any = rollout.state_in
            offset = 1000 * first
            rollout.state_in = {
                "h": numbers["h"] + offset * torch.tensor([1.0, -1]),
                "more": (numbers["more"][0] + offset,),
            }
            buffer.add(rollout, first)
            for n in range(stream.num_envs):
                walk.note(first + n, first_row, steps)
            first += stream.num_envs
        if not (anchors.draws.end > anchors.draws.begin).all() or number_of_add % 5 >= steps:
            continue
        drawn = sequences.drawable(anchors)
        batch, owners = gather_sequences(ring, buffer._windows, anchors, drawn, rng)
        walk.check(ReplaySample(batch, drawn, owners))  # no window crosses the end of an episode
        in_pass = np.zeros_like(trained)
        for env, number in walk.begins(drawn):
            in_pass[env, number + burn : number + burn + LENGTH] += 1
        trained += in_pass
        for env, written in enumerate(ring.written.tolist()):
            # the pass leaves out less than a sequence at either end, and nothing in between
            first_trained, last_trained = np.flatnonzero(in_pass[env])[[0, -1]]
            assert first_trained < max(0, written - buffer.kept_rows) + burn + LENGTH
            assert last_trained >= written - reach - max(LENGTH, steps) + burn
            assert in_pass[env, first_trained:last_trained].all()
    for env, written in enumerate(ring.written.tolist()):
        assert trained[env, burn : written - reach - max(LENGTH, steps) + burn].all()
    if steps == 1 and mode == "same_step":
        assert in_pass.max() == 1


# --- a pause ---------------------------------------------------------------------------------------------------------


def digest(batches: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for leaf in tree.flatten([*batches]):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("steps", [1, 3, 6])
@pytest.mark.parametrize("kind", ["rows", "sequences"])
@pytest.mark.parametrize("prioritized", [None, PrioritizedReplay()])
def test_a_hundred_batches_after_a_pause_are_those_of_a_run_without(
    steps: int, kind: str, prioritized: PrioritizedReplay | None, tmp_path: Path
) -> None:
    def empty() -> ReplayBuffer:
        options: dict[str, Any] = {"n_step": (1, 3), "prioritized": prioritized}
        if kind == "sequences":
            options["sequences"] = SequenceReplay(length=5, burn_in=2, initial_state=sequences.STATE)
        return make(stream, 90, **options)

    def go_on(buffer: ReplayBuffer, stream: Stream) -> str:
        batches = []
        for _ in range(100):
            first_row = len(stream.steps[0])
            buffer.add(sequences.with_numbered_states(stream.rollout(steps, 0.05), first_row, 5))
            sample = buffer.sample(20, beta=0.4)
            batches.append({name: column for name, column in sample.batch.items() if name != Columns.STATE_IN})
            batches.append(sample.batch.get(Columns.STATE_IN, 0))
            rewards = sample.batch[Columns.REWARDS].reshape(-1)
            buffer.update_priorities(sample, rewards[sample.batch.get(Columns.VALID_ROWS, slice(None))])
        return digest(batches)

    stream = Stream(3, 3, mode="next_step")
    buffer = empty()
    for _ in range(40):
        first_row = len(stream.steps[0])
        buffer.add(sequences.with_numbered_states(stream.rollout(steps, 0.05), first_row, 5))
    again = empty()
    again.add(Stream(8, 3).rollout(7))  # of which nothing stays
    again.set_state(load_checkpoint(save_checkpoint(tmp_path / "buffer", buffer.get_state())))
    assert go_on(buffer, copy.deepcopy(stream)) == go_on(again, copy.deepcopy(stream))


def test_a_state_of_the_first_format_is_refused_in_a_line() -> None:
    stream = Stream(3, 2)
    buffer = make(stream, 20)
    buffer.add(stream.rollout(3))
    before = clone(buffer.get_state())
    state = clone(before)
    del state["layout"]["format"]
    with pytest.raises(
        ValueError, match=r"^state of a replay buffer: expected format 2, got format None\. .*empty one"
    ):
        buffer.set_state(state)
    assert differences(buffer.get_state(), before) == []
