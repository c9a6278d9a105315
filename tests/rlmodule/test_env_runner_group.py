"""EnvRunnerGroup as an algorithm sees it, with the runner in this process and with runners elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlmodule import Columns, EnvRunnerGroup, RLModuleSpec
from rlmodule.env_runner_group import _RunnerProcess
from rlmodule.os_processes import this_machine
from rlmodule.testing import clone, differences
from rlmodule.workers import Answer, Failure, LocalWorkers, WorkerFailed
from tests.rlmodule.toys import Settings, Small

SPEC = RLModuleSpec(Small, spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2))


@dataclass
class GroupSettings(Settings):
    num_env_runners: int = 0
    num_cpus_per_env_runner: float = 0.1
    env_step_timeout_s: float = 60.0
    restart_failed_env_runners: bool = False
    ignore_env_runner_failures: bool = False
    max_restarts_in_a_row: int = 1


def group_of(**settings: Any) -> EnvRunnerGroup:
    made = EnvRunnerGroup(GroupSettings(**settings), run_seed=0)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made.build_modules(SPEC, SPEC.build())
    return made


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    import ray

    ray.init(
        "local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=150_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def remote() -> Iterator[EnvRunnerGroup]:
    """Two runners elsewhere of an env each."""
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
    sent = remote.workers.num_bytes_shared
    greedy()
    assert remote.workers.num_bytes_shared == sent
    with torch.no_grad():
        remote.module.get_parameter("pi.weight").zero_()
        remote.module.get_parameter("pi.bias").copy_(torch.tensor([7.0, -7.0]))
    assert torch.equal(greedy(), torch.tensor([7.0, -7.0]).expand(5, 1, 2))  # in place, though the version is the same
    size = sum(tensor.nbytes for tensor in remote.module.state_dict().values())
    assert 2 * size <= remote.workers.num_bytes_shared - sent < 2 * size + 8000


@pytest.mark.parametrize("which", ["local", "remote"])
def test_runs_go_on_from_a_state(which: str, request: pytest.FixtureRequest) -> None:
    group: EnvRunnerGroup = request.getfixturevalue(which)
    list(group.sample(7))
    state = clone(group.get_state())
    group.set_state(state)
    first = list(group.sample(20))
    restarts = group.workers.num_restarts
    group.set_state(state)
    second = list(group.sample(20))
    assert group.workers.num_restarts == restarts
    for one, other in zip(*(sorted(each, key=lambda r: r.first_env_index) for each in (first, second)), strict=True):
        assert differences(dict(one.columns), dict(other.columns)) == []
    with pytest.raises(ValueError, match=r"state of env runners.*num_env_runners=3"):
        group.set_state({"0": {}, "1": {}, "2": {}})


def test_a_state_from_before_an_accident_gets_weights(remote: EnvRunnerGroup) -> None:
    list(remote.sample(3))
    state = clone(remote.get_state())
    restarts, incarnation = remote.workers.num_restarts, remote.workers.incarnation(0)
    remote.workers.restart(0)
    remote.set_state(state)
    assert remote.workers.num_restarts == restarts + 1  # that of the accident
    assert remote.workers.incarnation(0) == incarnation
    assert {rollout.first_env_index for rollout in remote.sample(3)} == {0, 1}
    tally = remote._tallies[0]._tally
    assert tally is not None
    assert tally.count == 3


def test_a_state_that_no_runner_takes_is_told_at_once(remote: EnvRunnerGroup) -> None:
    state = remote.get_state()
    bad = {key: {"incarnation": one["incarnation"], "what": 1} for key, one in state.items()}
    restarts = remote.workers.num_restarts
    with pytest.raises(WorkerFailed, match=r"env runner 0: .*KeyError(.|\n)*set_state\(\) raises"):
        remote.set_state(bad)
    assert remote.workers.num_restarts == restarts
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
    for machine, files in (("another", []), (this_machine(), ["tally-0-0"])):
        process = _RunnerProcess(GroupSettings(), 0, "env", None, str(tmp_path / "tally"), machine, 0, 0)
        process.stop()
        assert [path.name for path in tmp_path.iterdir()] == files


def test_there_is_no_runner_here_where_they_are_elsewhere(remote: EnvRunnerGroup) -> None:
    with pytest.raises(RuntimeError, match=r"local_runner: .*2 runners in processes.*num_env_runners=0"):
        _ = remote.local_runner


def test_who_takes_not_all_loses_nothing(remote: EnvRunnerGroup) -> None:
    remote.reset()
    taken = next(remote.sample(10)).num_env_steps
    state = remote.get_state()  # which waits for what is on its way, and keeps it
    assert sorted(state) == ["0", "1"]
    rollouts = list(remote.sample(10))
    steps = taken + sum(rollout.num_env_steps for rollout in rollouts)
    assert steps == 10 * (1 + len(rollouts))
    assert {rollout.first_env_index for rollout in rollouts} == {0, 1}


class Scripted(LocalWorkers):
    """Workers elsewhere, as far as their group can tell, that answer as is written."""

    shares_memory = False

    def __init__(self, script: list[list[Answer]]) -> None:
        super().__init__("env runner", [None, None])
        self._script = script

    def submit(self, worker: int, method: str, *args: Any, shared: Any = None, **kwargs: Any) -> int:
        return 0

    def _collect(self, timeout: float | None) -> list[Answer]:
        return self._script.pop(0)


def test_what_came_with_a_failure_is_not_lost(local: EnvRunnerGroup) -> None:
    (rollout,) = local.sample(5)
    died = Answer(1, 0, failure=Failure("died", "ActorDiedError", "killed", final=True))
    for worker in range(2):
        local._watch(worker)
    real, local.workers = local.workers, Scripted([[], [died, Answer(0, 0, rollout)], []])
    with pytest.raises(WorkerFailed, match=r"env runner 1: .* got killed"):
        list(local.sample(5))
    local._lost_for_good = None
    assert list(local.sample(5)) == [rollout]
    local.workers = real
