"""Env runners in processes of their own under fire: who fails is replaced or reported, and no step is lost."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.ppo import PPOConfig
from rlmodule import Columns, EnvRunnerGroup, Rollout
from rlmodule.distributed.failures import WorkerFailed
from rlmodule.testing.data import differences
from tests.fault_envs import ANY, ERRORS, num_lives, num_step_calls, seeds_of_lives
from tests.faults import cluster
from tests.faults.commanded import Crowd, CrowdSettings, crowd, files_of
from tests.waiting import is_running, wait_for

pytestmark = pytest.mark.usefixtures("ray_started")


@pytest.fixture(scope="module")
def tough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Two runners that are replaced when they fail."""
    with crowd(tmp_path_factory.mktemp("tough")) as made:
        made.sample()
        yield made


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Two runners that are not."""
    with crowd(tmp_path_factory.mktemp("frail"), restart_failed_env_runners=False) as made:
        made.sample()
        yield made


def survive(made: Crowd, kind: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    """Let runner 1 do as ``kind`` says: the other one is not disturbed, and this one is replaced."""
    made.wait_until_healthy()
    lost, restarts = made.lost(), made.group.accounts.num_restarts
    made.command(1, kind)
    with caplog.at_level("WARNING", "rlmodule.distributed.ray_workers"):
        (rollout,) = made.sample()
    assert rollout.first_env_index == 0  # the other one is not disturbed
    assert message in caplog.text
    assert 1 <= made.lost() - lost <= rollout.num_env_steps
    made.wait_until_healthy()
    assert made.group.accounts.num_restarts == restarts + 1
    assert len(made.sample()) == 2
    made.check_accounts()
    made.check_seeds()


def test_an_env_that_raises_costs_its_fragment_and_no_process(tough: Crowd, caplog: pytest.LogCaptureFixture) -> None:
    pid = tough.pid(1)
    survive(tough, "plain", "raised ZeroDivisionError", caplog)
    assert tough.pid(1) == pid


ENDED = [
    ("os._exit", "ended by os._exit(0)"),
    ("sys.exit", "raised SystemExit at its step"),
    ("segfault", "ended by Fatal Python error: Segmentation fault"),
    pytest.param("kill", "ended by SIGKILL", marks=pytest.mark.faults),
    pytest.param("abort", "ended by Fatal Python error: Aborted", marks=pytest.mark.faults),
]


@pytest.mark.parametrize(("kind", "message"), ENDED)
def test_an_env_that_ends_its_process_is_replaced(
    tough: Crowd, kind: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    survive(tough, kind, message, caplog)


HUNG = ["stop", *(pytest.param(kind, marks=pytest.mark.faults) for kind in ("hold the GIL", "sleep", "spin"))]


@pytest.mark.parametrize("kind", HUNG)
def test_an_env_that_hangs_is_found_in_time(tough: Crowd, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    pid = tough.pid(1)
    survive(tough, kind, "no progress for 2 s", caplog)
    assert not is_running(pid)
    assert ("Its calls, most recent first:" in caplog.text) == (kind != "stop")  # one that is stopped cannot say
    assert kind == "stop" or re.search(r"  strike \(.*fault_envs\.py:\d+\)", caplog.text)


def kill_after(pid: int, num_steps: int, folder: Path) -> None:
    """Kill a process once some more steps were made."""
    calls = num_step_calls(folder)
    wait_for(lambda: num_step_calls(folder) > calls + num_steps)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.faults)])
def test_a_runner_that_is_killed_while_it_samples_is_replaced(tough: Crowd, times: int) -> None:
    for victim in range(times):
        tough.wait_until_healthy()
        pid, lost = tough.pid(victim % 2), tough.lost()
        killer = threading.Thread(target=kill_after, args=(pid, 20, tough.folder))
        killer.start()
        (rollout,) = tough.sample(100)
        killer.join()
        tough.races += 1
        assert rollout.first_env_index == 2 * (1 - victim % 2)
        assert 0 < tough.lost() - lost <= 200
        tough.check_accounts()
    tough.wait_until_healthy()
    tough.check_seeds()


@pytest.mark.parametrize("when", ["while it samples", pytest.param("after it has sampled", marks=pytest.mark.faults)])
def test_a_runner_that_is_killed_before_its_rollout_is_taken_costs_that_alone(tough: Crowd, when: str) -> None:
    tough.wait_until_healthy()
    pid, calls = tough.pid(1), num_step_calls(tough.folder)
    tough.group.ask(100)
    enough = 20 if when == "while it samples" else 399
    wait_for(lambda: num_step_calls(tough.folder) > calls + enough)
    os.kill(pid, signal.SIGKILL)
    tough.races += 1
    taken = tough.group.take()
    tough.steps += sum(rollout.num_env_steps for rollout in taken)
    assert taken[0].first_env_index == 0
    assert len(taken) == 1 or when == "after it has sampled"  # whose answer may have arrived
    tough.check_accounts()
    tough.wait_until_healthy()
    tough.check_seeds()


@pytest.mark.faults
def test_when_all_are_killed_sampling_waits_for_the_next(tough: Crowd) -> None:
    tough.wait_until_healthy()
    restarts = tough.group.accounts.num_restarts
    for worker in range(2):
        os.kill(tough.pid(worker), signal.SIGKILL)
    assert tough.sample()  # no iteration is empty
    tough.wait_until_healthy()
    assert tough.group.accounts.num_restarts == restarts + 2
    tough.check_accounts()


def test_state_is_that_of_all_though_one_was_killed(tough: Crowd) -> None:
    tough.wait_until_healthy()
    os.kill(tough.pid(0), signal.SIGKILL)
    state = tough.group.get_state()
    incarnations = [state[str(2 * worker)]["incarnation"] for worker in range(2)]
    assert incarnations == [tough.group.workers.incarnation(worker) for worker in range(2)]
    assert all("resets" in one for one in state.values())
    tough.sample()
    tough.check_accounts()


def test_it_stops_in_the_middle_and_leaves_nothing(tough: Crowd) -> None:
    tough.wait_until_healthy()
    pids = [tough.pid(worker) for worker in range(2)]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        tough.sample(1_000_000)
    signal.signal(signal.SIGALRM, before)
    for _ in range(2):
        tough.group.stop()
    wait_for(lambda: not any(map(is_running, pids)))
    assert not files_of(os.getpid())


# --- nobody is replaced -----------------------------------------------------------------------------------------------

SAYS = {
    "plain": ["ZeroDivisionError", "of all things"],
    "empty": ["RuntimeError"],
    "unpicklable": ["Unpicklable", "a lock inside"],
    "huge": ["OSError", "long long"],
    "unreadable": ["Unreadable"],
    "broken pipe": ["BrokenPipeError", "to my own simulator"],
}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_is_told_whole_and_the_next_call_goes_on(frail: Crowd, kind: str) -> None:
    frail.command(1, kind)
    with pytest.raises(WorkerFailed) as caught:
        frail.sample()
    text, place = str(caught.value), caught.value.failure.place
    assert all(part in text for part in [*SAYS[kind], "env runner 1", "fault_envs.py", "Traceback"])
    assert len(text) < 10_000
    assert place["env"] in (2, 3)
    assert place["action"] in (0, 1)
    assert place["step"] >= 0
    assert place["seed"] in {seed for life in seeds_of_lives(frail.folder) for seed in life}
    rollouts = frail.sample()
    assert sorted({rollout.first_env_index for rollout in rollouts}) == [0, 2]
    frail.check_accounts()


def test_who_is_lost_for_good_ends_the_run(frail: Crowd) -> None:
    frail.command(0, "os._exit")
    with pytest.raises(WorkerFailed, match=r"env runner 0: .*os\._exit\(0\).*restart_failed_env_runners=True"):
        frail.sample()
    with pytest.raises(WorkerFailed, match="1 of 2 env runners are left"):
        frail.sample()


@pytest.mark.faults
def test_runners_that_end_together_are_all_counted(tmp_path: Path) -> None:
    with crowd(tmp_path, restart_failed_env_runners=False) as made:
        workers: Any = made.group.workers
        for pid in workers.pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match=r"SIGKILL.*; 0 of \d env runners are left\."):
            made.sample()


@pytest.mark.faults
def test_failures_are_ignored_as_long_as_one_is_left(tmp_path: Path) -> None:
    ignoring: Any = {"restart_failed_env_runners": False, "ignore_env_runner_failures": True}
    with crowd(tmp_path, **ignoring) as made:
        made.sample()
        made.command(0, "os._exit")
        assert len(made.sample()) == 1
        assert len(made.sample()) == 1
        assert made.group.num_healthy == 1
        made.check_accounts()
        made.command(1, "kill")
        with pytest.raises(WorkerFailed, match=r"env runner 1: .*SIGKILL.*0 of 2 env runners are left"):
            made.sample()


# --- nothing works ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [1, pytest.param(5, marks=pytest.mark.faults)])
def test_a_crash_loop_ends(tmp_path: Path, restarts: int) -> None:
    faults = {"steps": {ANY: {1: "plain"}}}
    with crowd(tmp_path, faults, num_env_runners=1, max_restarts_in_a_row=restarts) as made:
        with pytest.raises(WorkerFailed, match=rf"of all things.*failed {restarts + 1} times in a row"):
            made.sample()
        made.check_accounts()


@pytest.mark.faults
def test_an_env_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(WorkerFailed, match=r"env runner 0.*of all things"),
        crowd(tmp_path, {"lives": {0: "plain"}}, num_env_runners=1),
    ):
        pass
    assert num_lives(tmp_path) == 1


def test_what_cannot_be_built_is_told_and_leaves_nothing() -> None:
    def build(**settings: Any) -> EnvRunnerGroup:
        return EnvRunnerGroup.create(CrowdSettings(**settings), run_seed=1)  # type: ignore[arg-type]

    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"num_env_runners=2, env: .*cannot be pickled .*lock"):
        build(env=lambda config: lock)
    with pytest.raises(ValueError, match=r"expected at most the 8 CPUs .*, got 16 CPUs"):
        build(num_env_runners=16, num_cpus_per_env_runner=1.0)
    with pytest.raises(ValueError, match="CartPoll"):
        build(env="CartPoll-v1", num_env_runners=1)
    assert not files_of(os.getpid())


@pytest.mark.faults
def test_more_than_is_free_is_told() -> None:
    settings: Any = CrowdSettings(env="CartPole-v1", num_env_runners=1, num_cpus_per_env_runner=4.0)
    group = EnvRunnerGroup.create(settings, run_seed=1)
    settings.num_cpus_per_env_runner = 8.0
    try:
        with pytest.raises(WorkerFailed, match=r"it asks for 8 CPUs, and [\d.]+ of 8 CPUs are free"):
            EnvRunnerGroup.create(settings, run_seed=1)
    finally:
        group.stop()


@pytest.mark.faults
def test_a_node_that_is_lost_costs_what_was_on_it(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    root = str(Path(cluster.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, cluster.__file__, str(tmp_path / "envs")],
        env=env | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "steps lost" in done.stdout


# --- how envs are spread does not matter ------------------------------------------------------------------------------


def trained(num_env_runners: int, num_envs_each: int) -> tuple[list[Any], list[Any], dict[str, torch.Tensor]]:
    """What was sampled in ten iterations, the results without their seconds, and the weights in the end."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=num_env_runners, num_envs_per_env_runner=num_envs_each, num_cpus_per_env_runner=0.5
        )
        .training(train_batch_size_per_learner=80, minibatch_size=40, num_epochs=2)
        .debugging(seed=3)
    )
    sampled: list[Any] = []
    with config.build() as algorithm:
        take = algorithm.sample

        def sample() -> Rollout:
            rollout = take()
            sampled.append(rollout)
            return rollout

        algorithm.sample = sample  # type: ignore[method-assign]
        results = [algorithm.train() for _ in range(10)]
        weights = {name: value.clone() for name, value in algorithm.get_module().state_dict().items()}
    for result in results:
        del result["env_runners"]["num_env_steps_per_second"]
    message = [{name: result[name] for name in ("env_runners", "learners")} for result in results]
    return sampled, message, weights


def check_equal_data(sampled: list[Any], others: list[Any]) -> None:
    assert len(sampled) == len(others) == 10
    for one, other in zip(sampled, others, strict=True):
        for column in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS):
            assert torch.equal(one[column], other[column])


@pytest.mark.faults
def test_runs_with_one_seed_are_equal_in_every_bit() -> None:
    sampled, message, weights = trained(2, 2)
    again, told_again, weights_again = trained(2, 2)
    check_equal_data(sampled, again)
    assert differences(weights, weights_again) == []
    assert differences(message, told_again) == []


SPREADS = [(2, 2), *(pytest.param(*spread, marks=pytest.mark.faults) for spread in ((1, 4), (4, 1)))]


@pytest.mark.parametrize(("runners", "envs"), SPREADS)
def test_envs_live_alike_however_they_are_spread(runners: int, envs: int) -> None:
    sampled, _, weights = trained(runners, envs)
    here, _, weights_here = trained(0, 4)
    check_equal_data(sampled, here)  # 200 steps of each of 4 envs
    for name, value in weights.items():
        torch.testing.assert_close(value, weights_here[name], rtol=0, atol=1e-5)
