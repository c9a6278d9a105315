"""Goal: when a run ends by itself. The run's folder keeps it, so that a run that resumes has the goal it began with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from algorithms.run.saved_settings import read_about

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm

StoppedBy: TypeAlias = Literal["steps", "target", "callback", "signal"]
"""What ended a call of ``learn()``: all steps were sampled, the target return was reached, a callback called
``stop_learning()``, or Ctrl-C or SIGTERM arrived."""


@dataclass(frozen=True)
class Goal:
    """The steps and the mean return at which a run ends.

    Attributes:
        num_env_steps: Env steps in all, including those before a checkpoint that the run resumed from.
        target_return: Mean return that ends the run earlier; None for none.
    """

    num_env_steps: int
    target_return: float | None = None

    def is_target_reached(self, algorithm: Algorithm) -> bool:
        """Return whether the mean return after the last iteration is at least ``target_return``: that of an evaluation
        or, if ``evaluation_interval`` is None, that of recent training episodes."""
        metrics, evaluates = algorithm.metrics, algorithm.config.evaluation_interval is not None
        judged = metrics.return_evaluated_last if evaluates else metrics.training_return
        return self.target_return is not None and judged >= self.target_return  # not for NaN

    def stopped_by(self, algorithm: Algorithm) -> StoppedBy | None:
        """Return why a run with this goal is over, or None if it is not. The answer depends only on what a checkpoint
        holds, so a run that was killed after its last iteration resumes with the same answer."""
        if self.is_target_reached(algorithm):
            return "target"
        if algorithm.metrics.learning_stopped:
            return "callback"
        return "steps" if algorithm.env_steps >= self.num_env_steps else None


def read_goal(run: Path) -> Goal | None:
    """Return the goal in run.json of the run folder ``run``. Return None if no call of ``learn()`` has written one.

    Raises:
        ValueError: If it is no goal.
    """
    about = read_about(run)
    if about is None or "goal" not in about:
        return None
    saved: Any = about["goal"]
    if isinstance(saved, Mapping) and saved.keys() == {"num_env_steps", "target_return"}:
        steps, target = saved["num_env_steps"], saved["target_return"]
        is_target = target is None or (type(target) in (int, float) and math.isfinite(target))
        if type(steps) is int and steps >= 1 and is_target:  # no bool
            return Goal(steps, target)
    raise ValueError(
        f"{str(run / 'run.json')!r}: expected a goal with num_env_steps, an int >= 1, and target_return, a finite "
        f"number or null, got {saved!s:.80}. Type --num-env-steps for another goal."
    )
