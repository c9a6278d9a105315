"""Ctrl-C anywhere: what it interrupts can be gone on with."""

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from algorithms import Algorithm
from algorithms.ppo import PPOConfig

PACKAGES = ("/algorithms/", "/rlmodule/", "/ray/")


class Interrupt:
    """Presses Ctrl-C once, before the given one of the lines that are run, in this thread, of our files and Ray's."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.where = ""

    def __enter__(self) -> None:
        sys.settrace(self._enter_function)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter_function(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        return self._go_through if any(package in path for package in PACKAGES) and path != __file__ else None

    def _go_through(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        self.left -= event == "line"
        if not self.left and not self.where:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            signal.raise_signal(signal.SIGINT)
        return self._go_through


@pytest.mark.faults
@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize(("num_env_runners", "num_learners"), [(2, 1), (0, 2)])
def test_a_run_goes_on_after_an_interrupt_anywhere(num_env_runners: int, num_learners: int, tmp_path: Path) -> None:
    config = (
        PPOConfig(env="CartPole-v1", seed=1)
        .env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=2)
        .learners(num_learners=num_learners)
        .training(train_batch_size_per_learner=64, minibatch_size=64, num_epochs=1)
        .reporting(run_dir=None)
    )
    drawn, interrupted = random.Random(0), set[str]()
    with config.build() as algorithm:
        algorithm.train()
        calls: list[Callable[[Algorithm], object]] = [
            lambda it: it.train(),
            lambda it: it.get_state(),
            lambda it: it.evaluate(num_env_steps=16),
            lambda it: it.save(tmp_path / "checkpoint"),
        ]
        for i in range(120):
            interrupt = Interrupt(drawn.randrange(1, 1500))
            try:
                with interrupt:
                    calls[i % len(calls)](algorithm)
            except KeyboardInterrupt:
                interrupted.add(interrupt.where)
            assert algorithm.train()["learners"]["default_policy"], interrupt.where
            assert algorithm.learner_group.get_state()["num_updates"] > 0
            algorithm.evaluate(num_env_steps=16)
    assert len(interrupted) > 40
