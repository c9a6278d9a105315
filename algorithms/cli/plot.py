"""``rlmodule plot``: learning curves of runs, compared over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import parse
from algorithms.run.plotting import TRAINING_RETURN, metric_text, plot_runs, run_folders, table_of


@dataclass(kw_only=True)
class PlotFlags:
    """Draw the learning curve of each RUN: the mean of its seeds in a band of their spread."""

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
    ]
    """Run folders, or folders that hold a run folder for each seed."""
    by: Literal["steps", "time"] = "steps"
    """What goes to the right: env steps, or the time that training took."""
    out: str = "plot.png"
    """The picture: .png, .pdf or .svg."""
    metric: str | None = None
    """What goes up: a path in progress.jsonl or its end, such as entropy; None takes the returns."""
    labels: list[str] | None = None
    """A name for each RUN; None calls them by what differs between them."""
    title: str | None = None
    """Title of the picture; None says what ran."""
    debug: bool = False
    """Show the traceback of an error."""


def plot(args: Sequence[str]) -> int:
    """Draw learning curves, with the spread over seeds, and compare them."""
    flags = parse(PlotFlags, "rlmodule plot", args)
    if not flags.runs:
        expected, remedy = "the folder of a run", "rlmodule plot --help shows what there is."
        raise UsageError("rlmodule plot", expected=expected, got="nothing", remedy=remedy)
    runs, out = [Path(run) for run in flags.runs], Path(flags.out)
    curves = plot_runs(runs, out, by=flags.by, metric=flags.metric, labels=flags.labels, title=flags.title)
    print(_about(curves[0].metric, chosen=flags.metric is not None))
    print(table_of(curves))
    for run in sorted({*runs} - {curve.path for curve in curves}):
        why = "it has finished no iteration yet" if run_folders(run) else "it is no run, or has no progress.jsonl"
        print(f"Left out, as {why}: {run}")
    for run in (run for curve in curves for run in curve.waiting):
        print(f"Left out, as it has no value yet: {run}")
    print(f"\nWrote {out}")
    return OK


def _about(metric: str, *, chosen: bool) -> str:
    """What is drawn, and why, if it is not what one would expect."""
    fallback = metric == TRAINING_RETURN and not chosen
    why = ", as not all runs have several evaluations (--evaluation-interval)" if fallback else ""
    return f"Drawn: {metric_text(metric)}{why}"
