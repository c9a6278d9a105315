"""The loggers of a run: which ones exist, how they are made and closed, and what is logged if one fails."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from algorithms import Algorithm
from algorithms.loggers import LOGGERS, LoggedRun, Logger, LoggerGroup, check_loggers
from algorithms.loggers.base import DEFAULT_LOGGERS, STEPS, LoggerFailed, flatten, numbers_of
from algorithms.loggers.csv import CsvLogger
from algorithms.loggers.jsonl import read_rows
from algorithms.ppo import PPOConfig

Begin = Callable[..., LoggedRun]


class Notes(Logger):
    """Keeps what it is given; fails where it is made to."""

    printed: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, run: LoggedRun, *, fails: str = "") -> None:
        super().__init__(run)
        self.fails = fails
        self._tell("made", run.name)

    def _tell(self, what: str, about: Any) -> None:
        self.printed.append((what, about))
        if what == self.fails:
            raise KeyError("the network")

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        self._tell("logged", env_steps)

    def close(self) -> None:
        self._tell("closed", None)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    monkeypatch.setattr(Notes, "printed", [])
    return Notes.printed


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Algorithm]]:
    """Builds small algorithms and closes them."""
    monkeypatch.chdir(tmp_path)
    made: list[Algorithm] = []

    def build(**settings: Any) -> Algorithm:
        small: dict[str, Any] = {"num_envs_per_env_runner": 4, "train_batch_size_per_learner": 64, "minibatch_size": 32}
        made.append(PPOConfig(env="CartPole-v1", num_epochs=1, seed=1, **small).update(settings).build())
        return made[-1]

    yield build
    for algorithm in made:
        algorithm.stop()


# --- which ------------------------------------------------------------------------------------------------------------


def test_a_run_with_a_folder_writes_json_lines_and_for_tensorboard(begin: Begin, tmp_path: Path) -> None:
    LoggerGroup(None, begin()).close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[1:] == ["progress.jsonl"]
    assert names[0].startswith("events.out.tfevents.")
    assert set(DEFAULT_LOGGERS) < set(LOGGERS)


def test_a_run_without_a_folder_logs_nowhere_unless_it_is_told_to(begin: Begin, printed: list[Any]) -> None:
    LoggerGroup(None, begin(folder=None)).log({}, 1)
    LoggerGroup([Notes], begin(folder=None)).log({}, 1)
    assert printed == [("made", "PPO on CartPole-v1"), ("logged", 1)]


def test_names_classes_and_functions_can_be_mixed(begin: Begin, tmp_path: Path, printed: list[Any]) -> None:
    run = begin()
    group = LoggerGroup(["csv", Notes, functools.partial(Notes, fails="never"), lambda run: Notes(run)], run)
    group.log({STEPS: 3}, 3)
    group.close()
    assert printed == [("made", run.name)] * 3 + [("logged", 3)] * 3 + [("closed", None)] * 3
    assert (tmp_path / "progress.csv").read_text() == f"{STEPS}\n3\n"


def test_a_misspelt_name_is_told_when_the_config_is_checked() -> None:
    with pytest.raises(
        ValueError, match=r"^loggers: expected one of .*, got 'tensorbord'\..* Did you mean 'tensorboard'"
    ):
        PPOConfig(env="CartPole-v1", loggers=["tensorbord"]).validate()


@pytest.mark.parametrize("logger", ["csv", CsvLogger])
def test_a_logger_that_needs_a_folder_is_told_of_before_the_run(logger: Any) -> None:
    with pytest.raises(ValueError, match=r"^loggers: .*(csv|CsvLogger).*: expected a run_dir, got None\. Set one:"):
        check_loggers([logger], None)
    check_loggers([logger], "runs/mine")


def test_a_function_that_makes_one_which_needs_a_folder_is_told_of_when_it_does(begin: Begin) -> None:
    with pytest.raises(ValueError, match=r"^loggers: .*CsvLogger.*: expected a run_dir, got None"):
        LoggerGroup([lambda run: CsvLogger(run)], begin(folder=None))


# --- failures ---------------------------------------------------------------------------------------------------------


def test_if_one_cannot_be_made_those_before_it_are_closed(begin: Begin, printed: list[Any]) -> None:
    with pytest.raises(ValueError, match="fax"):
        LoggerGroup([Notes, functools.partial(Notes, fails="closed"), "fax"], begin())
    assert printed == [("made", "PPO on CartPole-v1")] * 2 + [("closed", None)] * 2


@pytest.mark.parametrize(("action", "event"), [("log", "logged"), ("close", "closed")])
def test_one_that_fails_is_named_and_the_others_are_told_all_the_same(
    begin: Begin, printed: list[Any], action: str, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = LoggerGroup([Notes, functools.partial(Notes, fails=event), Notes], begin())
    text = rf"logger Notes\.{action}\(\): expected no error, got KeyError: 'the network'\. Fix"
    for _ in range(2 if action == "log" else 0):
        group.log({}, 5)
        assert re.match(rf"A result was not logged\. {text}", caplog.messages[-1])
    with pytest.raises(LoggerFailed, match=f"^{text}") as caught:
        group.log({}, 5) if action == "log" else group.close()
    assert isinstance(caught.value.__cause__, KeyError)
    assert [what for what, _ in printed].count(event) == (9 if action == "log" else 3)


def test_a_run_survives_a_logger_that_fails_now_and_then_and_counts_what_is_lost(
    make: Callable[..., Algorithm], caplog: pytest.LogCaptureFixture
) -> None:
    calls = itertools.count(1)

    class Flaky(Notes):
        def log(self, values: Mapping[str, Any], env_steps: int) -> None:
            if next(calls) in (2, 3, 5, 6):
                raise ConnectionError("away for a second")

    algorithm = make(run_dir="mine", loggers=["jsonl", Flaky])
    results = [algorithm.learn(num_env_steps=64) for _ in range(7)]
    assert [result.get("num_logs_failed") for result in results] == [None, 1, 2, 2, 3, 4, 4]
    assert len(caplog.messages) == 4
    rows = read_rows(Path("mine/progress.jsonl"))
    assert [row.get("num_logs_failed") for row in rows] == [None, None, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("run_dir", ["mine", None])
def test_a_logger_that_fails_three_times_in_a_row_ends_the_run_after_it_is_saved(
    run_dir: str | None, make: Callable[..., Algorithm], capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm = make(run_dir=run_dir, loggers=[functools.partial(Notes, fails="logged")])
    with pytest.raises(LoggerFailed, match=r"^logger Notes\.log\(\): expected no error"):
        algorithm.learn(num_env_steps=640)
    assert (algorithm.metrics.iterations, algorithm.stopped_by) == (3, None)
    (saved,) = Path().glob("mine/checkpoint" if run_dir else "runs/*/checkpoint")
    assert capsys.readouterr().err.endswith(f"{saved}\n")
    algorithm.stop()
    with Algorithm.from_checkpoint(saved, loggers=[]) as resumed:
        assert resumed.env_steps == 192


def test_what_failed_to_close_is_not_closed_again(begin: Begin, printed: list[Any]) -> None:
    group = LoggerGroup([functools.partial(Notes, fails="closed")], begin())
    with pytest.raises(RuntimeError):
        group.close()
    group.close()
    assert [what for what, _ in printed].count("closed") == 1


def test_a_run_whose_loggers_cannot_be_made_leaves_a_folder_to_begin_anew_in(make: Callable[..., Algorithm]) -> None:
    with pytest.raises(KeyError, match="the network"):
        make(run_dir="mine", loggers=["jsonl", functools.partial(Notes, fails="made")]).train()
    make(run_dir="mine", loggers=["jsonl"]).train()
    assert len(read_rows(Path("mine/progress.jsonl"))) == 1


# --- in a run ---------------------------------------------------------------------------------------------------------


def test_a_run_tells_every_iteration_and_closes_at_its_end(make: Callable[..., Algorithm], printed: list[Any]) -> None:
    algorithm = make(loggers=[Notes])
    assert printed == []
    algorithm.train()
    algorithm.train()
    algorithm.stop()
    assert printed == [("made", "PPO on CartPole-v1"), ("logged", 64), ("logged", 128), ("closed", None)]


def test_a_run_that_goes_on_from_its_checkpoint_goes_on_with_its_log(make: Callable[..., Algorithm]) -> None:
    with make(run_dir="mine", loggers=["jsonl", "csv"]) as algorithm:
        algorithm.train()
        algorithm.save("mine/checkpoint")
        algorithm.train()
    with Algorithm.from_checkpoint("mine/checkpoint") as algorithm:
        assert algorithm.train()["training_iteration"] == 2
        algorithm.train()
    assert [row[STEPS] for row in read_rows(Path("mine/progress.jsonl"))] == [64, 128, 192]
    assert len(Path("mine/progress.csv").read_text().splitlines()) == 4


def test_a_checkpoint_asks_again_for_loggers_that_could_not_be_saved(make: Callable[..., Algorithm]) -> None:
    make(loggers=[lambda run: Notes(run)]).save("saved")
    with pytest.raises(ValueError, match="loggers"):
        Algorithm.from_checkpoint("saved")
    Algorithm.from_checkpoint("saved", loggers=["jsonl"], run_dir="mine").stop()


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_result_is_flattened_to_plain_values() -> None:
    result = {"a": {"b": {"c": 1}, "nan": float("nan")}, "d": np.float32(0.5), "e": torch.tensor(2), "f": np.arange(2)}
    flat = dict(flatten(result))
    assert flat == {"a/b/c": 1, "a/nan": None, "d": 0.5, "e": 2, "f": [0, 1]}
    json.dumps(flat)
    assert dict(flatten({"x": torch.tensor(float("inf"))})) == {"x": None}


def test_numbers_are_picked_out_and_truth_is_one() -> None:
    values = {"a": 1, "b": 0.5, "c": None, "d": "text", "e": [1], "f": True}
    picked = numbers_of(values)
    assert picked == {"a": 1, "b": 0.5, "f": 1}
    assert type(picked["f"]) is int


def test_a_method_of_other_arguments_is_named_where_its_class_is_defined() -> None:
    with pytest.raises(TypeError, match=r"Short\.log\(\): .* Write def log\(self, values, env_steps\)"):
        type("Short", (Logger,), {"log": lambda self, values: None})


def test_what_is_no_logger_is_refused(begin: Begin) -> None:
    nothing: Any = lambda run: None  # noqa: E731
    with pytest.raises(TypeError, match=r"expected a Logger, got NoneType\. Return an instance of a class derived"):
        LoggerGroup([nothing], begin())


def test_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"loggers: expected each name once, got \['csv', 'csv'\]"):
        check_loggers(["csv", "csv"], "runs/mine")
