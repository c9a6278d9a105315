"""The replay buffer against lists of steps: what is in it, n-step windows, ends, wrap-around, state."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.replay import PrioritizedReplay, ReplayBuffer, SequenceReplay, replay_bytes
from algorithms.replay import layout as layout_module
from algorithms.replay import ring as ring_module
from algorithms.replay.ring import CUT
from catalog.base import Tree
from rlmodule import Columns, EnvRunner, Episode, RLModuleSpec, Rollout
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.testing.data import differences
from tests.algorithms.replay.streams import Stream, add_in_parts
from tests.rlmodule.toys import ENDS, LENGTHS, NoNets, Scripted, Settings, counters

GAMMA = 0.9


def make(stream: Stream, capacity: int, seed: int = 0, **settings: Any) -> ReplayBuffer:
    return ReplayBuffer(
        stream.space,
        stream.action_space,
        capacity=capacity,
        num_envs=settings.pop("num_envs", stream.num_envs),
        gamma=GAMMA,
        frame_stack_axis=stream.axis,
        seed=np.random.default_rng(seed),
        **settings,
    )


def where_stored(buffer: ReplayBuffer, stream: Stream, env: int, first_slot: int = 0) -> dict[int, int]:
    """Place → number of the step, of all rows that the buffer should offer of this env."""
    numbers = [i for i, step in enumerate(stream.steps[env]) if step.valid]
    rows = {}
    for back in range(1, min(buffer.kept_rows, len(numbers)) + 1):
        row = (int(buffer.ring.written[first_slot + env]) - back) % buffer.rows
        rows[row * buffer.num_envs + first_slot + env] = numbers[-back]
    return rows


def check_row(batch: dict[str, Tree], row: int, stream: Stream, env: int, i: int, n_steps: range) -> int:
    """See that ``row`` of ``batch`` is the window from step ``i`` of ``env``; returns its number of steps."""
    step = stream.steps[env][i]
    windows = [stream.window(env, i, n, GAMMA) for n in n_steps]
    reward = float(batch[Columns.REWARDS][row])
    reward_sum, following, discount, steps = min(windows, key=lambda w: abs(w[0] - reward))
    assert np.array_equal(batch[Columns.OBS][row], stream.observe(step.stack))
    assert int(batch[Columns.ACTIONS][row]) == step.action
    assert reward == pytest.approx(reward_sum, abs=1e-5)
    assert float(batch[Columns.DISCOUNTS][row]) == pytest.approx(discount)
    if discount:
        assert np.array_equal(batch[Columns.NEXT_OBS][row], stream.observe(following))
    return steps


def check_all(buffer: ReplayBuffer, stream: Stream, n_steps: range = range(1, 2), first_slot: int = 0) -> None:
    expected = {
        place: (env, i)
        for env in range(stream.num_envs)
        for place, i in where_stored(buffer, stream, env, first_slot).items()
    }
    columns = slice(first_slot, first_slot + stream.num_envs)
    offered = np.flatnonzero(buffer.sampleable)
    offered = offered[(offered % buffer.num_envs >= columns.start) & (offered % buffer.num_envs < columns.stop)]
    assert sorted(expected) == offered.tolist()
    batch = buffer.gather_rows(offered)
    for row, place in enumerate(offered.tolist()):
        check_row(batch, row, stream, *expected[place], n_steps)


@given(
    seed=st.integers(0, 2**32 - 1),
    num_envs=st.integers(1, 4),
    capacity=st.integers(8, 40),
    fragments=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    mode=st.sampled_from(["same_step", "next_step", "unknown_finals"]),
    n_step=st.sampled_from([1, 2, 3, (1, 3), (2, 2)]),
    restart=st.sampled_from([0.0, 0.3]),
    frames=st.sampled_from([(1, None), (1, 0), (3, 0), (3, 1), (2, -1)]),
)
@settings(max_examples=30, deadline=None)
def test_holds_what_lists_of_steps_hold(
    seed: int,
    num_envs: int,
    capacity: int,
    fragments: list[int],
    mode: str,
    n_step: int | tuple[int, int],
    restart: float,
    frames: tuple[int, int | None],
) -> None:
    stream = Stream(seed, num_envs, mode=mode, frames=frames[0], axis=frames[1])
    low, high = n_step if isinstance(n_step, tuple) else (n_step, n_step)
    buffer = make(stream, max(capacity, high * num_envs), n_step=n_step)
    for fragment in fragments:
        add_in_parts(buffer, stream, fragment, restart)
        check_all(buffer, stream, range(low, high + 1))
    assert buffer.num_transitions == np.count_nonzero(buffer.sampleable)


@given(st.integers(0, 2**32 - 1), st.lists(st.booleans(), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_runners_may_write_at_different_times(seed: int, turns: list[bool]) -> None:
    streams = (
        Stream(seed, 2, mode="next_step", frames=2, axis=0),
        Stream(seed + 1, 3, mode="next_step", frames=2, axis=0),
    )
    buffer = make(streams[0], 60, num_envs=5, n_step=2)
    for turn in turns:
        buffer.add(streams[turn].rollout(3), first_slot=2 * turn)
    for stream, first_slot in zip(streams, (0, 2), strict=True):
        check_all(buffer, stream, range(2, 3), first_slot)


def test_samples_are_what_is_stored() -> None:
    stream = Stream(3, 4, mode="next_step", frames=3, axis=-1)
    buffer = make(stream, 100, n_step=3)
    for _ in range(20):
        buffer.add(stream.rollout(7))
    stored = {p: (env, i) for env in range(4) for p, i in where_stored(buffer, stream, env).items()}
    sample = buffer.sample(64)
    assert sample.owners is None
    assert {*sample.batch} == {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.DISCOUNTS}
    for row, place in enumerate(sample.indices.tolist()):
        check_row(sample.batch, row, stream, *stored[place], range(3, 4))


def test_three_steps_by_hand() -> None:
    columns = {
        Columns.OBS: torch.arange(4.0).reshape(4, 1, 1),
        Columns.ACTIONS: torch.tensor([[0], [1], [2], [3]]),
        Columns.REWARDS: torch.tensor([[1.0], [2.0], [4.0], [8.0]]),
        Columns.TERMINATEDS: torch.tensor([[False], [False], [True], [False]]),
        Columns.TRUNCATEDS: torch.zeros(4, 1, dtype=torch.bool),
        Columns.VALID: torch.ones(4, 1, dtype=torch.bool),
        Columns.STARTS: torch.tensor([[True], [False], [False], [True]]),
    }
    rollout = Rollout(
        columns=columns,
        last_obs=torch.tensor([[9.0]]),
        final_index=torch.empty(0, 2, dtype=torch.int64),
        final_obs=torch.empty(0, 1),
    )
    space = spaces.Box(-10, 10, (1,))
    buffer = ReplayBuffer(
        space, spaces.Discrete(4), capacity=10, num_envs=1, gamma=0.5, n_step=2, seed=np.random.SeedSequence(0)
    )
    buffer.add(rollout)
    batch = buffer.gather_rows(np.arange(4))
    assert batch[Columns.REWARDS].tolist() == [1 + 0.5 * 2, 2 + 0.5 * 4, 4, 8]
    assert batch[Columns.DISCOUNTS].tolist() == [0.25, 0, 0, 0.5]
    assert batch[Columns.NEXT_OBS][[0, 3], 0].tolist() == [2, 9]
    assert [x.dtype for x in batch.values()] == [torch.float32, torch.int64, *[torch.float32] * 3]


@pytest.mark.parametrize("n_step", [1, 3])
def test_an_unfinished_chunk_ends_where_it_was_cut_off(n_step: int) -> None:
    observations = np.arange(20, dtype=np.float32)[:, None]
    long = Episode(observations[:6], np.zeros(5, np.int64), np.ones(5), terminated=True)
    short = Episode(observations[10:13], np.zeros(2, np.int64), np.ones(2))
    buffer = ReplayBuffer(
        spaces.Box(-1, 1, (1,)),
        spaces.Discrete(2),
        capacity=30,
        num_envs=2,
        gamma=0.5,
        n_step=n_step,
        seed=np.random.SeedSequence(0),
    )
    rollout = Rollout.from_episodes([long, short])
    buffer.add(rollout)
    buffer.add(rollout)
    places = np.flatnonzero(buffer.sampleable)
    batch = buffer.gather_rows(places)
    windows = zip(batch[Columns.OBS], batch[Columns.NEXT_OBS], batch[Columns.DISCOUNTS], places, strict=True)
    short_ones = [(float(obs), float(after), float(d)) for obs, after, d, place in windows if place % 2]
    expected = [(10, 11, 0.5), (11, 12, 0.5)] if n_step == 1 else [(10, 12, 0.25), (11, 12, 0.5)]
    assert short_ones == expected * 2


def test_a_chunk_cut_off_at_its_last_row_ends_before_a_row_that_is_none() -> None:
    stream = Stream(0, 1)
    buffer = make(stream, 30, n_step=3)
    first = stream.rollout(1)
    first.columns[Columns.TERMINATEDS][:] = False
    first.columns[Columns.TRUNCATEDS][:] = False
    after = stream.rollout(1)
    after.columns[Columns.VALID][:] = False
    after.columns[Columns.STARTS][:] = False
    buffer.add(dataclasses.replace(first, final_index=first.final_index[:0], final_obs=first.final_obs[:0]))
    buffer.add(dataclasses.replace(after, final_index=after.final_index[:0], final_obs=after.final_obs[:0]))
    assert buffer.gather_rows(np.array([0]))[Columns.DISCOUNTS].tolist() == [pytest.approx(GAMMA)]


@pytest.mark.parametrize("axis", [None, 0])
def test_the_first_rows_need_not_start_an_episode(axis: int | None) -> None:
    stream = Stream(4, 2, frames=4 if axis == 0 else 1, axis=axis)
    stream.rollout(1)
    buffer = make(stream, 60)
    for _ in range(3):
        buffer.add(stream.rollout(2))
        stored = {p: (env, i) for env in range(2) for p, i in where_stored(buffer, stream, env).items()}
        places = np.flatnonzero(buffer.sampleable)
        batch = buffer.gather_rows(places)
        for row, place in enumerate(places.tolist()):
            check_row(batch, row, stream, *stored[place], range(1, 2))


def test_steps_of_a_range_are_drawn_evenly() -> None:
    stream = Stream(0, 1)
    buffer = make(stream, 4000, n_step=(1, 4))
    buffer.add(stream.rollout(4000))
    places = np.array([p for p, i in where_stored(buffer, stream, 0).items() if stream.window(0, i, 4, 1.0)[3] == 4])
    discounts = np.concatenate([buffer.gather_rows(places)[Columns.DISCOUNTS].numpy() for _ in range(4)])
    steps = np.rint(np.log(discounts[discounts > 0]) / np.log(GAMMA)).astype(int)
    shares = np.bincount(steps, minlength=5)[1:] / len(steps)
    assert np.allclose(shares, 0.25, atol=0.03)


def test_every_transition_is_equally_likely() -> None:
    stream = Stream(1, 3, mode="next_step")
    buffer = make(stream, 60)
    add_in_parts(buffer, stream, 50)
    counts = np.bincount(np.concatenate([buffer.sample(30).indices for _ in range(1000)]))
    offered = np.flatnonzero(buffer.sampleable)
    assert np.flatnonzero(counts).tolist() == offered.tolist()
    expected = 30_000 / len(offered)
    chi_square = ((counts[offered] - expected) ** 2 / expected).sum()
    assert chi_square < len(offered) + 4 * np.sqrt(2 * len(offered))


def test_few_transitions_among_many_places_are_found() -> None:
    stream = Stream(1, 1)
    buffer = make(stream, 5000, num_envs=50)
    buffer.add(stream.rollout(30), first_slot=49)
    assert buffer.num_transitions == 30
    assert {*buffer.sample(30).indices.tolist()} <= {*range(49, 1500, 50)}


def test_prioritized_rows_carry_weights_and_leave_with_their_rows() -> None:
    stream = Stream(5, 2, mode="next_step", frames=2, axis=0)
    buffer = make(stream, 40, prioritized=PrioritizedReplay(alpha=1.0))
    for _ in range(30):
        buffer.add(stream.rollout(3))
        if buffer.num_transitions >= 8:
            sample = buffer.sample(8, beta=0.5)
            assert buffer.sampleable.reshape(-1)[sample.indices].all()
            assert sample.batch[Columns.WEIGHTS].dtype == torch.float32
            buffer.update_priorities(sample, torch.linspace(-2, 2, 8))
    add_in_parts(buffer, stream, 50)
    everything = np.concatenate([buffer.sample(8).indices for _ in range(200)])
    assert {*everything.tolist()} == {*np.flatnonzero(buffer.sampleable).tolist()}


def test_greater_errors_are_drawn_more_often() -> None:
    stream = Stream(5, 1)
    buffer = make(stream, 10, prioritized=PrioritizedReplay(alpha=1.0))
    buffer.add(stream.rollout(2))
    sample = buffer.sample(2)
    assert sorted(sample.indices) == [0, 1]
    buffer.update_priorities(sample, torch.tensor([3.0, -1.0]))
    drawn = np.concatenate([buffer.sample(2).indices for _ in range(2000)])
    assert (drawn == sample.indices[0]).mean() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("errors", [np.float32(1), np.ones(3), np.ones((2, 2)), np.ones((2, 1))], ids=np.shape)
def test_errors_that_are_not_one_for_each_row_are_refused(errors: np.ndarray) -> None:
    stream = Stream(5, 1)
    buffer = make(stream, 10, prioritized=PrioritizedReplay())
    buffer.add(stream.rollout(4))
    with pytest.raises(
        ValueError, match=r"update_priorities\(td_errors\): expected one for each row, \(2,\), got shape"
    ):
        buffer.update_priorities(buffer.sample(2), errors)


# ----------------------------------------------------------------------------------------------------------- spaces


def test_nested_spaces_keep_structure_and_dtypes() -> None:
    space = spaces.Dict(
        z=spaces.Box(0, 255, (4, 2, 3), np.uint8),
        a=spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (), np.float64))),
    )
    actions = spaces.Dict(turn=spaces.Discrete(5, start=2), push=spaces.Box(-1, 1, (2, 3), np.float64))
    rng, shape = np.random.default_rng(0), (6, 2)
    frames = torch.from_numpy(rng.integers(0, 255, (7 + 3, 2, 2, 3), np.uint8))
    every = {
        "z": torch.stack([frames[t : t + 4] for t in range(7)]).permute(0, 2, 1, 3, 4),
        "a": (torch.arange(14).reshape(7, 2) % 3, torch.linspace(0, 1, 14).reshape(7, 2)),
    }
    rollout = Rollout(
        columns={
            Columns.OBS: tree.map_structure(lambda x: x[:6], every),
            Columns.ACTIONS: {"turn": torch.arange(12).reshape(shape) % 5, "push": torch.randn(6, 2, 2, 3)},
            Columns.REWARDS: torch.arange(12.0).reshape(shape),
            Columns.TERMINATEDS: torch.zeros(shape, dtype=torch.bool),
            Columns.TRUNCATEDS: torch.zeros(shape, dtype=torch.bool),
            Columns.VALID: torch.ones(shape, dtype=torch.bool),
            Columns.STARTS: torch.arange(6)[:, None].expand(shape) == 0,
        },
        last_obs=tree.map_structure(lambda x: x[6], every),
        final_index=torch.empty(0, 2, dtype=torch.int64),
        final_obs=tree.map_structure(lambda x: x[0, :0], every),
    )
    buffer = ReplayBuffer(
        space, actions, capacity=12, num_envs=2, gamma=1, frame_stack_axis={"z": 0}, seed=np.random.SeedSequence(0)
    )
    buffer.add(rollout)
    batch = buffer.gather_rows(np.arange(12))
    expected = {
        Columns.OBS: rollout[Columns.OBS],
        Columns.ACTIONS: rollout[Columns.ACTIONS],
        Columns.NEXT_OBS: tree.map_structure(lambda x: x[1:], every),
    }
    for name, column in expected.items():
        tree.assert_same_structure(batch[name], column)
        for got, want in zip(tree.flatten(batch[name]), tree.flatten(column), strict=True):
            assert got.dtype == want.dtype
            assert torch.equal(got, want.flatten(0, 1))


def test_leaves_whose_paths_are_the_same_text_stay_apart() -> None:
    frames = spaces.Box(-9, 9, (2, 3))
    space = spaces.Dict({"a.b": frames, "a": spaces.Dict({"b": frames})})
    # entries of a leaf: its sign, times a number that moves on by one frame per step
    numbers = torch.arange(6.0)[:, None, None, None] + torch.arange(2.0)[:, None]
    every = {"a.b": numbers.expand(6, 1, 2, 3), "a": {"b": -numbers.expand(6, 1, 2, 3)}}
    flags = torch.zeros(5, 1, dtype=torch.bool)
    columns = {
        Columns.OBS: tree.map_structure(lambda x: x[:5], every),
        Columns.ACTIONS: torch.zeros(5, 1, dtype=torch.int64),
        Columns.REWARDS: torch.zeros(5, 1),
        Columns.TERMINATEDS: flags,
        Columns.TRUNCATEDS: flags,
        Columns.VALID: ~flags,
        Columns.STARTS: torch.arange(5)[:, None] == 0,
    }
    rollout = Rollout(
        columns=columns,
        last_obs=tree.map_structure(lambda x: x[5], every),
        final_index=torch.empty(0, 2, dtype=torch.int64),
        final_obs=tree.map_structure(lambda x: x[0, :0], every),
    )
    for axes in (None, {"a.b": 0}):
        buffer = ReplayBuffer(
            space,
            spaces.Discrete(2),
            capacity=5,
            num_envs=1,
            gamma=1,
            frame_stack_axis=axes,
            seed=np.random.SeedSequence(0),
        )
        buffer.add(rollout)
        batch = buffer.gather_rows(np.arange(5))
        assert differences(batch[Columns.OBS], tree.map_structure(lambda x: x[:5, 0], every)) == []
        assert differences(batch[Columns.NEXT_OBS], tree.map_structure(lambda x: x[1:, 0], every)) == []
    assert [leaf.axis for leaf in layout_module.stored_leaves(space, {"a.b": 0})] == [0, 0]


@pytest.mark.parametrize("mode", [*AutoresetMode])
def test_takes_what_a_runner_brings(mode: AutoresetMode) -> None:
    runner = EnvRunner(Settings(env=counters(mode)), run_seed=0)
    module = RLModuleSpec(
        module_class=Scripted,
        observation_space=runner.observation_space,
        action_space=runner.action_space,
        catalog_class=NoNets,
    ).build()
    runner.set_module(module)
    buffer = ReplayBuffer(
        runner.observation_space,
        runner.action_space,
        capacity=300,
        num_envs=3,
        gamma=1.0,
        n_step=2,
        seed=np.random.SeedSequence(0),
    )
    for fragment in (1, 1, 5, 1, 9, 64, 1, 30):
        buffer.add(runner.sample(fragment))
    places = np.flatnonzero(buffer.sampleable)
    batch = buffer.gather_rows(places)
    env, episode, t = batch[Columns.OBS].T
    next_env, next_episode, next_t = batch[Columns.NEXT_OBS].T
    lives = batch[Columns.DISCOUNTS] > 0
    assert torch.equal(env, torch.from_numpy(places % 3).float())
    assert torch.equal(next_env, env)
    assert torch.equal(next_episode[lives], episode[lives])
    lengths = torch.tensor(LENGTHS)[(env + episode).long() % len(LENGTHS)]
    newest = torch.from_numpy(places // 3 == (buffer.ring.written[places % 3] - 1) % buffer.rows)
    assert torch.equal(next_t[lives], torch.minimum(t + torch.where(newest, 1, 2), lengths)[lives])
    terminates = torch.tensor([terminated for terminated, _ in ENDS])[(env + episode).long() % len(ENDS)]
    reaches_end = torch.where(newest, t + 1, t + 2) >= lengths
    assert torch.equal(~lives, reaches_end & terminates)


# ------------------------------------------------------------------------------------------------------------ state


@pytest.mark.parametrize("rounds", [2, 40])
@pytest.mark.parametrize("prioritized", [None, PrioritizedReplay()])
def test_a_restored_buffer_goes_on_bit_for_bit(
    tmp_path: Path, rounds: int, prioritized: PrioritizedReplay | None
) -> None:
    stream = Stream(7, 2, frames=3, axis=0)
    settings: dict[str, Any] = {"n_step": (1, 3), "prioritized": prioritized}
    buffer, other = make(stream, 50, **settings), make(stream, 50, seed=9, **settings)
    add_in_parts(other, Stream(8, 2, frames=3, axis=0), 60)
    for _ in range(rounds):
        buffer.add(stream.rollout(4, 0.1))
    save_checkpoint(tmp_path / "c", buffer.get_state())
    other.set_state(load_checkpoint(tmp_path / "c"))
    assert other.num_transitions == buffer.num_transitions
    for _ in range(20):
        one, two = buffer.sample(6), other.sample(6)
        assert np.array_equal(one.indices, two.indices)
        for a, b in zip(tree.flatten(one.batch), tree.flatten(two.batch), strict=True):
            assert torch.equal(a, b)
        errors = torch.linspace(0, 1, 6)
        buffer.update_priorities(one, errors)
        other.update_priorities(two, errors)
        rollout = stream.rollout(3, 0.1)
        buffer.add(rollout)
        other.add(rollout)
    check_all(other, stream, range(1, 4))


@pytest.mark.parametrize("before", range(8, 12))
@pytest.mark.parametrize("rounds", [0, 1, 30])
def test_a_restored_buffer_is_like_one_that_never_stopped(rounds: int, before: int) -> None:
    stream = Stream(7, 2, frames=3, axis=0)
    buffer, other = make(stream, 50), make(stream, 50, seed=9)
    add_in_parts(other, Stream(before, 2, frames=3, axis=0), 60)
    for _ in range(rounds):
        buffer.add(stream.rollout(4, 0.1))
    other.set_state(buffer.get_state())
    assert (other.ring.flags[4 * rounds :] & CUT).all()
    for _ in range(3):
        rollout = stream.rollout(4, 0.1)
        buffer.add(rollout)
        other.add(rollout)
        one, two = buffer.get_state(), other.get_state()
        for name in ("obs", "flags", "written", "rng"):
            assert differences({name: one[name]}, {name: two[name]}) == []


def test_only_the_filled_part_is_saved() -> None:
    stream = Stream(7, 2)
    buffer = make(stream, 1_000_000)
    buffer.add(stream.rollout(4))
    saved = [x for x in tree.flatten(buffer.get_state()) if isinstance(x, torch.Tensor)]
    assert max(x.numel() for x in saved) == 5 * 2 * 3


def test_a_state_of_other_contents_is_refused() -> None:
    stream = Stream(7, 2)
    buffer = make(stream, 50)
    with pytest.raises(ValueError, match=r"expected .*observations .*, got .*observations "):
        buffer.set_state(make(Stream(7, 2, frames=3, axis=0), 50).get_state())
    with pytest.raises(ValueError, match="expected prioritized False, got prioritized True"):
        buffer.set_state(make(stream, 50, prioritized=PrioritizedReplay()).get_state())


# ------------------------------------------------------------------------------------------------------------ bytes

ATARI = spaces.Box(0, 255, (84, 84, 4), np.uint8)


def test_bytes_are_known_before_anything_is_allocated() -> None:
    stacked = replay_bytes(ATARI, spaces.Discrete(18), capacity=10**6, num_envs=8, frame_stack_axis=-1)
    assert 84 * 84 * 10**6 < stacked <= 8e9
    assert replay_bytes(ATARI, spaces.Discrete(18), capacity=10**6, num_envs=8) > 28e9


@pytest.mark.parametrize("axis", [None, 0])
def test_bytes_are_those_of_the_arrays(axis: int | None) -> None:
    stream = Stream(0, 4, frames=2, axis=axis)
    arguments: dict[str, Any] = {"capacity": 403, "num_envs": 4, "frame_stack_axis": axis}
    buffer = make(stream, 403)
    ring = buffer.ring
    index = [ring.obs.finals.index, ring.obs.older.index]
    arrays = [*ring.obs.arrays, *ring.actions.arrays, ring.rewards, ring.flags, *index]
    assert buffer.num_bytes == replay_bytes(stream.space, stream.action_space, **arguments)
    assert buffer.num_bytes == sum(array.nbytes for array in arrays)
    buffer.add(stream.rollout(100))
    tables = ring.obs.finals.tables + ring.obs.older.tables
    assert buffer.num_bytes == sum(array.nbytes for array in [*arrays, *tables])


def test_what_is_kept_aside_does_not_grow_for_ever() -> None:
    stream = Stream(0, 4, frames=2, axis=0)
    buffer = make(stream, 80)
    held = []
    for _ in range(4):
        buffer.add(stream.rollout(5))
    assert buffer.ring.obs.older.num_places == sum(step.start for steps in stream.steps for step in steps)
    for _ in range(100):
        buffer.add(stream.rollout(5, 0.1))
        held.append(buffer.num_bytes)
    assert held[-1] == held[30]


@pytest.mark.parametrize("prioritized", [None, PrioritizedReplay()])
@pytest.mark.parametrize("length", [None, 2])
def test_a_batch_may_be_larger_than_what_is_stored(prioritized: PrioritizedReplay | None, length: int | None) -> None:
    sequences = None if length is None else SequenceReplay(length=length, initial_state=torch.zeros(3))
    stream = Stream(0, 2)
    buffer = make(stream, 40, prioritized=prioritized, sequences=sequences)
    buffer.add(stream.rollout(4))
    drawn = buffer.sample(100).indices
    assert len(drawn) == (100 if length is None else 50)
    assert {*drawn.tolist()} == {*range(8 if length is None else 4)}


def test_too_little_memory_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "memory_limit", lambda: 10**9)
    with pytest.raises(MemoryError, match=r"1,000,000 transitions: expected at most 1,000,000,000 bytes.*28,2\d\d"):
        ReplayBuffer(ATARI, spaces.Discrete(3), capacity=10**6, num_envs=8, gamma=0.9, seed=np.random.SeedSequence(0))


@pytest.mark.parametrize("length", [None, 300])
def test_the_capacity_named_in_the_error_would_fit(length: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "memory_limit", lambda: 10**8)
    sizes: dict[str, Any] = {"num_envs": 1, "gamma": 0.9, "seed": np.random.SeedSequence(0)}
    if length is not None:
        sizes["sequences"] = SequenceReplay(length=length, initial_state=torch.zeros(3))
    with pytest.raises(MemoryError) as raised:
        ReplayBuffer(ATARI, spaces.Discrete(3), capacity=10**6, **sizes)
    fits = int(str(raised.value).split("at most ")[-1].split(", or")[0].replace(",", ""))
    assert ReplayBuffer(ATARI, spaces.Discrete(3), capacity=fits, **sizes).num_bytes <= 10**8


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "5000", "a/memory.max": "4000", "memory.max": "max"}, 4000),
        ("3:cpu:/x\n2:memory:/a\n", {"memory/a/memory.limit_in_bytes": "3000"}, 3000),
        ("2:memory:/other\n", {"memory/memory.limit_in_bytes": "2000"}, 2000),
        ("0::/\n", {}, 10**6),
    ],
)
def test_limits_of_control_groups_count(
    own: str, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(layout_module, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(layout_module, "_CGROUPS", tmp_path)
    monkeypatch.setattr(layout_module.psutil, "virtual_memory", lambda: SimpleNamespace(total=10**6))
    assert layout_module.memory_limit() == expected


@pytest.mark.parametrize(
    ("capacity", "level", "size"), [(1000, logging.INFO, "28.5 MB"), (10**6, logging.WARNING, "28.2 GB")]
)
def test_the_bytes_are_told_before_they_are_allocated(
    capacity: int, level: int, size: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any, **settings: Any) -> None:
        raise RuntimeError("allocated")

    monkeypatch.setattr(layout_module, "memory_limit", lambda: 10**18)
    monkeypatch.setattr(ring_module, "TreeRows", stop)
    with caplog.at_level(logging.INFO, "algorithms.replay"), pytest.raises(RuntimeError, match="allocated"):
        ReplayBuffer(
            ATARI, spaces.Discrete(3), capacity=capacity, num_envs=8, gamma=0.9, seed=np.random.SeedSequence(0)
        )
    (record,) = caplog.records
    assert record.levelno == level
    assert f"Replay of {capacity:,} steps: {size}" in record.getMessage()
