"""Runs of the learning benchmark, which leave its stored runs alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import learning
from benchmarks.learning import Goal

SEEDS = 5
WORKERS = 2


@pytest.fixture
def check_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Goal], None]:
    """Return a function that runs the seeds of a goal, each in a process, and fails unless it is reached."""
    monkeypatch.setattr(learning, "RUNS", tmp_path / "learning.jsonl")

    def check(goal: Goal) -> None:
        (row,) = learning.measure([goal], SEEDS, WORKERS, Console(quiet=True))
        assert row.reached, [str(run) for run in row.runs]

    return check
