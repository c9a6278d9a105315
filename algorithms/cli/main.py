"""The ``rlmodule`` command.

A subcommand is a function in a separate module and a line in :data:`COMMANDS`. The function takes the arguments after
the subcommand's name, and returns the exit code. Only the module of the subcommand that runs is imported, so that the
overview appears at once.
"""

import io
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pkgutil import resolve_name

from algorithms.cli.exits import OK, USAGE, UsageError, exit_code_of
from algorithms.registry import ALGORITHMS
from catalog_rl import closest, remedy_for

COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": ("ALGO ENV [flags]", "Train ALGO on ENV, and write the run's folder.", "algorithms.cli.train:train"),
    "tune": (
        "ALGO ENV [flags]",
        "Search settings of ALGO on ENV, and print a command that repeats the best.",
        "algorithms.cli.tune:tune",
    ),
    "evaluate": (
        "CKPT [flags]",
        "Play episodes with a checkpoint; --video records and --render shows them.",
        "algorithms.cli.evaluate:evaluate",
    ),
    "record": (
        "CKPT DIR [flags]",
        "Play episodes with a checkpoint, and write them as a data set.",
        "algorithms.cli.record:record",
    ),
    "export": (
        "CKPT FILE [flags]",
        "Write the policy of a run as FILE: x.onnx, x.pt2 or a folder.",
        "algorithms.cli.export:export",
    ),
    "push": ("CKPT REPO [flags]", "Write the policy of a run to the Hugging Face Hub.", "algorithms.cli.push:push"),
    "plot": (
        "RUN ... [flags]",
        "Draw the learning curves of runs, and print a table that compares them.",
        "algorithms.cli.plot:plot",
    ),
    "compare": (
        "RUN RUN ... [flags]",
        "Say whether runs are better than others, worse, or too few to tell.",
        "algorithms.cli.compare:compare",
    ),
    "inspect": (
        "CKPT [flags]",
        "Show what a checkpoint holds: its history, settings, nets and size.",
        "algorithms.cli.inspect:inspect",
    ),
    "doctor": ("ENV [flags]", "Examine ENV, and say what is wrong with it.", "algorithms.cli.doctor:doctor"),
    "explain": ("ENV [flags]", "Show which networks are chosen for ENV, and why.", "algorithms.cli.explain:explain"),
    "list": (
        "[algorithms|presets|spaces]",
        "List the algorithms, the presets, and the spaces with networks.",
        "algorithms.cli.listing:list_known",
    ),
}
"""Subcommand → its arguments and purpose, as the overview shows them, and its function, which is imported on demand. A
new subcommand adds its line here."""


def function_of(command: str) -> Callable[[Sequence[str]], int]:
    """Import and return the function of the subcommand ``command``."""
    return resolve_name(COMMANDS[command][2])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        The exit code; see :mod:`algorithms.cli.exits`.
    """
    args = [_with_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the locale lacks is printed as a question mark
    return exit_code_of(lambda: _run(args), debug="--debug" in args)


def _with_home(word: str) -> str:
    """Replace the ``~`` in ``--flag=~/path``, as shells only do at the beginning of a word."""
    flag, equals, value = word.partition("=")
    return flag + equals + os.path.expanduser(value) if flag.startswith("--") else word


def _find_modules_here() -> None:
    """Let commands import user modules in the working directory, as in ``my_envs:MyEnv-v0``."""
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            "working directory: expected a folder, got one that was deleted. Change to a folder that exists."
        ) from error
    if here not in sys.path:  # an installed script has only its own folder there; last, to hide no package
        sys.path.append(here)


def _run(args: Sequence[str]) -> int:
    _find_modules_here()
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
    return function_of(args[0])(args[1:])


def _overview() -> str:
    lines = ["usage: rlmodule COMMAND ...", ""]
    for name, (arguments, purpose, _) in COMMANDS.items():
        lines += [f"  rlmodule {name} {arguments}", f"      {purpose}"]
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
