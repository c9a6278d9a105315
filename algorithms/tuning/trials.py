"""What trials and members of a population share: their settings, their file, and how they end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from algorithms.config import AlgorithmConfig
from algorithms.loggers.base import replace_file
from algorithms.registry import name_of
from algorithms.run.jobs import Jobs
from algorithms.run.run_folder import lock_folder
from algorithms.run.text import path_text

SECONDS_BETWEEN_TRIES = 0.2
"""Time between two tries to lock the folder of a run."""


def settings_of_trials(config: AlgorithmConfig, run_dir: str | Path) -> AlgorithmConfig:
    """Return the settings that all trials share: with the rows that pruning reads, and one thread, since other numbers
    of threads change the last bits.

    Raises:
        ValueError: If there is no env or no folder, or another process cannot import what a setting names.
    """
    if run_dir in (None, "None"):  # as typed in a shell
        raise ValueError("run_dir: expected a folder, which a study needs, got None. Leave it out.")
    if config.env is None:
        remedy = "Name one: .environment('CartPole-v1')."
        raise config._invalid("env", "an environment, whose returns are the values of trials", remedy)
    config = config.copy().update({"run_dir": str(run_dir), "seed": None})
    config.loggers = [*dict.fromkeys(["jsonl", *(config.loggers or ())])]
    config.torch_num_threads = config.torch_num_threads or 1
    only_here = config.modules_to_allow().get("__main__", [])
    only_here += [name for name, value in config.to_dict().items() if "__pass_again__" in json.dumps(value)]
    for name in only_here:
        raise ValueError(
            f"tune(): expected settings that other processes can import, got {name}={vars(config)[name]!r}. Move it "
            "to a module, and name it my_module:name."
        )
    return config


def write_config(folder: Path, config: AlgorithmConfig) -> Path:
    """Write ``config`` to config.json in ``folder``, for ``rlmodule train --config``, and return the file."""
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    replace_file(file, json.dumps({"algorithm": name_of(config), "config": config.to_dict()}, indent=1) + "\n")
    return file


def wait_until_free(run: Path, jobs: Jobs) -> None:
    """Wait until no process trains in the folder ``run``, or a signal stops ``jobs``: a run of a study that was killed
    still finishes its iteration and saves."""
    while (run / ".lock").exists() and jobs.stopped_by is None:
        try:
            lock_folder(run).release()
            return
        except BlockingIOError:
            time.sleep(SECONDS_BETWEEN_TRIES)


def raise_if_stopped(jobs: Jobs, folder: Path) -> None:
    """Raise what belongs to the signal that stopped ``jobs``: ``KeyboardInterrupt`` for Ctrl-C, ``SystemExit`` with
    code 143 for SIGTERM and 129 for SIGHUP. Do nothing if there was none."""
    if jobs.stopped_by is not None:
        where = path_text(folder)
        print(f"Stopped by {jobs.stopped_by.name}. The same command goes on in {where}.", file=sys.stderr)
        raise KeyboardInterrupt if jobs.stopped_by is signal.SIGINT else SystemExit(128 + jobs.stopped_by)


def check_jobs(jobs: int) -> None:
    """Raise ValueError if there are more jobs than cores, which would slow all of them down, or none."""
    num_cores = os.cpu_count() or 1
    if not 1 <= jobs <= num_cores:
        raise ValueError(f"jobs: expected at most the {num_cores} cores of this machine, and 1 at least, got {jobs}.")
