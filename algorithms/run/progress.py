"""Show the progress of a long action: a live bar on a terminal, a line that changes in place in a notebook, else a line
from time to time."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import TypeAlias

SECONDS_BETWEEN_LINES = 30.0
"""Least time between two lines of progress where stderr is not a terminal, after the first line."""
SECONDS_BETWEEN_REDRAWS = 0.2

Show: TypeAlias = Callable[[int, str], None]
"""A function that shows progress, called with the amount done and a line of text."""


def display(total: int, *, enabled: bool, lines: bool = True, waiting: str = "") -> AbstractContextManager[Show]:
    """Return a context manager that yields ``show(done, facts)``, a function that shows progress: in a notebook on
    stdout, since notebooks frame stderr as an error, else on stderr.

    Args:
        total: The ``done`` at which the bar is full. ``facts`` is the line of text to show.
        enabled: Whether to show anything.
        lines: Whether to print lines if there is neither a terminal nor a notebook.
        waiting: Text of the bar before the first call.
    """
    if enabled and _is_notebook():
        return _in_place(waiting)
    if enabled and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return _live(total, waiting)
    return _lines() if enabled and lines else nullcontext(lambda done, facts: None)


@contextmanager
def _lines() -> Iterator[Show]:
    """Yield ``show(done, facts)``, which prints ``facts`` when it is first called, then every
    :data:`SECONDS_BETWEEN_LINES` at most, and at exit."""
    shown_at, waiting = -math.inf, ""

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


def _is_notebook() -> bool:
    """Return whether this process runs the cells of a Jupyter notebook."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


@contextmanager
def _in_place(waiting: str) -> Iterator[Show]:
    """Yield ``show(done, facts)``, which replaces the line that it printed before with ``facts``."""
    drawn_at, line, drawn = -math.inf, waiting, ""

    def draw() -> None:
        nonlocal drawn
        if line != drawn:
            print("\r" + line.ljust(len(drawn)), end="", flush=True)  # blanks cover a longer line before
            drawn = line

    def show(done: int, facts: str) -> None:
        nonlocal drawn_at, line
        now, line = perf_counter(), facts
        if now - drawn_at >= SECONDS_BETWEEN_REDRAWS:
            draw()
            drawn_at = now

    draw()
    try:
        yield show
    finally:
        draw()
        print()


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
