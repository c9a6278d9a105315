"""Train a run with several seeds, each in a separate process: one after the other or in parallel."""

import math
import re
import signal
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from algorithms.cli.exits import FAILED, OK, TERMINATED, UsageError
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
        The exit code: 0 if all runs succeeded, 128 plus its number if a signal stopped them, else 1.
    """
    config, say, jobs = plan.config, plan.say, plan.flags.jobs
    if config.run_dir is None:
        raise UsageError("--run-dir: expected a folder for the runs of several seeds, got None. Leave it out.")
    with own_run_dir(config):
        folder = Path(config.run_dir).absolute()  # an env may change the working directory
        config.spaces_of()  # an error of the env is printed once, not by every run
        algorithm, how = config.algo_class.__name__, f"{jobs} side by side" if jobs > 1 else "one by one"
        say(f"{algorithm} on {env_name(config.env)}, seeds {', '.join(map(str, plan.seeds))}, {how}")
        say(f"  starts from {plan.begun_with}")
        say(f"  steps       {plan.amount:,} each")
        say(f"  run dir     {config.run_dir}")

        def start(seed: int) -> Job:
            if jobs == 1:
                say(f"\nSeed {seed}")
            flags = [f"--seed={seed}", f"--run-dir={folder / f'seed-{seed}'}", "--no-hints"]
            return running.start(f"seed {seed}", ["train", *_of_a_seed(args, flags)])

        with Jobs(jobs, None if jobs == 1 else _print_line) as running:
            ended = dict(running.run_all(plan.seeds, start))
        for line in table(plan, folder, ended):
            say(line)
        _draw(folder, plan)
    if running.stopped_by is not None:
        return 128 + running.stopped_by
    return OK if all(job.exit_code == OK for job in ended.values()) else FAILED


def _draw(folder: Path, plan: TrainPlan) -> None:
    """Draw the mean learning curve of all seeds to ``learning_curve.png`` in ``folder``. Print what to do next."""
    try:
        plot_runs([folder], folder / "learning_curve.png")
        runs = path_text(folder)
        plan.say(f"\nWrote\n  {runs}\n  {path_text(folder / 'learning_curve.png')}")
        if plan.flags.hints:
            plan.say(f"\nNext:\n\n{commands(['plot', runs], ['evaluate', runs, *allow_flag(plan.config)])}")
    except (ValueError, OSError) as error:  # such as runs in which no episode has ended
        print(f"No learning curve: {error}", file=sys.stderr)


def table(plan: TrainPlan, folder: Path, ended: Mapping[int, Job]) -> Iterator[str]:
    """Yield the lines of the table: the result of each run, and their mean.

    Args:
        plan: The plan that all runs share.
        folder: The folder in which each run has a folder.
        ended: Seed → the process of each run that has ended.
    """
    yield f"\n{'seed':>6}  {'return':>10}  {'steps':>12}  {'time':>8}"
    known = list[float]()
    for seed in sorted(plan.seeds):
        job = ended.get(seed)
        if job is None:
            yield f"{seed:>6}  not started"
            continue
        result = _result(plan, folder / f"seed-{seed}", job)
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


def _result(plan: TrainPlan, run: Path, job: Job) -> RunResult | None:
    """Return what the run of a seed has reached, or None if an error or a signal ended it early."""
    try:
        result = read_result(run)
    except ValueError:
        return None
    done = result.updates if plan.budget == "num_updates" else result.env_steps
    target = plan.flags.target_return if plan.kept is None else plan.kept.target_return
    missed_target = job.exit_code == FAILED and target is not None
    return result if job.exit_code == OK or (missed_target and done >= plan.amount) else None


def _print_line(name: str, line: str) -> None:
    with suppress(OSError):  # a run goes on if nobody reads what it prints
        print(f"[{name}] {line}", file=sys.stderr, flush=True)


def _of_a_seed(args: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return ``args`` with ``flags``, and without the flags that these replace."""
    kept: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        flag = name.replace("_", "-")
        if flag in ("--hints", "--no-hints"):
            continue
        if flag not in _OF_ALL_RUNS:
            kept.append(word)
        elif not equals:
            next(words)
    begin = 0 if kept[0].startswith("-") else 1  # ALGO is first, and no flag comes after a --
    return [*kept[:begin], *flags, *kept[begin:]]


def _how_it_ended(job: Job) -> str:
    code = job.process.returncode
    if code in (TERMINATED, -signal.SIGTERM):
        return "stopped, and saved" if code == TERMINATED else "stopped before it began"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"failed (exit code {code})"
