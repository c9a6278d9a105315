"""Goal: when a run ends by itself. The run's folder keeps it, so that a run that resumes has the goal it began with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from algorithms.run.metrics import RunMetrics
from algorithms.run.saved_settings import read_about
from catalog.checks import Bounds, check_value

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm

StoppedBy: TypeAlias = Literal["steps", "target", "callback", "signal"]
"""What ended a call of ``learn()``: all env steps were sampled or all updates taken, the target return was reached, a
callback called ``stop_learning()``, or Ctrl-C, SIGTERM or SIGHUP arrived."""

Budget: TypeAlias = Literal["num_env_steps", "num_updates"]
"""The arguments of ``learn()`` that say how long to learn: env steps to sample, or gradient steps to take from data
alone."""

MEANINGS: dict[Budget, str] = {
    "num_env_steps": "Steps to sample from now on, over all envs.",
    "num_updates": "Gradient steps to take from data from now on.",
}
"""What the values of these arguments mean."""


@dataclass(frozen=True)
class Goal:
    """The steps and the mean return at which a run ends.

    Attributes:
        amount: Steps in all, including those before a checkpoint that the run resumed from.
        target_return: Mean return that ends the run earlier; None for none.
        budget: What ``amount`` counts.
    """

    amount: int
    target_return: float | None = None
    budget: Budget = "num_env_steps"

    def left(self, metrics: RunMetrics) -> int:
        """Return how many steps of ``amount`` a run with ``metrics`` still has to take; less than 0 if it took more."""
        return self.amount - spent(self.budget, metrics)

    def to_dict(self) -> dict[str, Any]:
        """Return the goal as JSON values, for :func:`read_goal`."""
        return {self.budget: self.amount, "target_return": self.target_return}

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
        return "steps" if self.left(algorithm.metrics) <= 0 else None


def goal_from_now(algorithm: Algorithm, budget: Budget, amount: int, target_return: float | None) -> Goal:
    """Return the goal of a call of ``learn()`` with these arguments: ``amount`` steps from now on.

    Raises:
        TypeError, ValueError: If ``amount`` is not an int >= 1, or ``target_return`` not a finite number or None.
    """
    amount = check_value(f"learn({budget}=)", amount, int, Bounds(ge=1), MEANINGS[budget])
    target = "Mean return to stop at; None for none."
    check_value("learn(target_return=)", target_return, float | None, Bounds(), target)
    return Goal(spent(budget, algorithm.metrics) + amount, target_return, budget)


def spent(budget: Budget, metrics: RunMetrics) -> int:
    """Return the steps so far that ``budget`` counts."""
    return metrics.updates if budget == "num_updates" else metrics.env_steps


def read_goal(run: Path) -> Goal | None:
    """Return the goal in run.json of the run folder ``run``. Return None if no call of ``learn()`` has written one.

    Raises:
        ValueError: If it is no goal.
    """
    about = read_about(run)
    if about is None or "goal" not in about:
        return None
    saved: Any = about["goal"]
    for budget in get_args(Budget):
        if isinstance(saved, Mapping) and saved.keys() == {budget, "target_return"}:
            steps, target = saved[budget], saved["target_return"]
            is_target = target is None or (type(target) in (int, float) and math.isfinite(target))
            if type(steps) is int and steps >= 1 and is_target:  # no bool
                return Goal(steps, target, budget)
    raise ValueError(
        f"{str(run / 'run.json')!r}: expected a goal with num_env_steps, an int >= 1, and target_return, a finite "
        f"number or null, got {saved!s:.80}. Type --num-env-steps for another goal."
    )
