"""``rlmodule plot``: learning curves of runs, compared over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from algorithms.cli.exits import OK
from algorithms.cli.flags import parse
from algorithms.plotting import plot_runs, table_of


@dataclass(kw_only=True)
class PlotFlags:
    """Draw the learning curve of each RUN: the mean and its 95 % confidence interval over the seeds."""

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
    ]
    """Run folders, or folders that hold a run folder for each seed."""
    by: Literal["steps", "time"] = "steps"
    """What goes to the right: env steps, or the time that training took."""
    out: str = "plot.png"
    """The picture: .png, .pdf or .svg."""
    metric: str | None = None
    """What goes up: a path in progress.jsonl or its end, such as entropy; None takes the returns of evaluations."""
    labels: list[str] | None = None
    """A name for each RUN; None calls them by what differs between them."""
    title: str | None = None
    """Title of the picture; None says what ran."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the traceback of an error."""


def plot(args: Sequence[str]) -> int:
    """Draw learning curves, with confidence intervals over seeds, and compare where they end."""
    flags = parse(PlotFlags, "rlmodule plot", args)
    runs, out = [Path(run) for run in flags.runs], Path(flags.out)
    curves = plot_runs(runs, out, by=flags.by, metric=flags.metric, labels=flags.labels, title=flags.title)
    print(table_of(curves))
    for run in (run for curve in curves for run in curve.waiting):
        print(f"Left out, as it has no value yet: {run}")
    print(f"\nWrote {out}")
    return OK
