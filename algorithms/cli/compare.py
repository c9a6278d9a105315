"""``rlmodule compare``: say whether runs are better than others, or that there are too few to tell."""

from collections.abc import Sequence
from pathlib import Path

from algorithms.cli.exits import OK
from algorithms.cli.flags import CommandFlags, parse
from algorithms.run.comparison import compare_runs, ranges_of
from catalog.settings import setting


class CompareFlags(CommandFlags):
    """Compare the final scores of each further RUN with those of the first. RUN is a folder with a run folder for each
    seed, of one env or of several."""

    metric: str | None = setting(None, "A path in progress.jsonl or its end, such as entropy; None takes the returns.")
    normalize: list[str] | None = setting(
        None, "For each env the scores that count as 0 and 1, as Pendulum-v1=-1400..-150; needed for several envs."
    )


def compare(args: Sequence[str]) -> int:
    """Run ``rlmodule compare``; return its exit code."""
    flags, words, _ = parse(CompareFlags, "rlmodule compare", "RUN RUN ...", args, count=range(2, len(args) + 1))
    print(compare_runs([*map(Path, words)], metric=flags.metric, normalize=ranges_of(flags.normalize or [])))
    return OK
