"""Statistics of the scores of several runs, in one or several tasks, and whether two sets of runs differ.

The statistics are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
Scores are a list with an array ``[..., N]`` for each task, whose last dimension is the runs of that task. Tasks may
have different numbers of runs. Leading dimensions are those of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Scores = Sequence[Floats]

REPLICATES = 50_000
"""Replicates of a bootstrap."""
MOST_SPLITS = 20_000
"""Number of ways to split runs into two sets up to which a permutation test tries all of them, else that many at
random."""
FEWEST_RUNS = 4
"""With fewer runs of each, a permutation test of a single task finds no difference at 5 %."""
STANDARD_ERRORS = 2.8
"""A difference of so many standard errors is found at 5 % in four of five cases: 1.96 + 0.84."""
LEVEL = 0.95
"""Share of intervals that contain the true value, if there are many runs."""
_CHUNK = 2_000_000  # resampled scores that are in memory at once


def iqm(scores: Scores) -> Floats:
    """Return the interquartile mean: the mean of all scores without the lowest and the highest quarter, rounded down to
    whole scores."""
    ordered = np.sort(np.concatenate(scores, -1), -1)
    count = ordered.shape[-1]
    cut = count // 4
    return ordered[..., cut : count - cut].mean(-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> Floats:
    """Return by how much scores miss ``target`` on average. Scores above the target count as the target."""
    return target - _mean_of_tasks(np.minimum(task, target).mean(-1) for task in scores)


def performance_profile(scores: Scores, thresholds: Floats) -> Floats:
    """Return the share of runs with a score above each of ``thresholds`` ``[K]``, as a mean over tasks,
    ``[..., K]``."""
    return _mean_of_tasks((task[..., None, :] > thresholds[:, None]).mean(-1) for task in scores)


def probability_of_improvement(scores: Scores, others: Scores) -> Floats:
    """Return the probability that a run of ``scores`` is better than one of ``others`` in the same task, as a mean over
    tasks. Equal runs count half."""

    def of_task(x: Floats, y: Floats) -> Floats:
        difference = x[..., :, None] - y[..., None, :]
        return ((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1))

    return _mean_of_tasks(of_task(x, y) for x, y in zip(scores, others, strict=True))


def bootstrap_interval(
    statistic: Callable[..., Floats], *samples: Scores, replicates: int = REPLICATES, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return the bounds of the 95 % interval of a statistic, by the percentiles of a stratified bootstrap: runs are
    drawn again, with replacement, for each task of each sample.

    With few runs, the interval is too narrow: in simulations it contains the true IQM of three tasks in 86 % of cases
    with 3 runs, in 91 % with 5 and in 94 % with 10.

    Args:
        statistic: Function of as many scores as there are ``samples``, such as :func:`iqm`.
        samples: Scores, with an array ``[N]`` or ``[N, ...]`` for each task, whose first dimension is the runs. Further
            dimensions, such as points in time, are those of the result.
        replicates: Number of replicates.
        seed: Seed of the draws.
    """
    rng, values = np.random.default_rng(seed), []
    size = max(sum(task.size for sample in samples for task in sample), 1)
    for begin in range(0, replicates, max(1, _CHUNK // size)):
        count = min(max(1, _CHUNK // size), replicates - begin)
        drawn = [[_redrawn(task, count, rng) for task in sample] for sample in samples]
        values.append(statistic(*drawn))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(values), (tail, 1 - tail), axis=0)
    return low, high


def _redrawn(task: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return ``count`` samples with replacement of the runs of ``task`` ``[N, ...]``, ``[count, ..., N]``."""
    rows = rng.integers(len(task), size=(count, len(task)))
    return np.moveaxis(task[rows], 1, -1)


def _mean_of_tasks(values: Iterator[Floats]) -> Floats:
    return np.mean(np.stack([*values]), 0)


# --- comparison -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """How the scores of some runs compare with those of others.

    Attributes:
        difference: Difference of the two IQMs.
        low, high: Its 95 % interval, by :func:`bootstrap_interval`.
        probability: The :func:`probability_of_improvement`.
        p_value: Probability of a difference as clear as this one between runs that do not differ, by
            :func:`permutation_test`, which holds for any number of runs.
        num_runs: Number of runs of each, the fewest of any task.
    """

    difference: float
    low: float
    high: float
    probability: float
    p_value: float
    num_runs: int

    @property
    def verdict(self) -> str:
        """``"better"``, ``"worse"``, or ``"cannot tell"`` unless the permutation test finds a difference at 5 % and the
        interval excludes 0."""
        if self.p_value > 1 - LEVEL or self.low <= 0 <= self.high:
            return "cannot tell"
        return "better" if self.difference > 0 else "worse"

    @property
    def runs_to_decide(self) -> int | None:
        """About how many runs of each would decide in four of five cases, if the difference and the spread stay as they
        are; None if there is no difference."""
        if not self.difference:
            return None
        standard_error = (self.high - self.low) / 2 / 1.96
        needed = self.num_runs * (STANDARD_ERRORS * standard_error / abs(self.difference)) ** 2
        return max(math.ceil(needed), self.num_runs + 1, FEWEST_RUNS)


def compare(scores: Scores, others: Scores, *, replicates: int = REPLICATES) -> Comparison:
    """Compare scores with ``others`` in the same tasks, in the same order. Scores of several tasks must be on one
    scale, such as that from random to an expert.

    Raises:
        ValueError: If a task has no runs, or a score is not finite.
    """
    for task in (*scores, *others):
        if not len(task) or not np.isfinite(task).all():
            raise ValueError(f"compare(): expected finite scores of at least one run, got {task.tolist()}.")

    def gap(x: Scores, y: Scores) -> Floats:
        return iqm(x) - iqm(y)

    low, high = bootstrap_interval(gap, scores, others, replicates=replicates)
    return Comparison(
        difference=float(gap(scores, others)),
        low=float(low),
        high=float(high),
        probability=float(probability_of_improvement(scores, others)),
        p_value=permutation_test(scores, others),
        num_runs=min(len(task) for task in (*scores, *others)),
    )


def permutation_test(scores: Scores, others: Scores) -> float:
    """Return the share of ways to split the runs of each task into two sets for which the probability of improvement is
    at least as far from a half as it is. With few runs of a single task, try all ways."""
    pools = [np.concatenate([x, y]) for x, y in zip(scores, others, strict=True)]
    sizes = [len(x) for x in scores]
    if len(pools) == 1 and math.comb(len(pools[0]), sizes[0]) <= MOST_SPLITS:
        firsts = [np.array([*combinations(range(len(pools[0])), sizes[0])])]
        num_extra = 0
    else:
        rng = np.random.default_rng(0)
        orders = [rng.permuted(np.tile(np.arange(len(pool)), (MOST_SPLITS, 1)), axis=1) for pool in pools]
        firsts = [order[:, :size] for order, size in zip(orders, sizes, strict=True)]
        num_extra = 1  # the split that there is
    of_splits = _mean_of_tasks(_improvements(pool, chosen) for pool, chosen in zip(pools, firsts, strict=True))
    distances = np.abs(of_splits - 0.5)
    least = abs(float(probability_of_improvement(scores, others)) - 0.5) - 1e-9
    return float((np.count_nonzero(distances >= least) + num_extra) / (len(distances) + num_extra))


def _improvements(pool: Floats, chosen: np.ndarray) -> Floats:
    """Return the probability of improvement of several sets of runs over the rest of a task's runs, ``[K]``. The runs
    of each set are at the indices ``chosen`` ``[K, n]`` of ``pool`` ``[M]``."""
    size = chosen.shape[1]
    wins = (pool[:, None] > pool).sum(1) + 0.5 * (pool[:, None] == pool).sum(1)  # of each run against all
    # Half of the pairs of runs within a set are won.
    return (wins[chosen].sum(1) - size**2 / 2) / (size * (len(pool) - size))
