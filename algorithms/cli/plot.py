"""``rlmodule plot``: draw and compare learning curves, averaged over seeds."""

from collections.abc import Sequence
from pathlib import Path

from algorithms.cli.exits import OK
from algorithms.cli.flags import CommandFlags, parse
from algorithms.run.plotting import METRIC_TEXTS, TRAINING_RETURN, Aggregate, By, plot_runs, table_of
from catalog.settings import setting


class PlotFlags(CommandFlags):
    """Draw the learning curve of each RUN: the mean or IQM of its seeds, with a band for their spread. RUN is a run
    folder, or a folder with a run folder for each seed."""

    by: By = setting("steps", "The x axis: env steps, or the time that training took.")
    aggregate: Aggregate = setting(
        "mean", "What to draw of the seeds: their mean, or the mean without the lowest and highest quarter (IQM)."
    )
    out: str = setting("plot.png", "The picture: .png, .pdf or .svg.")
    metric: str | None = setting(None, "A path in progress.jsonl or its end, such as entropy; None takes the returns.")
    labels: list[str] | None = setting(None, "A name for each RUN; None names them by their differences.")
    title: str | None = setting(None, "Title of the picture; None names the algorithm and env.")


def plot(args: Sequence[str]) -> int:
    """Run ``rlmodule plot``; return its exit code."""
    flags, words, _ = parse(PlotFlags, "rlmodule plot", "RUN ...", args, count=range(1, len(args) + 1))
    runs, out = [Path(run) for run in words], Path(flags.out)
    curves = plot_runs(
        runs,
        out,
        by=flags.by,
        metric=flags.metric,
        aggregate=flags.aggregate,
        labels=flags.labels,
        title=flags.title,
    )
    metric = curves[0].metric
    fallback = metric == TRAINING_RETURN and flags.metric is None
    why = ", as not all runs have several evaluations (--evaluation-interval)" if fallback else ""
    print(f"Drawn: {METRIC_TEXTS.get(metric, metric)}{why}")
    print(table_of(curves))
    unused = {*runs} - {curve.path for curve in curves}
    for run in sorted(unused.union(*(curve.waiting for curve in curves))):
        print(f"Left out, as it has no value yet: {run}")
    print(f"\nWrote {out}")
    return OK
