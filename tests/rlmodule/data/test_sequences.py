"""Sequences: cut by hand, shuffled without losing a row, valued as one env at a time would be."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from catalog.base import Tree
from rlmodule import Columns, EnvRunner, Rollout
from rlmodule.data.columns import Batch
from rlmodule.data.sequences import cut_into_sequences, flatten_sequences, sequence_minibatches
from rlmodule.modules.recurrent import burn_in, embeddings_of, initial_states, values_along, with_states
from rlmodule.testing.data import random_rollout
from tests.rlmodule.toys import NoNets, Recurrent, Settings, counters

BOX = spaces.Box(-1, 1, (2,), np.float32)


def recurrent(seed: int = 0, length: int = 4) -> Recurrent:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Recurrent(
            observation_space=BOX,
            action_space=spaces.Discrete(2),
            model_config={"max_seq_len": length},
            catalog_class=NoNets,
        )


def numbered(steps: int, slots: int, length: int, valid: Tensor | None = None) -> Rollout:
    """Rows are numbered ``10 · row + slot``, and so are the states before them."""
    numbers = torch.arange(steps)[:, None] * 10 + torch.arange(slots)
    columns: dict[str, Any] = {
        Columns.OBS: {"x": numbers, "y": (-numbers[..., None].expand(steps, slots, 2),)},
        Columns.REWARDS: numbers.float(),
        Columns.VALID: torch.ones(steps, slots, dtype=torch.bool) if valid is None else valid,
        Columns.STARTS: numbers % 3 == 0,
    }
    last = {"x": torch.zeros(slots), "y": (torch.zeros(slots, 2),)}
    none = torch.zeros(0, 2, dtype=torch.int64)
    state_in = {"h": numbers[::length].float(), "c": (numbers[::length, :, None],)}
    final_obs = tree.map_structure(lambda x: x[:0], last)
    return Rollout(columns=columns, last_obs=last, final_index=none, final_obs=final_obs, state_in=state_in)


def test_five_rows_of_two_slots_in_sequences_of_two() -> None:
    batch = cut_into_sequences(numbered(5, 2, 2), [Columns.OBS, Columns.REWARDS], 2)
    assert set(batch) == {Columns.OBS, Columns.REWARDS, Columns.STARTS, Columns.STATE_IN, Columns.VALID_ROWS}
    assert batch[Columns.REWARDS].tolist() == [[0, 1, 20, 21, 40, 41], [10, 11, 30, 31, 0, 0]]
    # observations are filled up with the last one, since zeros need not lie in the space
    assert batch[Columns.OBS]["x"].tolist() == [[0, 1, 20, 21, 40, 41], [10, 11, 30, 31, 40, 41]]
    assert torch.equal(batch[Columns.OBS]["y"][0][..., 1], -batch[Columns.OBS]["x"])
    assert batch[Columns.STARTS].int().tolist() == [[1, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0]]
    assert batch[Columns.STATE_IN]["h"].tolist() == [0, 1, 20, 21, 40, 41]
    assert batch[Columns.STATE_IN]["c"][0].flatten().tolist() == [0, 1, 20, 21, 40, 41]
    assert batch[Columns.VALID_ROWS].tolist() == list(range(10))
    rows = flatten_sequences(batch, batch[Columns.VALID_ROWS])
    assert set(rows) == {Columns.OBS, Columns.REWARDS}
    assert rows[Columns.REWARDS].tolist() == [0, 1, 20, 21, 40, 41, 10, 11, 30, 31]
    assert torch.equal(rows[Columns.OBS]["x"], rows[Columns.REWARDS].long())


def test_where_all_rows_are_valid_nothing_is_left_to_say() -> None:
    batch = cut_into_sequences(numbered(4, 3, 2), [Columns.REWARDS], 2)
    assert Columns.VALID_ROWS not in batch
    assert flatten_sequences(batch, None)[Columns.REWARDS].tolist() == [0, 1, 2, 20, 21, 22, 10, 11, 12, 30, 31, 32]


def test_a_rollout_shorter_than_a_sequence_is_not_filled_up() -> None:
    batch = cut_into_sequences(numbered(3, 2, 20), [Columns.REWARDS], 20)
    assert batch[Columns.REWARDS].tolist() == [[0, 1], [10, 11], [20, 21]]
    assert Columns.VALID_ROWS not in batch


def test_sequences_without_a_valid_row_are_left_out() -> None:
    valid = torch.tensor([[1, 1], [1, 0], [1, 0], [0, 0]], dtype=torch.bool)
    batch = cut_into_sequences(numbered(4, 2, 2, valid), [Columns.REWARDS], 2)
    assert batch[Columns.REWARDS].tolist() == [[0, 1, 20], [10, 11, 30]]
    assert batch[Columns.STATE_IN]["h"].tolist() == [0, 1, 20]
    assert flatten_sequences(batch, batch[Columns.VALID_ROWS])[Columns.REWARDS].tolist() == [0, 1, 20, 10]


@pytest.mark.parametrize("state_in", ["none", "too many"])
def test_states_that_do_not_fit_are_explained(state_in: str) -> None:
    rollout = numbered(6, 2, 2)
    if state_in == "none":
        rollout.state_in = None
    with pytest.raises(ValueError, match=r"Rollout\.state_in: expected 2 rows of states: 6 steps.* of 3, got (None|3)"):
        cut_into_sequences(rollout, [Columns.REWARDS], 3)


@given(
    st.integers(1, 13),
    st.integers(1, 4),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 30)),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=80)
def test_every_valid_row_is_in_one_minibatch_of_an_epoch(
    steps: int, slots: int, length: int, size: int | None, seed: int
) -> None:
    valid = torch.from_numpy(np.random.default_rng(seed).random((steps, slots)) < 0.7)
    valid[0, 0] = True
    rollout = numbered(steps, slots, min(length, steps), valid)
    batch = cut_into_sequences(rollout, [Columns.OBS, Columns.REWARDS], length)
    effective, count = batch[Columns.STARTS].shape
    per = count if size is None else max(1, size // effective)
    seen: list[float] = []
    minibatches = list(sequence_minibatches(batch, size, torch.Generator().manual_seed(seed)))
    assert len(minibatches) == -(-count // per)
    for minibatch in minibatches:
        check_minibatch(minibatch, rollout, effective)
        rows = flatten_sequences(minibatch, minibatch.get(Columns.VALID_ROWS))
        assert torch.equal(rows[Columns.OBS]["x"], rows[Columns.REWARDS].long())
        assert torch.equal(rows[Columns.OBS]["y"][0][:, 1], -rows[Columns.OBS]["x"])
        seen += rows[Columns.REWARDS].tolist()
    assert [minibatch[Columns.STARTS].shape[1] for minibatch in minibatches[:-1]] == [per] * (len(minibatches) - 1)
    assert sorted(seen) == sorted(rollout[Columns.REWARDS][valid].tolist())


def check_minibatch(minibatch: Batch, rollout: Rollout, length: int) -> None:
    """Its sequences are rows in a row, beginning where their state says, and lie together in memory."""
    numbers, starts, states = (minibatch[name] for name in (Columns.REWARDS, Columns.STARTS, Columns.STATE_IN))
    assert numbers.is_contiguous()
    for column in range(numbers.shape[1]):
        first, slot = divmod(int(states["h"][column]), 10)
        assert int(states["c"][0][column]) == 10 * first + slot
        end = min(first + length, rollout.shape[0])
        expected = rollout[Columns.REWARDS][first:end, slot]
        assert torch.equal(numbers[: end - first, column], expected)
        assert torch.equal(starts[: end - first, column], rollout[Columns.STARTS][first:end, slot])


def test_epochs_come_in_another_order_and_follow_the_generator() -> None:
    batch = cut_into_sequences(numbered(12, 3, 2), [Columns.REWARDS], 2)

    def epochs(seed: int) -> list[list[float]]:
        generator = torch.Generator().manual_seed(seed)
        pieces = [
            torch.cat([m[Columns.REWARDS] for m in sequence_minibatches(batch, 4, generator)], 1) for _ in range(2)
        ]
        return [piece[0].tolist() for piece in pieces]

    assert epochs(0) == epochs(0) != epochs(1)
    assert epochs(0)[0] != epochs(0)[1]


# --- values ----------------------------------------------------------------------------------------------------------


def slow_values(module: Recurrent, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Each env by itself, one row after another."""
    steps, slots = rollout.shape
    finals = {(row, slot): k for k, (row, slot) in enumerate(rollout.final_index.tolist())}
    own, following = torch.zeros(steps, slots), torch.zeros(steps, slots)

    def value(obs: Tree, state: Tree, starts: bool) -> tuple[Tensor, Tree]:
        obs = tree.map_structure(lambda x: x[None, None], obs)
        batch = {Columns.OBS: obs, Columns.STARTS: torch.tensor([[starts]]), Columns.STATE_IN: state}
        out = module._forward(batch)
        return module.vf(out[Columns.EMBEDDINGS]).squeeze(), out[Columns.STATE_OUT]

    def at(column: Tree, *index: int) -> Tree:
        return tree.map_structure(lambda x: x[index], column)

    for slot in range(slots):
        state = tree.map_structure(lambda x, slot=slot: x[0, slot][None], rollout.state_in)
        for row in range(steps):
            starts = bool(rollout[Columns.STARTS][row, slot])
            own[row, slot], state = value(at(rollout[Columns.OBS], row, slot), state, starts)
            if (row, slot) in finals:
                following[row, slot] = value(at(rollout.final_obs, finals[row, slot]), state, False)[0]
            elif row == steps - 1:
                following[row, slot] = value(at(rollout.last_obs, slot), state, False)[0]
            if row and (row - 1, slot) not in finals:
                following[row - 1, slot] = own[row, slot]
    return own, following


def assert_values_equal(module: Recurrent, rollout: Rollout) -> None:
    with torch.no_grad():
        own, following = rollout.split_values(values_along(module, rollout))
        slow_own, slow_following = slow_values(module, rollout)
    count = rollout.valid & ~rollout[Columns.TERMINATEDS]
    torch.testing.assert_close(own, slow_own, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(following[count], slow_following[count], rtol=1e-5, atol=1e-5)


@given(st.integers(1, 14), st.integers(1, 4), st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_values_are_those_of_one_env_at_a_time(steps: int, slots: int, seed: int) -> None:
    module = recurrent()
    assert_values_equal(module, random_rollout(module, steps, slots, seed))


def play(mode: AutoresetMode, steps: int, num: int = 1, **model: Any) -> tuple[Recurrent, list[Rollout]]:
    """Counters under a greedy recurrent policy."""
    runner = EnvRunner(Settings(env=counters(mode)), run_seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Recurrent(
            observation_space=runner.observation_space,
            action_space=runner.action_space,
            model_config={"max_seq_len": 4, **model},
            catalog_class=NoNets,
        )
    runner.set_module(module)
    return module, [runner.sample(steps, explore=False) for _ in range(num)]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("more", [{}, {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}])
def test_values_of_what_was_played_are_those_of_one_env_at_a_time(mode: AutoresetMode, more: dict[str, Any]) -> None:
    module, rollouts = play(mode, 11, 3, **more)
    for rollout in rollouts:
        assert_values_equal(module, rollout)
    assert sum(len(rollout.final_index) for rollout in rollouts) > 8


def test_values_of_transitions_are_the_same_in_every_autoreset_mode() -> None:
    def transitions(mode: AutoresetMode) -> list[list[tuple[float, float]]]:
        module, rollouts = play(mode, 8, 6)
        found: list[list[tuple[float, float]]] = [[] for _ in range(3)]
        for rollout in rollouts:
            with torch.no_grad():
                own, following = rollout.split_values(values_along(module, rollout))
            following = following.masked_fill(rollout[Columns.TERMINATEDS], 0)
            for row, slot in rollout.valid.nonzero().tolist():
                found[slot].append((float(own[row, slot]), float(following[row, slot])))
        return found

    same, following, disabled = (transitions(mode) for mode in AutoresetMode.__members__.values())
    for slot in range(3):
        num = min(len(found[slot]) for found in (same, following, disabled))
        assert num > 25
        np.testing.assert_allclose(same[slot][:num], disabled[slot][:num], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(same[slot][:num], following[slot][:num], rtol=1e-5, atol=1e-5)


def test_states_that_were_not_recorded_are_found_anew() -> None:
    module, (rollout, later) = play(AutoresetMode.SAME_STEP, 11, 2)
    assert rollout.state_in is not None
    with torch.no_grad():
        found = with_states(module, dataclasses.replace(rollout, state_in=None))
        assert found.state_in is not None
        for a, b in zip(*map(tree.flatten, (found.state_in, rollout.state_in)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert with_states(module, later) is later
        # where they cannot be found it begins with the initial state
        found = with_states(module, dataclasses.replace(later, state_in=None))
    assert not any(x[0].any() for x in tree.flatten(found.state_in))
    assert any(x[0].any() for x in tree.flatten(later.state_in))


def test_packed_episodes_begin_afresh_unless_they_are_later_chunks() -> None:
    module, (rollout,) = play(AutoresetMode.SAME_STEP, 11)
    episodes = rollout.to_episodes()
    packed = Rollout.from_episodes([*episodes, max(episodes, key=len)[1:]])
    assert packed.state_in is None
    starts = packed[Columns.STARTS]
    assert not starts[1:].any()
    assert starts[0].tolist() == [True] * len(episodes) + [False]
    with torch.no_grad():
        found = with_states(module, packed)
        trained = module._forward(cut_into_sequences(found, [Columns.OBS], 4))[Columns.ACTION_DIST_INPUTS]
    batch = cut_into_sequences(found, [Columns.ACTION_DIST_INPUTS], 4)
    valid_rows = batch[Columns.VALID_ROWS]
    recorded = batch[Columns.ACTION_DIST_INPUTS].flatten(0, 1)[valid_rows]
    same = (trained.flatten(0, 1)[valid_rows] - recorded).abs().amax(1) < 1e-5
    assert int((~same).sum()) == len(max(episodes, key=len)) - 1  # what the later chunk forgot


def test_missing_embeddings_are_explained() -> None:
    with pytest.raises(
        ValueError, match=r"Recurrent\.forward_train\(\): expected the column 'embeddings'.*got only a, b"
    ):
        embeddings_of(recurrent(), {"a": 1, "b": 2})


def test_initial_states_are_apart() -> None:
    states = initial_states(recurrent(), 3)
    states["h"][0] = 1
    assert not states["h"][1:].any()
    assert states["more"][0].shape == (3,)


# --- burn-in ---------------------------------------------------------------------------------------------------------


def test_a_burn_in_leaves_the_states_after_its_rows_and_no_gradient() -> None:
    module = recurrent()
    obs, starts = torch.randn(5, 3, 2), torch.zeros(5, 3, dtype=torch.bool)
    starts[1, 0] = starts[2, 1] = True
    whole = {Columns.OBS: obs, Columns.STARTS: starts, Columns.STATE_IN: initial_states(module, 3)}
    batch = {
        Columns.OBS: obs[2:],
        Columns.STARTS: starts[2:],
        Columns.STATE_IN: whole[Columns.STATE_IN],
        Columns.BURN_IN: {Columns.OBS: obs[:2], Columns.STARTS: starts[:2]},
    }
    rest = burn_in(module, batch)
    assert set(rest) == {Columns.OBS, Columns.STARTS, Columns.STATE_IN}
    assert not any(x.requires_grad for x in tree.flatten(rest[Columns.STATE_IN]))
    assert rest[Columns.STATE_IN]["more"][0].tolist() == [1, 2, 2]  # rows since the start of the episode
    after, throughout = (module.forward_train(b)[Columns.EMBEDDINGS] for b in (rest, whole))
    torch.testing.assert_close(after, throughout[2:])
    assert after.requires_grad
    assert Columns.BURN_IN in batch  # which stays as it was


def test_without_a_burn_in_the_batch_stays() -> None:
    batch = {Columns.OBS: torch.zeros(1, 1, 2)}
    assert burn_in(recurrent(), batch) is batch


def test_neither_burn_in_nor_places_become_rows() -> None:
    batch = {
        Columns.REWARDS: torch.arange(6.0).view(3, 2),
        Columns.BURN_IN: {Columns.OBS: torch.zeros(4, 2, 2)},
        Columns.NEXT_ROWS: torch.tensor([2, 5]),
    }
    assert {n: c.tolist() for n, c in flatten_sequences(batch, torch.tensor([0, 3])).items()} == {"rewards": [0, 3]}
