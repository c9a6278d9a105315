"""Draw the learning curves of one run, or of several runs as the mean and spread over their seeds.

This module does not use pyplot, because pyplot would set the backend for the user's own figures.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from algorithms.loggers.base import CLOCK, SECONDS, STEPS, clock_of, numbers_of
from algorithms.loggers.jsonl import read_rows
from algorithms.run.aggregates import Floats, bootstrap_interval, iqm
from algorithms.run.saved_settings import folders_below, learning_settings, read_about, setting_text
from algorithms.run.text import duration_text, return_text, table_text
from catalog_rl import closest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING_RETURN = "env_runners/episode_return_mean"
EVALUATION_RETURN = "evaluation/env_runners/episode_return_mean"
# Path of a metric → its label in a picture.
METRIC_TEXTS = {EVALUATION_RETURN: "mean episode return, evaluation", TRAINING_RETURN: "mean episode return, training"}

# The palette of Okabe and Ito (2008), which colour-blind readers can distinguish.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
# Least number of seeds for a confidence band. With two seeds, the interval is 18 times as wide as their range.
FEWEST_SEEDS = 5
# Replicates of the bootstrap of a band.
REPLICATES = 2_000
# Greatest number of characters in a line of the legend.
LABEL_WIDTH = 78
# Quantiles of Student's distribution at 0.975, for 1, 2, … degrees of freedom.
STUDENT_T = (12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216)
# Greatest number of settings in a label. Runs that differ in more settings are labelled by their folders.
MOST_DIFFERENCES = 3

By = Literal["steps", "time"]
Aggregate = Literal["mean", "iqm"]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Series:
    """One seed's values of a metric.

    Attributes:
        x: ``[P]`` the run's clock (env steps), or seconds of training, increasing.
        y: ``[P]`` values.
        last: The row of progress.jsonl with the last value.
    """

    x: Floats
    y: Floats
    last: Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """Mean or interquartile mean of a metric over seeds, and its spread.

    Attributes:
        path: The run folder, or the folder that holds a run folder for each seed.
        metric: Path of the metric in progress.jsonl.
        label: Name in the legend.
        x: ``[P]`` env steps or seconds: every place where a seed has a value, within the range of all seeds.
        mean: ``[P]`` mean of the seeds, each interpolated linearly between its values, or their IQM.
        margin: ``[P]`` half the width of the 95 % confidence interval of the mean; None for one seed, and for the IQM.
        band: ``[2, P]`` lower and upper bound: the confidence interval, clipped to the values of the seeds; below
            :data:`FEWEST_SEEDS` seeds, their range; None for one seed.
        seeds: The series that ``mean`` averages, one for each seed.
        waiting: Run folders in which the metric has no value yet.
    """

    path: Path
    metric: str
    label: str
    x: Floats
    mean: Floats
    margin: Floats | None
    band: Floats | None
    seeds: tuple[Series, ...]
    waiting: tuple[Path, ...] = ()


def plot_runs(
    runs: Sequence[Path],
    out: Path,
    *,
    by: By = "steps",
    metric: str | None = None,
    aggregate: Aggregate = "mean",
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> list[Curve]:
    """Draw one curve for each of ``runs``: the mean or IQM of its seeds in a band of their spread.

    Args:
        runs: Run folders, or folders with a run folder for each seed, at most two levels down.
        out: Picture to write, ``.png``, ``.pdf`` or ``.svg``.
        by: The x axis: env steps, or the clock of runs that learn from data; or time.
        metric: Path in progress.jsonl, or its last parts. None takes the evaluation return if all runs have several
            evaluations, else the training return.
        aggregate: What to draw: the mean of the seeds, or their interquartile mean (IQM).
        labels: Names for the curves; None names them by their differences.
        title: Title; None names the algorithm and env that all runs share.

    Returns:
        The curves, in the order of ``runs``. Runs without a finished iteration have no curve.

    Raises:
        FileNotFoundError: If one of ``runs`` does not exist.
        ValueError: If no run has finished an iteration, runs cannot be averaged, have no values of the metric, or an
            argument is wrong.
        OSError: If the picture cannot be written.
    """
    if labels is not None and len(labels) != len(runs):
        raise ValueError(
            f"labels: expected one for each of {len(runs)} runs, got {len(labels)}: "
            f"{', '.join(labels)}. Leave them out, or name all."
        )
    every = [_Group(Path(run)) for run in runs]
    groups = [group for group in every if group.metrics]
    if not groups:
        raise ValueError(
            f"{', '.join(map(str, runs)) or 'runs'}: expected a run with finished iterations, or a folder of such "
            "runs, got none. Name the run_dir of a run that the logger 'jsonl' wrote to, as it does by default."
        )
    metric = _chosen_metric(groups, metric)
    names = dict(zip(every if labels else groups, labels or _labels(groups), strict=True))
    curves = [_curve(group, names[group], by, metric, aggregate) for group in groups]
    _draw_curves(curves, out, by, _common_title(groups) if title is None else title, aggregate)
    return curves


def table_of(curves: Sequence[Curve]) -> str:
    """Format a table of the final and highest mean of each curve, its env steps and its time."""
    lines = [("", "seeds", "final, 95 % CI", "highest", _clock_of_all(curves), "time")]
    for curve in curves:
        final = return_text(curve.mean[-1])
        if curve.margin is not None:
            final += f" ± {return_text(curve.margin[-1])}"
        elif curve.band is not None and len(curve.seeds) >= FEWEST_SEEDS:
            low, high = curve.band[:, -1]
            final += f" ({return_text(low)} to {return_text(high)})"
        steps = min(clock_of(seed.last) for seed in curve.seeds)  # reached by all seeds
        highest, time = return_text(curve.mean.max()), fmean(seed.last[SECONDS] for seed in curve.seeds)
        lines.append((curve.label, str(len(curve.seeds)), final, highest, f"{steps:,}", duration_text(time)))
    return table_text(lines, "<>>>>>", indent="")


# --- reading ----------------------------------------------------------------------------------------------------------


class _Group:
    """The runs of one experiment, which differ only in their seeds.

    Attributes:
        path: The folder that was passed.
        rows: Run folder → the rows of its progress.jsonl; empty if there is no run.
        algorithm, env: Names of the algorithm and the env; empty without a run.json.
        settings: Settings that affect learning; empty without a run.json.
        metrics: Name of each number in any row → number of rows that have it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {run: read_rows(run / "progress.jsonl") for run in run_folders(path)}
        abouts = [about for run in self.rows if (about := read_about(run))]
        self.algorithm, _, self.env = str(abouts[0]["name"] if abouts else "").partition(" on ")
        self.settings = shared_settings(path, abouts)
        self.metrics = Counter(name for rows in self.rows.values() for row in rows for name in numbers_of(row))


def run_folders(path: Path) -> list[Path]:
    """Return ``[path]`` if it is a run folder, else the run folders at most two levels below it.

    Raises:
        FileNotFoundError: If ``path`` does not exist.
    """
    if not path.exists():
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"{str(path)!r}: expected a run folder, or a folder of run folders, got no such folder. "
            f"Pass the run_dir of a run.{closest(path.name, siblings)}"
        )
    return [path] if (path / "progress.jsonl").is_file() else folders_below(path, "progress.jsonl")


def shared_settings(path: Path, abouts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the settings that affect learning of the runs in ``path`` that ``abouts`` describe; empty if there are
    none.

    Raises:
        ValueError: If they differ in more than their seed.
    """
    names = dict.fromkeys(str(about["name"]) for about in abouts)
    settings = [learning_settings(str(about["name"]).partition(" on ")[0], about["config"]) for about in abouts]
    if different := names if len(names) > 1 else _differing(settings):
        raise ValueError(
            f"{str(path)!r}: expected runs that differ in their seed alone, to average, got runs that differ: "
            f"{', '.join(different)}. Name the folders one by one: {path}/*."
        )
    return settings[0] if settings else {}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings whose values differ; a missing setting counts as None."""
    names = dict.fromkeys(name for run_settings in settings for name in run_settings)
    return [name for name in names if any(run_settings.get(name) != settings[0].get(name) for run_settings in settings)]


def _labels(groups: Sequence[_Group]) -> list[str]:
    """Return a label for each group: the algorithm, env and settings in which it differs from other groups. If these
    are not unique, return the folders of the groups instead."""
    labels = []
    for group in groups:
        alike = [other for other in groups if (other.algorithm, other.env) == (group.algorithm, group.env)]
        different = _differing([other.settings for other in alike])
        facts = [name for name in (group.algorithm, group.env) if name not in _common_title(groups).split(" on ")]
        if len(different) <= MOST_DIFFERENCES:
            facts += [f"{name.rpartition('.')[2]} {setting_text(group.settings.get(name))}" for name in different]
        labels.append(", ".join(facts))
    for names in (labels, [group.path.resolve().name for group in groups]):
        if all(names) and len({*names}) == len(names):
            return names
    return [str(group.path) for group in groups]


def _common_title(groups: Sequence[_Group]) -> str:
    """Return the algorithm and env that all groups share as text, which is empty if they share neither."""
    algorithms, envs = {group.algorithm for group in groups}, {group.env for group in groups}
    return " on ".join(name for names in (algorithms, envs) if len(names) == 1 for name in names)


def _chosen_metric(groups: Sequence[_Group], metric: str | None) -> str:
    """Return the full path of ``metric``, as :func:`metric_named` does; None chooses as :func:`plot_runs` says.

    Raises:
        ValueError: If no metric, or more than one, matches, or it is None and no episode has ended.
    """
    if metric is None:
        trained = all(TRAINING_RETURN in group.metrics for group in groups)
        # one evaluation per seed, as after every run from the shell, is a dot and not a curve
        evaluated = all(group.metrics[EVALUATION_RETURN] > len(group.rows) for group in groups)
        metric = EVALUATION_RETURN if evaluated or not trained else TRAINING_RETURN
        if not any(metric in group.metrics for group in groups):
            paths = ", ".join(str(group.path) for group in groups)
            raise ValueError(f"{paths}: expected an episode that ended, got none. Train longer, or choose a metric.")
    return metric_named(metric, {name: None for group in groups for name in group.metrics})


def metric_named(metric: str, known: Collection[str]) -> str:
    """Return the path in ``known`` that is ``metric``, or the only one that ends with it.

    Raises:
        ValueError: If no path, or more than one, matches.
    """
    matches = [metric] if metric in known else [name for name in known if name.endswith(f"/{metric}")]
    if len(matches) != 1:
        near = "" if matches else closest(metric, [*known, *(name.rpartition("/")[2] for name in known)])
        raise ValueError(
            f"metric: expected one of {', '.join(matches or known)}, got {metric!r}. Write its path, or as much of "
            f"its end as is enough.{near}"
        )
    return matches[0]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _curve(group: _Group, label: str, by: By, metric: str, aggregate: Aggregate) -> Curve:
    found = {run: _series(rows, by, metric) for run, rows in group.rows.items()}
    seeds = tuple(series for series in found.values() if series is not None)
    waiting = tuple(run for run, series in found.items() if series is None)
    if not seeds:
        raise ValueError(
            f"{str(group.path)!r}: expected values of {metric}, got none yet, or none at all. Leave this run out, or "
            "choose another metric."
        )
    x, values = on_common_grid([(seed.x, seed.y) for seed in seeds])
    if not len(x):
        raise ValueError(
            f"{str(group.path)!r}: expected seeds with common {by}, got {len(seeds)} of which one "
            "ends before another begins. Wait until they overlap, or name the runs one by one."
        )
    mean, margin = mean_and_margin(values)
    band = None
    if margin is not None:
        band = np.array([values.min(0), values.max(0)])
        if len(values) >= FEWEST_SEEDS:
            # Student's interval ignores the metric's limits: it would reach above 500 where no return can
            band = np.array([mean - margin, mean + margin]).clip(values.min(), values.max())
    if aggregate == "iqm":
        mean, margin = iqm([values.T]), None
        if len(values) >= FEWEST_SEEDS:
            band = np.array(bootstrap_interval(iqm, [values], replicates=REPLICATES))
    return Curve(group.path, metric, label, x, mean, margin, band, seeds, waiting)


def _series(rows: Rows, by: By, metric: str) -> Series | None:
    """Return a run's values of ``metric``; None if it has none yet. If a step has several values, the last counts."""
    found = [row for row in rows if isinstance(row.get(metric), int | float)]
    points = {clock_of(row) if by == "steps" else row[SECONDS]: row for row in found}
    if not points:
        return None
    x = sorted(points)
    return Series(np.array(x, float), np.array([points[at][metric] for at in x], float), points[x[-1]])


def on_common_grid(series: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Interpolate series on a common grid: every ``x`` of any series, within the range that all series cover.

    The mean of piecewise linear series is linear between these points, so the grid loses nothing.

    Args:
        series: Pairs of ``x`` and ``y``, each ``[P]``, ``x`` increasing.

    Returns:
        The grid ``[G]``, empty if the ranges do not overlap, and values ``[S, G]``.
    """
    low, high = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
    grid = np.unique(np.concatenate([x for x, _ in series]))
    grid = grid[(grid >= low) & (grid <= high)]
    return grid, np.stack([np.interp(grid, x, y) for x, y in series])


def mean_and_margin(values: Floats) -> tuple[Floats, Floats | None]:
    """Return the mean over the seeds, and half the width of its 95 % confidence interval: ``t * s / sqrt(S)``, with the
    sample standard deviation ``s`` and Student's ``t`` for ``S - 1`` degrees of freedom.

    Args:
        values: ``[S, G]``, a row for each seed.

    Returns:
        Two arrays ``[G]``; the second is None for one seed.
    """
    count = len(values)
    margin = student_t(count - 1) * values.std(0, ddof=1) / math.sqrt(count) if count > 1 else None
    return values.mean(0), margin


def student_t(freedom: int) -> float:
    """Return the ``t`` for which 95 % of Student's distribution with ``freedom`` degrees of freedom lies between ``-t``
    and ``t``, to four decimals.

    For more degrees than :data:`STUDENT_T` has, expand in ``1 / freedom`` about the normal quantile (Abramowitz and
    Stegun 1964, 26.7.5).
    """
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    return float(np.polyval((1.5895, 2.5558, 2.8225, 2.3723, 1.959964), 1 / freedom))


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw_run(rows: Rows, out: Path, title: str, target_return: float | None = None) -> None:
    """Draw the returns of one run, in training and in evaluations, against its clock.

    Args:
        rows: The rows of progress.jsonl.
        out: Picture to write.
        title: Title.
        target_return: A return to mark; None marks none.
    """
    figure, axes = _picture(title, clock_name(rows), "mean episode return")
    for key, style, label in (
        (TRAINING_RETURN, "-", "training, recent episodes"),
        (EVALUATION_RETURN, "--", "evaluation"),
    ):
        if points := [(clock_of(row), row[key]) for row in rows if isinstance(row.get(key), int | float)]:
            # a line of one point would not be seen
            marker = "o" if key == EVALUATION_RETURN or len(points) == 1 else ""
            axes.plot(*zip(*points, strict=True), style, marker=marker, label=label, markersize=4)
    if target_return is not None:
        axes.axhline(target_return, color="grey", linestyle=":", label=f"target {target_return:g}")
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(out, dpi=120)


def _clock_of_all(curves: Sequence[Curve]) -> str:
    return clock_name([seed.last for curve in curves for seed in curve.seeds])


def clock_name(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the clock of ``rows`` counts, as text."""
    if not any(CLOCK in row for row in rows):
        return "env steps"
    return "updates and env steps" if any(row.get(STEPS) for row in rows) else "updates"


def _draw_curves(curves: Sequence[Curve], out: Path, by: By, title: str, aggregate: Aggregate) -> None:
    xlabel, size = (_clock_of_all(curves), 1) if by == "steps" else ("training time (min)", 60)
    metric = curves[0].metric
    figure, axes = _picture(title, xlabel, METRIC_TEXTS.get(metric, metric))
    for curve in curves:
        count = f"{len(curve.seeds)} seed{'s' if len(curve.seeds) > 1 else ''}"
        label = f"{textwrap.fill(curve.label, LABEL_WIDTH)} ({count})"
        marker = "o" if len(curve.x) < 3 else ""  # a line of one point would not be seen
        (line,) = axes.plot(curve.x / size, curve.mean, marker=marker, lw=2, label=label, zorder=3)
        if curve.band is not None:
            colour, style = line.get_color(), line.get_linestyle()
            axes.fill_between(curve.x / size, *curve.band, color=colour, alpha=0.15, lw=0)
            for seed in curve.seeds:
                axes.plot(seed.x / size, seed.y, color=colour, linestyle=style, lw=0.8, alpha=0.35)
    centre = {"mean": "mean", "iqm": "interquartile mean"}[aggregate]
    bands = f"{centre} of seeds; band: 95 % confidence interval, below {FEWEST_SEEDS} seeds their range"
    figure.legend(title=bands if axes.collections else None, loc="outside lower center", frameon=False)
    # With a format, the file has the name that was asked for, also without an ending.
    figure.savefig(out, dpi=120, format=Path(out).suffix[1:] or "png")


def _picture(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """Return an empty picture with this title and these labels of the axes."""
    from cycler import cycler
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * cycler(color=COLOURS))
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
