"""Counters of a run: env steps, updates from data, finished episodes, seconds per phase."""

import math
import numbers
import textwrap
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from algorithms.loggers.base import MOST_FAILED_IN_A_ROW, is_result
from catalog_rl import closest, remedy_for
from rlmodule.data.rollout import Rollout

RUNNER_PHASES = ("env_step", "forward", "bookkeeping")
"""Phases of sampling. The ``stats`` of a rollout hold the seconds that each phase took."""

LATER_COUNTERS = {"evaluated_at": None, "learning_stopped": False, "updates": 0, "unlogged": ()}
"""Attributes of :class:`RunMetrics` that checkpoints of earlier versions lack, with the values that they then get."""

COUNTERS = ("iterations", "seconds", "env_steps", "episodes", "best_evaluation", "last_evaluation", *LATER_COUNTERS)
"""All attributes of :class:`RunMetrics` that a checkpoint holds."""


class Result(dict[str, Any]):
    """The result of an iteration or evaluation, or its section ``env_runners``. For a missing key, the ``KeyError``
    says which key to use, also for keys of other libraries."""

    def __missing__(self, key: str) -> Any:
        remedy = remedy_for("result", key) or f"docs/metrics.md lists them.{closest(key, self)}"
        raise KeyError(f"result: expected one of {', '.join(self)}, got {key!r}. {remedy}")


class RunMetrics:
    """Counters over the whole run, and averages over a window of recent episodes.

    Args:
        window: Number of most recent episodes over which returns and lengths are averaged.
    """

    def __init__(self, window: int) -> None:
        self.iterations = 0
        self.seconds = 0.0
        self.env_steps = 0
        self.updates = 0
        """Gradient steps from data alone, which an algorithm counts that learns without sampling env steps."""
        self.episodes = 0
        self.best_evaluation: float | None = None
        """The greatest mean return of all evaluations so far; None before the first."""
        self.last_evaluation: float | None = None
        """The mean return of the last evaluation; None before the first."""
        self.evaluated_at: int | None = None
        """The iteration in which, or after which, the last evaluation took place; None before the first."""
        self.learning_stopped = False
        """Whether :meth:`algorithms.Algorithm.stop_learning` asked to end the run."""
        self.unlogged: tuple[dict[str, Any], ...] = ()
        """The last results, by path, that a logger could not log yet, as on a full disk. A run that continues from a
        checkpoint logs them again."""
        self._logged: dict[str, tuple[float, int]] = {}  # sum and number
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self.begin_iteration()

    def begin_iteration(self) -> None:
        """Count the steps and seconds of an iteration from now on, without those of an iteration that raised."""
        self._steps_before = self.env_steps
        self._timers: dict[str, float] = dict.fromkeys(RUNNER_PHASES, 0.0)

    def add_rollout(self, rollout: Rollout) -> None:
        """Add the steps, episodes and seconds of ``rollout`` to the counters."""
        stats = rollout.stats
        self.env_steps += rollout.num_env_steps
        self.episodes += len(stats["episode_returns"])
        self._returns.extend(stats["episode_returns"].tolist())
        self._lengths.extend(stats["episode_lengths"].tolist())
        for name, value in stats.get("env_log", {}).items():
            self.log_value(name, value)
        for phase in RUNNER_PHASES:
            self._timers[phase] += stats.get(phase, 0.0)

    @property
    def clock(self) -> int:
        """See :attr:`algorithms.Algorithm.clock`."""
        return self.env_steps + self.updates

    @property
    def clock_text(self) -> str:
        """The clock as text: ``1,000 env steps``, with the updates from data if there are any."""
        counts = {"updates from data": self.updates, "env steps": self.env_steps}
        return " and ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "0 env steps"

    def clock_entry(self) -> dict[str, int]:
        """Return the entry ``clock`` of a result, which only a run with updates from data has. In any other run, the
        clock is the number of env steps."""
        return {"clock": self.clock} if self.updates else {}

    @property
    def training_return(self) -> float:
        """The mean return of recent training episodes; NaN if none has ended."""
        return episode_summary(self._returns, self._lengths)["episode_return_mean"]

    @property
    def return_evaluated_last(self) -> float:
        """The mean return of an evaluation in or after the last iteration; NaN if there was none."""
        last = self.last_evaluation
        return last if last is not None and self.evaluated_at == self.iterations else math.nan

    def steps_of(self, module_id: str) -> int:
        """Return the number of steps in which a module acted, over the whole run. In a single-agent run, these are all
        env steps."""
        return self.env_steps

    def log_value(self, name: str, value: float | np.generic | np.ndarray | Tensor) -> None:
        """Log a custom number.

        The section ``custom_metrics`` of a result has the mean of the values logged under each name in that iteration.
        Values logged during an evaluation are in the result of the evaluation instead. Values logged between iterations
        belong to the next iteration, and are not part of a checkpoint.

        Args:
            name: Name of the number; ``"a/b"`` makes a group in TensorBoard.
            value: A number, or a tensor or array with one element. NaN and infinities make the mean NaN or infinite;
                loggers leave such means out.

        Raises:
            TypeError: If the value is not a number.
        """
        if isinstance(value, Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
            value = value.item()
        if not isinstance(value, numbers.Real):
            raise TypeError(
                f"log_value({name!r}): expected a number, got {textwrap.shorten(repr(value), 80)}. Log its mean, for "
                "example, or each under its own name."
            )
        total, count = self._logged.get(name, (0.0, 0))
        self._logged[name] = total + float(value), count + 1

    @contextmanager
    def reporting_logged(self, result: dict[str, Any]) -> Iterator[None]:
        """Add the section ``custom_metrics`` to ``result``: the mean of the values logged under each name. Within the
        block, callbacks may change it. Then add the means of names that were logged in the block, and forget all
        values."""
        before = self._logged.copy()
        _add_means(result, before)
        yield
        _add_means(result, {name: sums for name, sums in self._logged.items() if sums != before.get(name)})
        self._logged = {}

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the seconds of the ``with`` block to the run's total."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - start

    @contextmanager
    def logging_apart(self) -> Iterator[None]:
        """Within the block, log to a separate set of values, so that an evaluation does not change the means of the
        iteration."""
        before, self._logged = self._logged, {}
        try:
            yield
        finally:
            self._logged = before

    def note_evaluation(self, result: Mapping[str, Any]) -> None:
        """Set ``evaluated_at``. If the evaluation in ``result`` has a mean return, update ``last_evaluation`` and
        ``best_evaluation`` with it. NaN is never the best."""
        self.evaluated_at = self.iterations
        if (mean := evaluation_return(result)) is not None:
            self.last_evaluation = mean
            if mean > (-math.inf if self.best_evaluation is None else self.best_evaluation):
                self.best_evaluation = mean

    def finish_iteration(self, seconds: float, sections: dict[str, Any]) -> dict[str, Any]:
        """Return the result of an iteration that took ``seconds``: counters and ``sections``."""
        self.iterations += 1
        self.seconds += seconds
        for phase, value in sections.pop("timers", {}).items():
            self._timers[phase] = self._timers.get(phase, 0.0) + value
        sampled = {
            "num_episodes_lifetime": self.episodes,
            "num_env_steps_sampled": self.env_steps - self._steps_before,
            "num_env_steps_sampled_lifetime": self.env_steps,
            "num_env_steps_per_second": (self.env_steps - self._steps_before) / max(seconds, 1e-9),
        }
        result = Result(
            training_iteration=self.iterations,
            time_total_s=self.seconds,
            **self.clock_entry(),
            env_runners=Result(episode_summary(self._returns, self._lengths) | sampled),
            timers=dict(self._timers),  # rollouts sampled by hand later do not change it
        )
        result.update(sections)
        return result

    def get_state(self) -> dict[str, Any]:
        """Return the counters and the recent episodes as JSON values."""
        counters = {name: vars(self)[name] for name in COUNTERS}
        lists = {"unlogged": self.unlogged, "returns": self._returns, "lengths": self._lengths}
        return counters | {name: list(values) for name, values in lists.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`.

        Raises:
            ValueError: If ``unlogged`` is not what a run can have kept.
        """
        rows = state["unlogged"]
        if len(rows) > MOST_FAILED_IN_A_ROW or not all(map(is_result, rows)):
            raise ValueError(
                f"state/metrics/unlogged: expected at most {MOST_FAILED_IN_A_ROW} results, whose clock and seconds are "
                f"numbers, got {rows!s:.80}"
            )
        vars(self).update({name: state[name] for name in COUNTERS})
        self.unlogged = tuple(rows)
        for window, saved in ((self._returns, state["returns"]), (self._lengths, state["lengths"])):
            window.clear()
            window.extend(saved)


def _add_means(result: dict[str, Any], logged: Mapping[str, tuple[float, int]]) -> None:
    """Add the means of ``logged``, sum and number by name, to the section ``custom_metrics`` of ``result``."""
    if logged:
        means = {name: total / number for name, (total, number) in logged.items()}
        result.setdefault("custom_metrics", {}).update(means)


def episode_summary(returns: Collection[float], lengths: Collection[float]) -> dict[str, float]:
    """Return ``episode_return_mean``, ``episode_return_min``, ``episode_return_max`` and ``episode_len_mean``, all NaN
    if there are no episodes."""
    returns, lengths = returns or (math.nan,), lengths or (math.nan,)
    return {
        "episode_return_mean": sum(returns) / len(returns),
        "episode_return_min": min(returns),
        "episode_return_max": max(returns),
        "episode_len_mean": sum(lengths) / len(lengths),
    }


def evaluation_return(result: Mapping[str, Any]) -> float | None:
    """Return the mean return of the evaluation in ``result``. Return None if ``result`` has no evaluation, or if a
    callback replaced it with something else."""
    match result:
        case {"evaluation": {"env_runners": {"episode_return_mean": numbers.Real() as mean}}}:
            return float(mean)
    return None
