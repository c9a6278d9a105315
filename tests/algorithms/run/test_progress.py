"""Showing how far a long action is: a bar on a terminal, a text in a notebook, else lines, and nothing where nobody
asked."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
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


RUN = """
import time
import gymnasium as gym
from algorithms.ppo import PPOConfig
from algorithms.run import progress

class Slow(gym.Wrapper):
    def step(self, action):
        time.sleep(0.05)
        return super().step(action)

progress.SECONDS_BEFORE_LINE, progress.SECONDS_BETWEEN_LINES = 1.0, 0.5
config = PPOConfig(env=lambda config: Slow(gym.make("CartPole-v1")), seed=1, num_envs_per_env_runner=1)
with config.training(train_batch_size_per_learner=64, minibatch_size=64).build() as algo:
    result = algo.learn(64, progress=True)
"""
"""One iteration, of three seconds and more."""
LAST = r"64/64 steps  \d+/s  return [\d.]+  0:00 left"


def test_times_of_lines() -> None:
    assert (progress.SECONDS_BEFORE_LINE, progress.SECONDS_BETWEEN_LINES) == (5, 30)


def test_a_pipe_gets_lines_also_while_an_iteration_runs() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == ""
    *lines, last = done.stderr.splitlines()
    assert re.fullmatch(rf"0:0\d  {LAST}", last)
    assert lines[0] == "0:01  first iteration …"
    assert len(lines) >= 4  # after 1.0, 1.5, 2.0 and 2.5 seconds


def test_a_terminal_gets_a_bar_between_iterations() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-c", RUN], stderr=theirs, env=environment)
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError):  # raised by Linux at the end
        while part := os.read(ours, 4096):
            printed += part
    os.close(ours)
    assert process.wait(300) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode())
    assert "first iteration …" in shown
    assert re.search(rf"━ {LAST}", shown)


def test_a_notebook_gets_one_display_that_changes_all_the_time() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    updates: list[tuple[float, str]] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, message: Any, cell: Any, cell_index: int) -> Any:
            if message["header"]["msg_type"] in ("display_data", "update_display_data"):
                updates.append((time.monotonic(), message["content"]["data"]["text/plain"]))
            return super().process_message(message, cell, cell_index)

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(RUN)])
    Client(notebook, timeout=300, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert re.fullmatch(rf"0:0\d  {LAST}", output.data["text/plain"])
    times = [at for at, _ in updates]
    assert len(times) >= 4
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 2
    assert "0:02  first iteration …" in [text for _, text in updates]


def test_what_takes_a_moment_shows_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    with display(2, enabled=True, waiting="soon") as show:
        show(1, "one")
    assert capfd.readouterr() == ("", "")


def test_the_last_line_comes_even_after_an_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BEFORE_LINE", 0.0)
    with contextlib.suppress(ZeroDivisionError), display(2, enabled=True, waiting="soon") as show:
        show(1, "one")
        raise ZeroDivisionError
    assert capfd.readouterr().err.endswith("0:00  one\n")


class Unread(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_nobody_has_to_read_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Unread())
    monkeypatch.setattr(progress, "SECONDS_BEFORE_LINE", 0.0)
    with display(2, enabled=True, waiting="soon") as show:
        show(1, "one")


def test_streams_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", None)
    with display(2, enabled=True, waiting="soon") as show:
        show(1, "one")
    assert "one" in terminal.shown()
    monkeypatch.setattr(sys, "stderr", None)
    with display(2, enabled=True, waiting="soon") as show:
        show(1, "one")


def test_what_is_printed_into_a_file_is_not_shown_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = make_terminal(monkeypatch), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with display(2, enabled=True, waiting="soon"):
        print("a line of the script")
    assert file.getvalue() == "a line of the script\n"
    assert "script" not in terminal.shown()


def test_a_terminal_shows_nothing_that_is_not_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with display(2, enabled=False, waiting="soon") as show:
        show(1, "one")
    assert terminal.getvalue() == ""


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress, "SECONDS_BEFORE_LINE", 0.0)
    with display(2, enabled=True, waiting="soon") as show:
        show(1, "one")
    assert terminal.getvalue().endswith("0:00  one\n")


def test_a_terminal_gets_a_bar_with_the_facts(monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]) -> None:
    terminal = make_terminal(monkeypatch)
    with display(4, enabled=True, waiting="wait for it") as show:
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
