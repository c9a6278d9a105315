"""progress.jsonl and progress.csv: what was logged is read back, whatever happened in between."""

from __future__ import annotations

import ast
import csv
import dataclasses
import errno
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.loggers import LoggedRun, base
from algorithms.loggers.base import SECONDS, STEPS, flatten
from algorithms.loggers.csv import CsvLogger
from algorithms.loggers.jsonl import JsonlLogger, read_rows
from algorithms.loggers.tensorboard import TensorBoardLogger
from tests.algorithms.loggers.test_tensorboard import points, read

Begin = Callable[..., LoggedRun]
Row = dict[str, Any]

NAMES = st.sampled_from(["a", "b/c", "evaluation/x"]) | st.text("ab/é,\"' \u2028", max_size=4)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
VALUES = NUMBERS | st.none() | st.text(max_size=3) | st.lists(st.dictionaries(st.just("path"), st.text(max_size=3)))
ROWS = st.dictionaries(NAMES, VALUES, max_size=4)
EVENTS = st.one_of(
    st.tuples(st.just("log"), ROWS),
    st.tuples(st.just("resume"), st.integers(0, 5)),  # so many rows back
    st.tuples(st.just("crash"), st.floats(0, 0.99)),  # in the middle of a line, of which this share was written
)


def logged_through(
    make: Callable[[LoggedRun], Any], name: str, events: list[tuple[str, Any]], read: Callable[[Path], list[Row]]
) -> tuple[list[Row], list[Row]]:
    """What a file should hold after ``events``, and what it does."""
    with tempfile.TemporaryDirectory() as folder:
        path, expected, steps = Path(folder) / name, [], 0

        def run() -> LoggedRun:
            return LoggedRun("PPO on X", Path(folder), steps, 0, {})

        logger = make(run())
        for event, about in events:
            if event == "log":
                steps += 10
                expected.append(about | {STEPS: steps})
                logger.log(expected[-1], steps)
                continue
            if event == "resume":
                expected = expected[: max(0, len(expected) - about)]
            elif expected:
                text = path.read_bytes()
                end = text[:-1].rfind(b"\n") + 1  # of the line before
                path.write_bytes(text[: end + int(about * (len(text) - 1 - end))])
                expected = expected[:-1]
            steps = expected[-1][STEPS] if expected else 0
            logger = make(run())
        return expected, read(path)


@given(st.lists(EVENTS, max_size=12))
def test_json_lines_hold_what_was_logged_up_to_the_checkpoint_that_a_run_went_on_from(events: Any) -> None:
    expected, came = logged_through(JsonlLogger, "progress.jsonl", events, read_rows)
    assert came == expected


def numbers(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {name: ast.literal_eval(text) for name, text in row.items() if text != ""} for row in csv.DictReader(file)
        ]


@given(st.lists(EVENTS, max_size=12))
def test_a_table_holds_the_numbers_that_were_logged_up_to_the_checkpoint_that_a_run_went_on_from(events: Any) -> None:
    expected, came = logged_through(CsvLogger, "progress.csv", events, numbers)
    assert came == [{k: v for k, v in row.items() if isinstance(v, int | float)} for row in expected]


class FullDisk:
    """A file system on which a write stops after ``left`` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.left = sys.maxsize
        monkeypatch.setattr(module, "open", self.open, raising=False)

    def open(self, *args: Any, **settings: Any) -> Any:
        file = open(*args, **settings)  # noqa: SIM115
        write = file.write

        def limited(data: bytes) -> int:
            if not self.left and data:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = write(data[: self.left])
            self.left -= written
            return written

        held = MagicMock(wraps=file)
        held.__enter__.return_value, held.__exit__.side_effect = held, lambda *_: file.close()
        held.write = limited
        return held


@pytest.mark.parametrize("kind", [JsonlLogger, CsvLogger, TensorBoardLogger])
def test_a_row_that_a_full_disk_cut_is_written_with_the_next_one(
    kind: Callable[[LoggedRun], Any], begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, disk = kind(begin()), FullDisk(monkeypatch, base)
    logger.log({STEPS: 1, "a": 1}, 1)
    before = logger.path.read_bytes()
    for steps in (2, 3):
        disk.left = 3
        with pytest.raises(OSError, match="No space left"):
            logger.log({STEPS: steps, "a": steps}, steps)
        assert logger.path.read_bytes() == before
    disk.left = sys.maxsize
    logger.log({STEPS: 4, "a": 4}, 4)
    disk.left = 0
    with pytest.raises(OSError, match="No space left"):
        logger.log({STEPS: 5, "a": 5}, 5)
    disk.left = sys.maxsize
    logger.close()
    if kind is TensorBoardLogger:
        assert points(read(tmp_path), "a") == [(steps, steps) for steps in range(1, 6)]
    else:
        rows = read_rows(logger.path) if kind is JsonlLogger else numbers(logger.path)
        assert rows == [{STEPS: steps, "a": steps} for steps in range(1, 6)]


def test_a_table_whose_new_column_could_not_be_written_gets_it_with_the_next_row(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = CsvLogger(begin())
    logger.log({STEPS: 1}, 1)
    with monkeypatch.context() as full:
        full.setattr("os.replace", MagicMock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            logger.log({STEPS: 2, "a": 2}, 2)
    logger.log({STEPS: 3}, 3)
    assert numbers(logger.path) == [{STEPS: 1}, {STEPS: 2, "a": 2}, {STEPS: 3}]


@pytest.mark.parametrize("kind", [JsonlLogger, CsvLogger])
def test_an_evaluation_at_the_end_that_the_checkpoint_has_not_seen_is_dropped(kind: Any, begin: Begin) -> None:
    logger = kind(begin())
    for seconds, more in ((0.1, {}), (0.30000000000000004, {}), (0.5, {"evaluation/x": 1})):
        logger.log({STEPS: 1 if seconds < 0.2 else 2, SECONDS: seconds, **more}, 2)
    for seconds, left in ((0.5, 3), (0.30000000000000004, 2)):
        resumed = kind(dataclasses.replace(begin(env_steps=2), seconds=seconds))
        rows = read_rows(resumed.path) if kind is JsonlLogger else numbers(resumed.path)
        assert len(rows) == left


def test_a_column_comes_with_its_first_number_and_stays_empty_where_there_is_none(begin: Begin) -> None:
    logger = CsvLogger(begin())
    logger.log({STEPS: 1, "a": 0.5}, 1)
    logger.log({STEPS: 2, "a": None, "evaluation/x": True}, 2)
    logger.log({STEPS: 3, "a": 1e-9, "videos": [{"path": "x.mp4"}]}, 3)
    assert logger.path.read_bytes().decode() == f"{STEPS},a,evaluation/x\n1,0.5,\n2,,1\n3,1e-09,\n"


def test_a_row_without_new_numbers_is_appended_and_others_replace_the_file(begin: Begin) -> None:
    logger = CsvLogger(begin())
    logger.log({STEPS: 1, "a": 1}, 1)
    first = logger.path.stat().st_ino
    logger.log({STEPS: 2, "a": 2}, 2)
    assert logger.path.stat().st_ino == first
    logger.log({STEPS: 3, "b": 3}, 3)
    assert logger.path.stat().st_ino != first
    assert [path.name for path in logger.path.parent.iterdir()] == ["progress.csv"]


def test_an_iteration_without_numbers_leaves_no_row_in_an_empty_table(begin: Begin) -> None:
    logger = CsvLogger(begin())
    logger.log({"a": None}, 0)
    logger.log({"a": 1}, 1)
    assert numbers(logger.path) == [{"a": 1}]


def test_json_lines_know_no_nan_also_inside_of_lists(begin: Begin) -> None:
    logger = JsonlLogger(begin())
    result = {"videos": [{"episode_return": float("nan"), "path": Path("x.mp4")}], "pair": (1, float("inf"))}
    logger.log(dict(flatten(result)), 0)
    assert json.loads(logger.path.read_text(), parse_constant=pytest.fail) == {
        "videos": [{"episode_return": None, "path": "x.mp4"}],
        "pair": [1, None],
    }


def test_json_lines_keep_numbers_of_numpy_numbers(begin: Begin) -> None:
    logger = JsonlLogger(begin())
    logger.log(dict(flatten({"a": [{"b": np.float32(0.5), "c": np.int64(2)}], "d": np.array([1.0, np.nan])})), 0)
    assert json.loads(logger.path.read_text()) == {"a": [{"b": 0.5, "c": 2}], "d": [1.0, None]}


def test_a_log_that_a_crash_of_the_machine_damaged_is_gone_on_with(begin: Begin) -> None:
    logger = JsonlLogger(begin())
    logger.log({STEPS: 1}, 1)
    with open(logger.path, "ab") as file:
        file.write(b'{"%b": "a text"}\n{"time_total_s": "a text"}\n\0\0\xff\xfe' % STEPS.encode())
    JsonlLogger(begin(env_steps=1)).log({STEPS: 2}, 2)
    assert read_rows(logger.path) == [{STEPS: 1}, {STEPS: 2}]
