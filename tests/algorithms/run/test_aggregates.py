"""Statistics of scores: against SciPy, double loops and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from algorithms.run.aggregates import (
    Comparison,
    bootstrap_interval,
    compare,
    iqm,
    optimality_gap,
    performance_profile,
    permutation_test,
    probability_of_improvement,
)

NUMBERS = st.floats(-1e3, 1e3, width=32)
SCORES = st.lists(arrays(np.float64, st.integers(1, 6), elements=NUMBERS), min_size=1, max_size=4)


@given(SCORES)
def test_the_interquartile_mean_is_scipy_s_trimmed_mean(scores: list[np.ndarray]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert iqm(scores) == pytest.approx(stats.trim_mean(np.concatenate(scores), 0.25), abs=1e-9)


def test_the_interquartile_mean_by_hand() -> None:
    assert iqm([np.array([1.0, 2.0, 30.0]), np.array([-50.0, 4.0, 6.0, 5.0, 3.0])]) == (2 + 3 + 4 + 5) / 4


@given(SCORES, SCORES)
def test_the_probability_of_improvement_is_that_of_a_double_loop(x: list[np.ndarray], y: list[np.ndarray]) -> None:
    x, y = x[: len(y)], y[: len(x)]
    of_tasks = []
    for task, other in zip(x, y, strict=True):
        wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in task for b in other)
        of_tasks.append(wins / (len(task) * len(other)))
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(of_tasks))


def test_gap_and_profile_by_hand() -> None:
    scores = [np.array([0.5, 2.0]), np.array([1.0, 0.0, 0.5, 0.5])]
    assert optimality_gap(scores) == pytest.approx((0.25 + 0.5) / 2)
    profile = performance_profile(scores, np.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(profile, [(1.0 + 0.75) / 2, (0.5 + 0.25) / 2, (0.5 + 0.0) / 2])


def test_runs_are_redrawn_within_their_task() -> None:
    means: list[np.ndarray] = []

    def kept(scores: list[np.ndarray]) -> np.ndarray:
        means.extend(task.mean(-1) for task in scores)
        return iqm(scores)

    low, high = bootstrap_interval(kept, [np.array([1.0, 3.0]), np.array([100.0])], replicates=400)
    first, second = means
    assert set(first) == {1.0, 2.0, 3.0}
    assert set(second) == {100.0}
    assert low < high


def test_an_interval_of_points_in_time_has_a_value_for_each() -> None:
    values = np.random.default_rng(1).normal(size=(6, 3)) + np.array([0.0, 10.0, 20.0])
    low, high = bootstrap_interval(iqm, [values], replicates=500)
    assert low.shape == high.shape == (3,)
    middle = iqm([values.T])
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (high - low < 5).all()


@pytest.mark.parametrize(("runs", "least", "most"), [(3, 0.78, 0.93), (5, 0.84, 0.96), (20, 0.90, 0.98)])
def test_how_often_an_interval_contains_the_true_value(runs: int, least: float, most: float) -> None:
    rng, hits = np.random.default_rng(runs), 0
    for seed in range(250):
        scores = [rng.normal(size=runs) + shift for shift in (0.0, 1.0, 2.0)]
        low, high = bootstrap_interval(iqm, scores, replicates=400, seed=seed)
        hits += bool(low <= 1.0 <= high)
    assert least <= hits / 250 <= most


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_equal_policies_are_rarely_called_different(runs: int) -> None:
    rng, different = np.random.default_rng(7), 0
    for _ in range(200):
        x, y = rng.normal(size=(2, 1, runs))
        different += compare([*x], [*y], replicates=300).verdict != "cannot tell"
    assert different / 200 <= 0.06


def test_what_differs_is_told_in_both_directions() -> None:
    low, high = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([6.0, 7.0, 8.0, 9.0, 10.0])
    better = compare([high], [low])
    assert (better.verdict, better.difference, better.probability) == ("better", 5.0, 1.0)
    assert compare([low], [high]).verdict == "worse"
    # all 252 ways to split ten runs into two fives: only the two extreme ones are as far apart
    assert better.p_value == pytest.approx(2 / 252)


def test_three_runs_of_each_are_too_few_and_more_are_named() -> None:
    found = compare([np.array([11.0, 12.0, 13.0])], [np.array([1.0, 2.0, 3.0])])
    assert found.p_value == pytest.approx(2 / 20)
    assert found.verdict == "cannot tell"
    assert found.runs_to_decide == 4
    # half the interval is twice the difference: 20 runs would only just exclude 0, half of the time
    assert Comparison(1.0, -1.0, 3.0, 0.7, 0.3, 5).runs_to_decide == math.ceil(20 * (2.8 / 1.96) ** 2) == 41


def test_hundreds_of_runs_fit_into_memory() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=400) + 1.0, rng.normal(size=400)
    assert permutation_test([x], [y]) == pytest.approx(1 / 20_001)


def test_splits_at_random_come_to_what_all_splits_do() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=9) + 1.0, rng.normal(size=9)  # 48,620 splits
    everywhere = [np.zeros(1)]
    both = permutation_test([x, *everywhere], [y, *everywhere]), permutation_test([x], [y])
    assert both[0] == pytest.approx(both[1], abs=0.01)


@pytest.mark.parametrize("wrong", [[], [np.nan, 1.0]])
def test_scores_that_say_nothing_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="expected finite scores of at least one run"):
        compare([np.array(wrong)], [np.array([1.0])])
