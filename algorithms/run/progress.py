"""Show the progress of a long action: a live bar on a terminal, else a line from time to time."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import TypeAlias

SECONDS_BETWEEN_LINES = 30.0
"""Least time between two lines of progress where stderr is not a terminal."""
SECONDS_BETWEEN_REDRAWS = 0.2

Show: TypeAlias = Callable[[int, str], None]
"""A function that shows progress, called with the amount done and a line of text."""


def display(total: int, *, enabled: bool, lines: bool = True, waiting: str = "") -> AbstractContextManager[Show]:
    """Return a context manager that yields ``show(done, facts)``, a function that shows progress on stderr.

    Args:
        total: The ``done`` at which the bar is full. ``facts`` is the line of text to show.
        enabled: Whether to show anything.
        lines: Whether to print lines if stderr is not a terminal.
        waiting: Text of the bar before the first call.
    """
    if enabled and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return _live(total, waiting)
    return _lines() if enabled and lines else nullcontext(lambda done, facts: None)


@contextmanager
def _lines() -> Iterator[Show]:
    """Yield ``show(done, facts)``, which prints ``facts`` every :data:`SECONDS_BETWEEN_LINES` at most, and at exit."""
    shown_at, waiting = perf_counter(), ""

    def show(done: int, facts: str) -> None:
        nonlocal shown_at, waiting
        waiting = facts
        if perf_counter() - shown_at >= SECONDS_BETWEEN_LINES:
            print(facts, file=sys.stderr, flush=True)
            shown_at, waiting = perf_counter(), ""

    try:
        yield show
    finally:
        if waiting:
            print(waiting, file=sys.stderr, flush=True)


@contextmanager
def _live(total: int, waiting: str) -> Iterator[Show]:
    """Yield ``show(done, facts)``, which fills a bar to ``done / total`` and sets the text next to it to ``facts``."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(bar_width=None), TextColumn("{task.fields[facts]}", markup=False)
    drawn_at = 0.0
    # without auto_refresh, whose thread would take time from training
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, expand=True) as bar:
        task = bar.add_task("", total=total, facts=waiting)
        bar.refresh()

        def show(done: int, facts: str) -> None:
            nonlocal drawn_at
            now = perf_counter()
            bar.update(task, completed=min(done, total), facts=facts)
            if now - drawn_at >= SECONDS_BETWEEN_REDRAWS:
                bar.refresh()
                drawn_at = now

        yield show
