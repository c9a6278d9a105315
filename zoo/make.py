"""Train the policies of the zoo. ``python -m zoo.make`` trains what is not trained yet, and goes on where it was
interrupted; ``python -m zoo.make ppo-taxi`` does so for the policies that are named."""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from zoo.policies import COMMANDS, DATA

RUNS = Path("runs/zoo")
_SHELL = [sys.executable, "-m", "algorithms.cli"]


def train(name: str) -> None:
    """Train the policy ``name``, or go on with its training."""
    run = RUNS / name
    if name in DATA and not run.exists():
        subprocess.run([*_SHELL, *shlex.split(DATA[name])], check=True)
    flags = f"--seed 1 --torch-num-threads 1 --checkpoint-interval 20 --resume auto --no-hints --run-dir {run}"
    seconds = run.with_suffix(".cpu.json")
    spent = json.loads(seconds.read_text()) if seconds.exists() else 0.0
    before = _cpu_seconds()
    subprocess.run([*_SHELL, *shlex.split(COMMANDS[name]), *flags.split()], check=True)
    seconds.write_text(json.dumps(spent + _cpu_seconds() - before))


def _cpu_seconds() -> float:
    """Return the CPU seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the policies that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m zoo.make", description="Train the policies of the zoo.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"policies, by default all: {', '.join(COMMANDS)}")
    names = parser.parse_args(arguments).names or list(COMMANDS)
    for number, name in enumerate(names, 1):
        print(f"\n{number}/{len(names)} {name}", flush=True)
        if not (RUNS / name / "done").exists():
            train(name)
            (RUNS / name / "done").touch()


if __name__ == "__main__":
    main()
