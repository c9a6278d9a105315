"""What a run counts."""

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.run.metrics import RUNNER_PHASES, RunMetrics, episode_summary
from rlmodule import Columns, Rollout


def rollout(valid: list[bool], returns: list[float], lengths: list[int], **seconds: float) -> Rollout:
    return Rollout(
        columns={Columns.VALID: torch.tensor(valid).unsqueeze(-1)},
        last_obs=torch.zeros(1, 1),
        final_index=torch.zeros(0, 2, dtype=torch.int64),
        final_obs=torch.zeros(0, 1),
        stats={"episode_returns": np.array(returns), "episode_lengths": np.array(lengths), **seconds},
    )


def test_only_valid_rows_are_counted() -> None:
    metrics = RunMetrics(10)
    metrics.add_rollout(rollout([True, False, True], [1.0], [2]))
    metrics.add_rollout(rollout([True, True, True], [], []))
    first = metrics.finish_iteration(2.0, {})["env_runners"]
    assert (first["num_env_steps_sampled"], first["num_env_steps_sampled_lifetime"]) == (5, 5)
    assert first["num_env_steps_per_second"] == 2.5
    metrics.begin_iteration()
    metrics.add_rollout(rollout([True], [], []))
    second = metrics.finish_iteration(1.0, {})
    assert second["env_runners"]["num_env_steps_sampled"] == 1
    assert second["env_runners"]["num_env_steps_sampled_lifetime"] == 6
    assert (second["training_iteration"], second["time_total_s"]) == (2, 3.0)


def test_summary_is_over_the_most_recent_episodes() -> None:
    metrics = RunMetrics(3)
    metrics.add_rollout(rollout([True], [100.0, 1.0], [50, 4]))
    metrics.add_rollout(rollout([True], [2.0, 6.0], [5, 6]))
    result = metrics.finish_iteration(1.0, {})["env_runners"]
    assert result["episode_return_mean"] == 3.0
    assert (result["episode_return_min"], result["episode_return_max"], result["episode_len_mean"]) == (1.0, 6.0, 5.0)
    assert result["num_episodes_lifetime"] == 4


def test_nan_before_the_first_episode_ends() -> None:
    result = RunMetrics(3).finish_iteration(1.0, {})["env_runners"]
    names = [name for name, value in result.items() if isinstance(value, float) and math.isnan(value)]
    assert names == ["episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean"]
    assert episode_summary([2.0], [1])["episode_return_mean"] == 2.0


def test_timers_add_up_within_an_iteration() -> None:
    metrics = RunMetrics(3)
    metrics.add_rollout(rollout([True], [], [], env_step=1.0, forward=2.0))
    metrics.add_rollout(rollout([True], [], [], env_step=0.5))
    timers = {"update": 3.0, "forward": 0.5}
    result = metrics.finish_iteration(1.0, {"timers": timers, "mine": {"a": 1}})
    assert result["timers"] == {"env_step": 1.5, "forward": 2.5, "bookkeeping": 0.0, "update": 3.0}
    assert result["mine"] == {"a": 1}
    metrics.begin_iteration()
    assert metrics.finish_iteration(1.0, {})["timers"] == dict.fromkeys(RUNNER_PHASES, 0.0)


def test_an_iteration_leaves_out_what_came_before_it() -> None:
    metrics = RunMetrics(3)
    metrics.add_rollout(rollout([True, True], [1.0], [2], env_step=1.0))  # of an iteration that raised
    metrics.begin_iteration()
    metrics.add_rollout(rollout([True], [], [], env_step=0.5))
    result = metrics.finish_iteration(2.0, {})
    assert (result["timers"]["env_step"], result["env_runners"]["num_env_steps_sampled"]) == (0.5, 1)
    assert result["env_runners"]["num_env_steps_per_second"] == 0.5
    assert (result["env_runners"]["num_env_steps_sampled_lifetime"], metrics.episodes) == (3, 1)


def test_no_time_is_no_division_by_zero() -> None:
    metrics = RunMetrics(3)
    metrics.add_rollout(rollout([True], [], []))
    assert metrics.finish_iteration(0.0, {})["env_runners"]["num_env_steps_per_second"] > 0


def test_state_round_trip() -> None:
    metrics, other = RunMetrics(2), RunMetrics(2)
    metrics.add_rollout(rollout([True, True], [1.0, 2.0, 3.0], [7, 8, 9]))
    metrics.finish_iteration(2.0, {})
    other.set_state(json.loads(json.dumps(metrics.get_state())))
    assert other.get_state() == metrics.get_state()
    for each in (metrics, other):
        each.begin_iteration()
        each.add_rollout(rollout([True], [5.0], [1]))
    assert metrics.finish_iteration(1.0, {}) == other.finish_iteration(1.0, {})
    assert other.get_state()["returns"] == [3.0, 5.0]


def test_a_smaller_window_keeps_the_most_recent() -> None:
    metrics, other = RunMetrics(3), RunMetrics(1)
    metrics.add_rollout(rollout([True], [1.0, 2.0], [1, 1]))
    other.set_state(metrics.get_state())
    assert other.finish_iteration(1.0, {})["env_runners"]["episode_return_mean"] == pytest.approx(2.0)


# --- numbers of your own ---------------------------------------------------------------------------------------------


def taken(metrics: RunMetrics) -> dict[str, Any]:
    """What was logged, as a result gets it."""
    with metrics.reporting_logged(result := {}):
        return result


def test_what_is_logged_is_reported_once_as_its_mean() -> None:
    metrics = RunMetrics(3)
    for value in (1, 0.0, True, np.float32(0.5), np.bool_(False), torch.tensor(1.0), torch.ones(1, 1), np.array([2])):
        metrics.log_value("mine/score", value)
    metrics.log_value("other", -3)
    result: dict[str, Any] = {"custom_metrics": {"added": 1.0}}
    with metrics.reporting_logged(result):
        assert result == {"custom_metrics": {"added": 1.0, "mine/score": 6.5 / 8, "other": -3.0}}
        metrics.log_value("other", -1)  # by a callback that saw the result
    assert result == {"custom_metrics": {"added": 1.0, "mine/score": 6.5 / 8, "other": -2.0}}
    assert taken(metrics) == {}


def test_what_a_block_changes_in_reported_means_stays() -> None:
    metrics = RunMetrics(3)
    for name in ("share", "wrong", "again"):
        metrics.log_value(name, 0.5)
    result: dict[str, Any] = {}
    with metrics.reporting_logged(result):
        result["custom_metrics"]["share"] *= 100
        del result["custom_metrics"]["wrong"]
        metrics.log_value("again", 1.5)
    assert result == {"custom_metrics": {"share": 50.0, "again": 1.0}}
    assert taken(metrics) == {}


def test_nan_and_infinity_are_taken_as_they_are() -> None:
    metrics = RunMetrics(3)
    for name, value in (("a", math.nan), ("a", 1.0), ("b", math.inf), ("b", 1.0), ("c", 1.0)):
        metrics.log_value(name, value)
    logged = taken(metrics)["custom_metrics"]
    assert math.isnan(logged["a"])
    assert (logged["b"], logged["c"]) == (math.inf, 1.0)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("a", "3", r"log_value\('a'\): expected a number, got '3'\. Log its mean"),
        ("a", None, r"log_value\('a'\): expected a number, got None"),
        ("a", [1.0], r"log_value\('a'\): expected a number, got \[1\.0\]"),
        ("a", torch.zeros(2), r"log_value\('a'\): expected a number, got tensor\(\[0\., 0\.\]\)"),
        ("a", np.array(["x"]), r"log_value\('a'\): expected a number, got 'x'"),
    ],
)
def test_what_is_no_number_or_has_no_name_is_refused(name: Any, value: Any, text: str) -> None:
    metrics = RunMetrics(3)
    with pytest.raises(TypeError, match=text):
        metrics.log_value(name, value)
    assert taken(metrics) == {}


def test_what_is_logged_apart_stays_apart() -> None:
    metrics = RunMetrics(3)
    metrics.log_value("a", 1)
    with contextlib.suppress(ZeroDivisionError), metrics.logging_apart():
        metrics.log_value("a", 5)
        assert taken(metrics) == {"custom_metrics": {"a": 5.0}}
        metrics.log_value("b", 7)
        raise ZeroDivisionError
    assert taken(metrics) == {"custom_metrics": {"a": 1.0}}


def test_the_best_evaluation_is_the_greatest_that_is_a_number() -> None:
    metrics, best = RunMetrics(3), []
    for mean in (math.nan, -5.0, math.nan, -7.0, 2.0, 1.0, 3, np.float32(3.5)):  # callbacks may set any number
        metrics.note_evaluation({"evaluation": {"env_runners": {"episode_return_mean": mean}}})
        best.append(metrics.best_evaluation)
    assert best == [None, -5.0, -5.0, -5.0, 2.0, 2.0, 3.0, 3.5]
    other = RunMetrics(3)
    other.set_state(json.loads(json.dumps(metrics.get_state())))
    assert other.best_evaluation == 3.5
