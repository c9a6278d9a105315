"""Runs of `benchmarks.learning` that end at once, without processes."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import NamedTuple

from benchmarks.learning import RESULT, Goal, Run


class EndedJob(NamedTuple):
    """A job that has ended."""

    name: str
    exit_code: int


class FakeJobs:
    """Takes the place of `algorithms.run.jobs.Jobs`.

    Args:
        result_of: Returns the run towards a goal with a seed, or None if it fails.
    """

    stopped_by = None

    def __init__(self, result_of: Callable[[Goal, int], Run | None]) -> None:
        self._result_of = result_of

    def __call__(self, most: int, on_line: Callable[[str, str], None], program: str) -> "FakeJobs":
        self._on_line = on_line
        return self

    def __enter__(self) -> "FakeJobs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self, name: str, args: Sequence[str]) -> EndedJob:
        _, goal, seed = args
        run = self._result_of(Goal(**json.loads(goal)), int(seed))
        self._on_line(name, "[W] a warning that is no JSON")
        if run is None:
            return EndedJob(name, 1)
        self._on_line(name, f"{RESULT}{json.dumps(asdict(run))}")
        self._on_line(name, "a warning after the result")
        return EndedJob(name, 0)

    def run_all(
        self, items: Iterable[tuple[Goal, int]], start: Callable[[tuple[Goal, int]], EndedJob]
    ) -> Iterator[tuple[tuple[Goal, int], EndedJob]]:
        for item in items:
            yield item, start(item)
