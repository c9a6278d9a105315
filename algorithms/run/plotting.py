"""Learning curves: of one run, and of several compared by mean and spread over their seeds.

A picture is drawn without pyplot, which would choose a backend for the user's own figures.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from algorithms.loggers.base import STEPS
from algorithms.loggers.jsonl import read_rows
from algorithms.run.progress import return_text
from algorithms.run.saved_settings import learning_settings, read_about, setting_text
from catalog.errors import closest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING_RETURN = "env_runners/episode_return_mean"
EVALUATION_RETURN = "evaluation/env_runners/episode_return_mean"
SECONDS = "time_total_s"
"""The metric that counts a run's seconds."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart with any kind of colour vision: the palette of Okabe and Ito (2008)."""
STYLES = ("-", "--", ":")
"""Of the lines; the next one when all colours are used."""
FEWEST_SEEDS = 5
"""Seeds from which on a band is a confidence interval. That of two seeds is 18 times as wide as what they span."""
HALF_WIDTH, FULL_WIDTH = 42, 78
"""Letters of a line of the legend in two columns, and of a label in one."""
STUDENT_T = (12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216)
"""Quantiles of Student's distribution at 0.975, for 1, 2, … degrees of freedom."""
MOST_DIFFERENCES = 3
"""Settings in a label; where runs differ in more, they are told apart by their folders."""

By = Literal["steps", "time"]
Floats = npt.NDArray[np.float64]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Series:
    """One seed's values of a metric.

    Attributes:
        run: The run folder.
        x: ``[P]`` env steps, or seconds of training, increasing.
        y: ``[P]`` values.
        steps: Env steps at the last of them.
        seconds: Seconds of training at the last of them.
    """

    run: Path
    x: Floats
    y: Floats
    steps: int
    seconds: float


@dataclass(frozen=True)
class Curve:
    """Mean over seeds, and how far they spread.

    Attributes:
        path: The folder that was named.
        metric: Path in progress.jsonl.
        label: What it is called.
        x: ``[P]`` env steps or seconds: wherever a seed has a value, as far as all of them reach.
        mean: ``[P]`` mean of the seeds, each joined by lines between its own values.
        margin: ``[P]`` half the width of the 95 % confidence interval of the mean; None for one seed.
        band: Two arrays ``[P]``, below and above: the interval within what any seed had, or, below
            :data:`FEWEST_SEEDS`, the range of the seeds; None for one seed.
        seeds: What it was made of.
        waiting: Run folders beside those, in which the metric has no value yet.
    """

    path: Path
    metric: str
    label: str
    x: Floats
    mean: Floats
    margin: Floats | None
    band: tuple[Floats, Floats] | None
    seeds: tuple[Series, ...]
    waiting: tuple[Path, ...] = ()

    @property
    def steps(self) -> int:
        """Env steps that every seed has reached."""
        return min(seed.steps for seed in self.seeds)

    @property
    def seconds(self) -> float:
        """Seconds of training, averaged over the seeds."""
        return sum(seed.seconds for seed in self.seeds) / len(self.seeds)


def plot_runs(
    runs: Sequence[Path],
    out: Path,
    *,
    by: By = "steps",
    metric: str | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> list[Curve]:
    """Draw one curve for each of ``runs``: the mean of its seeds in a band of their spread.

    Args:
        runs: Run folders, or folders that hold run folders, one for each seed, at most two levels down.
        out: Picture to write, ``.png``, ``.pdf`` or ``.svg``.
        by: What goes to the right: env steps, or time.
        metric: Path in progress.jsonl, or its last parts; None takes the return of evaluations if all runs have
            several, and else that of training.
        labels: Names for the curves; None calls them by what differs between them.
        title: Title; None says what ran, if all ran the same.

    Returns:
        The curves, in the order of ``runs``; without those of runs that have finished no iteration, and of files and
        folders that are no runs, if others are.

    Raises:
        FileNotFoundError: If there is no such folder, or no run in any.
        ValueError: If runs cannot be averaged, have no values of the metric, or an argument is wrong.
        OSError: If the picture cannot be written.
    """
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(
            f"out: expected a .png, .pdf or .svg, got {str(out)!r}. Call it {out.stem or 'plot'}.png, for example."
        )
    if by not in ("steps", "time"):
        raise ValueError(f"by: expected 'steps' or 'time', got {by!r}. Choose one of them.")
    if not runs:
        raise ValueError("runs: expected at least one, got none. Name the folder of a run.")
    if labels is not None and len(labels) != len(runs):
        raise ValueError(
            f"labels: expected one for each of {len(runs)} runs, got {len(labels)}: "
            f"{', '.join(labels)}. Leave them out, or name all."
        )
    every = [_Group(Path(run)) for run in runs]
    told = [group for group in every if group.rows]
    if not told:
        raise _no_run(every[0].path)
    groups = [group for group in told if group.metrics]
    if not groups:
        expected, got = "a run with finished iterations", "none yet"
        remedy = "Wait for the first iteration, or leave it out."
        where = ", ".join(repr(str(group.path)) for group in every)
        raise ValueError(f"{where}: expected {expected}, got {got}. {remedy}")
    metric = _chosen_metric(groups, metric)
    given = dict(zip(every if labels else told, labels or _labels(told), strict=True))
    curves = [_curve(group, given[group], by, metric) for group in groups]
    _draw_curves(curves, out, by, metric, _common_title(groups) if title is None else title)
    return curves


def table_of(curves: Sequence[Curve]) -> str:
    """The curves as text: where each ends and how high it got, by the means, and what it took."""
    lines = [("", "seeds", "final, 95 % CI", "highest", "env steps", "time")]
    for curve in curves:
        final = return_text(curve.mean[-1])
        if curve.margin is not None:
            final += f" ± {return_text(curve.margin[-1])}"
        size, unit = _unit(curve.seconds)
        facts = str(len(curve.seeds)), final, return_text(curve.mean.max()), f"{curve.steps:,}"
        lines.append((curve.label, *facts, f"{curve.seconds / size:.1f} {unit}"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


# --- reading ----------------------------------------------------------------------------------------------------------


class _Group:
    """The seeds of one of the runs to compare.

    Attributes:
        path: The folder that was named.
        rows: Run folder → what its progress.jsonl holds; empty if there is no run.
        algorithm, env: What ran; both empty if the runs do not tell.
        settings: Those that change what is learned; empty if the runs do not tell.
        metrics: The names of all numbers in it, in order; none if no iteration is finished.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {run: read_rows(run / "progress.jsonl") for run in run_folders(path)}
        told = [about for run in self.rows if (about := read_about(run))]
        names = dict.fromkeys(str(about["name"]) for about in told)
        if len(names) > 1:
            raise _not_seeds(path, f"runs of {' and of '.join(names)}")
        self.algorithm, _, self.env = next(iter(names), "").partition(" on ")
        settings = [learning_settings(self.algorithm, about["config"]) for about in told]
        if different := _differing(settings):
            raise _not_seeds(path, f"runs that differ in {', '.join(different)}")
        self.settings = settings[0] if settings else {}
        rows = (row for rows in self.rows.values() for row in rows)
        self.metrics = {name: None for row in rows for name, value in row.items() if _is_number(value)}

    def has_several(self, metric: str) -> bool:
        """Whether each run that has values of ``metric`` has more than one: a line, not a dot."""
        counts = [sum(_is_number(row.get(metric)) for row in rows) for rows in self.rows.values()]
        return any(counts) and 1 not in counts


def _not_seeds(path: Path, got: str) -> ValueError:
    return ValueError(
        f"{str(path)!r}: expected runs that differ in their seed alone, to average, got {got}. "
        f"Name the folders one by one: {path}/*."
    )


def run_folders(path: Path) -> list[Path]:
    """``path`` itself if it is a run folder, else those at most two levels below it, by name (seed-9 before seed-10).

    Raises:
        FileNotFoundError: If there is nothing at ``path``.
    """
    if not path.exists():
        raise _no_run(path)
    if (path / "progress.jsonl").is_file():
        return [path]
    found = [file.parent for pattern in ("*", "*/*") for file in path.glob(f"{pattern}/progress.jsonl")]
    # text and numbers take turns in what the pattern splits
    return sorted(found, key=lambda run: [int(p) if i % 2 else p for i, p in enumerate(re.split(r"(\d+)", str(run)))])


def _no_run(path: Path) -> FileNotFoundError:
    where, expected = repr(str(path)), "a run folder, or a folder of run folders"
    got = "one without a progress.jsonl" if path.is_dir() else "a file" if path.exists() else "no such folder"
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    remedy = "Pass the run_dir of a run that the logger 'jsonl' wrote to, as it does by default."
    remedy += "" if path.exists() else closest(path.name, beside)
    return FileNotFoundError(f"{where}: expected {expected}, got {got}. {remedy}")


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that do not have one value in all of ``settings``; what is missing is None."""
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]


def _labels(groups: Sequence[_Group]) -> list[str]:
    """Algorithm, env and settings, as far as they differ; the folders' names where these do not tell enough."""
    labels = []
    for group in groups:
        alike = [other for other in groups if (other.algorithm, other.env) == (group.algorithm, group.env)]
        different = _differing([other.settings for other in alike])
        facts = [group.algorithm] if len({other.algorithm for other in groups}) > 1 else []
        facts += [group.env] if len({other.env for other in groups}) > 1 else []
        if len(different) <= MOST_DIFFERENCES:
            facts += dict.fromkeys(_fact(name, group.settings.get(name)) for name in different)
        labels.append(", ".join(facts))
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    names = [group.path.resolve().name for group in groups]
    return names if len(set(names)) == len(names) else [str(group.path) for group in groups]


def _fact(name: str, value: Any) -> str:
    """A setting in a label; a class of nets says enough by itself."""
    name = name.rpartition(".")[2]
    if name in ("catalog_class", "module_class", "custom_model"):
        return "default net" if value is None else str(value).rpartition(":")[2]
    return f"{name} {setting_text(value)}"


def _common_title(groups: Sequence[_Group]) -> str:
    """What is the same in all runs: algorithm and env, one of them, or nothing."""
    algorithms, envs = {group.algorithm for group in groups}, {group.env for group in groups}
    return " on ".join(common for names in (algorithms, envs) if len(names) == 1 and (common := next(iter(names))))


def _chosen_metric(groups: Sequence[_Group], metric: str | None) -> str:
    """The metric's full path.

    Raises:
        ValueError: If there is none of this name, or several, or a run does not have it.
    """
    if metric is None:
        trained = all(TRAINING_RETURN in group.metrics for group in groups)
        evaluated = all(group.has_several(EVALUATION_RETURN) for group in groups)
        metric = EVALUATION_RETURN if evaluated or not trained else TRAINING_RETURN
    known = {name: None for group in groups for name in group.metrics}
    matches = [metric] if metric in known else [name for name in known if name.endswith(f"/{metric}")]
    if len(matches) != 1:
        near = closest(metric, known) or closest(metric, {name.rpartition("/")[2] for name in known})
        expected = "a metric of these runs" if near and not matches else f"one of {', '.join(matches or known)}"
        raise ValueError(
            f"metric: expected {expected}, got {metric!r}. Write its path, or as much of its end "
            f"as is enough.{'' if matches else near}"
        )
    for group in groups:
        if matches[0] not in group.metrics:
            raise ValueError(
                f"{str(group.path)!r}: expected values of {matches[0]}, got none yet, or none at "
                "all. Leave this run out, or choose another metric."
            )
    return matches[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _curve(group: _Group, label: str, by: By, metric: str) -> Curve:
    found = {run: _series(run, rows, by, metric) for run, rows in group.rows.items()}
    seeds = tuple(series for series in found.values() if series is not None)
    waiting = tuple(run for run, series in found.items() if series is None)
    x, values = on_common_grid([(seed.x, seed.y) for seed in seeds])
    if not len(x):
        raise ValueError(
            f"{str(group.path)!r}: expected seeds with common {by}, got {len(seeds)} of which one "
            "ends before another begins. Wait until they overlap, or name the runs one by one."
        )
    mean, margin = mean_and_margin(values)
    return Curve(group.path, metric, label, x, mean, margin, _band(values, mean, margin), seeds, waiting)


def _series(run: Path, rows: Rows, by: By, metric: str) -> Series | None:
    """A run's values of ``metric``; None if it has none yet. Of several at one place, the last counts."""
    told = [row for row in rows if _is_number(row.get(metric))]
    if not told:
        return None
    points = {float(row[STEPS if by == "steps" else SECONDS]): float(row[metric]) for row in told}
    x = np.array(sorted(points))
    return Series(run, x, np.array([points[at] for at in x]), int(told[-1][STEPS]), float(told[-1][SECONDS]))


def on_common_grid(series: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Series at the same places: wherever one of them has a value, within the range of all.

    On this grid the mean of lines that join the values is exact, since it bends nowhere else.

    Args:
        series: Pairs of ``x`` and ``y``, each ``[P]``, ``x`` increasing.

    Returns:
        The grid ``[G]``, empty if there is no place within the range of all, and values ``[S, G]``.
    """
    low, high = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
    grid = np.unique(np.concatenate([x for x, _ in series]))
    grid = grid[(grid >= low) & (grid <= high)]
    return grid, np.stack([np.interp(grid, x, y) for x, y in series])


def mean_and_margin(values: Floats) -> tuple[Floats, Floats | None]:
    """Mean and half the width of its 95 % confidence interval, ``t * s / sqrt(S)`` with Student's t at S - 1.

    Args:
        values: ``[S, G]``, a row for each seed.

    Returns:
        Two arrays ``[G]``; None for the second if there is one seed.
    """
    count = len(values)
    mean = values.mean(0)
    if count == 1:
        return mean, None
    return mean, student_t(count - 1) * values.std(0, ddof=1) / math.sqrt(count)


def _band(values: Floats, mean: Floats, margin: Floats | None) -> tuple[Floats, Floats] | None:
    if margin is None:
        return None
    if len(values) < FEWEST_SEEDS:
        return values.min(0), values.max(0)
    # an interval of Student's knows no limit of the metric: it would reach above 500 where no return can
    low, high = values.min(), values.max()
    return (mean - margin).clip(low, high), (mean + margin).clip(low, high)


def student_t(freedom: int) -> float:
    """The ``t`` between whose negative and itself 95 % of Student's distribution lie, to four decimals.

    Beyond the table it is the expansion in ``1 / freedom`` about the normal quantile (Abramowitz and Stegun 1964,
    26.7.5).
    """
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    return float(np.polyval((1.5895, 2.5558, 2.8225, 2.3723, 1.959964), 1 / freedom))


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw_run(rows: Rows, out: Path, title: str, target_return: float | None = None) -> None:
    """Draw the returns of one run, in training and in evaluations, against env steps.

    Args:
        rows: What progress.jsonl holds.
        out: Picture to write.
        title: What ran.
        target_return: A return to mark; None marks none.
    """
    figure, axes = _picture(title, "env steps", "mean episode return")
    for key, style, colour, label in (
        (TRAINING_RETURN, "-", COLOURS[0], "training, recent episodes"),
        (EVALUATION_RETURN, "o--", COLOURS[1], "evaluation"),
    ):
        points = [(row[STEPS], row[key]) for row in rows if row.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=4)
    if target_return is not None:
        axes.axhline(target_return, color="grey", linestyle=":", label=f"target {target_return:g}")
    if axes.lines:
        axes.legend(loc="best", frameon=False)
    figure.savefig(out, dpi=120)


def _draw_curves(curves: Sequence[Curve], out: Path, by: By, metric: str, title: str) -> None:
    size, unit = (1.0, "env steps") if by == "steps" else _unit(max(seed.x[-1] for c in curves for seed in c.seeds))
    figure, axes = _picture(title, unit if by == "steps" else f"training time ({unit})", metric_text(metric))
    for number, curve in enumerate(curves):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        count = f"{len(curve.seeds)} seed{'s' if len(curve.seeds) > 1 else ''}"
        marker = "o" if len(curve.x) < 3 else ""
        x = curve.x / size
        label = f"{textwrap.fill(curve.label, FULL_WIDTH)} ({count})"
        axes.plot(x, curve.mean, style, marker=marker, color=colour, lw=2, label=label, zorder=3)
        if curve.band is not None:
            axes.fill_between(x, *curve.band, color=colour, alpha=0.15, lw=0, zorder=1)
            for seed in curve.seeds:
                axes.plot(seed.x / size, seed.y, style, color=colour, lw=0.8, alpha=0.35, zorder=2)
    _, names = axes.get_legend_handles_labels()
    columns = 2 if len(curves) > 1 and max(map(len, names)) <= HALF_WIDTH else 1
    figure.legend(title=_heading(curves), loc="outside lower center", ncols=columns, frameon=False)
    try:
        figure.savefig(out, dpi=120)
    except OSError as error:
        expected, got, remedy = "a file to write", error.strerror or str(error), "Choose another place."
        raise OSError(f"{str(out)!r}: expected {expected}, got {got}. {remedy}") from error


def _heading(curves: Sequence[Curve]) -> str | None:
    """What the bands are."""
    counts = {len(curve.seeds) for curve in curves} - {1}
    kinds = {count >= FEWEST_SEEDS for count in counts}
    interval, spread = "95 % confidence interval", "range of the seeds"
    if len(kinds) == 2:
        return f"mean of seeds; band: {interval}, below {FEWEST_SEEDS} seeds their range"
    return f"mean of seeds; band: {interval if True in kinds else spread}" if kinds else None


def _picture(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """A picture without curves yet."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def metric_text(metric: str) -> str:
    """A metric as a reader sees it."""
    returns = {EVALUATION_RETURN: "mean episode return, evaluation", TRAINING_RETURN: "mean episode return, training"}
    return returns.get(metric, metric)


def _unit(seconds: float) -> tuple[float, str]:
    """Seconds in the unit in which a time is best read, and its name."""
    return (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
