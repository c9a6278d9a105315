"""How a command ends: its exit code, and one line for an error."""

from __future__ import annotations

import os
import select
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import algorithms
import catalog
import rlmodule

OK, FAILED, USAGE, INTERRUPTED, NOBODY_READS, TERMINATED = 0, 1, 2, 130, 141, 143
"""Done; an error, or a target that was missed; a command line that cannot be understood; Ctrl-C; what was printed went
into a pipe that is closed, as after ``| head``; SIGTERM. The last three are 128 and the signal's number."""


class UsageError(Exception):
    """The command line cannot be understood: where, what was expected, what came, and what to type."""

    def __init__(self, where: str, expected: str, got: object, remedy: str) -> None:
        super().__init__(f"{where}: expected {expected}, got {got}. {remedy}")


def exit_code_of(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command; errors become a line on stderr.

    Args:
        command: What to run; it returns its exit code.
        debug: Show the traceback of an error instead.
    """
    try:
        try:
            code = command()
        except SystemExit as end:  # after --help and after a SIGTERM
            if isinstance(end.code, str):  # said by somebody's module, before it left
                print(f"error: {end.code}", file=sys.stderr)
                return FAILED
            code = OK if end.code is None else end.code
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return NOBODY_READS
        if debug:
            traceback.print_exc()
        else:
            print(_readable(error), file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else FAILED
    return code


def _nobody_reads() -> bool:
    """Whether stdout is a pipe that was closed; then nothing more is written to it, not even at the end.

    The pipes to worker processes break in the same way, and are told as an error.
    """
    try:
        stdout = sys.stdout.fileno()
    except OSError:  # replaced by something in memory
        return False
    poll = select.poll()
    poll.register(stdout)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return True


def _readable(error: Exception) -> str:
    """One message for the terminal. An error that is not of our making also says its type and how to see more."""
    text = " ".join(str(error).split())
    if ": expected " in text:
        return f"error: {text}"
    return f"error: {type(error).__name__}: {text}{_place(error)} (--debug shows the traceback)"


def _place(error: Exception) -> str:
    """The line of the user's code, such as a net's, that an error came through last; nothing if there is none."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed |= {str(Path(module.__file__).parent) for module in (algorithms, catalog, rlmodule) if module.__file__}
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if Path(frame.filename).is_file() and not _is_below(frame.filename, installed)]
    if not theirs:
        return ""
    here = Path.cwd()
    file = Path(theirs[-1].filename)
    return (
        f", in {file.relative_to(here) if file.is_relative_to(here) else file}:{theirs[-1].lineno}, {theirs[-1].name}"
    )


def _is_below(file: str, folders: Iterable[str]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)
