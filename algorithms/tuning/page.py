"""The page of a study: its best trials as a table, pictures, and the command that repeats the best."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from algorithms.loggers.base import replace_file
from algorithms.run.aggregates import bootstrap_interval, iqm
from algorithms.run.plotting import COLOURS, plot_runs
from algorithms.run.text import path_text, return_text, table_text
from algorithms.tuning.search import Choices, Search
from algorithms.tuning.study import FIRST_TEST_SEED, Study, Trial

NUM_SHOWN = 5
"""Number of trials in the table and among the curves."""
QUARTERS = Choices((0, 1, 2, 3))
"""Parts of a range. How much a setting matters follows from the trials in each of them."""


def winning_command(study: Study) -> str:
    """Return the command that trains all seeds of the best trial again."""
    folder = study.folder_of(study.best)
    seeds = [str(seed) for seed in study.best.results if seed < FIRST_TEST_SEED]
    words = [f"--config={path_text(folder / 'config.json')}", f"--seed={','.join(seeds)}"]
    words.append(f"--run-dir={path_text(study.folder / 'winner')}")
    return shlex.join(["rlmodule", "train", *words, *study.about["flags"]])


def study_table(study: Study) -> str:
    """Format the best trials as a table: value, tests with other seeds, settings."""
    lines = [("trial", "value", "tests, IQM", "95 % interval", "settings")]
    for trial in study.finished()[:NUM_SHOWN]:
        tests = [np.array(trial.finals(tested=True))]
        centre = interval = ""
        if len(tests[0]):
            low, high = bootstrap_interval(iqm, tests)
            centre = return_text(float(iqm(tests)))
            interval = f"{return_text(float(low))} to {return_text(float(high))}"
        settings = ", ".join(f"{name} {value}" for name, value in trial.point.items())
        lines.append((str(trial.number), return_text(trial.value or 0.0), centre, interval, settings))
    return table_text(lines, ">>>><", indent="")


def write_page(study: Study) -> None:
    """Write study.md, with the pictures study.png and curves.png, to the study's folder."""
    command = winning_command(study)  # raises if there is no best trial to show
    _draw(study, study.folder / "study.png")
    best = study.finished()[:NUM_SHOWN]
    labels = [f"trial {trial.number}" for trial in best]
    plot_runs([study.folder_of(trial) for trial in best], study.folder / "curves.png", labels=labels)
    states = [trial.state for trial in study.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    replace_file(
        study.folder / "study.md",
        f"# {study.about['algorithm']}: {counts}\n\n```\n{study_table(study)}\n```\n\nThe best trial again:\n\n"
        f"```\n{command}\n```\n\n![trials, and how much each setting matters](study.png)\n\n"
        "![learning curves of the best trials](curves.png)\n",
    )


def importance(trials: Sequence[Trial], search: Search) -> dict[str, float]:
    """Return for each setting which share of the variance of the trials' ranks the value of that setting explains:
    between the means of the trials in each quarter of its range, or of each choice. Trials that were stopped rank below
    those that finished."""
    ended = [trial for trial in trials if trial.last_value is not None]
    ended.sort(key=lambda trial: (trial.state == "finished", trial.last_value or 0.0))
    ranks = np.arange(len(ended), dtype=np.float64)
    found: dict[str, float] = {}
    for name, dimension in search.items() if ended else ():
        parts = dimension if isinstance(dimension, Choices) else QUARTERS
        groups = np.array([parts.index_at(trial.shares[name]) for trial in ended])
        means = np.array([ranks[groups == group].mean() for group in groups])
        found[name] = float(means.var() / max(ranks.var(), 1e-12))
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _draw(study: Study, out: Path) -> None:
    """Draw the values of the trials, and how much each setting matters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    values, bars = figure.subplots(1, 2)
    for state, colour, label in (("finished", COLOURS[0], "finished"), ("pruned", "0.7", "stopped at a rung")):
        of_state = [trial for trial in study.trials if trial.state == state]
        values.scatter(
            [trial.number for trial in of_state], [trial.last_value for trial in of_state], color=colour, label=label
        )
    # A stopped trial has no value to be the best with.
    finished = [trial for trial in study.trials if trial.value is not None]
    best = np.maximum.accumulate([trial.value or 0.0 for trial in finished])
    values.step([trial.number for trial in finished], best, where="post", color=COLOURS[1], label="best so far")
    values.set(title="trials", xlabel="trial", ylabel="mean episode return")
    values.legend(frameon=False)
    shares = importance(study.trials, study.search)
    bars.barh([*shares], [*shares.values()], color=COLOURS[0])
    bars.set(title="how much each setting matters", xlabel="share of the variance of ranks")
    figure.savefig(out, dpi=120)
