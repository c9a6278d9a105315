"""Showing how far a long action is: a bar on a terminal, lines in other outputs, and nothing where nobody asked."""

from __future__ import annotations

import builtins
import contextlib
import io
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from algorithms.run import progress
from algorithms.run.progress import display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In place of stderr; no fixture, since pytest sets stderr again when the test begins."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass by as many seconds as it is called with."""
    now = [100.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_a_line_comes_at_once_then_after_half_a_minute_and_at_the_end(
    clock: Callable[[float], None], capfd: pytest.CaptureFixture[str]
) -> None:
    lines = []
    with display(10, enabled=True, waiting="soon") as show:
        for done in range(1, 6):
            clock(13)
            show(done, f"{done} of 10")
            lines.append(capfd.readouterr().err)
    assert lines == ["1 of 10\n", "", "", "4 of 10\n", ""]
    assert capfd.readouterr().err == "5 of 10\n"


def test_what_was_shown_is_not_repeated_at_the_end(
    clock: Callable[[float], None], capfd: pytest.CaptureFixture[str]
) -> None:
    with display(2, enabled=True) as show:
        show(1, "one")
        clock(30)
        show(2, "two")
    assert capfd.readouterr() == ("", "one\ntwo\n")


def test_the_last_line_comes_even_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(ZeroDivisionError), display(2, enabled=True) as show:
        show(1, "one")
        raise ZeroDivisionError
    assert capfd.readouterr().err == "one\n"


@pytest.mark.parametrize("how", [{"enabled": False}, {"enabled": True, "lines": False}])
def test_quiet_without_a_terminal_if_lines_are_not_wanted(how: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with display(2, **how) as show:
        show(1, "one")
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_nothing_that_is_not_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with display(2, enabled=False) as show:
        show(1, "one")
    assert terminal.getvalue() == ""


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with display(2, enabled=True) as show:
        show(1, "one")
    assert terminal.getvalue() == "one\n"


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a process that runs the cells of a notebook: IPython is imported, with the shell of a kernel."""
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize("lines", [True, False])
def test_a_notebook_gets_one_line_at_once_that_changes_in_place_on_stdout(
    clock: Callable[[float], None], capfd: pytest.CaptureFixture[str], lines: bool
) -> None:
    with display(4, enabled=True, lines=lines, waiting="wait for it") as show:
        assert capfd.readouterr().out == "\rwait for it"
        show(1, "1 of 4")
        assert capfd.readouterr().out == "\r1 of 4     "  # covers what was there
        clock(0.1)
        show(2, "2 of 4")  # too soon to draw again
        clock(0.2)
        show(3, "3 of 4")
        show(4, "4 of 4")
        assert capfd.readouterr().out == "\r3 of 4"
    assert capfd.readouterr() == ("\r4 of 4\n", "")


@pytest.mark.usefixtures("notebook")
def test_a_notebook_shows_nothing_that_is_not_enabled(capfd: pytest.CaptureFixture[str]) -> None:
    with display(2, enabled=False) as show:
        show(1, "one")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("lines", [True, False])
def test_a_terminal_gets_a_bar_with_the_facts(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None], lines: bool
) -> None:
    terminal = make_terminal(monkeypatch)
    with display(4, enabled=True, lines=lines, waiting="wait for it") as show:
        assert "wait for it" in terminal.shown()
        clock(1)
        show(1, "[1] of 4")
        assert "[1] of 4" in terminal.shown()  # brackets are no markup
        clock(0.1)
        show(2, "2 of 4")
        assert "2 of 4" not in terminal.shown()  # too soon to draw again
        show(9, "9 of 4")
    assert "2 of 4" not in terminal.shown()
    assert "9 of 4" in terminal.shown()  # the end is drawn, however soon
    assert "━" * 20 in terminal.shown()
