"""Schedules, target nets and updates keep time with the env steps that were taken."""

from __future__ import annotations

from math import floor
from pathlib import Path
from typing import Any

import pytest

from algorithms.registry import ALGORITHMS, config_class
from catalog.settings import settings_of
from tests.metrics_recounted.books import Books, Glide, Walk
from tests.metrics_recounted.test_results_equal_the_books import SAMPLING, acts_in, config_of

FROM_REPLAY = [name for name in ALGORITHMS if "training_intensity" in settings_of(config_class(name))]
BATCH = 32
STARTS, FRAGMENT = 64, 2
"""Env steps before the first update from replay, and those between two updates: one of each env."""


def run(algorithm: str, folder: Path, **settings: Any) -> Any:
    """Return the results of three iterations, and the number of gradient steps."""
    settings = {"train_batch_size_per_learner": BATCH} | settings
    settings |= {"num_steps_sampled_before_learning_starts": STARTS, "num_env_steps_per_iteration": 90}
    with config_of(algorithm, acts_in(algorithm, Walk, Glide), folder, **settings).build() as algo:
        results = [algo.train() for _ in range(3)]
        learner: Any = algo.learner_group.learner  # type: ignore[attr-defined]
        return results, learner.num_gradient_steps["default_policy"]


@pytest.mark.parametrize("algorithm", SAMPLING)
def test_learning_rates_follow_the_steps(algorithm: str, tmp_path: Path) -> None:
    results, _ = run(algorithm, tmp_path, lr=[[0, 1e-3], [1000, 1e-4]], training_intensity=None)
    for result in results:
        sampled = result["env_runners"]
        steps = sampled["num_env_steps_sampled_lifetime"]
        if algorithm not in FROM_REPLAY:  # the last update is of the steps before its batch
            steps -= BATCH
        rates = {n: x for n, x in result["learners"]["default_policy"].items() if n.startswith("learning_rate")}
        assert rates == pytest.approx(dict.fromkeys(rates, 1e-3 - 9e-4 * steps / 1000), rel=1e-6)
        assert rates
    assert Books(tmp_path).steps == results[-1]["env_runners"]["num_env_steps_sampled_lifetime"]


@pytest.mark.parametrize("algorithm", FROM_REPLAY)
def test_target_nets_move_as_often_as_the_setting_says(algorithm: str, tmp_path: Path) -> None:
    every = 7
    results, _ = run(algorithm, tmp_path, target_network_update_freq=every, training_intensity=None, policy_delay=1)
    steps = Books(tmp_path).steps
    # moves that were due before the first update are made up for by one
    assert results[-1]["learners"]["default_policy"]["num_target_updates"] == steps // every - STARTS // every + 1


def test_target_nets_of_a_stream_move_as_often_as_the_setting_says(tmp_path: Path) -> None:
    every = 48
    results, updates = run("APPO", tmp_path, target_network_update_freq=every, num_epochs=1, minibatch_size=None)
    # an update knows the steps before its batch, and reports the moves before its own
    steps = Books(tmp_path).steps - BATCH
    assert updates == Books(tmp_path).steps // BATCH
    assert results[-1]["learners"]["default_policy"]["num_target_updates"] == (steps - BATCH) // every


@pytest.mark.parametrize("algorithm", FROM_REPLAY)
def test_updates_are_as_many_as_the_setting_says(algorithm: str, tmp_path: Path) -> None:
    intensity, batch = 3.0, 32
    _, updates = run(algorithm, tmp_path, training_intensity=intensity, train_batch_size_per_learner=batch)
    assert updates == floor(intensity * (Books(tmp_path).steps - STARTS + FRAGMENT) / batch)
