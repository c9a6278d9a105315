"""How a command ends: its exit code, and one line for an error."""

import os
import select
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path

import catalog_rl

OK, FAILED, USAGE, INTERRUPTED, NOBODY_READS, TERMINATED = 0, 1, 2, 130, 141, 143
"""Done; an error, or a target that was missed; a command line that cannot be understood; Ctrl-C; what was printed went
into a pipe that is closed, as after ``| head``; SIGTERM. The last three are 128 and the signal's number."""

_LIBRARIES = [
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(Path(catalog_rl.__file__).with_name(package) for package in catalog_rl.PACKAGES),
]


class UsageError(Exception):
    """The command line cannot be understood: where, what was expected, what came, and what to type."""


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
            if isinstance(end.code, str):  # from the user's module
                raise
            code = end.code or OK
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
    """Check whether stdout is a closed pipe; then send what is still written to it nowhere.

    The pipes to worker processes break in the same way, which is an error.
    """
    poll = select.poll()
    poll.register(1)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def _readable(error: Exception) -> str:
    """Format an error as one line. One that is not of our making also says its type and how to see more."""
    text = " ".join(str(error).split())
    if ": expected " in text:
        return f"error: {text}"
    return f"error: {type(error).__name__}: {text}{_place(error)} (--debug shows the traceback)"


def _place(error: Exception) -> str:
    """Name the innermost line of the user's code, such as a net's, that raised; nothing if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(file.is_relative_to(folder) for folder in _LIBRARIES):
            return f", in {os.path.relpath(file)}:{frame.lineno}, {frame.name}"
    return ""
