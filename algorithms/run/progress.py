"""Show the progress of a long action: a live bar on a terminal, a text that changes in a notebook, else lines."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from threading import Event, Thread
from time import perf_counter
from typing import TypeAlias

from algorithms.run.text import duration_text

SECONDS_BEFORE_LINE = 5.0
"""Time before the first line where there is neither a terminal nor a notebook. What takes less time shows nothing."""
SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_UPDATES = 1.0
"""Time between two updates of the text in a notebook."""
SECONDS_BETWEEN_REDRAWS = 0.2
"""Least time between two pictures of the bar on a terminal."""

Show: TypeAlias = Callable[[int, str], None]
"""A function that shows progress, called with the amount done and a line of text."""


def display(total: int, *, enabled: bool, waiting: str) -> AbstractContextManager[Show]:
    """Return a context manager that yields ``show(done, facts)``, a function that shows progress: in a notebook below
    the cell, else on stderr.

    Args:
        total: The ``done`` at which the bar is full. ``facts`` is the line of text to show.
        enabled: Whether to show anything.
        waiting: Text before the first call.
    """
    if not (enabled and sys.stderr):  # None if stderr was closed
        return nullcontext(lambda done, facts: None)
    if _is_notebook():
        return _written(_cell(waiting), waiting, 0.0, SECONDS_BETWEEN_UPDATES)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return _live(total, waiting)
    return _written(lambda text: print(text, file=sys.stderr), waiting, SECONDS_BEFORE_LINE, SECONDS_BETWEEN_LINES)


def _is_notebook() -> bool:
    """Return whether this process runs the cells of a Jupyter notebook."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


def _cell(waiting: str) -> Callable[[str], None]:
    """Create a display below the cell of a notebook, and return a function that replaces its text."""
    ipython = import_module("IPython.display")
    shown = ipython.display(ipython.Pretty(waiting), display_id=True)
    return lambda text: shown.update(ipython.Pretty(text))


@contextmanager
def _written(write: Callable[[str], None], waiting: str, first: float, then: float) -> Iterator[Show]:
    """Yield ``show(done, facts)``. Call ``write`` with the time and the latest ``facts`` after ``first`` seconds, then
    every ``then`` seconds, and at exit if it was called before. A thread does so, since an iteration may take minutes.
    """
    began, line, ended = perf_counter(), waiting, Event()

    def write_line() -> None:
        with suppress(OSError):  # nobody reads it, or the disk is full: the action is worth more than its progress
            write(f"{duration_text(perf_counter() - began)}  {line}")

    def write_in_time() -> None:
        due = first
        while not ended.wait(due):
            write_line()
            due = then

    def show(done: int, facts: str) -> None:
        nonlocal line
        line = facts

    thread = Thread(target=write_in_time, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        ended.set()
        thread.join()
        if perf_counter() - began >= first:
            write_line()


@contextmanager
def _live(total: int, waiting: str) -> Iterator[Show]:
    """Yield ``show(done, facts)``, which fills a bar to ``done / total`` and sets the text next to it to ``facts``."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(bar_width=None), TextColumn("{task.fields[facts]}", markup=False)
    drawn_at = 0.0
    # what a script prints into a file or a pipe stays there
    moves_prints = bool(sys.stdout and sys.stdout.isatty())
    # without auto_refresh, whose thread would take time from training
    drawn = {"console": Console(stderr=True), "auto_refresh": False, "redirect_stdout": moves_prints}
    bar = Progress(*columns, **drawn, expand=True)
    task = bar.add_task("", total=total, facts=waiting)

    def show(done: int, facts: str) -> None:
        nonlocal drawn_at
        now = perf_counter()
        bar.update(task, completed=min(done, total), facts=facts)
        if now - drawn_at >= SECONDS_BETWEEN_REDRAWS:
            drawn_at = now
            with suppress(OSError):  # the terminal is closed
                bar.refresh()

    bar.start()
    try:
        yield show
    finally:
        with suppress(OSError):
            bar.stop()
