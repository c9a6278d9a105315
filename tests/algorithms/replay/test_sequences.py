"""Sequences from the buffer, by hand and against a walk through the lives of single envs."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import example, given, settings
from hypothesis import strategies as st

from algorithms.replay import PrioritizedReplay, ReplayBuffer, ReplaySample, SequenceReplay, replay_bytes
from algorithms.replay.ring import START
from algorithms.replay.sequences import Anchors
from rlmodule import Columns, EnvRunner, Rollout
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.data.sequences import flatten_sequences
from rlmodule.modules.recurrent import burn_in
from tests.algorithms.replay.streams import Step, Stream
from tests.rlmodule.toys import NoNets, Recurrent, Settings, counters

GAMMA = 0.9
STATE = {"h": torch.zeros(2), "more": (torch.zeros((), dtype=torch.int64),)}


def buffer_for(stream: Stream, *, length: int, burn: int = 0, **options: Any) -> ReplayBuffer:
    given: dict[str, Any] = {"seed": np.random.SeedSequence(1), "num_envs": stream.num_envs} | options
    return ReplayBuffer(
        stream.space,
        stream.action_space,
        gamma=GAMMA,
        sequences=SequenceReplay(length=length, burn_in=burn, initial_state=STATE),
        frame_stack_axis=stream.axis,
        **given,
    )


def anchors_of(buffer: ReplayBuffer) -> Anchors:
    assert buffer._anchors is not None
    return buffer._anchors


def places_of(buffer: ReplayBuffer, sample: ReplaySample) -> np.ndarray:
    """Place of the row in which each sequence begins."""
    return anchors_of(buffer).places(sample.indices, buffer.ring)


def drawable(anchors: Anchors) -> np.ndarray:
    """Places of the anchors that can be drawn."""
    size, draws = len(anchors.rows), anchors.draws
    numbers = [(n % size, env) for env in range(len(draws.end)) for n in range(draws.begin[env], draws.end[env])]
    return np.array(sorted(row * len(draws.end) + env for row, env in numbers), np.int64)


def with_numbered_states(rollout: Rollout, first_row: int, length: int) -> Rollout:
    """The state before row ``i`` of env ``n`` is ``1000 n + i``."""
    steps, slots = rollout.shape
    rows = torch.arange(first_row, first_row + steps, length)
    numbers = rows[:, None] + 1000 * torch.arange(slots)
    state_in = {"h": torch.stack([numbers, -numbers], -1).float(), "more": (numbers,)}
    return dataclasses.replace(rollout, state_in=state_in)


# --- by hand ---------------------------------------------------------------------------------------------------------


def by_hand(**options: Any) -> ReplayBuffer:
    """One env, obs = row number, reward = 2^row; row 2 is truncated (obs 99), row 5 terminates; rows 3 and 6 start."""
    steps = 8
    flags = torch.zeros(3, steps, 1, dtype=torch.bool)
    flags[0, 2], flags[1, 5] = True, True
    flags[2, [0, 3, 6]] = True
    rollout = Rollout(
        columns={
            Columns.OBS: torch.arange(steps).view(-1, 1, 1).float(),
            Columns.ACTIONS: torch.arange(steps).view(-1, 1) + 10,
            Columns.REWARDS: 2.0 ** torch.arange(steps).view(-1, 1),
            Columns.TRUNCATEDS: flags[0],
            Columns.TERMINATEDS: flags[1],
            Columns.VALID: torch.ones(steps, 1, dtype=torch.bool),
            Columns.STARTS: flags[2],
        },
        last_obs=torch.full((1, 1), 8.0),
        final_index=torch.tensor([[2, 0]]),
        final_obs=torch.full((1, 1), 99.0),
        state_in={
            "h": torch.tensor([0.0, 2, 4, 6]).view(4, 1, 1).expand(4, 1, 2),
            "more": (torch.zeros(4, 1, dtype=torch.int64),),
        },
    )
    buffer = ReplayBuffer(
        spaces.Box(-1e3, 1e3, (1,), np.float32),
        spaces.Discrete(100),
        capacity=8,
        num_envs=1,
        gamma=0.5,
        n_step=2,
        seed=np.random.SeedSequence(0),
        **options,
    )
    buffer.add(rollout)
    return buffer


def sequence_from(buffer: ReplayBuffer, row: int) -> dict[str, Any]:
    """The only sequence that begins at ``row``."""
    for _ in range(200):
        sample = buffer.sample(1)
        if places_of(buffer, sample).tolist() == [row]:
            return sample.batch
    raise AssertionError(f"no sequence at {row} in 200 draws")


def test_a_truncated_step_is_followed_by_its_true_final_observation() -> None:
    batch = sequence_from(by_hand(sequences=SequenceReplay(length=2, initial_state=STATE)), 2)
    # rows 2 and 3 are trained; the windows of two steps reach the observation of row 5
    assert batch[Columns.OBS][:, 0, 0].tolist() == [2, 99, 3, 4, 5]
    assert batch[Columns.STARTS][:, 0].tolist() == [False, False, True, False, False]
    assert batch[Columns.VALID_ROWS].tolist() == [0, 2]
    assert batch[Columns.NEXT_ROWS].tolist() == [1, 4]
    assert batch[Columns.ACTIONS][:, 0].tolist() == [12, 0, 13, 0, 0]
    assert batch[Columns.REWARDS][:, 0].tolist() == [4, 0, 8 + 16 / 2, 0, 0]
    assert batch[Columns.DISCOUNTS][:, 0].tolist() == [0.5, 0, 0.25, 0, 0]
    assert batch[Columns.STATE_IN]["h"].tolist() == [[2, 2]]
    assert Columns.WEIGHTS not in batch
    assert Columns.BURN_IN not in batch


def test_a_terminated_step_is_followed_by_nothing_that_counts() -> None:
    batch = sequence_from(by_hand(sequences=SequenceReplay(length=2, initial_state=STATE)), 4)
    assert batch[Columns.OBS][:, 0, 0].tolist() == [4, 5, 6, 7]
    assert batch[Columns.STARTS][:, 0].tolist() == [False, False, True, False]
    assert batch[Columns.REWARDS][:, 0].tolist() == [16 + 32 / 2, 32, 0, 0]
    assert batch[Columns.DISCOUNTS][:, 0].tolist() == [0, 0, 0, 0]


def test_rows_of_a_burn_in_come_before_and_have_the_state() -> None:
    batch = sequence_from(by_hand(sequences=SequenceReplay(length=2, burn_in=3, initial_state=STATE)), 2)
    assert batch[Columns.BURN_IN][Columns.OBS][:, 0, 0].tolist() == [2, 3, 4]  # nothing is put in here
    assert batch[Columns.BURN_IN][Columns.STARTS][:, 0].tolist() == [False, True, False]
    assert batch[Columns.STATE_IN]["h"].tolist() == [[2, 2]]
    # rows 5 and 6 are trained; the last window reaches the observation after row 7
    assert batch[Columns.OBS][:, 0, 0].tolist() == [5, 6, 7, 8]
    assert batch[Columns.STARTS][:, 0].tolist() == [False, True, False, False]
    assert batch[Columns.REWARDS][:, 0].tolist() == [32, 64 + 128 / 2, 0, 0]


def test_sequences_with_fewer_inserted_rows_repeat_their_last_row() -> None:
    buffer = by_hand(sequences=SequenceReplay(length=2, initial_state=STATE))
    sample = buffer.sample(4)
    while places_of(buffer, sample).tolist() != [2, 4]:
        sample = buffer.sample(4)
    batch = sample.batch
    assert batch[Columns.OBS][..., 0].tolist() == [[2, 4], [99, 5], [3, 6], [4, 7], [5, 7]]
    assert batch[Columns.VALID_ROWS].tolist() == [0, 1, 4, 3]  # row by row before any was put in
    assert batch[Columns.NEXT_ROWS].tolist()[::2] == [2, 8]
    assert sample.owners is not None
    assert sample.owners.tolist() == [0, 1, 0, 1]
    rows = flatten_sequences(batch, batch[Columns.VALID_ROWS])
    assert rows[Columns.OBS][:, 0].tolist() == [2, 4, 3, 5]
    assert rows[Columns.ACTIONS].tolist() == [12, 14, 13, 15]


def test_priorities_of_sequences_mix_the_greatest_and_the_mean_error() -> None:
    options = PrioritizedReplay(alpha=1.0, eps=1e-9)
    buffer = by_hand(sequences=SequenceReplay(length=2, initial_state=STATE), prioritized=options)
    assert shares_of(buffer) == [1, 1, 1, 0, 0, 0]
    sample = ReplaySample({}, np.array([2, 0]), np.array([0, 1, 0, 1]))
    buffer.update_priorities(sample, torch.tensor([1.0, -4, 3, 2], requires_grad=True))
    assert shares_of(buffer) == pytest.approx([0.9 * 4 + 0.1 * 3, 1, 0.9 * 3 + 0.1 * 2, 0, 0, 0])
    drawn = buffer.sample(6, beta=1.0)
    weights = drawn.batch[Columns.WEIGHTS]
    shares = np.array([3.9, 1, 2.9])[drawn.indices]
    expected = np.zeros(tuple(weights.shape), np.float32)
    assert drawn.owners is not None
    expected.reshape(-1)[drawn.batch[Columns.VALID_ROWS]] = (shares.min() / shares)[drawn.owners]
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"td_errors\)\[2\]: expected a finite number, got nan"):
        buffer.update_priorities(sample, torch.tensor([1.0, 1, torch.nan, 1]))


def shares_of(buffer: ReplayBuffer) -> list[float]:
    assert buffer.priorities is not None
    return buffer.priorities._tree.get(np.arange(anchors_of(buffer).rows.size)).tolist()


# --- against single envs ---------------------------------------------------------------------------------------------


class Walk:
    """What a buffer was given, env by env, and the sequences there are in it."""

    def __init__(self, buffer: ReplayBuffer, streams: list[Stream], n_step: tuple[int, int]) -> None:
        self.buffer, self.anchors, self.n_step = buffer, anchors_of(buffer), n_step
        self.settings = self.anchors.settings
        self.envs = [(stream, n) for stream in streams for n in range(stream.num_envs)]
        self.recorded: list[list[int]] = [[] for _ in self.envs]

    def note(self, env: int, first_row: int, num_rows: int) -> None:
        """A rollout recorded states of ``env`` in every ``length``-th of these rows."""
        self.recorded[env] += range(first_row, first_row + num_rows, self.settings.length)

    def rows(self, env: int) -> list[int]:
        """The rows that are transitions."""
        stream, n = self.envs[env]
        return [row for row, step in enumerate(stream.steps[n]) if step.valid]

    def steps(self, env: int) -> list[Step]:
        stream, n = self.envs[env]
        return [step for step in stream.steps[n] if step.valid]

    def observation(self, env: int, number: int) -> np.ndarray:
        stream, _ = self.envs[env]
        steps = self.steps(env)
        return stream.observe(steps[number].stack if number < len(steps) else steps[-1].following)

    def sampleable(self) -> dict[tuple[int, int], int]:
        """Env and number of the first transition of each sequence → the row whose state was recorded."""
        found = {}
        length, burn = self.settings.length, self.settings.burn_in
        reach = burn + length + self.n_step[1] - 1
        for env, recorded in enumerate(self.recorded):
            rows = self.rows(env)
            numbers = [sum(row < begin for row in rows) for begin in recorded]
            last = -length
            ends = [*numbers[1:], len(rows)] if numbers else []  # an env may not have stepped yet
            for begin, number, following in zip(recorded, numbers, ends, strict=True):
                if following == number or following - last <= length:
                    continue
                last = number
                if number >= len(rows) - self.buffer.kept_rows and number + reach <= len(rows):
                    found[env, number] = begin
        return found

    def begins(self, anchors: np.ndarray) -> list[tuple[int, int]]:
        """Env and number of the first transition of each sequence."""
        numbers = self.anchors.rows.take(anchors).tolist()
        return [*zip((anchors % len(self.envs)).tolist(), numbers, strict=True)]

    def check(self, sample: ReplaySample) -> None:
        there, batch = self.sampleable(), sample.batch
        valid_rows, next_rows = batch[Columns.VALID_ROWS], batch[Columns.NEXT_ROWS]
        shape = batch[Columns.STARTS].shape
        assert sample.owners is not None
        np.testing.assert_array_equal(sample.owners, valid_rows % shape[1])
        following = dict(zip(valid_rows.tolist(), next_rows.tolist(), strict=True))
        assert len(following) == len(valid_rows)
        lengths = []
        for b, (env, row) in enumerate(self.begins(sample.indices)):
            assert batch[Columns.STATE_IN]["more"][0][b] == 1000 * env + there[env, row]
            assert batch[Columns.STATE_IN]["h"][b].tolist() == [
                1000 * env + there[env, row],
                -1000 * env - there[env, row],
            ]
            lengths.append(self.check_one(batch, b, env, row, following))
        assert max(lengths) == shape[0]
        assert not following  # nothing else is trained
        trained = torch.zeros(shape, dtype=torch.bool).view(-1).index_fill(0, valid_rows, True).view(shape)
        for name in (Columns.ACTIONS, Columns.REWARDS, Columns.DISCOUNTS):
            assert not batch[name][~trained].any()

    def check_one(self, batch: dict[str, Any], b: int, env: int, row: int, following: dict[int, int]) -> int:
        steps, (length, burn) = self.steps(env), (self.settings.length, self.settings.burn_in)
        first, num = row + burn, batch[Columns.STARTS].shape[1]
        for t in range(burn):
            np.testing.assert_array_equal(batch[Columns.BURN_IN][Columns.OBS][t, b], self.observation(env, row + t))
            assert batch[Columns.BURN_IN][Columns.STARTS][t, b] == steps[row + t].start
        place, last = 0, first + length + self.n_step[1] - 1
        obs, starts = batch[Columns.OBS][:, b].numpy(), batch[Columns.STARTS][:, b]
        for i in range(first, last + 1):
            if i < len(steps) or not steps[i - 1].ended:  # else nothing reaches there, and older frames are not known
                np.testing.assert_array_equal(obs[place], self.observation(env, i))
            assert starts[place] == (i < last and steps[i].start)
            if i < first + length:
                self.check_row(batch, place * num + b, following.pop(place * num + b), env, i)
            place += 1
            if i < last and steps[i].ended and not steps[i].terminated:
                stream, _ = self.envs[env]
                np.testing.assert_array_equal(obs[place], stream.observe(steps[i].following))
                assert not starts[place]
                place += 1
        assert not starts[place:].any()
        np.testing.assert_array_equal(obs[place:], np.broadcast_to(obs[place - 1], obs[place:].shape))
        return place

    def check_row(self, batch: dict[str, Any], place: int, next_place: int, env: int, i: int) -> None:
        stream, n = self.envs[env]
        row = self.rows(env)[i]
        found = {name: batch[name].flatten(0, 1)[place].item() for name in (Columns.REWARDS, Columns.DISCOUNTS)}
        next_obs = batch[Columns.OBS].flatten(0, 1)[next_place].numpy()
        assert batch[Columns.ACTIONS].flatten()[place] == stream.steps[n][row].action
        matches = []
        for n_step in range(self.n_step[0], self.n_step[1] + 1):
            reward, stack, discount, _ = stream.window(n, row, n_step, GAMMA)
            matches.append(
                np.isclose(found[Columns.REWARDS], reward, rtol=1e-5, atol=1e-6)
                and np.isclose(found[Columns.DISCOUNTS], discount)
                and (discount == 0 or np.array_equal(next_obs, stream.observe(stack)))
            )
        assert any(matches)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    length = draw(st.integers(1, 6))
    burn = draw(st.integers(0, 7))
    low = draw(st.integers(1, 3))
    n_step = (low, draw(st.integers(low, 4)))
    fragments = [*range(1, length + 3), 2 * length, 2 * length + 3, 5 * length]
    num_envs = draw(st.integers(1, 3))
    least = burn + length + n_step[1] - 1 + length - 1
    return {
        "length": length,
        "burn": burn,
        "n_step": n_step,
        "fragment": draw(st.sampled_from(fragments)),
        "num_envs": num_envs,
        "capacity": num_envs * (least + draw(st.integers(0, 12))),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "mode": draw(st.sampled_from(["same_step", "next_step", "unknown_finals"])),
        "frames": draw(st.sampled_from([1, 1, 3])),
        "prioritized": draw(st.sampled_from([None, PrioritizedReplay()])),
        "second": draw(st.booleans()),
    }


ENDS_BETWEEN_ROLLOUTS = {
    "length": 1,
    "burn": 0,
    "n_step": (1, 1),
    "fragment": 1,
    "num_envs": 1,
    "capacity": 1,
    "seed": 0,
    "mode": "unknown_finals",
    "frames": 1,
    "prioritized": None,
    "second": False,
}


@given(cases())
@example(ENDS_BETWEEN_ROLLOUTS)
@settings(deadline=None, max_examples=25)
def test_every_sequence_is_what_its_env_went_through(case: dict[str, Any]) -> None:
    length, fragment, frames = case["length"], case["fragment"], case["frames"]
    options = {"mode": case["mode"], "frames": frames, "axis": 0 if frames > 1 else None}
    streams = [Stream(case["seed"] + i, case["num_envs"], **options) for i in range(1 + case["second"])]
    buffer = buffer_for(
        streams[0],
        length=length,
        burn=case["burn"],
        num_envs=sum(stream.num_envs for stream in streams),
        capacity=case["capacity"] * len(streams),
        n_step=case["n_step"],
        prioritized=case["prioritized"],
    )
    if fragment >= buffer.rows:
        fragment = buffer.rows - 1
    walk = Walk(buffer, streams, case["n_step"])
    rng = np.random.default_rng(case["seed"])
    adds = 3 * buffer.rows // fragment + 2
    for i in range(adds):
        for k, stream in enumerate(streams):
            if k and i % 2:
                continue  # comes half as often
            first_row = len(stream.steps[0])
            rollout = with_numbered_states(stream.rollout(fragment, 0.1), first_row, length)
            numbers = rollout.state_in
            assert isinstance(numbers, dict)
            offset = 1000 * k * case["num_envs"]
            sign = torch.tensor([1.0, -1])
            rollout.state_in = {"h": numbers["h"] + offset * sign, "more": (numbers["more"][0] + offset,)}
            buffer.add(rollout, k * case["num_envs"])
            for n in range(stream.num_envs):
                walk.note(k * case["num_envs"] + n, first_row, fragment)
        if rng.random() < 0.3 or i == adds - 1:
            check_all(buffer, walk)


def check_all(buffer: ReplayBuffer, walk: Walk) -> None:
    there, places = walk.sampleable(), drawable(walk.anchors)
    assert sorted(walk.begins(places)) == sorted(there)
    assert walk.anchors.draws.num == len(there)
    if buffer.priorities is not None:
        assert np.flatnonzero(shares_of(buffer)).tolist() == places.tolist()
    if there:
        sample = buffer.sample(min(5, len(there)) * walk.settings.length)
        walk.check(sample)
        if buffer.priorities is not None:
            assert sample.owners is not None
            buffer.update_priorities(sample, torch.randn(len(sample.owners)))


def add_numbered(buffer: ReplayBuffer, stream: Stream, steps: int, length: int) -> None:
    first_row = len(stream.steps[0])
    buffer.add(with_numbered_states(stream.rollout(steps, 0.1), first_row, length))


def filled(**options: Any) -> tuple[ReplayBuffer, Stream]:
    stream = Stream(0, 3, mode="next_step")
    buffer = buffer_for(stream, **{"length": 4, "burn": 1, "capacity": 90, "n_step": (1, 3)} | options)
    for _ in range(40):
        add_numbered(buffer, stream, 1, 4)
    return buffer, stream


def test_uniform_draws_are_uniform_over_sequences() -> None:
    buffer, _ = filled()
    counts = np.zeros(anchors_of(buffer).rows.size)
    for _ in range(300):
        np.add.at(counts, buffer.sample(40).indices, 1)
    there = np.zeros(len(counts), bool)
    there[drawable(anchors_of(buffer))] = True
    assert not counts[~there].any()
    expected = 3000 / there.sum()
    assert ((counts[there] - expected) ** 2 / expected).sum() < 60  # 99.9 % with some 20 degrees of freedom: 45


@pytest.mark.parametrize("prioritized", [None, PrioritizedReplay()])
def test_samples_go_on_bit_by_bit_after_a_round_trip(prioritized: PrioritizedReplay | None, tmp_path: Path) -> None:
    buffer, stream = filled(prioritized=prioritized)
    again, _ = filled(prioritized=prioritized, seed=np.random.SeedSequence(7))
    for _ in range(3):
        add_numbered(again, Stream(5, 3), 1, 4)
    again.set_state(load_checkpoint(save_checkpoint(tmp_path / "buffer", buffer.get_state())))
    for _ in range(20):
        rollout = with_numbered_states(stream.rollout(1), len(stream.steps[0]) - 1, 4)
        for b in (buffer, again):
            b.add(rollout)
        samples = [b.sample(20, beta=0.5) for b in (buffer, again)]
        assert samples[0].indices.tolist() == samples[1].indices.tolist()
        tree.map_structure(torch.testing.assert_close, samples[0].batch, samples[1].batch)
        for b, sample in zip((buffer, again), samples, strict=True):
            b.update_priorities(sample, torch.arange(len(sample.batch[Columns.VALID_ROWS])) / 7)


@pytest.mark.parametrize("change", [{"burn": 2}, {"length": 2, "capacity": 90}, {"n_step": 2}])
def test_a_state_of_other_sequences_is_refused(change: dict[str, Any]) -> None:
    state = filled()[0].get_state()
    stream = Stream(0, 3)
    other = buffer_for(stream, **{"length": 4, "burn": 1, "capacity": 90, "n_step": (1, 3)} | change)
    with pytest.raises(ValueError, match=r"state of a replay buffer: expected .*sequences of "):
        other.set_state(state)


def test_states_that_were_not_recorded_are_initial_ones() -> None:
    stream = Stream(0, 2)
    buffer = buffer_for(stream, length=2, capacity=24)
    buffer.add(with_numbered_states(stream.rollout(4), 50, 2))
    buffer.add(stream.rollout(8))
    seen = {}
    for _ in range(300):
        sample = buffer.sample(2)
        seen[int(sample.indices[0])] = sample.batch[Columns.STATE_IN]["more"][0].item()
    assert [seen[i] for i in range(12)] == [50, 1050, 52, 1052] + [0] * 8


# --- with a module ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("fragment", [1, 2, 8])
def test_a_burn_in_comes_to_the_states_that_were_recorded(mode: AutoresetMode, fragment: int) -> None:
    runner = EnvRunner(Settings(env=counters(mode)), run_seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Recurrent(
            observation_space=runner.observation_space,
            action_space=runner.action_space,
            model_config={"max_seq_len": 4},
            catalog_class=NoNets,
        )
    runner.set_module(module)
    buffer = ReplayBuffer(
        module.input_space,
        runner.action_space,
        capacity=3 * 30,
        num_envs=3,
        gamma=GAMMA,
        sequences=SequenceReplay(length=4, burn_in=4, initial_state=module.get_initial_state()),
        seed=np.random.SeedSequence(0),
    )
    for _ in range(64 // fragment):
        buffer.add(runner.sample(fragment))
    anchors, num_compared = anchors_of(buffer), 0
    for _ in range(30):
        sample = buffer.sample(20)
        rest = burn_in(module, sample.batch)
        following = (sample.indices + 3) % anchors.rows.size  # the next anchor of the same env
        # anchors lie closer where rows between them only reset an env, and the state before a start does not matter
        is_after = anchors.rows.take(following) == anchors.rows.take(sample.indices) + 4
        is_after &= ~buffer.ring.has(START, anchors.places(following, buffer.ring))
        num_compared += int(is_after.sum())
        tree.map_structure(
            lambda a, b, which=is_after: torch.testing.assert_close(a[which], b[which], rtol=1e-5, atol=1e-5),
            rest[Columns.STATE_IN],
            anchors.states(following),
        )
        out = module.forward_train(rest)
        assert out[Columns.EMBEDDINGS].shape[:2] == rest[Columns.STARTS].shape
    assert num_compared > 5


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"length": 0}, r"SequenceReplay\.length: expected finite int, >= 1, got 0\."),
        ({"length": 2.0}, r"SequenceReplay\.length: expected int, >= 1, got 2\.0 "),
        ({"length": 3, "burn_in": -1}, r"SequenceReplay\.burn_in: expected finite int, >= 0, got -1\."),
        ({"length": 3, "burn_in": True}, r"SequenceReplay\.burn_in: expected int, >= 0, got True "),
    ],
)
def test_settings_out_of_range_are_explained(options: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        SequenceReplay(initial_state=STATE, **options)


def test_a_ring_too_small_for_a_sequence_is_explained() -> None:
    text = r"capacity\): expected at least 13 steps of each of 2 envs, for sequences of 4 with a burn-in of 4, got 12 "
    stream = Stream(0, 2)
    buffer_for(stream, length=4, burn=4, capacity=26, n_step=3)
    with pytest.raises(ValueError, match=text):
        buffer_for(stream, length=4, burn=4, capacity=24, n_step=3)


def test_states_of_another_shape_are_explained() -> None:
    stream = Stream(0, 2)
    buffer = buffer_for(stream, length=4, capacity=40)
    rollout = with_numbered_states(stream.rollout(8), 0, 8)
    with pytest.raises(ValueError, match=r"Rollout\.state_in: expected states shaped \[\(2, 2, 2\), \(2, 2\)\]"):
        buffer.add(rollout)


def test_sampling_before_there_is_a_sequence_is_explained() -> None:
    stream = Stream(0, 2)
    buffer = buffer_for(stream, length=4, capacity=40)
    buffer.add(stream.rollout(2))
    text = r"at least one complete sequence of 4 steps to draw from, got 12, and 0 to draw from \(4 steps are stored"
    with pytest.raises(ValueError, match=text):
        buffer.sample(12)
    buffer.add(stream.rollout(2))
    assert len(buffer.sample(8).indices) == 2
    assert len(buffer.sample(1).indices) == 1  # less than a sequence is one
    with pytest.raises(ValueError, match=r"sample\(batch_size\): expected at least 1, .*, got 0, and 2 to"):
        buffer.sample(0)


def test_bytes_count_the_states_and_one_priority_for_each_sequence() -> None:
    space, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    size: Any = {"capacity": 8000, "num_envs": 8}
    sequences = SequenceReplay(length=10, initial_state={"h": torch.zeros(100)})
    plain, with_states = (replay_bytes(space, actions, sequences=s, **size) for s in (None, sequences))
    assert with_states - plain == pytest.approx(800 * 400, rel=0.05)
    prioritized = replay_bytes(space, actions, sequences=sequences, prioritized=PrioritizedReplay(), **size)
    assert prioritized - with_states == pytest.approx(800 * 8 * 8 / 7, rel=0.05)
