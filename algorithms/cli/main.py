"""The ``rlmodule`` command.

A subcommand is a function from its arguments to an exit code, in a module of its own, and a line in :data:`COMMANDS`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from algorithms.cli.exits import FAILED, INTERRUPTED, OK, USAGE
from algorithms.cli.explain import explain
from algorithms.cli.flags import HelpWanted, UsageError
from algorithms.cli.train import train
from algorithms.registry import ALGORITHMS
from catalog.errors import closest, explain_error

COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "train": ("ALGO ENV [flags]", train),
    "explain": ("ENV [flags]", explain),
}
"""Name → its arguments and the function; a new command adds its line here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: The arguments; None takes the process's own.

    Returns:
        The exit code: 0, 1 for an error or a target that was not reached, 2 for a command line that cannot be
        understood, 130 after Ctrl-C, 143 after SIGTERM.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:  # a script has its own folder there instead; last, so that it hides nothing
        sys.path.append(os.getcwd())  # for environments beside the user: my_envs:MyEnv-v0
    try:
        if not args or args[0] in ("-h", "--help"):
            print(_overview())
            return OK if args else USAGE
        if args[0] not in COMMANDS:
            remedy = f"See rlmodule --help.{closest(args[0], COMMANDS)}"
            expected = f"one of {', '.join(COMMANDS)}"
            raise UsageError(explain_error("rlmodule", expected=expected, got=repr(args[0]), remedy=remedy))
        return COMMANDS[args[0]][1](args[1:])
    except HelpWanted:
        print(_overview())
        return OK
    except SystemExit as end:  # from tyro after --help or a value it cannot read, and after a SIGTERM
        return end.code if isinstance(end.code, int) else OK
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if "--debug" in args:
            traceback.print_exc()
        else:
            print(_readable(error), file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else FAILED


def _overview() -> str:
    lines = ["usage: rlmodule COMMAND ...", ""]
    for name, (arguments, command) in COMMANDS.items():
        lines += [f"  rlmodule {name} {arguments}", f"      {(command.__doc__ or '').strip()}"]
    algorithms = ", ".join(name.lower() for name in ALGORITHMS)
    lines += ["", f"ALGO is one of {algorithms}. The flags are listed by `rlmodule train ALGO --help` and the like."]
    lines += ["", "The first thing to try:", ""]
    return "\n".join([*lines, "  rlmodule train ppo CartPole-v1 --target-return 475 --evaluation-interval 5"])


def _readable(error: Exception) -> str:
    """One message for the terminal. An error that is not of our making also says its type and how to see more."""
    if ": expected " in str(error):
        return f"error: {error}"
    return f"error: {type(error).__name__}: {error} (--debug shows the traceback)"
