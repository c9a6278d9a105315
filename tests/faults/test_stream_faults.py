"""Learners of a stream that are killed, stopped, and raise, whatever the runners and the driver do meanwhile: the run
goes on or ends with one clear error, runners are left alone, and every call of ``env.step`` is accounted for."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from algorithms.impala import IMPALAConfig, IMPALALearner
from catalog.base import Tree
from rlmodule.distributed.failures import WorkerFailed
from tests.fault_envs import num_step_calls
from tests.fault_learners import Plan
from tests.faults.commanded import make_env
from tests.waiting import is_running

pytestmark = [pytest.mark.usefixtures("ray_started"), pytest.mark.faults]

ROWS = 32
"""Of each update: two rollouts of 8 steps in 2 envs, whose episodes never end."""


class FaultIMPALA(IMPALALearner):
    """Suffers what is planned in the loss of its next update."""

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        settings: Any = self.settings
        plan_of(Path(settings.env_config["folder"])).strike(self.collective.rank, step=0)
        return super().compute_loss_for_module(module_id, batch, fwd_out)


def plan_of(folder: Path) -> Plan:
    return Plan(folder.parent / "plans")


class Stream:
    """A run of two runners and two learners, watched."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder / "envs"
        self.plan = plan_of(self.folder)
        for made in (self.folder, self.plan.folder):
            made.mkdir()
        config = (
            IMPALAConfig(num_env_steps_per_iteration=2 * ROWS, seed=1, model_config={"fcnet_hiddens": [8]}, **settings)
            .environment(make_env, env_config={"folder": str(self.folder), "mean_length": 1e9})
            .env_runners(num_env_runners=2, num_envs_per_env_runner=2, rollout_fragment_length=8)
            .env_runners(num_cpus_per_env_runner=0.1, env_step_timeout_s=60.0)
            .learners(num_learners=2, num_cpus_per_learner=0.1, learner_timeout_s=5.0, learner_class=FaultIMPALA)
            .training(train_batch_size_per_learner=ROWS // 2, minibatch_size=None, num_epochs=1)
        )
        self.algorithm = config.build()
        self.runners: Any = self.algorithm.env_runner_group
        self.learners: Any = self.algorithm.learner_group
        self.algorithm.train()
        self.pids = self.runners.workers.pids()

    def train(self, times: int) -> None:
        for _ in range(times):
            self.algorithm.train()

    def strike(self, kind: str, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let ``kind`` strike learner 1 in the next ``phase``."""
        method = {"posts weights": "post_weights", "waits for rollouts": "take"}.get(phase)
        if method is None:
            self.plan.write(kind, rank=1)
            return
        original = getattr(self.runners, method)

        def struck(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            if kind == "raise":
                self.plan.write(kind, rank=1)
            else:
                number = {"die": signal.SIGKILL, "stop": signal.SIGSTOP}[kind]
                os.kill(self.learners.workers.pids()[1], number)
            return original(*args, **kwargs)

        monkeypatch.setattr(self.runners, method, struck)

    def check(self) -> None:
        """Every step is learned, lost by a cause, or on its way; and no runner was disturbed."""
        learned = ROWS * self.learners.get_state()["num_updates"]  # once all updates are done
        self.runners.finish()
        held = sum(rollout.num_env_steps for rollout in self.runners.held)
        lost = self.runners.num_env_steps_lost.total()
        assert lost == self.runners.accounts.num_restarts == 0
        assert self.runners.workers.pids() == self.pids
        assert all(map(is_running, self.pids))
        assert num_step_calls(self.folder) == learned + self.learners.num_env_steps_dropped + lost + held


@pytest.fixture(scope="module")
def tough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """Its learners are restarted when they fail."""
    stream = Stream(tmp_path_factory.mktemp("tough"))
    yield stream
    stream.algorithm.stop()


@pytest.fixture
def frail(tmp_path: Path) -> Iterator[Stream]:
    """Its learners are not."""
    stream = Stream(tmp_path, restart_failed_learners=False)
    yield stream
    stream.algorithm.stop()


PHASES = pytest.mark.parametrize("phase", ["computes", "posts weights", "waits for rollouts"])


@PHASES
@pytest.mark.parametrize("kind", ["die", "stop"])
def test_a_learner_that_is_lost_costs_no_step(
    tough: Stream, kind: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = tough.learners
    restarts, dropped = learners.accounts.num_restarts, learners.num_env_steps_dropped
    tough.strike(kind, phase, monkeypatch)
    while learners.accounts.num_restarts == restarts:
        tough.train(1)
    tough.train(2)
    tough.check()
    assert learners.accounts.num_restarts == restarts + 2  # both, once
    assert learners.num_env_steps_dropped == dropped


@PHASES
def test_a_learner_that_raises_costs_the_updates_that_were_begun(
    tough: Stream, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = tough.learners
    restarts, dropped = learners.accounts.num_restarts, learners.num_env_steps_dropped
    tough.strike("raise", phase, monkeypatch)
    with pytest.raises(WorkerFailed, match=r"learner 1: expected no error, got ArithmeticError: the loss of your own"):
        tough.train(100)
    tough.check()
    tough.train(2)  # goes on
    tough.check()
    assert learners.accounts.num_restarts == restarts + 2
    assert 0 < learners.num_env_steps_dropped - dropped <= 3 * ROWS


@pytest.mark.parametrize(
    ("kind", "phase"), [("die", "computes"), ("die", "posts weights"), ("stop", "waits for rollouts")]
)
def test_without_restarts_it_ends_with_one_clear_error(
    frail: Stream, kind: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frail.strike(kind, phase, monkeypatch)
    with pytest.raises(WorkerFailed, match=r"learner 1: expected an answer.*restart_failed_learners=True") as caught:
        frail.train(100)
    frail.check()
    with pytest.raises(WorkerFailed) as again:
        frail.train(1)
    assert str(again.value) == str(caught.value)
    frail.check()
    assert frail.learners.accounts.num_restarts == 0
