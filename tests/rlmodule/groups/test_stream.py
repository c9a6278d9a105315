"""Env runners that always have the next rollout to sample: whose arrives first is taken first, weights reach rollouts
that were asked for before, and every step is counted."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmodule import Columns, Rollout
from rlmodule.distributed import ray_process
from rlmodule.distributed.failures import WorkerFailed
from rlmodule.distributed.interrupts import interruptible
from rlmodule.distributed.ray_process import _place
from rlmodule.distributed.ray_workers import MAX_IN_FLIGHT
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.groups.remote_env_runner_group import RemoteEnvRunnerGroup
from rlmodule.groups.runner_actor import RunnerActor, Weights
from rlmodule.testing.data import clone, differences
from tests.fault_envs import num_step_calls
from tests.faults.commanded import SPEC, Crowd, crowd
from tests.faults.test_interrupts import DRIVER, Interrupt
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("ray_started")

STEPS = 20
ENVS = 2
"""Of each runner."""


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Two runners that may take their time, and are replaced when they fail."""
    with crowd(tmp_path_factory.mktemp("patient"), env_step_timeout_s=60.0) as made:
        made.sample()
        yield made


def group_of(made: Crowd) -> RemoteEnvRunnerGroup:
    assert isinstance(made.group, RemoteEnvRunnerGroup)
    return made.group


def take(made: Crowd, count: int) -> list[Rollout]:
    rollouts = made.group.take(count)
    assert len(rollouts) == count
    made.steps += sum(rollout.num_env_steps for rollout in rollouts)
    return rollouts


def settle(made: Crowd) -> None:
    """Take what is on its way, and check that every step is counted."""
    made.group.finish()
    take(made, len(made.group.held))
    made.check_accounts()


def act_with(made: Crowd, bias: float) -> None:
    """Let greedy actions have this and the opposite distribution input, whatever is observed."""
    with torch.no_grad():
        made.learned.get_parameter("pi.weight").zero_()
        made.learned.get_parameter("pi.bias").copy_(torch.tensor([bias, -bias]))


def acted_with(rollout: Rollout) -> float:
    """The bias of :func:`act_with` that a rollout acted with; it must be the same in all rows."""
    inputs = rollout[Columns.ACTION_DIST_INPUTS]
    assert torch.equal(inputs, inputs[:1, :1].expand_as(inputs))
    assert torch.equal(rollout[Columns.ACTIONS], inputs.argmax(-1))
    return float(inputs[0, 0, 0])


def ask_and_wait_inside(made: Crowd, **arguments: int) -> None:
    """Let both runners wait in the first step of the rollout that they are asked for."""
    calls = num_step_calls(made.folder)
    for worker in range(2):
        made.command(worker, "wait")
    made.group.ask(STEPS, explore=False, **arguments)
    wait_for(lambda: num_step_calls(made.folder) == calls + 2)


def wait_until_delivered(made: Crowd) -> None:
    """Return once all that was posted has reached the runners, which read it in order."""
    import ray

    for state in group_of(made).workers._processes:
        report = state.actor.report.options(concurrency_group="control")
        ray.get(report.remote(state.crash_report.path, _place))  # type: ignore[union-attr]


# --- who is first -----------------------------------------------------------------------------------------------------


def test_the_first_to_arrive_are_taken_without_waiting_for_others(patient: Crowd) -> None:
    patient.command(1, "wait")
    patient.group.ask(STEPS, in_flight=2)
    first = take(patient, 3)
    assert [rollout.first_env_index for rollout in first] == [0, 0, 0]
    patient.command(1, "go on")
    slots = set[int]()
    while len(slots) < 2:  # the late one is among them in the end
        rollouts = take(patient, 3)
        indices = [rollout.first_env_index for rollout in rollouts]
        assert indices == sorted(indices)
        slots.update(indices)
    settle(patient)


def test_rollouts_of_a_runner_continue_each_other(patient: Crowd) -> None:
    """Each begins with the observation at which the one before ended."""
    patient.group.ask(STEPS, in_flight=2)
    last: dict[int, Any] = {}
    for _ in range(5):
        for rollout in take(patient, 3):
            if (before := last.get(rollout.first_env_index)) is not None:
                goes_on = ~rollout[Columns.STARTS][0]
                assert torch.equal(rollout[Columns.OBS][0][goes_on], before[goes_on])
            last[rollout.first_env_index] = rollout.last_obs
    settle(patient)


@pytest.mark.parametrize("count", [1, 3])
def test_a_slow_caller_stops_the_runners(patient: Crowd, count: int) -> None:
    """However long it goes on, they are ahead by one rollout each, and by what one call of take() wants."""
    group, runners, taken = group_of(patient), range(2), list[int]()
    for _ in range(12):
        group.ask(STEPS, in_flight=2)
        assert all(group.workers.in_flight(worker) <= MAX_IN_FLIGHT for worker in runners)
        group.finish()  # so late does the caller come that all have arrived
        assert len(group.held) <= max(count, len(runners)) + len(runners)
        taken += [rollout.first_env_index for rollout in take(patient, count)]
    assert 2 <= taken[-6:].count(0) <= 4  # no runner is preferred
    settle(patient)


def test_one_call_in_flight_is_what_is_asked_for_else(patient: Crowd) -> None:
    group = group_of(patient)
    patient.command(1, "wait")
    group.ask(STEPS)
    assert [group.workers.in_flight(worker) for worker in range(2)] == [1, 1]
    take(patient, 2)
    assert group.workers.in_flight(1) == 1
    patient.command(1, "go on")
    settle(patient)


def test_the_state_is_that_after_all_that_was_asked_for(patient: Crowd) -> None:
    group, before = group_of(patient), patient.group.get_state()
    group.ask(STEPS, in_flight=2)
    state = group.get_state()
    assert {env["steps"] - before[index]["steps"] for index, env in state.items()} == {2 * STEPS}
    assert len(group.held) == 4
    assert group.is_asked
    settle(patient)
    group.ask(STEPS, in_flight=2)
    group.reset()  # though no runner takes a third call
    assert len(take(patient, 4)) == 4
    group.set_state(group.get_state())
    assert not group.held
    patient.steps = num_step_calls(patient.folder) - patient.lost()  # a state that is set drops what is on its way


def test_runners_tell_how_long_they_waited(patient: Crowd) -> None:
    patient.sample()
    before = patient.group.report()["env_runners_waited_s"]
    time.sleep(0.2)
    waited = [rollout.stats["env_runner_waited_s"] for rollout in patient.sample()]
    assert all(seconds >= 0.2 for seconds in waited)
    assert patient.group.report()["env_runners_waited_s"] - before == pytest.approx(sum(waited))


# --- in this process --------------------------------------------------------------------------------------------------


def local_crowd(folder: Path) -> Crowd:
    return Crowd(folder, num_env_runners=0)


def test_the_runner_here_samples_as_often_as_is_taken(tmp_path: Path) -> None:
    one, other = local_crowd(tmp_path / "one"), local_crowd(tmp_path / "other")
    expected = [clone(dict(one.group.sample(STEPS, policy_version=i // 3)[0].columns)) for i in range(6)]
    found: list[Rollout] = []
    for version in range(2):
        other.group.ask(STEPS, policy_version=version, in_flight=2)
        assert len(other.group.held) == 1
        other.group.ask(STEPS, policy_version=version)  # which samples no more
        assert len(other.group.held) == 1
        other.group.recycle()  # which leaves what is held
        found += other.group.take(3)
        assert not other.group.held
    assert [rollout.policy_version for rollout in found] == [0, 0, 0, 1, 1, 1]
    for rollout, columns in zip(found, expected, strict=True):
        assert differences(dict(rollout.columns), columns) == []
    for made in (one, other):
        made.group.stop()


def test_the_runner_here_acts_with_what_was_posted(tmp_path: Path) -> None:
    made = local_crowd(tmp_path / "envs")
    act_with(made, 1.0)
    made.group.ask(STEPS, explore=False, policy_version=1)
    act_with(made, 2.0)
    made.group.post_weights(2)
    rollouts = made.group.take(3)
    assert [(acted_with(rollout), rollout.policy_version) for rollout in rollouts] == [(1.0, 1), (2.0, 2), (2.0, 2)]
    made.group.stop()


def test_an_error_here_keeps_what_was_sampled_before(tmp_path: Path) -> None:
    made = local_crowd(tmp_path / "envs")
    made.group.ask(STEPS)
    (made.folder / f"{os.getpid()}.command").write_text("plain")
    with pytest.raises(Exception, match="of all things"):
        made.group.take(2)
    assert len(made.group.held) == 1
    take(made, 2)
    made.check_accounts()
    made.group.stop()


# --- weights ----------------------------------------------------------------------------------------------------------


def test_posted_weights_act_in_rollouts_that_were_asked_for_before(patient: Crowd) -> None:
    group = group_of(patient)
    act_with(patient, 1.0)
    ask_and_wait_inside(patient, policy_version=1, in_flight=2)
    for version in (2, 3):  # of which the runners get the last
        act_with(patient, float(version))
        group.post_weights(version)
    wait_until_delivered(patient)
    sent = group.accounts.num_bytes_shared
    group.ask(STEPS, explore=False, policy_version=3, in_flight=2)
    group.post_weights(3)
    assert group.accounts.num_bytes_shared == sent  # they have them
    for worker in range(2):
        patient.command(worker, "go on")
    rollouts = take(patient, 4)
    group.finish()
    assert {(acted_with(rollout), rollout.policy_version) for rollout in rollouts} == {(1.0, 1), (3.0, 3)}
    assert {(acted_with(rollout), rollout.policy_version) for rollout in take(patient, len(group.held))} <= {(3.0, 3)}
    group.ask(STEPS, explore=False, policy_version=3)
    assert {acted_with(rollout) for rollout in take(patient, 2)} == {3.0}
    assert group.accounts.num_bytes_shared == sent
    settle(patient)


def test_a_call_from_before_brings_no_older_weights_back(patient: Crowd) -> None:
    group = group_of(patient)
    ask_and_wait_inside(patient, policy_version=4, in_flight=1)
    act_with(patient, 5.0)
    group.ask(STEPS, explore=False, policy_version=5, in_flight=2)  # the weights are in the second call
    act_with(patient, 6.0)
    group.post_weights(6)
    wait_until_delivered(patient)
    for worker in range(2):
        patient.command(worker, "go on")
    assert {rollout.policy_version for rollout in take(patient, 4)} == {4, 6}
    group.finish()
    assert {(acted_with(rollout), rollout.policy_version) for rollout in take(patient, len(group.held))} <= {(6.0, 6)}
    settle(patient)


def test_a_runner_without_a_module_yet_keeps_what_is_posted(tmp_path: Path) -> None:
    made = local_crowd(tmp_path / "envs")  # for its settings and weights

    def make(first_env_index: int, incarnation: int, step_counter: Any) -> Any:
        return made.group.local_runner

    runner = RunnerActor(make, ENVS, None, str(tmp_path / "counter"), "another machine", 0, 0)
    states = []
    for bias in (1.0, 2.0):
        act_with(made, bias)
        states.append(clone(made.group.module.get_state()))
    runner.receive(Weights(2, 20, states[1]))
    rollout = runner.sample(5, False, SPEC, None, Weights(1, 10, states[0]))  # sent before
    assert (acted_with(rollout), rollout.policy_version) == (2.0, 20)
    made.group.stop()


# --- accounts ---------------------------------------------------------------------------------------------------------


def stream_until(made: Crowd, has_happened: Callable[[], object]) -> None:
    """Go on, two calls in flight, until it has happened, and then until both runners have sampled."""
    wait_for(lambda: (made.group.ask(STEPS, in_flight=2), take(made, 3), has_happened())[-1])
    seen = set[int]()
    while len(seen) < 2:
        made.group.ask(STEPS, in_flight=2)
        seen.update(rollout.first_env_index for rollout in take(made, 2))
    settle(made)


def test_calls_behind_one_that_raised_are_not_executed(patient: Crowd) -> None:
    group, pid = group_of(patient), patient.pid(1)
    for _ in range(3):
        lost, restarts = patient.lost(), group.accounts.num_restarts
        patient.command(1, "plain")
        group.ask(STEPS, in_flight=2)
        stream_until(patient, lambda before=restarts: group.accounts.num_restarts > before)
        assert group.accounts.num_restarts == restarts + 1
        assert 1 <= patient.lost() - lost <= STEPS * ENVS  # of the first call alone
        assert patient.pid(1) == pid  # it restarts in its process


@pytest.mark.end_to_end
@pytest.mark.parametrize("restarts", [True, False])
def test_an_answer_that_cannot_be_read_here_costs_the_call_behind_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """The runner is in the middle of that call, and is ended: steps that it takes until then are counted."""
    long, read = 1000, ray_process.unpack

    def unreadable_once(packed: Any) -> Any:
        monkeypatch.undo()
        read(packed)
        raise LookupError("not here")

    with crowd(tmp_path, num_env_runners=1, restart_failed_env_runners=restarts, env_step_timeout_s=60.0) as made:
        before = num_step_calls(made.folder)
        made.group.ask(long, in_flight=2)
        wait_for(lambda: num_step_calls(made.folder) > before + long * ENVS + 50)
        monkeypatch.setattr(ray_process, "unpack", unreadable_once)
        made.races += 1
        if restarts:
            made.group.ask(STEPS, in_flight=2)
            take(made, 1)
            settle(made)
        else:
            with pytest.raises(
                WorkerFailed, match=r"env runner 0: .*LookupError: not here.*0 of 1 env runners are left"
            ):
                made.group.take(1)
            made.check_accounts()
        assert long * ENVS + 50 < made.lost() < 2 * long * ENVS


@pytest.mark.end_to_end
def test_an_error_that_ends_taking_leaves_exact_accounts(tmp_path: Path) -> None:
    with crowd(tmp_path, restart_failed_env_runners=False, env_step_timeout_s=60.0) as made:
        made.command(1, "plain")
        made.group.ask(STEPS, in_flight=2)
        with pytest.raises(WorkerFailed, match="of all things"):
            made.group.take(100)
        settle(made)
        made.group.ask(STEPS, in_flight=2)  # the runner still works
        assert {rollout.first_env_index for rollout in take(made, 4)} == {0, 2}
        settle(made)


@pytest.mark.end_to_end
def test_weights_of_a_call_that_was_not_executed_are_sent_again(tmp_path: Path) -> None:
    with crowd(tmp_path, restart_failed_env_runners=False, env_step_timeout_s=60.0) as made:
        act_with(made, 1.0)
        ask_and_wait_inside(made, policy_version=1)
        act_with(made, 2.0)
        made.group.ask(STEPS, explore=False, policy_version=2, in_flight=2)  # the weights are in the second call
        made.command(0, "go on")
        made.command(1, "plain")
        with pytest.raises(WorkerFailed, match="of all things"):
            made.group.take(100)
        made.group.finish()
        take(made, len(made.group.held))
        made.group.ask(STEPS, explore=False, policy_version=2)
        assert [(acted_with(rollout), rollout.policy_version) for rollout in take(made, 2)] == [(2.0, 2), (2.0, 2)]
        settle(made)


def test_an_interrupted_take_leaves_what_arrived(patient: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    group, waits = group_of(patient), [0]
    wait = group.workers._wait

    def interrupted(timeout: float) -> list[int]:
        waits[0] += 1
        if waits[0] > 5:
            with interruptible():
                signal.raise_signal(signal.SIGINT)
        return wait(timeout)

    monkeypatch.setattr(group.workers, "_wait", interrupted)
    group.ask(STEPS, in_flight=2)
    with pytest.raises(KeyboardInterrupt):
        group.take(1000)
    monkeypatch.undo()
    held = len(group.held)
    take(patient, held + 2)  # no step of these is missing
    settle(patient)


ENDS = ["kill", "os._exit", "stop", "sleep"]


@pytest.mark.faults
@pytest.mark.parametrize("kind", ENDS)
def test_a_runner_that_ends_with_two_calls_is_counted_and_replaced_once(tmp_path: Path, kind: str) -> None:
    with crowd(tmp_path) as made:
        group = group_of(made)
        for worker in (1, 0):
            made.wait_until_healthy()
            restarts, lost = group.accounts.num_restarts, made.lost()
            made.command(worker, kind)
            group.ask(STEPS, in_flight=2)
            stream_until(made, lambda before=restarts: group.accounts.num_restarts > before)
            assert group.accounts.num_restarts == restarts + 1
            assert 1 <= made.lost() - lost <= STEPS * ENVS
        made.check_seeds()


@pytest.mark.faults
@pytest.mark.parametrize(("kind", "num_calls"), [("plain", 1), ("kill", 2)])
def test_on_another_machine_the_steps_of_all_calls_that_failed_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, num_calls: int
) -> None:
    monkeypatch.setattr(SharedCounter, "attach", lambda path: None)
    with crowd(tmp_path) as made:
        restarts = group_of(made).accounts.num_restarts
        made.command(1, kind)
        made.group.ask(STEPS, in_flight=2)
        while group_of(made).accounts.num_restarts == restarts:
            take(made, 1)
        assert made.lost() == num_calls * STEPS * ENVS


@pytest.mark.faults
def test_a_runner_that_is_killed_at_any_moment_costs_no_count(patient: Crowd) -> None:
    group = group_of(patient)
    for i in range(6):
        patient.wait_until_healthy()
        restarts, calls = group.accounts.num_restarts, num_step_calls(patient.folder)
        group.ask(STEPS, in_flight=2)
        wait_for(lambda limit=calls + 25 * i: num_step_calls(patient.folder) >= limit)
        os.kill(patient.pid(i % 2), signal.SIGKILL)
        patient.races += 1
        stream_until(patient, lambda before=restarts: group.accounts.num_restarts > before)
        assert group.accounts.num_restarts == restarts + 1


@pytest.mark.faults
def test_a_stream_can_be_interrupted_at_every_line(patient: Crowd) -> None:
    group, pids, line, interrupt = group_of(patient), group_of(patient).workers.pids(), 1, None
    while interrupt is None or interrupt.where:
        interrupt = Interrupt(line, DRIVER)
        taken: list[Rollout] = []
        with suppress(KeyboardInterrupt), interrupt:
            group.ask(5, in_flight=2)
            act_with(patient, float(line))
            group.post_weights(line)
            taken = group.take(5)
        patient.steps += sum(rollout.num_env_steps for rollout in taken)
        settle(patient)
        assert group.workers.pids() == pids, interrupt.where
        line += 3
    assert line > 150
