"""Compare the final scores of runs with several seeds, in one env or in several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.loggers.base import clock_of, numbers_of
from algorithms.loggers.jsonl import read_rows
from algorithms.run.aggregates import Comparison, Floats, bootstrap_interval, compare, iqm
from algorithms.run.plotting import (
    EVALUATION_RETURN,
    METRIC_TEXTS,
    TRAINING_RETURN,
    Rows,
    clock_name,
    metric_named,
    run_folders,
    shared_settings,
)
from algorithms.run.saved_settings import read_about
from algorithms.run.text import return_text, table_text
from catalog_rl import closest

Ranges = Mapping[str, tuple[float, float]]
"""Env → the scores that count as 0 and as 1."""


def ranges_of(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the ranges in texts like ``Pendulum-v1=-1400..-150``.

    Raises:
        ValueError: If a text is malformed, or both ends are equal.
    """
    found = {}
    for text in texts:
        env, _, ends = text.rpartition("=")
        low_text, _, high_text = ends.partition("..")
        try:
            low, high = float(low_text), float(high_text)
        except ValueError:
            low = high = 0.0
        if not env or low == high or not math.isfinite(high - low):
            raise ValueError(
                f"normalize: expected ENV=LOW..HIGH with two numbers that differ, got {text!r}. Write "
                "Pendulum-v1=-1400..-150, say: the returns of random actions and of an expert."
            )
        found[env] = low, high
    return found


def compare_runs(runs: Sequence[Path], *, metric: str | None = None, normalize: Ranges | None = None) -> str:
    """Compare the final scores of the first of ``runs`` with those of each of the others. Return tables and verdicts as
    text.

    Args:
        runs: Two folders or more, each with run folders of several seeds, at most two levels down, of one env or of
            several, the same in each.
        metric: Path in progress.jsonl, or its last parts. None takes the last evaluation return if all runs have one,
            else the last training return.
        normalize: Ranges of the scores of the envs; needed if there are several envs.

    Raises:
        FileNotFoundError: If one of ``runs`` does not exist.
        ValueError: If a folder has no runs, the runs have no values, those of an env differ in more than their seed,
            their envs differ, or there are several envs and no ranges.
    """
    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        raise ValueError(
            f"compare: expected two folders of runs or more, each once, got {', '.join(map(str, runs))}. Name them: "
            "runs/a runs/b."
        )
    rows = {path: {run: read_rows(run / "progress.jsonl") for run in run_folders(path)} for path in runs}
    every = [run_rows for of_path in rows.values() for run_rows in of_path.values()]
    if metric is None:
        # Returns in training would differ from evaluations by exploration, so all runs are read alike.
        metric = EVALUATION_RETURN if all(_last(run, EVALUATION_RETURN) for run in every) else TRAINING_RETURN
    else:
        metric = metric_named(metric, {name: None for run in every for row in run for name in numbers_of(row)})
    ranges = normalize or {}
    scores = {path: _scores_by_env(path, of_path, metric, ranges) for path, of_path in rows.items()}
    first, *others = scores
    for path in others:
        if scores[path].keys() != scores[first].keys():
            raise ValueError(
                f"{str(path)!r}: expected runs of {', '.join(scores[first])}, as in {str(first)!r}, got those of "
                f"{', '.join(scores[path])}. Compare runs of the same envs."
            )
    if unknown := [env for env in ranges if env not in scores[first]]:
        raise ValueError(
            f"normalize: expected ranges of {', '.join(scores[first])}, got one of {unknown[0]}. Leave it out."
            f"{closest(unknown[0], scores[first])}"
        )
    missing = [env for env in scores[first] if env not in ranges]
    if len(scores[first]) > 1 and missing:
        raise ValueError(
            f"normalize: expected a range for each of {len(scores[first])} envs, whose scores are averaged, got none "
            f"for {', '.join(missing)}. Write --normalize {missing[0]}=-1400..-150, say."
        )
    lines = [_table(scores, metric)]
    ends = sorted({clock_of(_last(run, metric)) for run in every})
    if len(ends) > 1:  # runs that are not finished, say
        clock = clock_name([row for run in every for row in run])
        lines.append(f"\nThe runs are compared where they ended, after {ends[0]:,} to {ends[-1]:,} {clock}.")
    base = [*scores[first].values()]
    for path in others:
        found = compare([scores[path][env] for env in scores[first]], base)
        lines.append(_verdict(str(path), str(first), found))
    return "\n".join(lines)


def _scores_by_env(path: Path, runs: Mapping[Path, Rows], metric: str, ranges: Ranges) -> dict[str, Floats]:
    """Return the last value of ``metric`` of each run, by env."""
    found: dict[str, list[float]] = {}
    abouts: dict[str, list[Mapping[str, Any]]] = {}
    for run, rows in runs.items():
        value = _last(rows, metric).get(metric)
        if value is None or not np.isfinite(value):
            raise ValueError(
                f"{str(run)!r}: expected a value of {metric}, got {'none' if value is None else value}. Wait until "
                "there is one, move the run out of the folder, or choose another metric."
            )
        about = read_about(run)
        env = str(about["name"]).partition(" on ")[2] if about else "an unknown env (no run.json)"
        abouts.setdefault(env, []).extend([about] if about else [])
        low, high = ranges.get(env, (0.0, 1.0))
        found.setdefault(env, []).append((value - low) / (high - low))
    if not found:
        raise ValueError(f"{str(path)!r}: expected a folder with runs, got none. Name the folder of several seeds.")
    for of_env in abouts.values():
        shared_settings(path, of_env)  # raises if runs differ in more than their seed
    return {env: np.array(found[env]) for env in sorted(found)}


def _last(rows: Rows, metric: str) -> Mapping[str, Any]:
    """Return the last row with a value of ``metric``; an empty one if there is none."""
    return next((row for row in reversed(rows) if metric in numbers_of(row)), {})


def _table(scores: Mapping[Path, Mapping[str, Floats]], metric: str) -> str:
    lines = [("", "runs", f"IQM of the {METRIC_TEXTS.get(metric, metric)}", "95 % interval")]
    for path, by_env in scores.items():
        tasks = [*by_env.values()]
        low, high = bootstrap_interval(iqm, tasks)
        num_runs = " + ".join(str(len(task)) for task in tasks)
        lines.append((str(path), num_runs, return_text(float(iqm(tasks))), _interval(float(low), float(high))))
    return table_text(lines, "<>>>", indent="")


def _interval(low: float, high: float) -> str:
    return f"{return_text(low)} to {return_text(high)}"


def _verdict(name: str, base: str, found: Comparison) -> str:
    begin = f"cannot tell whether {name} is better than {base}"
    if found.verdict != "cannot tell":
        begin = f"{name} is {found.verdict} than {base}"
    text = (
        f"\n{begin}: the IQM differs by {return_text(found.difference)} (95 % interval "
        f"{_interval(found.low, found.high)}, p = {found.p_value:.2g}), and a run is better with a probability of "
        f"{100 * found.probability:.0f} %."
    )
    if found.verdict == "cannot tell" and (needed := found.runs_to_decide) is not None:
        text += f" About {needed:,} runs of each would decide in four of five cases, if both go on like this."
    return text
