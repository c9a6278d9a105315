"""Tables of cases that take turns: a part runs in `make test`, the next one after a commit, and all in `make check`."""

import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NUM_PARTS = 3


@cache
def number_of_commits() -> int:
    """Commits that the tree has come from; 0 where git is not installed or the tree is a copy without its history."""
    try:
        counted = subprocess.run(
            ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(counted.stdout)


def marks_of(part: int, num_parts: int = NUM_PARTS) -> list[pytest.MarkDecorator]:
    """All parts have the mark ``matrix``. Those whose turn it is not belong to the second stage."""
    is_its_turn = number_of_commits() % num_parts == part
    return [pytest.mark.matrix] if is_its_turn else [pytest.mark.matrix, pytest.mark.end_to_end]


def levels_of(cases: Sequence[Any]) -> set[tuple[str, str]]:
    return {level for case in cases for level in vars(case).items()}


def dealt(cases: Sequence[Any], num_parts: int = NUM_PARTS) -> list[list[Any]]:
    """Parts of the same size. Each in turn takes the case with the most levels that it lacks, so that all have all."""
    parts: list[list[Any]] = [[] for _ in range(num_parts)]
    left = [*cases]
    while left:
        for part in parts[: len(left)]:
            known = levels_of(part)
            taken = max(left, key=lambda case, known=known: len(vars(case).items() - known))
            left.remove(taken)
            part.append(taken)
    return parts


def taking_turns(values: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which every third has its turn."""
    return [pytest.param(value, marks=marks_of(number % NUM_PARTS)) for number, value in enumerate(values)]


def in_turn(cases: Sequence[Any]) -> list[Any]:
    """Parameters of a test: cases, by their names."""
    return [
        pytest.param(case, id=case.name, marks=marks_of(number))
        for number, part in enumerate(dealt(cases))
        for case in part
    ]
