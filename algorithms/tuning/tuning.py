"""``tune``: search settings with trials of several seeds, in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from algorithms.config import AlgorithmConfig
from algorithms.registry import name_of
from algorithms.run.goal import Budget
from algorithms.run.jobs import Jobs, allow_flag
from algorithms.run.plotting import EVALUATION_RETURN, TRAINING_RETURN
from algorithms.run.progress import display
from algorithms.tuning.driver import Driver
from algorithms.tuning.page import write_page
from algorithms.tuning.point import applied
from algorithms.tuning.samplers import SamplerName, sampler_named
from algorithms.tuning.search import check_search, parse_search
from algorithms.tuning.study import FIRST_TEST_SEED, Study, Trial
from algorithms.tuning.trials import check_jobs, raise_if_stopped, settings_of_trials, write_config
from catalog.checks import Bounds, check_value

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
    for name, number in (("trials", trials), ("seeds", seeds), (budget, amount)):
        check_value(f"tune({name}=)", number, int, Bounds(ge=1), "")
    check_value("tune(test_seeds=)", test_seeds, int, Bounds(ge=0), "")
    check_value("tune(sampler=)", sampler, SamplerName, Bounds(), "")
    check_value("tune(prune=)", prune, Pruning, Bounds(), "")
    check_jobs(jobs)
    texts = [f"{name}={values}" for name, values in search.items()] if isinstance(search, Mapping) else [*search]
    config = settings_of_trials(config, run_dir)
    dimensions = parse_search(texts)
    if own := {"seed", "run_dir"} & {*dimensions}:
        names = ", ".join(sorted(own))
        raise ValueError(f"search: expected settings that all runs of a trial share, got {names}. Leave it out.")
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
    with closing(Study(Path(run_dir), about, dimensions)) as study:

        def propose() -> Trial:
            return study.ask(sample(dimensions, study.trials, seed))

        def command(trial: Trial, seed: int) -> list[str]:
            folder = study.folder_of(trial)
            file = write_config(folder, applied(config, trial.point))
            words = [f"--config={file}", f"--seed={seed}", f"--run-dir={folder / f'seed-{seed}'}"]
            return ["train", *words, "--resume=auto", "--quiet", *about["flags"]]

        with (
            Jobs(jobs, lambda name, line: None) as running,
            display(trials, enabled=progress, waiting="first trial …") as show,
        ):
            driver = Driver(study, running, command, amount, metric, prune == "median", show)
            driver.search(range(1, seeds + 1), trials, propose)
            driver.test(range(FIRST_TEST_SEED, FIRST_TEST_SEED + test_seeds))
        raise_if_stopped(running, study.folder)
        write_page(study)
        return study
