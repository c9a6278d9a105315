"""Train a run with several seeds, each in a separate process: one after the other or in parallel."""

import math
import re
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from algorithms.cli.exits import FAILED, INTERRUPTED, OK, TERMINATED, UsageError
from algorithms.cli.one_run import TrainPlan, commands, own_run_dir
from algorithms.run.jobs import Job, Jobs, allow_flag
from algorithms.run.plotting import plot_runs
from algorithms.run.results import RunResult, read_result
from algorithms.run.run_folder import env_name
from algorithms.run.text import duration_text, path_text, return_text

_SEEDS = r"\d+(\.\.\d+)?(,\d+(\.\.\d+)?)*"
_OF_ALL_RUNS = ("--seed", "--jobs", "--run-dir")
"""Flags of which the process of a seed gets others. Each takes one value."""


def seeds_of(text: str | None) -> tuple[int, ...]:
    """Return the seeds in the text of ``--seed``: ``7``, ``1..5`` or ``1,3,7``; empty for None.

    Raises:
        UsageError: If the text is malformed, or lists a seed twice.
    """
    if text is None:
        return ()
    parts = [part.split("..") for part in text.split(",")] if re.fullmatch(_SEEDS, text) else []
    seeds = tuple(seed for ends in parts for seed in range(int(ends[0]), int(ends[-1]) + 1))
    if not seeds or len({*seeds}) < len(seeds):
        raise UsageError(
            f"--seed: expected a whole number >= 0, or several that differ, got {text!r}. Write --seed 1..5 or --seed "
            "1,3,7."
        )
    return seeds


def train_seeds(plan: TrainPlan, args: Sequence[str]) -> int:
    """Train a run for each of ``plan.seeds``, and print a table of their results.

    Args:
        plan: The plan that all runs share.
        args: The arguments of the command, which each process gets with one of the seeds.

    Returns:
        The exit code: 0 if all runs succeeded, 130 or 143 if a signal stopped them, else 1.
    """
    config, say, jobs = plan.config, plan.say, plan.flags.jobs
    if config.run_dir is None:
        raise UsageError("--run-dir: expected a folder for the runs of several seeds, got None. Leave it out.")
    with own_run_dir(config):
        runs = Runs(plan, args)
        config.spaces_of()  # an error of the env is printed once, not by every run
        algorithm, how = config.algo_class.__name__, f"{jobs} side by side" if jobs > 1 else "one by one"
        say(f"{algorithm} on {env_name(config.env)}, seeds {', '.join(map(str, plan.seeds))}, {how}")
        say(f"  starts from {plan.begun_with}")
        say(f"  steps       {plan.amount:,} each")
        say(f"  run dir     {config.run_dir}")
        runs.finish()
        for line in runs.table():
            say(line)
        _draw(runs.folder, plan)
    return runs.exit_code


def _draw(folder: Path, plan: TrainPlan) -> None:
    """Draw the mean learning curve of all seeds to ``learning_curve.png`` in ``folder``. Print what to do next."""
    try:
        plot_runs([folder], folder / "learning_curve.png")
        runs = path_text(folder)
        plan.say(f"\nWrote\n  {runs}\n  {path_text(folder / 'learning_curve.png')}")
        plan.say(f"\nNext:\n\n{commands(['plot', runs], ['evaluate', runs, *allow_flag(plan.config)])}")
    except (ValueError, OSError) as error:  # such as runs in which no episode has ended
        print(f"No learning curve: {error}", file=sys.stderr)


class Runs:
    """Trains each seed of a plan in a process.

    Attributes:
        folder: The folder in which each run has a folder.
        ended: Seed → the process of each run that has ended.
        stopped_by: The signal that asked the runs to stop; None if there was none.
    """

    def __init__(self, plan: TrainPlan, args: Sequence[str]) -> None:
        self.plan, self.args = plan, _of_every_seed(args)
        self.folder = Path(str(plan.config.run_dir)).absolute()  # an env may change the working directory
        self.ended: dict[int, Job] = {}
        self.stopped_by: signal.Signals | None = None

    def finish(self) -> None:
        """Train all seeds, ``--jobs`` at a time, and wait until they end. After a Ctrl-C or SIGTERM, start no more
        processes."""
        is_alone = self.plan.flags.jobs == 1

        def start(seed: int) -> Job:
            if is_alone:
                self.plan.say(f"\nSeed {seed}")
            run_dir = self.folder / f"seed-{seed}"
            words = ["train", *self.args, f"--seed={seed}", f"--run-dir={run_dir}", "--no-hints"]
            return jobs.start(f"seed {seed}", words)

        with Jobs(self.plan.flags.jobs, None if is_alone else _print_line) as jobs:
            self.ended = dict(jobs.run_all(self.plan.seeds, start))
            self.stopped_by = jobs.stopped_by

    @property
    def exit_code(self) -> int:
        """The exit code of the command, as :func:`train_seeds` returns it."""
        if self.stopped_by is not None:
            return INTERRUPTED if self.stopped_by is signal.SIGINT else TERMINATED
        return OK if all(job.exit_code == OK for job in self.ended.values()) else FAILED

    def table(self) -> Iterator[str]:
        """Yield the lines of the table: the result of each run, and their mean."""
        yield f"\n{'seed':>6}  {'return':>10}  {'steps':>12}  {'time':>8}"
        known = list[float]()
        for seed in sorted(self.plan.seeds):
            job = self.ended.get(seed)
            if job is None:
                yield f"{seed:>6}  not started"
                continue
            result = self._result(seed, job)
            if result is None:
                yield f"{seed:>6}  {_how_it_ended(job)}"
                continue
            missed = "  target missed" if job.exit_code == FAILED else ""
            figure, time = return_text(result.final_return), duration_text(job.seconds)
            yield f"{seed:>6}  {figure:>10}  {result.clock:>12,}  {time:>8}{missed}"
            if not math.isnan(result.final_return):
                known.append(result.final_return)
        if len(known) > 1:
            spread = f"{return_text(statistics.stdev(known))} (standard deviation of {len(known)} seeds)"
            yield f"  mean  {return_text(statistics.mean(known)):>10} ± {spread}"

    def _result(self, seed: int, job: Job) -> RunResult | None:
        """Return what the run of a seed has reached, or None if an error or a signal ended it early."""
        try:
            result = read_result(self.folder / f"seed-{seed}")
        except ValueError:
            return None
        done = result.updates if self.plan.budget == "num_updates" else result.env_steps
        missed_target = job.exit_code == FAILED and self.plan.flags.target_return is not None
        return result if job.exit_code == OK or (missed_target and done >= self.plan.amount) else None


def _print_line(name: str, line: str) -> None:
    print(f"[{name}] {line}", file=sys.stderr, flush=True)


def _of_every_seed(args: Sequence[str]) -> list[str]:
    """Return ``args`` without the flags of which the process of a seed gets others."""
    kept: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") not in _OF_ALL_RUNS:
            kept.append(word)
        elif not equals:
            next(words)
    return kept


def _how_it_ended(job: Job) -> str:
    code = job.process.returncode
    if code in (TERMINATED, -signal.SIGTERM):
        return "stopped, and saved" if code == TERMINATED else "stopped before it began"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"failed (exit code {code})"
