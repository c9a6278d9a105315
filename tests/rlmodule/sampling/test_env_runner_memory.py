"""What the runner carries for modules with memory: recurrent states, starts, previous actions and rewards."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from catalog.base import Tree
from rlmodule import Columns, EnvRunner, Rollout
from rlmodule.data.sequences import cut_into_sequences, flatten_sequences
from rlmodule.testing.data import clone, differences
from tests.rlmodule.toys import NUM_ACTIONS, Counter, NoNets, Recurrent, Scripted, Settings, Small, counters

MODES = list(AutoresetMode)
LENGTH = 4


def cartpoles(mode: AutoresetMode, num: int = 3) -> Callable[..., SyncVectorEnv]:
    """Short episodes, of which some terminate and some are truncated."""
    one = lambda: gym.make("CartPole-v1", max_episode_steps=9)  # noqa: E731
    return lambda config: SyncVectorEnv([one] * num, copy=False, autoreset_mode=mode)


def runner_for(env: Any, module_class: type = Recurrent, *, run_seed: int = 1, **model: Any) -> EnvRunner:
    runner = EnvRunner(Settings(env=env), run_seed=run_seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = module_class(
            observation_space=runner.observation_space,
            action_space=runner.action_space,
            model_config={"max_seq_len": LENGTH, "use_lstm": True, **model},
            catalog_class=NoNets,
        )
    runner.set_module(module)
    return runner


def trained_and_recorded(runner: EnvRunner, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Distribution inputs of the valid rows by ``forward_train`` over sequences, and those of acting."""
    sequences = cut_into_sequences(rollout, (Columns.OBS, Columns.ACTION_DIST_INPUTS), LENGTH)
    valid_rows = sequences.get(Columns.VALID_ROWS)
    recorded = flatten_sequences(sequences, valid_rows)[Columns.ACTION_DIST_INPUTS]
    trained = flatten_sequences(runner.module._forward_train(sequences), valid_rows)[Columns.ACTION_DIST_INPUTS]
    return trained.detach(), recorded


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [13, 16, 3, 1])
def test_training_on_sequences_sees_what_acting_saw(mode: AutoresetMode, steps: int) -> None:
    runner = runner_for(cartpoles(mode))
    ended, remembers = 0, False
    for _ in range(48 // steps):
        rollout = runner.sample(steps)
        if not rollout.num_env_steps:
            continue
        trained, recorded = trained_and_recorded(runner, rollout)
        torch.testing.assert_close(trained, recorded, rtol=1e-6, atol=1e-6)
        assert len(recorded) == rollout.num_env_steps
        ended += int((rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS]).sum())
        blank = dataclasses.replace(rollout, state_in=tree.map_structure(torch.zeros_like, rollout.state_in))
        remembers |= not torch.allclose(trained_and_recorded(runner, blank)[0], recorded, atol=1e-3)
    assert ended >= 3
    assert remembers


@pytest.mark.parametrize("mode", MODES)
def test_fragments_of_any_length_are_parts_of_one(mode: AutoresetMode) -> None:
    whole = runner_for(cartpoles(mode)).sample(24)
    runner = runner_for(cartpoles(mode))
    parts = [runner.sample(n) for n in (8, 4, 12)]
    for name in (Columns.OBS, Columns.ACTIONS, Columns.ACTION_DIST_INPUTS, Columns.STARTS, Columns.VALID):
        assert torch.equal(whole[name], torch.cat([part[name] for part in parts])), name
    states = tree.map_structure(lambda *x: torch.cat(x), *[part.state_in for part in parts])
    assert differences(whole.state_in, states) == []
    assert whole.state_in is not None
    assert whole.state_in["h"].shape == (6, 3, Recurrent.width)


@pytest.mark.parametrize("module_class", [Recurrent, Scripted])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fragment", [1, 5, 40])
def test_starts_are_the_first_rows_of_episodes(mode: AutoresetMode, fragment: int, module_class: type) -> None:
    runner = runner_for(counters(mode), module_class)
    for _ in range(40 // fragment):
        rollout = runner.sample(fragment)
        assert torch.equal(rollout[Columns.STARTS], (rollout[Columns.OBS][..., 2] == 0) & rollout.valid)
    runner.reset()
    assert runner.sample(1)[Columns.STARTS].all()


@pytest.mark.parametrize("mode", MODES)
def test_recorded_states_are_those_before_their_rows(mode: AutoresetMode) -> None:
    """Masked by their age: how many rows the episode had before, its invalid row included, and before that of the one
    before, since it is the module that forgets."""
    rollout = runner_for(counters(mode)).sample(23)
    assert rollout.state_in is not None
    ages = rollout.state_in["more"][0]
    assert ages.shape == (6, 3)
    for slot in range(3):
        age = 0
        for row in range(23):
            if row % LENGTH == 0:
                assert ages[row // LENGTH, slot] == age
            age = 1 if rollout[Columns.STARTS][row, slot] else age + 1


def test_states_can_enter_a_loss_and_are_never_overwritten() -> None:
    runner = runner_for(cartpoles(AutoresetMode.SAME_STEP))
    first = runner.sample(8)
    kept = clone([first.columns, first.state_in])
    second = runner.sample(8)
    assert differences(kept, [first.columns, first.state_in]) == []
    assert differences(first.state_in, second.state_in)
    for tensor in (*tree.flatten(first.state_in), *tree.flatten(second.state_in), second[Columns.STARTS]):
        assert not tensor.is_inference()
        assert not tensor.requires_grad


def test_a_module_that_writes_into_its_state_changes_no_record() -> None:
    class InPlace(Recurrent):
        def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            out = super()._forward(batch)
            if torch.is_inference_mode_enabled():
                for old, new in zip(*map(tree.flatten, (batch[Columns.STATE_IN], out[Columns.STATE_OUT])), strict=True):
                    old.copy_(new)
                out[Columns.STATE_OUT] = batch[Columns.STATE_IN]
            return out

    one, two = (runner_for(cartpoles(AutoresetMode.SAME_STEP), cls).sample(30) for cls in (Recurrent, InPlace))
    assert differences([one.columns, one.state_in], [two.columns, two.state_in]) == []


def test_reset_begins_with_the_initial_state() -> None:
    runner = runner_for(cartpoles(AutoresetMode.SAME_STEP))
    runner.sample(9)
    runner.reset()
    state = runner.sample(5).state_in
    assert not any(x[0].any() for x in tree.flatten(state))
    assert any(x[1].any() for x in tree.flatten(state))


def test_stateless_modules_are_given_neither_starts_nor_states() -> None:
    class Plain(Small):
        def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            assert set(batch) == {Columns.OBS}
            assert batch[Columns.OBS].shape == (3, 4)
            return super()._forward(batch)

    runner = EnvRunner(Settings(), run_seed=1)
    runner.set_module(Plain(observation_space=runner.observation_space, action_space=runner.action_space))
    assert runner.sample(5).state_in is None


def test_two_runs_are_bit_identical() -> None:
    runs = [runner_for(cartpoles(AutoresetMode.SAME_STEP), lstm_use_prev_reward=True) for _ in range(2)]
    rollouts = [[(r.columns, r.state_in, r.last_obs) for r in (run.sample(30), run.sample(7))] for run in runs]
    assert differences(*rollouts) == []
    other = runner_for(cartpoles(AutoresetMode.SAME_STEP), run_seed=2, lstm_use_prev_reward=True).sample(30)
    assert differences(other[Columns.ACTIONS], rollouts[0][0][0][Columns.ACTIONS])


def test_rollouts_with_states_are_joined_by_slot() -> None:
    one, two = (runner_for(cartpoles(AutoresetMode.SAME_STEP), run_seed=seed).sample(10) for seed in (1, 2))
    joined = Rollout.concat([one, two])
    assert joined.state_in is not None
    assert one.state_in is not None
    assert joined.state_in["h"].shape == (3, 6, Recurrent.width)
    assert torch.equal(joined.state_in["h"][:, :3], one.state_in["h"])
    assert torch.equal(joined[Columns.STARTS][:, 3:], two[Columns.STARTS])


def test_a_missing_state_is_named() -> None:
    class Forgets(Recurrent):
        def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            out = super()._forward(batch)
            del out[Columns.STATE_OUT]
            return out

    runner = runner_for(cartpoles(AutoresetMode.SAME_STEP), Forgets)
    with pytest.raises(ValueError, match=r"a forward pass of Forgets: expected the column 'state_out'.*got only"):
        runner.sample(3)


# --- previous actions and rewards ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fragment", [1, 4, 40])
def test_previous_actions_and_rewards_are_those_of_the_step_before(mode: AutoresetMode, fragment: int) -> None:
    runner = runner_for(counters(mode), lstm_use_prev_action=True, lstm_use_prev_reward=True)
    before: list[tuple[float, float]] = [(0, 0)] * 3
    finals = 0
    for _ in range(40 // fragment):
        rollout = runner.sample(fragment)
        obs = rollout[Columns.OBS]
        assert list(obs) == ["obs", "prev_action", "prev_reward"]
        assert [x.dtype for x in obs.values()] == [torch.float32, torch.int64, torch.float32]
        cut = {tuple(index): k for k, index in enumerate(rollout.final_index.tolist())}
        for row in range(fragment):
            for slot in range(3):
                valid = bool(rollout.valid[row, slot])
                first = valid and obs["obs"][row, slot, 2] == 0  # the step within the episode
                seen = (int(obs["prev_action"][row, slot]), float(obs["prev_reward"][row, slot]))
                assert seen == ((0, 0) if first else before[slot])
                done = (int(rollout[Columns.ACTIONS][row, slot]), float(rollout[Columns.REWARDS][row, slot]))
                before[slot] = done
                if (row, slot) in cut:
                    final = tree.map_structure(lambda x, k=cut[row, slot]: x[k], rollout.final_obs)
                    assert (int(final["prev_action"]), float(final["prev_reward"])) == done
                    finals += 1
        last = (rollout.last_obs["prev_action"].tolist(), rollout.last_obs["prev_reward"].tolist())
        ended = (rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS])[-1]
        starts = ~rollout.valid[-1] if mode == AutoresetMode.NEXT_STEP else ended
        assert last == tuple([0 if s else b[i] for s, b in zip(starts, before, strict=True)] for i in range(2))
    assert finals > 5
    assert {a for a, _ in before} <= set(range(NUM_ACTIONS))


@pytest.mark.parametrize("mode", MODES)
def test_training_sees_the_previous_rewards_that_acting_saw(mode: AutoresetMode) -> None:
    runner = runner_for(cartpoles(mode), lstm_use_prev_action=True, lstm_use_prev_reward=True)
    for steps in (13, 8):
        trained, recorded = trained_and_recorded(runner, runner.sample(steps))
        torch.testing.assert_close(trained, recorded, rtol=1e-6, atol=1e-6)


def test_only_what_is_asked_for_is_added() -> None:
    for name in ("action", "reward"):
        runner = runner_for(cartpoles(AutoresetMode.SAME_STEP), **{f"lstm_use_prev_{name}": True})
        rollout = runner.sample(40)
        for obs in (rollout[Columns.OBS], rollout.last_obs, rollout.final_obs):
            assert list(obs) == ["obs", f"prev_{name}"]
        assert len(rollout.final_obs["obs"]) == len(rollout.final_obs[f"prev_{name}"]) == len(rollout.final_index) > 0


def test_the_next_module_may_see_more() -> None:
    env = counters(AutoresetMode.SAME_STEP, lengths=(99,))
    runner, other = runner_for(env), runner_for(env, lstm_use_prev_reward=True)
    before = runner.sample(1)
    runner.set_module(other.module)
    rollout = runner.sample(1)
    assert torch.equal(rollout[Columns.OBS]["obs"][0], before.last_obs)
    assert not rollout[Columns.OBS]["prev_reward"].any()
    assert not rollout[Columns.STARTS].any()


def test_previous_actions_of_a_box_are_those_sampled_not_those_sent() -> None:
    sent = []

    class Wide(Counter):
        def __init__(self, index: int = 0) -> None:
            super().__init__(index, lengths=(99,))
            self.action_space = spaces.Box(5, 9, (2,), np.float32)  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            sent.append(action.copy())
            return super().step(action[0])

    runner = runner_for(counters(AutoresetMode.SAME_STEP, Wide), lstm_use_prev_action=True)
    rollout = runner.sample(6)
    assert torch.equal(rollout[Columns.OBS]["prev_action"][1:], rollout[Columns.ACTIONS][:-1])
    assert torch.equal(rollout.last_obs["prev_action"], rollout[Columns.ACTIONS][-1])
    assert rollout[Columns.OBS]["prev_action"].shape == (6, 3, 2)
    assert all((action >= 5).all() and (action <= 9).all() for action in sent)
    assert (rollout[Columns.ACTIONS] < 5).any()


def test_after_a_reset_nothing_was_before() -> None:
    runner = runner_for(counters(AutoresetMode.SAME_STEP, lengths=(99,)), lstm_use_prev_reward=True)
    assert (runner.sample(3).last_obs["prev_reward"][1:] > 0).all()
    assert (runner.sample(3)[Columns.OBS]["prev_reward"][0][1:] > 0).all()
    runner.reset()
    assert not runner.sample(3)[Columns.OBS]["prev_reward"][0].any()


@pytest.mark.parametrize("length", [9, 2])  # in an episode, and as the last one
def test_a_bad_observation_is_named_by_its_place_in_the_env(length: int) -> None:
    class Bad(Counter):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (obs * np.nan if self.t == 2 and self.index == 1 else obs), *rest

    runner = runner_for(counters(AutoresetMode.SAME_STEP, Bad, lengths=(length,)), lstm_use_prev_reward=True)
    with pytest.raises(ValueError, match="env 1, step 2, obs: "):
        runner.sample(4)
