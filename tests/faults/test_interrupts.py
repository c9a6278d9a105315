"""Ctrl-C anywhere: what it interrupts can be gone on with."""

import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from algorithms import Algorithm
from algorithms.ppo import PPOConfig
from rlmodule.groups.remote_env_runner_group import RemoteEnvRunnerGroup
from rlmodule.groups.remote_learner_group import RemoteLearnerGroup

DRIVER = tuple(
    f"/rlmodule/{name}.py"
    for name in (
        "distributed/interrupts",
        "distributed/ray_process",
        "distributed/ray_workers",
        "groups/remote_env_runner_group",
        "groups/remote_learner_group",
    )
)
EVERYTHING = ("/algorithms/", "/rlmodule/", "/ray/")


class Interrupt:
    """Presses Ctrl-C once, in this thread, before the given one of the lines that are run in files whose paths have one
    of ``parts``."""

    def __init__(self, line: int, parts: Sequence[str]) -> None:
        self.left, self.parts = line, parts
        self.where = ""

    def __enter__(self) -> None:
        sys.settrace(self._enter_function)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter_function(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        return self._go_through if any(part in path for part in self.parts) and path != __file__ else None

    def _go_through(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        self.left -= event == "line"
        if not self.left and not self.where:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            signal.raise_signal(signal.SIGINT)
        return self._go_through


def run_with(num_env_runners: int, num_learners: int, sample_ahead: int = 0) -> Algorithm:
    return (
        PPOConfig(env="CartPole-v1", seed=1)
        .env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=2, sample_ahead=sample_ahead)
        .learners(num_learners=num_learners)
        .training(train_batch_size_per_learner=64, minibatch_size=64, num_epochs=1)
        .reporting(run_dir=None)
        .build()
    )


def check_accounts(algorithm: Algorithm, where: str) -> None:
    """Each call of ``env.step`` is in a rollout that was counted or is held, or among the lost ones."""
    group = algorithm.env_runner_group
    group.finish()
    made = sum(known.counter.count for known in group._known.values())
    held = sum(rollout.num_env_steps for rollout in group.held)
    assert made == algorithm.env_steps + held + sum(group.num_env_steps_lost.values()), where


def pids(algorithm: Algorithm) -> list[int | None]:
    runners, learners = algorithm.env_runner_group, algorithm.learner_group
    found = runners.workers.pids() if isinstance(runners, RemoteEnvRunnerGroup) else []
    return [*found, *learners.workers.pids()] if isinstance(learners, RemoteLearnerGroup) else found


@pytest.mark.faults
@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize(
    ("num_env_runners", "num_learners", "sample_ahead"), [(2, 0, 0), (2, 0, 1), (0, 1, 0), (0, 2, 0)]
)
def test_an_iteration_can_be_interrupted_at_every_line(
    num_env_runners: int, num_learners: int, sample_ahead: int
) -> None:
    with run_with(num_env_runners, num_learners, sample_ahead) as algorithm:
        algorithm.train()
        before, line, interrupt = pids(algorithm), 1, None
        while interrupt is None or interrupt.where:
            interrupt = Interrupt(line, DRIVER)
            with suppress(KeyboardInterrupt), interrupt:
                algorithm.train()
            algorithm.train()
            assert pids(algorithm) == before, interrupt.where  # no process had to be restarted
            if num_env_runners:
                check_accounts(algorithm, interrupt.where)
            line += 3 if num_env_runners else 2
        assert line > 150


@pytest.mark.faults
@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize(("num_env_runners", "num_learners", "sample_ahead"), [(2, 1, 0), (2, 1, 1), (0, 2, 0)])
def test_whatever_is_interrupted_can_be_gone_on_with(
    num_env_runners: int, num_learners: int, sample_ahead: int, tmp_path: Path
) -> None:
    drawn, interrupted = random.Random(0), set[str]()
    with run_with(num_env_runners, num_learners, sample_ahead) as algorithm:
        algorithm.train()
        calls: list[Callable[[], object]] = [
            algorithm.train,
            algorithm.get_state,
            lambda: algorithm.evaluate(num_env_steps=16),
            lambda: algorithm.save(tmp_path / "checkpoint"),
        ]
        for i in range(120):
            interrupt = Interrupt(drawn.randrange(1, 1500), EVERYTHING)
            try:
                with interrupt:
                    calls[i % len(calls)]()
            except KeyboardInterrupt:
                interrupted.add(interrupt.where)
            assert not torch.is_inference_mode_enabled(), interrupt.where
            assert algorithm.train()["learners"]["default_policy"], interrupt.where
            assert algorithm.learner_group.get_state()["num_updates"] > 0
            algorithm.evaluate(num_env_steps=16)
    assert len(interrupted) > 40
