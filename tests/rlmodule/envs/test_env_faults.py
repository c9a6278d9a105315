"""Envs that raise, end and hang: what is lost is counted, what is reported names the place, and the rest goes on."""

import functools
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from algorithms.ops.returns import generalized_advantages
from algorithms.replay import ReplayBuffer
from catalog import Catalog
from rlmodule import Columns, EnvRunner, Rollout
from rlmodule.envs import make, restarting
from rlmodule.envs import subprocesses as processes
from rlmodule.envs.checks import EnvError, EnvGuard
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.seeding import int_seed, seed_sequence
from tests.fault_envs import ANY, ERRORS, FaultEnv, num_lives, num_step_calls, seeds_of_lives
from tests.rlmodule.toys import Recurrent, Settings, Small, counters
from tests.waiting import is_running, wait_for

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*from Worker-:UserWarning"),  # Gymnasium logs the errors of its workers
    pytest.mark.filterwarnings("ignore:.*Traceback:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Raising the last exception:UserWarning"),
]

MODES = ("sync", "async")
N = 4


def runner_for(
    folder: Path, mode: str = "sync", module: type = Small, restarts: bool = False, num_envs: int = N, **given: Any
) -> EnvRunner:
    """A runner of fault envs; ``given`` goes to the env, or if its name is one of the runner's, there."""
    names = ("first_env_index", "role", "incarnation", "step_counter")
    streams = {name: given.pop(name) for name in names if name in given}
    config = Settings(
        env=FaultEnv,
        env_config={"folder": str(folder), **given},
        num_envs_per_env_runner=num_envs,
        gym_env_vectorize_mode=mode,
        restart_failed_sub_environments=restarts,
        records_episode_infos=True,
    )
    runner = EnvRunner(config, run_seed=1, **streams)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        both = {"observation_space": runner.observation_space, "action_space": runner.action_space}
        runner.set_module(module(**both, catalog_class=Catalog))
    return runner


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """New empty folders."""
    return (path for path in (tmp_path / str(i) for i in itertools.count()) if path.mkdir() is None)


def lost(rollouts: list[Rollout]) -> int:
    return sum(sum(rollout.stats.get("num_env_steps_lost", {}).values()) for rollout in rollouts)


def check_account(runner: EnvRunner, rollouts: list[Rollout], folder: Path) -> None:
    message = sum(rollout.num_env_steps for rollout in rollouts) + lost(rollouts)
    assert runner.step_counter.count == message + sum(runner.num_env_steps_lost.values())
    assert runner.step_counter.count == num_step_calls(folder)


# -- restarts


@pytest.mark.parametrize("length", [1, 3, 10])
def test_a_fault_leaves_nothing_behind_in_a_recycled_rollout(folders: Any, length: int) -> None:
    runner, other = (runner_for(next(folders), restarts=True, steps={1: {8: "plain"}}, mean_length=5) for _ in range(2))
    for _ in range(30 // length):
        rollout, fresh = runner.sample(length), other.sample(length)
        names = [*fresh.columns]
        assert [name for name in names if not torch.equal(rollout[name], fresh[name])] == []
        assert torch.equal(rollout.final_index, fresh.final_index)
        assert torch.equal(rollout.final_obs, fresh.final_obs)
        runner.recycle()
    assert runner.num_env_steps_lost == other.num_env_steps_lost
    runner.stop()
    other.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [3, 10, 30])
def test_one_env_that_raises_is_made_anew_and_the_others_are_not_disturbed(
    folders: Any, mode: str, length: int
) -> None:
    here, there = next(folders), next(folders)
    faulty = runner_for(here, mode, restarts=True, steps={1: {8: "plain"}}, mean_length=1e9)
    plain = runner_for(there, mean_length=1e9)
    ours, theirs = ([r.sample(length) for _ in range(30 // length)] for r in (faulty, plain))
    faulty.stop()
    names = [Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.VALID, Columns.STARTS, Columns.TRUNCATEDS]
    names += [Columns.ACTION_LOGP, Columns.TERMINATEDS]
    for name in names:
        one, other = (torch.cat([rollout[name] for rollout in rollouts]) for rollouts in (ours, theirs))
        assert torch.equal(one[:, [0, 2, 3]], other[:, [0, 2, 3]]), name
        assert torch.equal(one[:6, 1], other[:6, 1]), name
    column = {name: torch.cat([rollout[name] for rollout in ours])[:, 1] for name in names}
    assert (~column[Columns.VALID]).nonzero().flatten().tolist() == [7]
    assert column[Columns.STARTS].nonzero().flatten().tolist() == [0, 8]
    assert column[Columns.REWARDS][7] == 0
    # row 7 begins a fragment of none of these lengths, so that the one before it is in the same fragment
    assert column[Columns.TRUNCATEDS].nonzero().flatten().tolist() == [6]
    with_final = [rollout for rollout in ours if len(rollout.final_index)]
    assert [r.final_index.tolist() for r in with_final] == [[[6 % length, 1]]]
    assert torch.equal(with_final[0].final_obs[0], column[Columns.OBS][7])
    assert [rollout.stats.get("num_env_steps_lost") for rollout in ours if lost([rollout])] == [{"env_raised": 1}]
    assert faulty.num_env_steps_lost == {}
    check_account(faulty, ours, here)
    assert num_lives(here) == num_lives(there) + 1 + (mode == "async")
    seeds = list(itertools.chain(*seeds_of_lives(here)))
    assert len(seeds) == len({*seeds}) == N + 1
    assert not any(len(rollout.stats["episode_returns"]) for rollout in ours)  # its return is not one of the task


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_in_the_first_row_of_a_fragment_cuts_the_episode_that_the_last_fragment_left_open(
    folders: Any, mode: str
) -> None:
    folder = next(folders)
    runner = runner_for(folder, mode, restarts=True, steps={2: {6: "empty"}}, mean_length=1e9)
    first, second = runner.sample(5), runner.sample(5)
    runner.stop()
    assert not first[Columns.TRUNCATEDS].any()
    assert torch.equal(first.last_obs, second[Columns.OBS][0])
    assert second.valid[:, 2].tolist() == [False, True, True, True, True]
    assert second[Columns.STARTS].nonzero().tolist() == [[1, 2]]
    assert not second[Columns.TRUNCATEDS].any()
    assert len(second.final_index) == 0
    check_account(runner, [first, second], folder)


def test_an_episode_without_a_step_leaves_nothing(folders: Any) -> None:
    folder = next(folders)
    runner = runner_for(
        folder, restarts=True, steps={0: {1: "plain"}, 1: {4: "plain"}, ANY: {2: "plain"}}, mean_length=1e9
    )
    rollout = runner.sample(4)
    # env 0: nothing, then a life of one step, and another; env 1: its own third step, after which ANY has no say
    assert rollout.valid[:, 0].tolist() == [False, True, False, True]
    assert rollout[Columns.STARTS][:, 0].tolist() == [True, True, False, True]
    assert rollout[Columns.TRUNCATEDS][:, 0].tolist() == [False, True, False, False]
    assert [row for row, slot in rollout.final_index.tolist() if slot == 0] == [1]
    assert rollout.final_index.tolist() == sorted(rollout.final_index.tolist())
    assert rollout.stats["num_env_steps_lost"]["env_raised"] == int((~rollout.valid).sum())
    check_account(runner, [rollout], folder)
    episodes = rollout.to_episodes()
    assert [len(episode) for episode in episodes[:2]] == [1, 1]


def test_recurrent_modules_begin_anew_after_a_fault(folders: Any) -> None:
    runner = runner_for(next(folders), module=Recurrent, restarts=True, steps={1: {8: "plain"}}, mean_length=1e9)
    plain = runner_for(next(folders), module=Recurrent, mean_length=1e9)
    rollout, other = runner.sample(20), plain.sample(20)
    assert torch.equal(rollout[Columns.ACTION_DIST_INPUTS][:8], other[Columns.ACTION_DIST_INPUTS][:8])
    fresh = {
        Columns.OBS: rollout[Columns.OBS][8:, 1:2],
        Columns.STARTS: torch.zeros(12, 1, dtype=torch.bool),
        Columns.STATE_IN: {"h": torch.zeros(1, Recurrent.width), "more": (torch.zeros(1),)},
    }
    expected = runner.module.forward_train(fresh)[Columns.ACTION_DIST_INPUTS]
    torch.testing.assert_close(rollout[Columns.ACTION_DIST_INPUTS][8:, 1:2], expected.detach())
    assert rollout[Columns.STARTS][:, 1].nonzero().flatten().tolist() == [0, 8]


PLANS = st.dictionaries(
    st.sampled_from([0, 1, 2, ANY]), st.dictionaries(st.integers(2, 30), st.sampled_from(sorted(ERRORS)), max_size=4)
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=PLANS, length=st.integers(1, 30), mean_length=st.sampled_from([2.0, 8.0, 1e9]))
def test_every_step_is_accounted_for_and_every_end_is_one(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[int, dict[int, str]], length: int, mean_length: float
) -> None:
    folder = tmp_path_factory.mktemp("lives")
    runner = runner_for(folder, restarts=True, num_envs=3, steps=plan, mean_length=mean_length)
    rollouts = [runner.sample(length) for _ in range(60 // length)]
    check_account(runner, rollouts, folder)
    assert num_lives(folder) == 3 + lost(rollouts)
    finished = 0
    for rollout in rollouts:
        truncateds, valid, starts = rollout[Columns.TRUNCATEDS], rollout.valid, rollout[Columns.STARTS]
        assert rollout.final_index.tolist() == truncateds.nonzero().tolist()
        assert bool(valid[truncateds].all())
        assert not (truncateds & rollout[Columns.TERMINATEDS]).any()
        # these envs never truncate: what was cut was cut by the fault in the next row
        rows, slots = rollout.final_index.T
        assert not valid[rows + 1, slots].any()
        assert torch.equal(rollout[Columns.OBS][rows + 1, slots], rollout.final_obs)
        assert bool(starts[1:][~valid[:-1]].all())
        assert len(rollout.stats["episode_lengths"]) == int(rollout[Columns.TERMINATEDS].sum())
        assert len(rollout.stats.get("episode_infos", [])) == len(rollout.stats["episode_lengths"])
        finished += int(sum(rollout.stats["episode_lengths"]))
    for slot in range(3):
        columns = {n: torch.cat([r[n][:, slot] for r in rollouts]).tolist() for n in rollouts[0].columns}
        totals, length_now, total = [], 0, 0.0
        for row in range(len(columns[Columns.VALID])):
            if columns[Columns.STARTS][row]:
                length_now, total = 0, 0.0
            length_now, total = length_now + columns[Columns.VALID][row], total + columns[Columns.REWARDS][row]
            if columns[Columns.TERMINATEDS][row]:
                totals.append((length_now, total))
        message = [
            (int(n), float(r))
            for rollout in rollouts
            for n, r, s in zip(*(rollout.stats[f"episode_{k}"] for k in ("lengths", "returns", "slots")), strict=True)
            if s == slot
        ]
        assert message == totals


def rollout_with_a_fault() -> Rollout:
    """Two slots of 4 rows: in slot 0 the call of row 2 raised, in slot 1 that of row 0."""
    return Rollout(
        columns={
            Columns.OBS: torch.tensor([[1.0, 10], [2, 20], [3, 30], [4, 40]])[..., None],
            Columns.ACTIONS: torch.zeros(4, 2, dtype=torch.int64),
            Columns.REWARDS: torch.tensor([[1.0, 0], [1, 1], [0, 1], [1, 1]]),
            Columns.TERMINATEDS: torch.zeros(4, 2, dtype=torch.bool),
            Columns.TRUNCATEDS: torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]], dtype=torch.bool),
            Columns.VALID: torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1]], dtype=torch.bool),
            Columns.STARTS: torch.tensor([[1, 0], [0, 1], [0, 0], [1, 0]], dtype=torch.bool),
        },
        last_obs=torch.tensor([[5.0], [50]]),
        final_index=torch.tensor([[1, 0]]),
        final_obs=torch.tensor([[3.0]]),
    )


def test_the_runner_makes_that_very_layout(folders: Any) -> None:
    runner = runner_for(
        next(folders), num_envs=2, restarts=True, steps={0: {6: "plain"}, 1: {4: "plain"}}, mean_length=1e9
    )
    runner.sample(3)
    rollout, made = runner.sample(4), rollout_with_a_fault()
    for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.VALID):
        assert torch.equal(rollout[name], made[name]), name
    assert rollout[Columns.STARTS].tolist() == [[False, False], [False, True], [False, False], [True, False]]
    assert rollout.final_index.tolist() == made.final_index.tolist()


def test_advantages_around_a_fault_are_right() -> None:
    rollout = rollout_with_a_fault()
    values, following = rollout.split_values(rollout.rows_to_value().squeeze(-1))
    advantages = generalized_advantages(
        rollout[Columns.REWARDS], values, following, terminated_t=rollout[Columns.TERMINATEDS],
        truncated_t=rollout[Columns.TRUNCATEDS], valid_t=rollout.valid, gamma=0.5, lambda_=0.5,
    )  # fmt: skip
    # slot 0, whose values are 1 2 3 4 5. Row 1: 1 + 3/2 - 2 = 0.5, cut off; row 0: 1 + 2/2 - 1 + 0.5/4 = 1.125
    # row 3: 1 + 5/2 - 4 = -0.5. Slot 1: row 3: 1 + 25 - 40 = -14; row 2: 1 + 20 - 30 - 14/4 = -12.5;
    # row 1: 1 + 15 - 20 - 12.5/4 = -7.125
    assert advantages.tolist() == [[1.125, 0], [0.5, -7.125], [0, -12.5], [-0.5, -14]]


@pytest.mark.parametrize("n_step", [1, 3])
def test_replay_goes_through_no_fault(n_step: int) -> None:
    buffer = ReplayBuffer(
        spaces.Box(-100, 100, (1,), np.float32), spaces.Discrete(2), capacity=40, num_envs=2, gamma=0.5,
        n_step=n_step, seed=np.random.SeedSequence(0),
    )  # fmt: skip
    before = rollout_with_a_fault()  # a rollout that ends with 1 in slot 0 and 10 in slot 1, both open
    before.columns[Columns.VALID] = torch.ones(4, 2, dtype=torch.bool)
    before.columns[Columns.TRUNCATEDS] = torch.zeros(4, 2, dtype=torch.bool)
    before.columns[Columns.OBS] = -before.columns[Columns.OBS]
    before.columns[Columns.STARTS] = torch.tensor([[1, 1], [0, 0], [0, 0], [0, 0]], dtype=torch.bool)
    before.columns[Columns.REWARDS] = torch.ones(4, 2)
    before.final_index, before.final_obs = torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 1)
    before.last_obs = torch.tensor([[1.0], [10]])
    after = rollout_with_a_fault()
    after.columns[Columns.STARTS][0, 0] = False
    buffer.add(before)
    buffer.add(after)
    assert buffer.num_transitions == 8 + 6
    places = np.flatnonzero(buffer.sampleable.reshape(-1))
    batch = buffer.gather_rows(places)
    found = {
        float(obs): (float(r), float(after), float(d))
        for obs, r, after, d in zip(
            batch[Columns.OBS], batch[Columns.REWARDS], batch[Columns.NEXT_OBS], batch[Columns.DISCOUNTS], strict=True
        )
    }
    assert 3.0 not in found
    assert 10.0 not in found
    if n_step == 1:
        wanted = {1: 2, 2: 3, 4: 5, 20: 30, 30: 40, 40: 50, -1: -2, -2: -3, -3: -4, -4: 1, -10: -20, -20: -30}
        wanted |= {-30: -40, -40: 10}
        assert found == {obs: (1.0, after, 0.5) for obs, after in wanted.items()}
    else:
        assert found[-3] == (1.75, 2.0, 0.125)  # over the seam
        assert found[-4] == (1.75, 3.0, 0.125)
        assert found[1] == (1.5, 3.0, 0.25)  # to where it was cut off
        assert found[2] == (1.0, 3.0, 0.5)
        assert found[-30] == (1.5, 10.0, 0.25)  # the fault is in the first row of the second rollout
        assert found[-40] == (1.0, 10.0, 0.5)
        assert found[20] == (1.75, 50.0, 0.125)


CONTINUED: dict[str, dict[str, Any]] = {
    "first reset": {"resets": {1: {1: "plain"}}},
    "second reset": {"resets": {1: {2: "plain"}}},
    "step": {"steps": {1: {3: "plain"}}},
    "step, exit": {"steps": {1: {3: "sys.exit"}}},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", CONTINUED)
def test_an_env_that_raises_while_its_episode_is_continued_is_restarted_and_the_others_continue(
    folders: Any, mode: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = runner_for(next(folders), mean_length=1e9)
    last = before.sample(5).last_obs
    runner = runner_for(folder := next(folders), mode, restarts=True, mean_length=1e9, **CONTINUED[where])
    runner.set_state(before.get_state())
    rollout = runner.sample(4)
    runner.stop()
    assert rollout[Columns.STARTS].nonzero().tolist() == [[0, 1]]
    assert rollout.valid.all()
    assert torch.equal(rollout[Columns.OBS][0, [0, 2, 3]], last[[0, 2, 3]])
    assert num_lives(folder) == N + 1 + (mode == "async")
    seed = int_seed(1, "env", 1, 0)
    assert [int_seed(seed, "mended_env")] in seeds_of_lives(folder)
    if mode == "sync":  # processes log on their own
        assert "env 1 raised" in caplog.text
        assert "It is restarted, and a new episode begins." in caplog.text


def test_a_saved_episode_waits_for_an_env_that_does_not_raise(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three envs raise in their first reset; the fourth continues the episode."""
    faults, reset = ["no port"] * 3, FaultEnv.reset

    def reset_or_raise(self: FaultEnv, **options: Any) -> Any:
        if faults:
            raise OSError(faults.pop())
        return reset(self, **options)

    before = runner_for(next(folders), num_envs=1, restarts=True, mean_length=1e9)
    last, state = before.sample(5).last_obs, before.get_state()
    monkeypatch.setattr(FaultEnv, "reset", reset_or_raise)
    monkeypatch.setattr("rlmodule.envs.restarting.time.sleep", lambda seconds: None)
    runner = runner_for(folder := next(folders), num_envs=1, restarts=True, mean_length=1e9)
    runner.set_state(state)
    with pytest.raises(EnvError, match=r"env 0 failed in 3 tries, each with a new env: .*no port"):
        runner.sample(3)
    assert num_lives(folder) == 3
    rollout = runner.sample(3)
    assert num_lives(folder) == 4
    assert torch.equal(rollout[Columns.OBS][0], last)
    assert not rollout[Columns.STARTS].any()


# --------------------------------------------------------------------------------------------------------- giving up


@pytest.mark.parametrize("mode", MODES)
def test_an_env_whose_reset_always_raises_is_given_up_after_three_tries(folders: Any, mode: str) -> None:
    folder = next(folders)
    runner = runner_for(folder, mode, restarts=True, num_envs=1, resets={ANY: dict.fromkeys(range(1, 9), "empty")})
    with pytest.raises(EnvError, match=r"env 0 failed in 3 tries.*raised RuntimeError in reset\(\).*no message"):
        runner.sample(5)
    runner.stop()
    assert num_lives(folder) == 3 + (mode == "async")
    assert len({*itertools.chain(*seeds_of_lives(folder))}) == 3


def test_an_env_that_never_makes_a_step_is_given_up_and_one_that_does_is_not(folders: Any) -> None:
    folder = next(folders)
    runner = runner_for(folder, restarts=True, num_envs=2, steps={ANY: {1: "plain"}})
    with pytest.raises(EnvError, match=r"failed in 3 tries.*ZeroDivisionError at its step 1: of all things"):
        runner.sample(50)
    check_account(runner, [], folder)
    assert runner.num_env_steps_lost["env_raised"] == 5  # env 0 three times, env 1 twice
    folder = next(folders)
    runner = runner_for(folder, restarts=True, num_envs=2, steps={ANY: {2: "plain"}})
    check_account(runner, [rollout := runner.sample(50)], folder)
    assert rollout.stats["num_env_steps_lost"] == {"env_raised": 50}


def test_an_env_that_cannot_be_restarted_at_once_is_tried_again(folders: Any) -> None:
    folder = next(folders)
    steps = {0: {5: "plain"}}
    runner = runner_for(folder, restarts=True, num_envs=1, lives={1: "plain", 2: "huge"}, steps=steps)
    rollout = runner.sample(10)
    assert num_lives(folder) == 4
    assert int((~rollout.valid).sum()) == 1


@pytest.mark.parametrize("mode", MODES)
def test_making_an_env_for_the_first_time_is_tried_three_times(
    folders: Any, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarting, "_wait", lambda failures: None)
    # the first env twice, and once the next one: in mode "async" they are the env in this process and that of env 0
    folder = next(folders)
    runner = runner_for(folder, mode, restarts=True, num_envs=2, lives={0: "plain", 1: "huge", 3: "plain"})
    assert int(runner.sample(5).valid.sum()) == 10
    runner.stop()
    assert num_lives(folder) == 2 + 1 + 1 + 1 + (mode == "async")
    assert "ZeroDivisionError: of all things" in caplog.text
    assert "This was try 1 of 3" in caplog.text
    for restarts, tries in ((True, 3), (False, 1)):
        folder = next(folders)
        with pytest.raises(RuntimeError, match=r"FaultEnv.*ZeroDivisionError: of all things"):
            runner_for(folder, mode, restarts=restarts, num_envs=1, lives=dict.fromkeys(range(9), "plain"))
        assert num_lives(folder) == tries


def test_a_ready_vector_env_cannot_be_mended() -> None:
    config = Settings(env=counters(AutoresetMode.SAME_STEP), restart_failed_sub_environments=True)
    with pytest.raises(ValueError, match=r"single envs for restart_failed_sub_environments.*SyncVectorEnv"):
        EnvRunner(config, run_seed=1)


@pytest.mark.parametrize("mode", MODES)
def test_envs_of_an_id_are_mended_too(mode: str, folders: Any) -> None:
    folder = next(folders)
    gym.register("RlmoduleFaults-v0", entry_point=lambda **given: FaultEnv(**given), max_episode_steps=9)
    given = {"folder": str(folder), "steps": {ANY: {5: "plain"}}, "mean_length": 1e9}
    config = Settings(
        env="RlmoduleFaults-v0", env_config=given, num_envs_per_env_runner=2, gym_env_vectorize_mode=mode,
        restart_failed_sub_environments=True,
    )  # fmt: skip
    try:
        runner = EnvRunner(config, run_seed=1, first_env_index=6)
        runner.set_module(Small(observation_space=runner.observation_space, action_space=runner.action_space))
        rollout = runner.sample(20)
        runner.stop()
    finally:
        del gym.registry["RlmoduleFaults-v0"]
    assert (~rollout.valid).nonzero().tolist() == [[row, slot] for row in (4, 9, 14, 19) for slot in (0, 1)]
    assert runner.step_counter.count == num_step_calls(folder) == 40
    assert rollout.first_env_index == 6


# ------------------------------------------------------------------------------------------------------------ errors

TEXTS = {
    "plain": ("ZeroDivisionError", "of all things"),
    "empty": ("RuntimeError", "(no message)"),
    "unpicklable": ("Unpicklable", "a lock inside"),
    "huge": ("OSError", "long long"),
    "unreadable": ("Unreadable", "str() failed"),
    "broken pipe": ("BrokenPipeError", "to my own simulator"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_says_what_and_where_and_the_next_call_goes_on(folders: Any, mode: str, kind: str) -> None:
    folder = next(folders)
    runner = runner_for(folder, mode, num_envs=3, first_env_index=5, steps={6: {8: kind}}, mean_length=1e9)
    first = runner.sample(5)
    with pytest.raises(EnvError) as caught:
        runner.sample(5)
    error = pickle.loads(pickle.dumps(caught.value))
    for message in (caught.value, error):
        assert isinstance(message, EnvError)
        assert all(
            word in str(message) for word in (*TEXTS[kind], "env 6", "at its step 8", "Traceback", "fault_envs.py")
        )
        assert len(str(message)) < 20_000
        seed = int_seed(1, "env", 6, 0)
        action = message.place.pop("action")
        assert message.place == {"env": 6, "call": "step()", "step": 8, "seed": seed}
        assert f"last seed {seed}, action {action}" in str(message)
        assert action in (0, 1)
    steps = 2 * 3 + (2 if mode == "sync" else 3)
    assert runner.num_env_steps_lost == {"env_raised": 1, "fragment": steps - 1}
    check_account(runner, [first], folder)
    second = runner.sample(6)  # new episodes, from new seeds
    runner.stop()
    assert second[Columns.STARTS][0].all()
    check_account(runner, [first, second], folder)
    seeds = list(itertools.chain(*seeds_of_lives(folder)))
    assert len(seeds) == len({*seeds}) == 6


def test_errors_in_a_reset_have_no_action_and_cost_no_step(folders: Any) -> None:
    folder = next(folders)
    runner = runner_for(folder, num_envs=2, resets={1: {1: "plain"}})
    with pytest.raises(EnvError, match=r"env 1 raised ZeroDivisionError in reset\(\)") as caught:
        runner.sample(3)
    seed = int_seed(1, "env", 1, 0)
    assert caught.value.place == {"env": 1, "call": "reset()", "step": 0, "seed": seed, "action": None}
    check_account(runner, [runner.sample(3)], folder)
    assert seeds_of_lives(folder)[1][0] != seeds_of_lives(folder)[1][1]


def test_other_errors_lose_the_fragment_too(folders: Any) -> None:
    folder = next(folders)
    runner = runner_for(folder)
    rollouts = [runner.sample(3)]
    forward, calls = runner.module._forward_exploration, itertools.count()
    runner.module._forward_exploration = lambda batch: forward(batch) if next(calls) < 2 else 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        runner.sample(3)
    assert runner.num_env_steps_lost == {"fragment": 2 * N}
    check_account(runner, rollouts, folder)


HOW = {
    "os._exit": "exit code 0",
    "kill": "SIGKILL",
    "abort": "SIGABRT",
    "segfault": "SIGSEGV",
}


@pytest.mark.parametrize("kind", HOW)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_how_the_process_of_an_env_ended_is_told_and_the_next_call_goes_on(folders: Any, kind: str) -> None:
    folder = next(folders)
    runner = runner_for(folder, "async", num_envs=3, first_env_index=5, steps={6: {8: kind}})
    first, before = runner.sample(5), runner.env
    with pytest.raises(EnvError, match=f"env 6: .*ended .*{HOW[kind]}") as caught:
        runner.sample(5)
    assert caught.value.place == {"env": 6, "seed": int_seed(1, "env", 6, 0)}
    assert runner.num_env_steps_lost == {"env_raised": 1, "fragment": 8}
    second = runner.sample(5)
    check_account(runner, [first, second], folder)
    assert runner.env is not before
    assert isinstance(before, AsyncVectorEnv)
    assert not any(process.is_alive() for process in before.processes)
    runner.stop()


def test_saved_episodes_continue_in_new_processes_if_one_has_ended(folders: Any) -> None:
    faults = {"steps": {1: {8: "kill"}}, "mean_length": 1e9}
    runner = runner_for(next(folders), "async", num_envs=2, **faults)
    last, state = runner.sample(5).last_obs, runner.get_state()
    with pytest.raises(EnvError, match=r"env 1: .*ended .*SIGKILL"):
        runner.sample(5)
    runner.set_state(state)
    rollout = runner.sample(2)
    assert not rollout[Columns.STARTS].any()
    assert torch.equal(rollout[Columns.OBS][0], last)
    runner.stop()
    other = runner_for(next(folders), "async", num_envs=2, **faults)  # whose envs were never reset with a new seed
    other.set_state(state)
    other.sample(2)
    with pytest.raises(EnvError, match=rf"env 1: .*ended .*SIGKILL \(last seed {int_seed(1, 'env', 1, 0)}\)"):
        other.sample(1)
    other.stop()


@pytest.mark.parametrize("mode", MODES)
def test_saved_episodes_that_an_error_kept_from_continuing_continue_in_the_next_call(folders: Any, mode: str) -> None:
    before = runner_for(next(folders), num_envs=2, mean_length=1e9)
    last = before.sample(5).last_obs
    kind = "plain" if mode == "sync" else "kill"
    runner = runner_for(next(folders), mode, num_envs=2, mean_length=1e9, resets={1: {1: kind}})
    runner.set_state(before.get_state())
    match = r"env 1 raised ZeroDivisionError in reset" if mode == "sync" else r"env 1: .*ended .*SIGKILL"
    with pytest.raises(EnvError, match=match):
        runner.sample(2)
    assert [*runner.get_state()["1"]["episode"]["actions"][0].shape] == [5]
    if mode == "sync":
        rollout = runner.sample(2)
        assert not rollout[Columns.STARTS].any()
        assert torch.equal(rollout[Columns.OBS][0], last)
    else:  # a new process ends there, too
        with pytest.raises(EnvError, match=match):
            runner.sample(2)
    runner.stop()


@pytest.mark.parametrize("mode", MODES)
def test_an_env_that_exits_is_told_of_as_one_that_raises(folders: Any, mode: str) -> None:
    folder = next(folders)
    runner = runner_for(folder, mode, num_envs=3, first_env_index=5, steps={6: {8: "sys.exit"}})
    first = runner.sample(5)
    with pytest.raises(EnvError, match=r"env 6 raised SystemExit at its step 8: 0 .*, action"):
        runner.sample(5)
    check_account(runner, [first, runner.sample(5)], folder)
    runner.stop()


def test_who_is_told_of_an_env_is_told_of_the_one_that_takes_its_place(folders: Any) -> None:
    message: list[Any] = []
    config = Settings(
        env=FaultEnv, env_config={"folder": str(next(folders)), "steps": {0: {2: "kill"}}},
        num_envs_per_env_runner=2, gym_env_vectorize_mode="async",
    )  # fmt: skip
    runner = EnvRunner(config, run_seed=1, on_env=message.append)
    runner.set_module(Small(observation_space=runner.observation_space, action_space=runner.action_space))
    with pytest.raises(EnvError):
        runner.sample(5)
    runner.sample(5)
    assert len(message) == 2
    assert message[-1] is runner.env
    runner.stop()


@pytest.mark.parametrize("where", ["main thread", "another thread"])
def test_processes_of_envs_leave_ctrl_c_and_a_closed_terminal_to_the_runner(folders: Any, where: str) -> None:
    folder, made = next(folders), []
    thread = threading.Thread(target=lambda: made.append(runner_for(folder, "async", num_envs=2)))
    thread.run() if where == "main thread" else thread.start()
    if where == "another thread":
        thread.join()
    [runner] = made
    for process in runner.env.processes:
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGHUP)
    assert runner.sample(5).num_env_steps == 10
    runner.stop()


def test_processes_that_an_interrupt_cut_off_are_replaced_with_the_next_call(folders: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    runner = runner_for(next(folders), "async", num_envs=2, pause=0.05)
    before, handler = runner.env, signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.sample(1000)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert isinstance(before, AsyncVectorEnv)
    assert not any(process.is_alive() for process in before.processes)
    rollout = runner.sample(3)
    assert runner.env is not before
    assert rollout[Columns.STARTS][0].all()
    counted = sum(runner.num_env_steps_lost.values()) + rollout.num_env_steps
    assert runner.step_counter.count == counted
    runner.stop()


# ----------------------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["plain", "sleep", "spin"])
def test_envs_that_do_not_close_are_closed_in_time(
    folders: Any, mode: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "CLOSE_SECONDS", 0.5)
    thread = threading.Thread(target=lambda: sample_for_ever(runner), daemon=True)
    if mode == "async":  # stopped while an env is at its step
        folder = next(folders)
        runner = runner_for(folder, mode, num_envs=3, steps={1: {2: kind}})
        thread.start()
        wait_for(lambda: num_step_calls(folder) == 6)
    else:
        runner = runner_for(next(folders), mode, num_envs=3, close=kind)
        runner.sample(2)
    runner.stop()
    if isinstance(runner.env, AsyncVectorEnv):
        thread.join()
        assert not any(process.is_alive() for process in runner.env.processes)
    else:
        assert "close() raised" in caplog.text


def sample_for_ever(runner: EnvRunner) -> None:
    with suppress(Exception):  # of whatever kind, when its envs are closed meanwhile
        runner.sample(5)


def test_processes_whose_env_hangs_in_close_are_ended(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLOSE_SECONDS", 0.5)
    runner = runner_for(next(folders), "async", num_envs=2)
    assert isinstance(runner.env, AsyncVectorEnv)
    runner.env.set_attr("_close", "spin")
    runner.stop()
    assert not any(process.is_alive() for process in runner.env.processes)


def test_alarms_of_others_ring_after_all() -> None:
    rang: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        processes.close_in_time(type("Env", (), {"close": lambda self: None})(), "env")
        wait_for(lambda: rang)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert rang == [1]


ORPHANS = """
import sys, threading, time
from tests.fault_envs import FaultEnv
from tests.rlmodule.toys import Settings, Small
from rlmodule import EnvRunner

def make():
    global runner
    config = Settings(
        env=FaultEnv, env_config={"folder": sys.argv[1], "steps": {0: {3: "sleep"}, 1: {3: "spin"}}},
        num_envs_per_env_runner=3, gym_env_vectorize_mode="async",
    )
    runner = EnvRunner(config, run_seed=1)
    runner.set_module(Small(observation_space=runner.observation_space, action_space=runner.action_space))

thread = threading.Thread(target=make)  # one that ends, which must not end the processes that it made
thread.start()
thread.join()
time.sleep(0.3)
print(*[process.pid for process in runner.env.processes], flush=True)
runner.sample(2)
print(*[process.pid for process in runner.env.processes], flush=True)
runner.sample(2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a promise of Linux")
def test_processes_of_envs_end_with_a_parent_that_is_killed(folders: Any) -> None:
    folder = next(folders)
    command = [sys.executable, "-W", "ignore", "-c", ORPHANS, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        before, after = parent.stdout.readline().split(), parent.stdout.readline().split()
        wait_for(lambda: num_step_calls(folder) == 9)  # two of them hang in their third step
        parent.kill()
    assert before == after  # none was rebuilt
    assert len(before) == 3
    wait_for(lambda: not any(is_running(int(pid)) for pid in before))


# ---------------------------------------------------------------------------------------------- streams and progress


def test_no_two_envs_of_a_run_share_a_seed() -> None:
    places = itertools.product(("env", "evaluation_env"), range(64 * 16), range(5))
    seeds = [int_seed(1, role, env, 0, *([k] if k else [])) for role, env, k in places]
    assert len({*seeds}) == len(seeds) == 2 * 64 * 16 * 5
    places = itertools.product(("action", "evaluation_action"), range(64 * 16), range(5))
    streams = [seed_sequence(1, role, env, *([k] if k else [])) for role, env, k in places]
    assert len({tuple(stream.generate_state(4)) for stream in streams}) == len(streams)


@pytest.mark.parametrize("seed", [0, np.int32(7), 2**31 + 5, 2**64 - 1, 2**127])
def test_later_episodes_have_seeds_spawned_from_the_first(seed: Any) -> None:
    class SeedEnv(gym.Env[np.ndarray, int]):
        observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            seeds.append(seed)
            return np.zeros(1, np.float32), {}

    seeds: list[Any] = []
    guard = EnvGuard(SeedEnv())
    guard.reset(seed=seed)
    guard.reset()
    guard.reset()
    keys = [np.random.SeedSequence(int(seed), spawn_key=(episode,)) for episode in (1, 2)]
    assert seeds == [seed, *(key.generate_state(1)[0] >> 1 for key in keys)]


def test_a_runner_that_was_made_again_lives_through_nothing_again(folders: Any) -> None:
    runners = [runner_for(next(folders), incarnation=k) for k in (0, 1, 2)]
    streams = [runner._streams.generator for runner in runners]
    assert len({stream.initial_seed() for stream in streams}) == 3
    rollouts = [runner.sample(30) for runner in runners]
    again = [runner_for(next(folders), incarnation=k).sample(30) for k in (0, 1, 2)]
    for one, other in itertools.combinations(range(3), 2):
        starts = [rollouts[k][Columns.OBS][0] for k in (one, other)]
        assert not (starts[0][:, None] == starts[1]).all(-1).any()
        assert not torch.equal(rollouts[one][Columns.ACTIONS], rollouts[other][Columns.ACTIONS])
    for one, other in zip(rollouts, again, strict=True):
        assert torch.equal(one[Columns.OBS], other[Columns.OBS])
        assert torch.equal(one[Columns.ACTIONS], other[Columns.ACTIONS])


def test_progress_and_steps_are_told_while_it_samples(folders: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "step_counter")
    step_counter = SharedCounter.create(path)
    step_counter.cell[0] = 1000  # of a runner before
    runner = runner_for(next(folders), num_envs=2, pause=0.01, step_counter=step_counter)
    reader = SharedCounter.attach(path)
    assert reader is not None
    thread = threading.Thread(target=runner.sample, args=(40,))
    thread.start()
    seen = set()
    while thread.is_alive():
        seen.add((runner.progress, reader.count - 1000))
        thread.join(0.01)
    assert len(seen) > 2
    # read one after the other, while it goes on
    assert all(2 * progress <= calls for progress, calls in seen)
    assert (runner.progress, reader.count) == (40, 1080)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_steps_of_ready_vector_envs_are_counted_without_their_resets(mode: AutoresetMode) -> None:
    runner = EnvRunner(Settings(env=counters(mode)), run_seed=1)
    runner.set_module(Small(observation_space=runner.observation_space, action_space=runner.action_space))
    rollouts = [runner.sample(7) for _ in range(6)]
    assert runner.progress == 42
    assert runner.step_counter.count == sum(rollout.num_env_steps for rollout in rollouts)
    assert all("num_env_steps_lost" not in rollout.stats for rollout in rollouts)


def test_an_env_of_a_script_is_made_anew_in_a_process_that_was_spawned(
    folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gym.register("OfAScript-v0", FaultEnv)
    lives, init = [], AsyncVectorEnv.__init__
    try:
        for context in ("fork", "spawn"):  # the latter as on macOS
            monkeypatch.setattr(AsyncVectorEnv, "__init__", functools.partialmethod(init, context=context))
            folder = next(folders)
            env = make.make_vector_env(
                "OfAScript-v0", {"folder": str(folder), "steps": {ANY: {3: "plain"}}}, 1, "async", restart=True
            )
            env.reset(seed=1)
            for _ in range(4):
                env.step(np.zeros(1, np.int64))
            env.close()
            lives.append(num_lives(folder))
    finally:
        del gym.registry["OfAScript-v0"]
    assert lives == [3, 3]  # one to look at, one that raised, and one more
