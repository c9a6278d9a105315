"""Learner processes that are killed, stopped, and raise: what it costs, and that nothing of the training is lost."""

import os
import random
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlmodule import Columns, Learner, LearnerGroup, RLModuleSpec, Rollout
from rlmodule.distributed.failures import WorkerFailed
from rlmodule.groups.remote_learner_group import RemoteLearnerGroup
from rlmodule.testing.data import clone, differences, random_rollout
from tests.fault_learners import FaultRegression, FaultReinforce, FaultSettings, Plan
from tests.rlmodule.toys import Small
from tests.together import digest

pytestmark = pytest.mark.usefixtures("ray_started")

SPEC = RLModuleSpec(Small, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), {"fcnet_hiddens": [8]})
ID = "default_policy"


@dataclass
class Run:
    """A group of learners and what is planned for them."""

    group: LearnerGroup
    plan: Plan
    initial: dict[str, Any]

    def pids(self) -> list[int]:
        return [pid for pid in self.processes.workers.pids() if pid is not None]

    @property
    def processes(self) -> Any:
        assert isinstance(self.group, RemoteLearnerGroup)
        return self.group

    def learn(self, data: Sequence[Rollout | dict[str, Any]], first: int = 0) -> list[Any]:
        """The results of an update with each of ``data``."""
        return [
            self.group.update_from_episodes(one, env_steps=first + i)
            if isinstance(one, Rollout)
            else self.group.step_on_batch(one, env_steps=first + i)
            for i, one in enumerate(data)
        ]

    def digests(self) -> list[str]:
        """Those of the states of each learner."""
        # which changes nothing, after all that is still to be done
        self.processes._call("load_module_state", ID, clone(self.group.get_state()["module"][ID]))
        workers = self.processes.workers
        answers = workers.call("get_state", dict.fromkeys(range(workers.size), ()))
        return [digest(answer.value) for answer in answers]

    def check_recovers(self, data: Sequence[Any], *, restarts: int, strikes: int = 1) -> None:
        """Learning from ``data`` gives what it does without the fault that is planned."""
        planned = (self.plan.folder / "plan").read_text()
        self.plan.clear()
        self.group.set_state(self.initial)
        expected, bits = [message(each) for each in self.learn(data)], self.digests()
        self.group.set_state(self.initial)
        (self.plan.folder / "plan").write_text(planned)
        before = self.processes.accounts.num_restarts
        results = [message(each) for each in self.learn(data)]
        assert self.plan.times_left == 0
        assert self.processes.accounts.num_restarts - before == restarts * strikes
        assert self.digests() == bits
        assert len({*bits}) == 1
        assert results == expected
        assert self.processes.num_env_steps_dropped == 0


def message(result: dict[str, Any]) -> Any:
    """The result of an update, without what a clock measured."""
    return {
        module_id: {name: x.tolist() if isinstance(x, torch.Tensor) else x for name, x in numbers.items()}
        for module_id, numbers in result.items()
        if module_id != "timers"
    }


def make(folder: Path, cls: type[Learner] = FaultReinforce, **settings: Any) -> Run:
    folder.mkdir(exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        group = LearnerGroup.create(FaultSettings(folder=str(folder), **settings), cls, SPEC.as_multi(), run_seed=0)
    return Run(group, Plan(folder), clone(group.get_state()))


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.faults, id="one learner"), pytest.param(2, id="two learners")],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = make(tmp_path_factory.mktemp("run"), num_learners=request.param, learner_timeout_s=5.0)
    yield run
    run.group.stop()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    runs: list[Run] = []

    def build(cls: type[Learner] = FaultReinforce, **settings: Any) -> Run:
        runs.append(make(tmp_path / str(len(runs)), cls, **settings))
        return runs[-1]

    yield build
    for run in runs:
        run.group.stop()


def rollouts(count: int = 2, slots: int = 4) -> list[Rollout]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = SPEC.build()
    return [random_rollout(module, 8, slots, seed) for seed in range(count)]


def batch(seed: int = 0, rows: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {Columns.OBS: torch.rand(rows, 4, generator=generator), "target": torch.full((rows, 2), float(seed))}


def test_a_killed_learner_is_made_again_and_the_update_is_done_again(run: Run) -> None:
    """Where there are two, the other one waits in the sum of the gradients meanwhile."""
    size = len(run.pids())
    run.plan.write("die", rank=size - 1, step=2)
    run.check_recovers(rollouts(), restarts=size)


@pytest.mark.faults
def test_who_does_not_wait_need_not_while_learners_are_made_again(run: Run) -> None:
    run.plan.clear()
    run.group.set_state(run.initial)
    size, (data,) = len(run.pids()), rollouts(1)
    before, restarts = run.processes.num_env_steps_dropped, run.processes.accounts.num_restarts
    run.plan.write("die", rank=size - 1, step=1)
    told_of, num_calls = list[Any](), 0
    while len(told_of) < 2:
        told_of += run.group.update_from_episodes(data, env_steps=0, async_update=True)
        num_calls += 1
        time.sleep(0.02)
    assert run.plan.times_left == 0
    assert run.processes.accounts.num_restarts - restarts == size
    dropped = (run.processes.num_env_steps_dropped - before) // data.num_env_steps
    assert dropped > 0  # calls that returned while the learners were away
    bits, learned = run.digests(), num_calls - dropped
    run.processes.num_env_steps_dropped = 0
    run.group.set_state(run.initial)
    for _ in range(learned):  # what was not dropped, without an accident
        run.group.update_from_episodes(data, env_steps=0)
    assert run.digests() == bits


@pytest.mark.faults
def test_updates_go_on_after_failures_that_raise(run: Run) -> None:
    """Also where a peer waits; the learners are as they were before that update."""
    run.plan.clear()
    run.group.set_state(run.initial)
    data = rollouts(3)
    run.learn(data[:1])
    before = run.digests()
    run.plan.write("raise", rank=len(run.pids()) - 1, step=1)
    with pytest.raises(
        WorkerFailed, match=r"learner \d.*ArithmeticError: the loss of your own.*num_learners=0"
    ) as caught:
        run.learn(data[1:2], first=1)
    assert caught.value.failure.kind == "raised"
    assert caught.value.name == f"learner {len(run.pids()) - 1}"
    assert "compute_loss_for_module" in str(caught.value)
    dropped, run.processes.num_env_steps_dropped = run.processes.num_env_steps_dropped, 0
    assert dropped == data[1].num_env_steps
    assert run.digests() == before
    run.learn(data[1:], first=1)
    after = run.digests()
    run.group.set_state(run.initial)
    run.learn(data)
    assert run.digests() == after


def test_an_update_that_is_not_finite_on_one_learner_is_left_out_on_all(run: Run) -> None:
    run.plan.clear()
    run.group.set_state(run.initial)
    (whole,) = run.learn(rollouts(1))
    before = clone(run.group.get_state()["module"][ID])
    run.plan.write("nan", rank=len(run.pids()) - 1, times=100)  # in the first minibatch of each update
    for _ in range(2):
        (result,) = run.learn(rollouts(1), first=1)
        assert (whole[ID]["num_updates_skipped"], result[ID]["num_updates_skipped"]) == (0, 1)
        assert len({*run.digests()}) == 1
    run.plan.clear()
    after = run.group.get_module(ID)
    assert all(p.isfinite().all() for p in after.parameters())
    assert differences(after.get_state(), before)  # by the other minibatches


@pytest.mark.faults
def test_updates_from_batches_since_the_last_state_are_done_again(made: Any) -> None:
    run = made(FaultRegression, num_learners=2)
    data = [batch(seed) for seed in range(5)]
    run.plan.write("die", rank=1, step=3)
    run.check_recovers(data, restarts=2)
    assert run.group.get_state()["num_updates"] == 5


@pytest.mark.faults
def test_asynchronous_updates_since_the_last_state_are_done_again(made: Any) -> None:
    run = made(num_learners=1)
    data = rollouts(6)

    def learn(*, dies: bool) -> tuple[list[str], int]:
        run.group.set_state(run.initial)
        for i, rollout in enumerate(data):
            run.group.wait_for_room()
            if i == 4 and dies:  # some updates have returned their weights
                run.plan.write("die", step=1)
            run.group.update_from_episodes(rollout, env_steps=0, async_update=True)
        run.group.get_state()  # waits for all
        return run.digests(), run.group.num_updates

    expected = learn(dies=False)
    assert learn(dies=True) == expected
    assert run.plan.times_left == 0
    assert run.processes.accounts.num_restarts == 1


@pytest.mark.faults
def test_a_stopped_learner_is_replaced_after_the_time_limit(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    size = len(run.pids())
    run.plan.write("stop", rank=size - 1, step=1)
    run.check_recovers(rollouts(), restarts=size)
    assert "no progress for 5 s" in caplog.text


@pytest.mark.faults
def test_without_restarts_the_loss_of_a_learner_ends_it_with_one_clear_error(made: Any) -> None:
    run = made(num_learners=2, restart_failed_learners=False)
    run.learn(rollouts(1))
    state = run.group.get_state()
    run.plan.write("exit", rank=1, step=1)
    with pytest.raises(WorkerFailed, match=r"learner 1.*os\._exit.*restart_failed_learners=True") as caught:
        run.learn(rollouts(1))
    assert caught.value.failure.kind == "died"
    with pytest.raises(WorkerFailed, match="learner 1"):
        run.learn(rollouts(1))
    assert differences(run.group.get_state(), state) == []  # what can be saved


@pytest.mark.faults
def test_after_the_end_what_was_handed_over_last_can_be_saved(made: Any) -> None:
    """Also where updates were done since, which went with the learners."""
    run = made(FaultRegression, num_learners=1, restart_failed_learners=False)
    run.group.summarize_updates(run.learn([batch(seed) for seed in range(2)]))
    state = clone(run.group.get_state())
    run.plan.write("exit", step=4)
    with pytest.raises(WorkerFailed, match=r"learner 0.*os\._exit") as caught:
        run.learn([batch(seed) for seed in range(2, 6)])
    assert "_Failed" not in "".join(traceback.format_exception(caught.value))
    assert state["num_updates"] == run.group.num_updates == 2
    run.group.get_module(ID).get_buffer("trained_on").fill_(77)  # as how much to explore is set
    state["module"][ID]["trained_on"].fill_(77)
    for _ in range(2):
        assert differences(run.group.get_state(), state) == []
    with pytest.raises(WorkerFailed, match="learner 0"):
        run.group.summarize_updates([{}])


@pytest.mark.faults
def test_a_crash_loop_ends(made: Any) -> None:
    run = made(max_restarts_in_a_row=1)
    run.plan.write("die", times=100)
    with pytest.raises(WorkerFailed, match=r"learner 0.*from_checkpoint"):
        run.learn(rollouts(1))
    assert run.plan.times_left == 98
    assert run.processes.accounts.num_restarts == 1


@pytest.mark.parametrize("slots", [1, 3])
def test_shards_may_be_ragged_or_empty(run: Run, slots: int) -> None:
    run.plan.clear()
    run.group.set_state(run.initial)
    run.learn(rollouts(2, slots))
    assert len({*run.digests()}) == 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = FaultSettings(folder=str(run.plan.folder), num_learners=0, minibatch_size=8 * len(run.pids()))
        local = LearnerGroup.create(settings, FaultReinforce, SPEC.as_multi(), run_seed=0)
    local.set_state(clone(run.initial))
    for i, rollout in enumerate(rollouts(2, slots)):
        local.update_from_episodes(rollout, env_steps=i)
    for name, value in local.module[ID].named_parameters():
        torch.testing.assert_close(run.group.module[ID].get_parameter(name), value, rtol=0, atol=1e-6)


@pytest.mark.faults
@pytest.mark.parametrize("num_learners", [1, 2])
def test_learners_that_are_killed_again_and_again_lose_nothing(made: Any, num_learners: int) -> None:
    """Twenty times, at other places each: the dying one itself, or the one that waits for it, which is released long
    before it would give up, however slowly processes start on a busy machine."""
    run = made(num_learners=num_learners, learner_timeout_s=300.0)
    data, draw = rollouts(3), random.Random(1)
    for _ in range(20):
        kind = draw.choice(["die", "kill peer"]) if num_learners > 1 else "die"
        run.plan.write(kind, rank=draw.randrange(num_learners), step=draw.randrange(4))
        run.check_recovers(data, restarts=num_learners)


@pytest.mark.faults
def test_a_learner_that_is_killed_before_its_updates_are_summarised_loses_nothing(made: Any) -> None:
    run = made(FaultRegression, num_learners=1)
    history = run.learn([batch(seed) for seed in range(5)])
    expected = run.group.get_state()["module"][ID]["pi.weight"].clone()
    os.kill(run.pids()[0], signal.SIGKILL)
    assert run.group.num_updates == 0  # the weights were not passed on yet
    assert run.group.summarize_updates(history)[ID]["num_updates_skipped"] == 0
    assert run.group.num_updates == 5
    assert torch.equal(run.group.get_module(ID).get_parameter("pi.weight"), expected)


@pytest.mark.faults
def test_learners_that_are_made_again_have_the_modules_of_before(made: Any) -> None:
    """Those that were added, without those that were removed; one of the beginning may have been replaced."""
    run = made(FaultRegression, num_learners=1)
    run.group.step_on_batch(batch(), env_steps=0)
    for module_id in ("first", "second"):
        run.group.add_module(module_id, SPEC)
    run.group.remove_module("first")
    run.group.remove_module(ID)
    for change in ("nothing", "added again", "removed again"):
        if change == "added again":
            run.group.add_module(ID, SPEC, train=False)
        if change == "removed again":
            run.group.remove_module(ID)
        before = clone(run.group.get_state())
        os.kill(run.pids()[0], signal.SIGKILL)
        run.group.step_on_batch(batch(), env_steps=0, module_id="second")
        run.group.get_state()
        assert [*run.group.module] == (["second", ID] if change == "added again" else ["second"])
        assert run.group.get_state()["module"].keys() == before["module"].keys()
        assert run.group.get_state()["num_updates"] == before["num_updates"] + 1


@pytest.mark.faults
def test_batch_learners_that_are_killed_lose_nothing(made: Any) -> None:
    run = made(FaultRegression, num_learners=2)
    data, draw = [batch(seed) for seed in range(100)], random.Random(2)
    for step in (0, 63, 64, 65, *(draw.randrange(100) for _ in range(4))):
        run.plan.write("die", rank=draw.randrange(2), step=step)
        run.check_recovers(data, restarts=2)
