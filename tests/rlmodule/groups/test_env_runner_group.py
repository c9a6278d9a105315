"""EnvRunnerGroup as an algorithm sees it, with the runner in this process and with runners in other processes."""

import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from rlmodule import Columns, EnvRunner, EnvRunnerGroup, RLModuleSpec
from rlmodule.distributed.failures import Failure, WorkerFailed
from rlmodule.distributed.interrupts import interruptible
from rlmodule.distributed.ray_workers import Answer
from rlmodule.envs.make import spec_to_send
from rlmodule.groups.remote_env_runner_group import RemoteEnvRunnerGroup
from rlmodule.groups.runner_actor import RunnerActor
from rlmodule.sampling.random_streams import RandomStreams
from rlmodule.testing.data import clone, differences
from tests.rlmodule.toys import Settings, Small

pytestmark = pytest.mark.usefixtures("ray_started")

SPEC = RLModuleSpec(Small, spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2))


class GroupSettings(Settings):
    num_cpus_per_env_runner = 0.1
    restart_failed_env_runners = False
    max_restarts_in_a_row = 1


def group_of(**settings: Any) -> EnvRunnerGroup:
    made = EnvRunnerGroup.create(GroupSettings(**settings), run_seed=0)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made.build_modules(SPEC, SPEC.build())
    return made


@pytest.fixture(scope="module")
def remote() -> Iterator[EnvRunnerGroup]:
    """Two runners in other processes, with an env each."""
    made = group_of(num_env_runners=2, num_envs_per_env_runner=1)
    yield made
    made.stop()


@pytest.fixture
def local() -> Iterator[EnvRunnerGroup]:
    made = group_of(num_envs_per_env_runner=2)
    yield made
    made.stop()


def test_the_runner_here_acts_with_the_learners_tensors(local: EnvRunnerGroup) -> None:
    learned = SPEC.build()
    local.build_modules(SPEC, learned)
    acting = local.local_runner.module
    assert acting is local.module
    assert acting is not learned
    assert acting.inference_only
    assert not acting.training
    for name, parameter in acting.named_parameters():
        assert parameter is learned.get_parameter(name)


def test_envs_are_the_same_wherever_they_are(local: EnvRunnerGroup, remote: EnvRunnerGroup) -> None:
    assert remote.observation_space == local.observation_space
    assert remote.action_space == local.action_space
    (here,) = local.sample(30, policy_version=3)
    there = sorted(remote.sample(30, policy_version=3), key=lambda rollout: rollout.first_env_index)
    assert [rollout.first_env_index for rollout in there] == [0, 1]
    for env, rollout in enumerate(there):
        assert rollout.policy_version == 3
        assert torch.equal(rollout[Columns.OBS], here[Columns.OBS][:, env : env + 1])
        assert torch.equal(rollout[Columns.ACTIONS], here[Columns.ACTIONS][:, env : env + 1])


def test_weights_are_sent_when_they_changed_and_not_else(remote: EnvRunnerGroup) -> None:
    def greedy() -> torch.Tensor:
        return next(iter([*remote.sample(5, explore=False, policy_version=4)]))[Columns.ACTION_DIST_INPUTS]

    greedy()
    sent = remote.accounts.num_bytes_shared
    greedy()
    assert remote.accounts.num_bytes_shared == sent
    with torch.no_grad():
        remote.module.get_parameter("pi.weight").zero_()
        remote.module.get_parameter("pi.bias").copy_(torch.tensor([7.0, -7.0]))
    assert torch.equal(greedy(), torch.tensor([7.0, -7.0]).expand(5, 1, 2))  # in place, though the version is the same
    size = sum(tensor.nbytes for tensor in remote.module.state_dict().values())
    assert 2 * size <= remote.accounts.num_bytes_shared - sent < 2 * size + 8000


@pytest.mark.parametrize("cut_short", [KeyboardInterrupt, ZeroDivisionError])
def test_rollouts_before_sampling_is_cut_short_are_counted_as_lost(
    remote: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch, cut_short: type[BaseException]
) -> None:
    real, reset, resets = remote.finish, remote.reset, []

    def finish() -> None:
        real()
        if cut_short is ZeroDivisionError:
            raise cut_short
        signal.raise_signal(signal.SIGINT)  # which is held back up to the end

    before = remote.num_env_steps_lost["not_learned"]
    monkeypatch.setattr(remote, "finish", finish)
    monkeypatch.setattr(remote, "reset", lambda: (resets.append(1), reset()))
    with pytest.raises(cut_short):
        remote.sample(32)
    assert remote.num_env_steps_lost["not_learned"] - before == 64
    assert resets == [1]
    monkeypatch.undo()
    assert [rollout.num_env_steps for rollout in remote.sample(5)] == [5, 5]


@pytest.mark.parametrize("which", ["local", "remote"])
def test_runs_go_on_from_a_state(which: str, request: pytest.FixtureRequest) -> None:
    group: EnvRunnerGroup = request.getfixturevalue(which)
    list(group.sample(7))
    state = clone(group.get_state())
    group.set_state(state)
    first = list(group.sample(20))
    counters = group.get_counters()
    group.set_state(state)
    second = list(group.sample(20))
    assert group.get_counters() == counters
    for one, other in zip(*(sorted(each, key=lambda r: r.first_env_index) for each in (first, second)), strict=True):
        assert differences(dict(one.columns), dict(other.columns)) == []


@pytest.mark.end_to_end
def test_a_state_from_before_an_accident_gets_weights(remote: EnvRunnerGroup) -> None:
    list(remote.sample(3))
    state = clone(remote.get_state())
    restarts = remote.accounts.num_restarts
    remote.workers.restart(0)
    remote.set_state(state)
    assert remote.accounts.num_restarts == restarts + 1  # that of the accident
    assert differences(remote.get_state(), state) == []
    assert {rollout.first_env_index for rollout in remote.sample(3)} == {0, 1}
    step_counter = remote._known[0].counter
    assert step_counter is not None
    assert step_counter.count == 3


def test_a_state_that_no_runner_takes_is_told_at_once(remote: EnvRunnerGroup) -> None:
    state = remote.get_state()
    bad = {key: {"incarnation": one["incarnation"], "noise": {"used": 0}} for key, one in state.items()}
    restarts = remote.accounts.num_restarts
    with pytest.raises(WorkerFailed, match=r"env runner 0: .*KeyError(.|\n)*set_state\(\) raises"):
        remote.set_state(bad)
    assert remote.accounts.num_restarts == restarts
    remote.set_state(state)


def test_what_the_runner_here_loses_is_counted(local: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = local.local_runner

    def sample(*args: Any, **kwargs: Any) -> Any:
        runner.num_env_steps_lost["fragment"] = runner.num_env_steps_lost.get("fragment", 0) + 3
        raise ZeroDivisionError

    monkeypatch.setattr(runner, "sample", sample)
    for times in (1, 2):
        with pytest.raises(ZeroDivisionError):
            list(local.sample(5))
        assert local.num_env_steps_lost == {"fragment": 3 * times}


def test_a_runner_on_another_machine_leaves_no_file(tmp_path: Path) -> None:
    make = partial(EnvRunner, GroupSettings(), run_seed=0)  # type: ignore[arg-type]
    for machine, files in (("another", []), (socket.gethostname(), ["step_counter-0-0"])):
        process = RunnerActor(make, 1, None, str(tmp_path / "step_counter"), machine, 0, 0)
        process.stop()
        assert [path.name for path in tmp_path.iterdir()] == files


def test_what_a_script_registers_is_known_to_runners_too() -> None:
    class Mine(CartPoleEnv):  # which travels as it is, as a class of a script does
        pass

    name = "RegisteredInAScript-v0"
    gym.register(name, entry_point=Mine, max_episode_steps=3)  # type: ignore[arg-type]
    try:
        made = group_of(env=name, num_env_runners=1, num_envs_per_env_runner=1)
        (rollout,) = made.sample(6)
        made.stop()
        assert rollout[Columns.TRUNCATEDS][:, 0].nonzero().flatten().tolist() == [2, 5]
        lock = threading.Lock()
        gym.registry[name].entry_point = lambda: lock  # type: ignore[assignment]
        with pytest.raises(TypeError, match=rf"num_env_runners=1, what is registered as env '{name}': .*lock"):
            group_of(env=name, num_env_runners=1)
    finally:
        del gym.registry[name]


def test_runners_have_the_env_as_a_script_changed_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make = partial(EnvRunner, GroupSettings(env="CartPole-v1"), run_seed=0)  # type: ignore[arg-type]
    changed = replace(gym.spec("CartPole-v1"), max_episode_steps=3)
    monkeypatch.setitem(gym.registry, "CartPole-v1", gym.spec("CartPole-v1"))  # as in a process without the script
    process = RunnerActor(make, 1, changed, str(tmp_path / "step_counter"), "another", 0, 0)
    rollout = process.sample(6, True, SPEC)
    process.stop()
    assert rollout[Columns.TRUNCATEDS][:, 0].nonzero().flatten().tolist() == [2, 5]


def test_an_unknown_id_is_told_before_a_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmodule.distributed.ray_workers.RayWorkers", None)
    with pytest.raises(ValueError, match=r"env 'CartPol-v1': expected a registered id.* 'CartPole-v1'\?") as caught:
        group_of(env="CartPol-v1", num_env_runners=1)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(("env", "message"), [("CartPole", "CartPole-v1"), ("CartPole-v0", "CartPole-v0")])
def test_an_id_is_looked_up_as_gymnasium_does(env: str, message: str) -> None:
    spec = spec_to_send(env)
    assert spec is not None
    assert spec.id == message
    assert spec_to_send("some_module:CartPole-v1") is None
    assert spec_to_send(dict) is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raised", "restart_failed_sub_environments=True"),
        ("hung", r"raise \.env_runners\(env_step_timeout_s=.*ignore_env_runner_failures=True"),
        ("unplaced", "num_cpus_per_env_runner"),
    ],
)
def test_the_end_of_a_runner_names_the_settings_that_help(
    remote: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch, kind: Any, message: str
) -> None:
    monkeypatch.setattr(remote.workers, "is_up", lambda worker: worker != 1)
    monkeypatch.setattr(remote.workers, "is_gone", lambda worker: worker == 1)
    with pytest.raises(WorkerFailed, match=rf"no such thing.*; 1 of 2 env runners are left\. .*{message}"):
        remote._replace(1, Failure(kind, "OSError", "no such thing.", final=True))
    remote._lost_for_good = None


class OnlyHere(Small):
    """Can be made in one process alone, whose number is in the settings."""

    def setup(self) -> None:
        super().setup()
        if os.getpid() != self.catalog.model_config.custom_model_config["pid"]:
            raise LookupError("no such file over here")


def test_a_module_that_cannot_be_made_elsewhere_ends_the_run_at_once(remote: EnvRunnerGroup) -> None:
    group = EnvRunnerGroup.create(
        GroupSettings(num_env_runners=1, restart_failed_env_runners=True, max_restarts_in_a_row=5),  # type: ignore[arg-type]
        run_seed=0,
    )
    config = {"custom_model": "torch.nn:Identity", "custom_model_config": {"pid": os.getpid()}}
    spec = RLModuleSpec(OnlyHere, SPEC.observation_space, SPEC.action_space, config)
    try:
        with torch.random.fork_rng(devices=[]):
            group.build_modules(spec, spec.build())
        for _ in range(2):
            with pytest.raises(WorkerFailed, match=r"LookupError: no such file over here.*Fix the module"):
                list(group.sample(5))
        assert group.accounts.num_restarts == 0
    finally:
        group.stop()


def test_there_is_no_runner_here_where_they_are_elsewhere(remote: EnvRunnerGroup) -> None:
    with pytest.raises(RuntimeError, match=r"local_runner: .*2 runners in other processes.*num_env_runners=0"):
        _ = remote.local_runner


def interrupted(remote: EnvRunnerGroup, num_steps: int, policy_version: int = 0) -> None:
    """Sample, and be interrupted while the rollouts are on their way."""

    def wait(timeout: float) -> list[int]:
        with interruptible():
            if remote.workers.in_flight(0):
                signal.raise_signal(signal.SIGINT)
        return []

    remote.ask(num_steps, policy_version=policy_version)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote.workers, "_wait", wait)
        with pytest.raises(KeyboardInterrupt):
            remote.take()


def test_rollouts_that_an_interrupted_call_did_not_take_are_in_the_next_one(remote: EnvRunnerGroup) -> None:
    remote.sample(5)
    interrupted(remote, 10)
    state = remote.get_state()  # which waits for what is on its way, and keeps it
    assert sorted(state) == ["0", "1"]
    assert sorted(rollout.first_env_index for rollout in remote.sample(10)) == [0, 0, 1, 1]


def test_rollouts_on_their_way_when_sampling_is_interrupted_are_in_a_state(
    remote: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.sample(5)
    lost = remote.num_env_steps_lost.copy()
    with monkeypatch.context() as patched:
        patched.setattr(remote.workers, "_wait", interrupting_wait(remote, lambda: True))
        with pytest.raises(KeyboardInterrupt):
            remote.sample(10)
    remote.get_state()
    assert [rollout.num_env_steps for rollout in remote.held] == [10, 10]
    assert [rollout.num_env_steps for rollout in remote.take()] == [10, 10]
    assert remote.num_env_steps_lost == lost


def test_rollouts_on_their_way_when_others_were_dropped_count_as_lost(
    remote: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.sample(5)
    before = remote.num_env_steps_lost["not_learned"]
    with monkeypatch.context() as patched:
        patched.setattr(remote.workers, "_wait", interrupting_wait(remote, lambda: bool(remote.held)))
        with pytest.raises(KeyboardInterrupt):
            remote.sample(10)
    remote.get_state()
    assert not remote.held
    assert remote.num_env_steps_lost["not_learned"] - before == 20
    assert [rollout.num_env_steps for rollout in remote.sample(5)] == [5, 5]


def interrupting_wait(remote: EnvRunnerGroup, when: Callable[[], bool]) -> Callable[[float], list[int]]:
    """Return a wait for one worker that is interrupted the first time that ``when()`` holds."""
    real, left = remote.workers._wait, [1]  # type: ignore[attr-defined]

    def wait(timeout: float) -> list[int]:
        with interruptible():
            if left and when() and any(map(remote.workers.in_flight, (0, 1))):  # type: ignore[attr-defined]
                left.clear()
                signal.raise_signal(signal.SIGINT)
        return real(timeout)[:1]

    return wait


class Scripted:
    """Stands for the workers: answers as is written."""

    size = 2

    def __init__(self, script: list[list[Answer]]) -> None:
        self._script = script

    def call(self, method: str, args: Mapping[int, Any]) -> list[Answer]:
        return [Answer(worker, (SPEC.observation_space, SPEC.action_space)) for worker in args]

    def wait_until_up(self, *, timeout: float = math.inf) -> None:
        pass

    def submit(self, worker: int, method: str, *args: Any, shared: Any = None) -> None:
        pass

    def collect(self, timeout: float | None) -> list[Answer]:
        return self._script.pop(0)

    def keep(self, answers: Iterable[Answer]) -> None:
        if left := [*answers]:
            self._script.insert(0, left)

    def share(self, value: Any) -> Any:
        return value

    def is_up(self, worker: int) -> bool:
        return True

    def is_gone(self, worker: int) -> bool:
        return False

    def in_flight(self, worker: int) -> int:
        return 0

    def incarnation(self, worker: int) -> int:
        return 0

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("method", ["get_state", "reset"])
def test_calls_that_were_interrupted_leave_nothing_to_stumble_over(
    remote: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    steps = [remote.get_state()[env]["steps"] for env in ("0", "1")]
    lost = remote.num_env_steps_lost.copy()  # in the tests before
    with monkeypatch.context() as patched:
        patched.setattr(remote.workers, "_collect", lambda timeout: signal.raise_signal(signal.SIGINT))
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                getattr(remote, method)()
    state = remote.get_state()  # though two calls are under way already
    assert [state[env]["steps"] for env in ("0", "1")] == steps
    assert [rollout.num_env_steps for rollout in remote.sample(3)] == [3, 3]
    assert remote.num_env_steps_lost == lost


@pytest.mark.parametrize(
    "late", [Answer(1), Answer(1, failure=Failure("died", "ActorDiedError", "killed"))], ids=["returned", "died"]
)
def test_a_late_answer_to_a_call_before_the_first_rollout_is_no_rollout(
    local: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch, late: Answer
) -> None:
    (rollout,) = local.sample(5)
    workers = Scripted([[Answer(0), late], [Answer(0, rollout)], []])  # reset() was interrupted, and then answered
    monkeypatch.setattr(RemoteEnvRunnerGroup, "_start_processes", lambda *args: workers)
    group = group_of(num_env_runners=2, num_envs_per_env_runner=2)
    assert list(group.sample(5)) == [rollout]
    assert not any(group.num_env_steps_lost.values())


def test_what_came_with_a_failure_is_not_lost(local: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    (rollout,) = local.sample(5)
    died = Answer(1, failure=Failure("died", "ActorDiedError", "killed", final=True))
    workers = Scripted([[], [died, Answer(0, rollout)], []])
    monkeypatch.setattr(RemoteEnvRunnerGroup, "_start_processes", lambda *args: workers)
    group = group_of(num_env_runners=2, num_envs_per_env_runner=2)
    with pytest.raises(WorkerFailed, match=r"env runner 1: .* got killed"):
        list(group.sample(5))
    group._lost_for_good = None  # type: ignore[attr-defined]
    assert list(group.sample(5)) == [rollout]


def test_runners_whose_envs_have_other_spaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unlike(Scripted):
        def call(self, method: str, args: Mapping[int, Any]) -> list[Answer]:
            return [Answer(worker, (SPEC.observation_space, spaces.Discrete(2 + worker))) for worker in args]

    monkeypatch.setattr(RemoteEnvRunnerGroup, "_start_processes", lambda *args: Unlike([]))
    with pytest.raises(ValueError, match=r"env runner 1, spaces: expected those of env runner 0, .*Discrete\(3\)"):
        group_of(num_env_runners=2, num_envs_per_env_runner=2)


# --- another number of runners or envs --------------------------------------------------------------------------------


def seen(group: EnvRunnerGroup, num_steps: int) -> dict[int, dict[str, Any]]:
    """The next steps of each env, by global index."""
    columns = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
    return {
        rollout.first_env_index + slot: {name: rollout[name][:, slot] for name in columns}
        for rollout in group.sample(num_steps)
        for slot in range(rollout.shape[1])
    }


@contextmanager
def groups_of(remote: EnvRunnerGroup, *sizes: tuple[int, int]) -> Iterator[list[EnvRunnerGroup]]:
    """Groups of these numbers of runners and of envs of each: ``remote`` is the one of 2 runners of an env each."""
    groups = [
        remote if size == (2, 1) else group_of(num_env_runners=size[0], num_envs_per_env_runner=size[1])
        for size in sizes
    ]
    for group in groups:
        group.module.load_state_dict(remote.module.state_dict())
    try:
        yield groups
    finally:
        for group in groups:
            if group is not remote:
                group.stop()


SIZES = [
    pytest.param((0, 2), (2, 1), id="0 to 2"),
    pytest.param((2, 1), (0, 2), id="2 to 0"),
    pytest.param((1, 4), (2, 2), id="1x4 to 2x2", marks=pytest.mark.faults),
    pytest.param((0, 4), (0, 8), id="4 envs to 8"),
]


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_envs_go_on_in_other_runners(remote: EnvRunnerGroup, before: tuple[int, int], after: tuple[int, int]) -> None:
    with groups_of(remote, before, after) as groups:
        seen(groups[0], 9)
        state = clone(groups[0].get_state())
        for group in groups:
            group.set_state(state)
        same, other = (seen(group, 20) for group in groups)
        assert {*same} <= {*other} == {*range(max(1, after[0]) * after[1])}
        for env, columns in same.items():
            assert differences(columns, other[env]) == []
        states = [group.get_state() for group in groups]
        assert {index: one["noise"] for index, one in states[0].items()}.items() <= {
            index: one["noise"] for index, one in states[1].items()
        }.items()


def drawn_from(state: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """How far the streams of each env are used: incarnation, resets, rows of noise."""
    return {index: (one["incarnation"], one["resets"], one["noise"]["used"]) for index, one in state.items()}


def test_envs_that_come_back_go_on_and_repeat_nothing() -> None:
    sizes = {"two": (0, 2), "four": (0, 4)}
    groups = {
        n: group_of(num_env_runners=runners, num_envs_per_env_runner=envs) for n, (runners, envs) in sizes.items()
    }
    four, two = groups["four"], groups["two"]
    first = seen(four, 8)
    state = clone(four.get_state())
    two.set_state(state)
    seen(two, 8)
    state = clone(two.get_state())
    assert drawn_from(state) == {"0": (0, 1, 16), "1": (0, 1, 16), "2": (0, 1, 8), "3": (0, 1, 8)}
    four.set_state(state)
    last = seen(four, 8)
    assert drawn_from(four.get_state()) == {str(env): (0, 1, 24) for env in range(4)}
    begun = [columns[Columns.OBS][0] for rollouts in (first, last) for columns in rollouts.values()]
    assert len({tuple(obs.tolist()) for obs in begun}) == 8
    for group in groups.values():
        group.stop()


@pytest.mark.end_to_end
def test_generators_of_runners_that_are_no_more_wait_for_them() -> None:
    one, two = group_of(num_envs_per_env_runner=4), group_of(num_env_runners=2, num_envs_per_env_runner=2)
    seen(two, 3)
    state = clone(two.get_state())
    one.set_state(state)
    seen(one, 3)
    assert {index for index, env in one.get_state().items() if "generator" in env} == {"0", "2"}
    assert torch.equal(one.get_state()["2"]["generator"]["state"], state["2"]["generator"]["state"])
    two.set_state(one.get_state())
    for group in (one, two):
        group.stop()


@pytest.mark.end_to_end
def test_runners_that_were_made_again_repeat_nothing_elsewhere(remote: EnvRunnerGroup, local: EnvRunnerGroup) -> None:
    remote.reset()
    list(remote.sample(3))
    again, resets = remote.workers.incarnation(1) + 1, remote.get_state()["0"]["resets"]
    remote.workers.restart(1)
    remote.workers.wait_until_up()
    list(remote.sample(3))
    state = clone(remote.get_state())
    local.set_state(state)
    seen(local, 2)
    # the first env goes on under the number of the second, where it has drawn nothing yet
    assert drawn_from(local.get_state()) == {
        str(env): (again, resets, max(one["noise"]["used"] for one in state.values()) + 2) for env in range(2)
    }
    remote.set_state(local.get_state())
    assert [remote.workers.incarnation(worker) for worker in range(2)] == [again, again]


def test_envs_of_a_runner_that_is_gone_begin_other_streams(local: EnvRunnerGroup) -> None:
    state: dict[str, Any] = {"0": clone(local.get_state())["0"], "1": {"incarnation": 3}}
    local.set_state(state)
    fresh = RandomStreams(0, "env", range(2), incarnation=3).get_state()
    message = local.get_state()
    assert message["1"]["noise"]["block_start"] == fresh["1"]["noise"]["block_start"]
    assert message["0"]["noise"] == state["0"]["noise"]
    assert message["0"]["incarnation"] == message["1"]["incarnation"] == 3


# --- a state that is set in place -------------------------------------------------------------------------------------


def test_rollouts_from_before_a_state_are_not_handed_out(remote: EnvRunnerGroup) -> None:
    remote.reset()
    list(remote.sample(5))
    state = clone(remote.get_state())
    expected = {env: columns[Columns.ACTIONS] for env, columns in seen(remote, 5).items()}
    lost = dict(remote.num_env_steps_lost)
    remote.set_state(state)
    interrupted(remote, 7, policy_version=8)
    remote.set_state(state)
    rollouts = list(remote.sample(5, policy_version=9))
    assert [rollout.policy_version for rollout in rollouts] == [9, 9]
    for rollout in rollouts:
        assert torch.equal(rollout[Columns.ACTIONS][:, 0], expected[rollout.first_env_index])
    remote.workers.restart(0)
    assert remote._known[1].take_lost() == 0  # of what was given up none is counted
    assert dict(remote.num_env_steps_lost) == lost


@pytest.mark.faults
def test_a_runner_that_was_lost_is_there_again_after_a_state() -> None:
    group = group_of(num_env_runners=2, num_envs_per_env_runner=1, ignore_env_runner_failures=True)
    list(group.sample(3))
    state = clone(group.get_state())
    group.workers._lose(0, Failure("died", "ActorDiedError", "killed"))  # type: ignore[attr-defined]
    assert group.num_healthy == 1
    assert group.get_state()["0"] == {"incarnation": 1}
    group.set_state(state)
    assert group.num_healthy == 2
    assert {rollout.first_env_index for rollout in group.sample(3)} == {0, 1}
    group.stop()
