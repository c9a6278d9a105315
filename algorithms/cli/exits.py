"""Exit codes of commands, and the line that an error prints."""

import os
import re
import select
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path

import catalog_rl
from catalog_rl import printable

# Exit codes. FAILED: an error or a missed target. USAGE: a wrong command line. INTERRUPTED: Ctrl-C. NOBODY_READS:
# stdout is a closed pipe, as after `| head`. TERMINATED: SIGTERM. The last three are 128 plus a signal number.
OK, FAILED, USAGE, INTERRUPTED, NOBODY_READS, TERMINATED = 0, 1, 2, 130, 141, 143

_LIBRARIES = [
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(Path(catalog_rl.__file__).with_name(package) for package in catalog_rl.PACKAGES),
]
# The setting that an error begins with. The names after ?! are no flags.
_SETTING = re.compile(r"^(?:\w+Config\.|model_config\.|(?=search:))(?!env:|rl_module_spec:|model_config:)(\w+):")
_IN_A_SHELL = {
    "Call learn(": "Type learn(",
    ".environment(make_env)": "my_module:make_env",
    "module_id=.": "--module-id.",
    "replay_in_checkpoints=True": "--replay-in-checkpoints",
    "help() of the method or class lists them": "rlmodule train ALGO --help all lists them",
}
"""What errors say about Python code that is no call with keywords → what they say in a shell."""


class UsageError(Exception):
    """Raised for a wrong command line. The message says where, what was expected, what was typed, and what to type."""


def exit_code_of(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command, print an error as one line on stderr, and return the exit code.

    Args:
        command: The command; returns its exit code.
        debug: Print the traceback of an error instead of one line.
    """
    try:
        try:
            code = command()
        except SystemExit as end:  # raised by --help, and by SIGTERM and SIGHUP
            if isinstance(end.code, str):  # raised by the user's module
                raise
            code = end.code or OK
        if sys.stdout:  # None if stdout was closed
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
    """Return whether stdout is a closed pipe, and if so redirect it to the null device.

    A broken pipe to a worker process raises the same error as a closed stdout, but means that the command failed.
    """
    poll = select.poll()
    poll.register(1)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def kebab(name: str) -> str:
    """Return the flag of the setting ``name`` without leading dashes, such as ``num-env-steps``."""
    return name.strip("_").replace("_", "-")


def on_flags(text: str) -> str:
    """Rewrite what an error or a hint says about Python code as what to type in a shell: ``.training(lr=...)`` becomes
    ``--lr``, ``.reporting(run_dir='runs/mine')`` becomes ``--run-dir runs/mine``, and at the beginning
    ``PPOConfig.gamma:`` becomes ``--gamma:``."""

    def flags(call: re.Match[str]) -> str:
        arguments = re.findall(r"(\w+)=[^\w,]*(\w[\w/.-]*)?", call[1])
        typed = [f"--{kebab(name)} {value}".removesuffix(" True").rstrip() for name, value in arguments]
        return " and ".join(typed)

    text = _SETTING.sub(lambda name: f"--{kebab(name[1])}:", text)
    for python, shell in _IN_A_SHELL.items():
        text = text.replace(python, shell)
    load = re.compile(r"Algorithm\.from_checkpoint\('([^']+)'\)")
    text = load.sub(lambda call: f"rlmodule train --load {shlex.quote(call[1])}", text)
    return re.sub(r"(?<!\w)(?:learn|\.\w+)\(((?:\w+=[^()]*)+)\)", flags, text)


def _readable(error: Exception) -> str:
    """Format an error as one line. If its message is not in this library's form, add its type, its place and the flag
    that shows the traceback."""
    text = printable(" ".join(str(error).split()))
    if ": expected " in text:
        return f"error: {on_flags(text)}"
    return f"error: {type(error).__name__}: {text}{_place(error)} (--debug shows the traceback)"


def _place(error: Exception) -> str:
    """Return the file, line and function of the innermost user code in the traceback, as text that begins with a comma.
    Return an empty string if the traceback has no user code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(file.is_relative_to(folder) for folder in _LIBRARIES):
            return f", in {os.path.relpath(file)}:{frame.lineno}, {frame.name}"
    return ""
