"""The ``rlmodule`` command.

A subcommand is a function in a separate module and a line in :data:`COMMANDS`. The function takes the arguments after
the subcommand's name, and returns the exit code.
"""

import io
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from algorithms.cli.compare import compare
from algorithms.cli.doctor import doctor
from algorithms.cli.evaluate import evaluate
from algorithms.cli.exits import OK, USAGE, UsageError, exit_code_of
from algorithms.cli.explain import explain
from algorithms.cli.export import export
from algorithms.cli.inspect import inspect
from algorithms.cli.listing import list_known
from algorithms.cli.plot import plot
from algorithms.cli.push import push
from algorithms.cli.record import record
from algorithms.cli.train import train
from algorithms.cli.tune import tune
from algorithms.registry import ALGORITHMS
from catalog.errors import closest
from catalog.migration import remedy_for

COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "train": ("ALGO ENV [flags]", train),
    "tune": ("ALGO ENV [flags]", tune),
    "evaluate": ("CKPT [flags]", evaluate),
    "record": ("CKPT DIR [flags]", record),
    "export": ("CKPT FILE [flags]", export),
    "push": ("CKPT REPO [flags]", push),
    "plot": ("RUN ... [flags]", plot),
    "compare": ("RUN RUN ... [flags]", compare),
    "inspect": ("CKPT [flags]", inspect),
    "doctor": ("ENV [flags]", doctor),
    "explain": ("ENV [flags]", explain),
    "list": ("[algorithms|presets|spaces]", list_known),
}
"""Subcommand → its arguments, as the overview shows them, and its function. A new subcommand adds its line here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        The exit code; see :mod:`algorithms.cli.exits`.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:  # an installed script has only its own folder there; last, to hide no package
        sys.path.append(os.getcwd())  # for user modules, as in my_envs:MyEnv-v0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the locale lacks is printed as a question mark
    return exit_code_of(lambda: _run(args), debug="--debug" in args)


def _run(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_overview())
        return OK if args else USAGE
    if args[0] == "--version":
        print(f"catalog-rl {version('catalog-rl')}, Python {platform.python_version()}, torch {version('torch')}")
        return OK
    if args[0] not in COMMANDS:
        raise UsageError(
            f"rlmodule: expected one of {', '.join(COMMANDS)}, got {args[0]!r}. "
            + (remedy_for("command", args[0].replace("-", "_")) or f"See rlmodule --help.{closest(args[0], COMMANDS)}")
        )
    return COMMANDS[args[0]][1](args[1:])


def _overview() -> str:
    lines = ["usage: rlmodule COMMAND ...", ""]
    for name, (arguments, command) in COMMANDS.items():
        lines += [f"  rlmodule {name} {arguments}", f"      {(command.__doc__ or '').strip()}"]
    algorithms = ", ".join(name.lower() for name in ALGORITHMS)
    return (
        "\n".join(lines)
        + f"""

ALGO  {algorithms},
      or a config class of yours, my_module:MyConfig
ENV   a Gymnasium id such as CartPole-v1, or a class or factory of yours,
      my_module:make_env
RUN   a folder that train wrote, or one with the runs of several seeds
CKPT  a run, or a checkpoint in it

rlmodule COMMAND --help shows flags, train ppo --help SETTING explains one.
rlmodule --version prints the versions. To begin with:

  rlmodule train ppo CartPole-v1 --target-return 475 --evaluation-interval 5"""
    )
