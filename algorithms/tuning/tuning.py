"""``tune``: search settings with trials of several seeds, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from algorithms.config import AlgorithmConfig
from algorithms.loggers.base import replace_file
from algorithms.registry import name_of
from algorithms.run.goal import Budget
from algorithms.run.jobs import Jobs, allow_flag
from algorithms.run.plotting import EVALUATION_RETURN, TRAINING_RETURN
from algorithms.run.progress import display
from algorithms.run.text import path_text
from algorithms.tuning.driver import Driver
from algorithms.tuning.page import write_page
from algorithms.tuning.point import applied
from algorithms.tuning.samplers import SamplerName, sampler_named
from algorithms.tuning.search import check_search, parse_search, point_at
from algorithms.tuning.study import FIRST_TEST_SEED, Study, Trial

Pruning = Literal["median", "none"]


def tune(
    config: AlgorithmConfig,
    search: Sequence[str] | Mapping[str, str],
    *,
    num_env_steps: int | None = None,
    num_updates: int | None = None,
    trials: int = 40,
    jobs: int = 1,
    seeds: int = 3,
    test_seeds: int = 3,
    sampler: SamplerName = "tpe",
    prune: Pruning = "median",
    seed: int = 0,
    run_dir: str | Path = "runs/study",
    progress: bool = True,
) -> Study:
    """Search the settings with the best return, and return the study.

    Each trial trains several seeds, and its value is the median of their last evaluations: a setting that only one seed
    likes does not win. The best trials are trained again with seeds that no trial saw. All is written to ``run_dir``;
    a study that was interrupted or killed goes on from there if it is called again, and with more ``trials`` it is
    extended.

    Args:
        config: The settings of all trials.
        search: What to search: texts such as ``"lr=log:1e-5..1e-2"``, see :mod:`algorithms.tuning.search`, or a dict
            of names and ranges.
        num_env_steps, num_updates: Steps of each run, as for :meth:`algorithms.Algorithm.learn`; one of them.
        trials: Number of trials.
        jobs: Number of runs at the same time. Results do not depend on it, only the order of the trials does.
        seeds: Number of seeds of each trial: 1, 2, …
        test_seeds: Number of seeds with which the best trials are trained again; 0 for none.
        sampler: ``"tpe"``, which needs Optuna, or ``"random"``.
        prune: ``"median"`` stops a trial that is worse than the median of the others at an eighth, a quarter, half or
            three quarters of its steps; ``"none"`` stops none.
        seed: Seed of the sampler.
        run_dir: Folder of the study.
        progress: Whether to show progress.

    Returns:
        The study. ``study.best.point`` has the best settings.

    Raises:
        TypeError, ValueError: If a name or value does not fit, checked at the corners of the search and at random
            points before the first trial; or if all trials fail.
        ImportError: If the sampler needs Optuna, which is not installed.
        FileExistsError, BlockingIOError: If ``run_dir`` holds something else, or another process tunes there.
        KeyboardInterrupt, SystemExit: After Ctrl-C or SIGTERM. Runs have saved, and the study can go on.
    """
    amount = num_env_steps if num_updates is None else num_updates
    if amount is None or (num_env_steps is not None and num_updates is not None):
        raise TypeError("tune(): expected num_env_steps or num_updates, got neither or both. Pass one of them.")
    budget: Budget = "num_env_steps" if num_updates is None else "num_updates"
    numbers = {"trials": trials, "jobs": jobs, "seeds": seeds, "test_seeds": test_seeds + 1, budget: amount}
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"tune({name}=): expected a number above 0, got {number}. Pass at least 1.")
    if jobs > (os.cpu_count() or 1):
        raise ValueError(f"jobs: expected at most the {os.cpu_count()} cores of this machine, got {jobs}. Pass fewer.")
    texts = [f"{name}={values}" for name, values in search.items()] if isinstance(search, Mapping) else [*search]
    config = settings_of_trials(config, run_dir)
    dimensions = parse_search(texts)
    check_search(config, dimensions)
    config.spaces_of()  # an error of the env is raised once, not by every trial
    about: dict[str, Any] = {
        "algorithm": name_of(config),
        "config": config.to_dict(),
        "search": texts,
        "seeds": seeds,
        "budget": budget,
        "amount": amount,
        "sampler": sampler,
        "prune": prune,
        "seed": seed,
        "flags": [f"--{budget.replace('_', '-')}={amount}", *allow_flag(config)],
    }
    sample = sampler_named(sampler)
    metric = TRAINING_RETURN if config.evaluation_interval is None else EVALUATION_RETURN
    with closing(Study(Path(run_dir), about)) as study:

        def propose() -> Trial:
            shares = sample(dimensions, study.trials, seed)
            point = point_at(dimensions, shares)
            trial = study.ask(shares, point)
            write_config(study.folder_of(trial), applied(config, point))
            return trial

        def command(folder: Path, seed: int) -> list[str]:
            run = [f"--config={folder / 'config.json'}", f"--seed={seed}", f"--run-dir={folder / f'seed-{seed}'}"]
            return ["train", *run, "--resume=auto", "--quiet", *about["flags"]]

        with (
            Jobs(jobs, lambda name, line: None) as running,
            display(trials, enabled=progress, waiting="first trial …") as show,
        ):
            driver = Driver(study, running, command, amount, metric, prune == "median", show)
            driver.search(range(1, seeds + 1), trials, propose)
            driver.test(range(FIRST_TEST_SEED, FIRST_TEST_SEED + test_seeds))
        if running.stopped_by is not None:
            where = path_text(study.folder)
            print(f"Stopped by {running.stopped_by.name}. Call it again to go on in {where}.", file=sys.stderr)
            raise KeyboardInterrupt if running.stopped_by is signal.SIGINT else SystemExit(128 + signal.SIGTERM)
        write_page(study)
        return study


def settings_of_trials(config: AlgorithmConfig, run_dir: str | Path) -> AlgorithmConfig:
    """Return the settings that all trials share: with the rows that pruning reads, and one thread, since other numbers
    of threads change the last bits.

    Raises:
        ValueError: If another process cannot import what a setting names.
    """
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


def write_config(folder: Path, config: AlgorithmConfig) -> None:
    """Write ``config`` to config.json in ``folder``, for ``rlmodule train --config``."""
    folder.mkdir(exist_ok=True)
    content: dict[str, Any] = {"algorithm": name_of(config), "config": config.to_dict()}
    replace_file(folder / "config.json", json.dumps(content, indent=1) + "\n")
