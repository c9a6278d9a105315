"""How a command ends: its exit code, and one line for an error."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Callable

OK, FAILED, USAGE, INTERRUPTED, NOBODY_READS, TERMINATED = 0, 1, 2, 130, 141, 143
"""Done; an error, or a target that was missed; a command line that cannot be understood; Ctrl-C; what was printed went
into a pipe that is closed, as after ``| head``; SIGTERM. The last three are 128 and the signal's number."""


class UsageError(Exception):
    """The command line cannot be understood."""


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
            code = end.code if isinstance(end.code, int) else OK
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
    return f"error: {type(error).__name__}: {text} (--debug shows the traceback)"
