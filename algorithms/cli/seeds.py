"""Train a run with several seeds, each in a separate process: one after the other or in parallel."""

import dataclasses
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import torch

from algorithms.cli.exits import FAILED, INTERRUPTED, OK, TERMINATED, UsageError, exit_code_of
from algorithms.cli.one_run import Outcome, TrainPlan, allow_flag, carry_out, commands, own_run_dir
from algorithms.run.plotting import plot_runs
from algorithms.run.run_folder import env_name
from algorithms.run.session import stop_requests
from algorithms.run.text import duration_text, path_text, return_text

_SEEDS = r"\d+(\.\.\d+)?(,\d+(\.\.\d+)?)*"
_STOPPED = "\nStopped by Ctrl-C: runs finish their iteration and save. Ctrl-C again stops at once, without saving.\n"


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
        args: The arguments of the command, from which each process makes its plan again.

    Returns:
        The exit code: 0 if all runs succeeded, 130 or 143 if a signal stopped them, else 1.
    """
    config, say, jobs = plan.config, plan.say, plan.flags.jobs
    with own_run_dir(config):
        runs = Runs(plan, list(args))
        config.spaces_of()  # an error of the env is printed once, not by every run
        algorithm, how = config.algo_class.__name__, f"{jobs} side by side" if jobs > 1 else "one by one"
        say(f"{algorithm} on {env_name(config.env)}, seeds {', '.join(map(str, plan.seeds))}, {how}")
        say(f"  begun with  {plan.begun_with}")
        say(f"  steps       {plan.amount:,} each")
        say(f"  run dir     {config.run_dir or 'none: nothing will be written'}")
        runs.finish()
        for line in runs.table():
            say(line)
        if runs.folder is not None:
            _draw(runs.folder, plan)
            if runs.best is not None:
                best, allow = path_text(runs.folder / f"seed-{runs.best}"), allow_flag(config)
                plot, evaluate = ["plot", path_text(runs.folder)], ["evaluate", best, *allow]
                say(f"\nNext:\n\n{commands(plot, evaluate, ['train', '--load', best, *allow])}")
    return runs.exit_code


def _draw(folder: Path, plan: TrainPlan) -> None:
    """Draw the mean learning curve of all seeds to ``learning_curve.png`` in ``folder``."""
    try:
        plot_runs([folder], folder / "learning_curve.png")
        plan.say(f"\nWrote\n  {path_text(folder)}\n  {path_text(folder / 'learning_curve.png')}")
    except (ValueError, OSError) as error:  # such as runs in which no episode has ended
        print(f"No learning curve: {error}", file=sys.stderr)


class Runs:
    """Trains each seed of a plan in a process.

    Each process has a session of its own, so that a terminal sends Ctrl-C to this process alone. On the first Ctrl-C or
    SIGTERM, this process asks the others to finish their iteration and save. On a second Ctrl-C, it kills them.

    Attributes:
        folder: The folder in which each run has a folder; None if nothing is written.
        ended: Seed → exit code and result of each run that has ended; the result is None if the run failed.
    """

    def __init__(self, plan: TrainPlan, args: list[str]) -> None:
        self.plan, self.args = plan, args
        run_dir = plan.config.run_dir
        self.folder = None if run_dir is None else Path(run_dir).absolute()  # an env may change the working directory
        self.ended: dict[int, tuple[int, Outcome | None]] = {}
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._stopped_by: signal.Signals | None = None

    def finish(self) -> None:
        """Train all seeds, ``--jobs`` at a time, and wait until they end. After a Ctrl-C or SIGTERM, start no more
        processes."""
        with stop_requests(self._on_signal), ThreadPoolExecutor(self.plan.flags.jobs) as pool:
            list(pool.map(self._run, self.plan.seeds))  # raises what one of them raised

    @property
    def exit_code(self) -> int:
        """The exit code of the command, as :func:`train_seeds` returns it."""
        if self._stopped_by is not None:
            return INTERRUPTED if self._stopped_by is signal.SIGINT else TERMINATED
        return OK if all(code == OK for code, _ in self.ended.values()) else FAILED

    def table(self) -> Iterator[str]:
        """Yield the lines of the table: the result of each run, and their mean."""
        yield f"\n{'seed':>6}  {'return':>10}  {'steps':>12}  {'time':>8}"
        known = list[float]()
        for seed in sorted(self.plan.seeds):
            code, outcome = self.ended.get(seed, (None, None))
            if outcome is None:
                yield f"{seed:>6}  {_how_it_ended(code)}"
                continue
            missed = "  target missed" if outcome.exit_code == FAILED else ""
            figure, time = return_text(outcome.final_return), duration_text(outcome.seconds)
            yield f"{seed:>6}  {figure:>10}  {outcome.clock:>12,}  {time:>8}{missed}"
            if not math.isnan(outcome.final_return):
                known.append(outcome.final_return)
        if len(known) > 1:
            spread = f"{return_text(statistics.stdev(known))} (standard deviation of {len(known)} seeds)"
            yield f"  mean  {return_text(statistics.mean(known)):>10} ± {spread}"

    @property
    def best(self) -> int | None:
        """The seed of the run with the highest final return. If no run has a final return, the lowest seed with a
        result; None if no run has a result."""
        finals = {seed: outcome.final_return for seed, (_, outcome) in self.ended.items() if outcome is not None}
        return max(sorted(finals), key=lambda seed: (not math.isnan(finals[seed]), finals[seed]), default=None)

    def _run(self, seed: int) -> None:
        """Train one seed in a new process and add its result to ``ended``, unless a signal has already asked to
        stop."""
        if self._stopped_by is not None:
            return
        run_dir = None if self.folder is None else str(self.folder / f"seed-{seed}")
        results, written = os.pipe()
        # Pass on where Python finds modules, which depends on how this process was started.
        code = (
            f"import sys; sys.path[:] = {[*map(str, sys.path)]}; from algorithms.cli.seeds import train_seed; "
            f"train_seed({self.args}, {seed}, {run_dir!r}, {written})"
        )
        is_alone = self.plan.flags.jobs == 1
        if is_alone:
            self.plan.say(f"\nSeed {seed}")
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,  # the process ends when this one does, which closes the pipe
            stdout=None if is_alone else subprocess.PIPE,
            stderr=None if is_alone else subprocess.STDOUT,
            pass_fds=[written],
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            os.close(written)
            self._running[seed] = process
            if self._stopped_by is not None:  # the signal came before the process was in _running
                process.terminate()
            for line in filter(str.strip, process.stdout or ()):
                print(f"[seed {seed}] {line.rstrip()}", file=sys.stderr, flush=True)
            process.wait()  # before the block closes stdin, which would stop a process that is about to end
        del self._running[seed]
        with open(results, encoding="utf-8") as file:
            result = file.read()
        self.ended[seed] = process.returncode, Outcome(**json.loads(result)) if result else None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self._stopped_by is not None
        self._stopped_by = self._stopped_by or signal.Signals(number)
        if number == signal.SIGINT and not again:  # not print(), which is not reentrant
            os.write(2, _STOPPED.encode())
        for process in [*self._running.values()]:
            if again and number == signal.SIGINT:
                process.kill()
            elif not again:
                process.terminate()


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "not started"
    if code in (TERMINATED, -signal.SIGTERM):
        return "stopped, and saved" if code == TERMINATED else "stopped before it began"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"failed (exit code {code})"


# --- in the process of a seed -----------------------------------------------------------------------------------------


def train_seed(args: list[str], seed: int, run_dir: str | None, results: int) -> None:
    """Train one of several seeds, and exit with the code of the run.

    Args:
        args: The arguments of the command that trains all seeds.
        seed: The seed.
        run_dir: Folder of the run; None writes no files.
        results: Descriptor of the pipe to which to write the result of the run as JSON.
    """
    from algorithms.cli.train import train_plan  # here, as train imports this module

    threading.Thread(target=_end_with_parent, daemon=True).start()

    def train() -> int:
        plan = train_plan(args)
        if plan.flags.jobs > 1:
            torch.set_num_threads(1)  # runs at the same time share the cores
        plan = dataclasses.replace(plan, config=plan.config.update({"seed": seed, "run_dir": run_dir}), seeds=())
        with plan.build() as algorithm:
            outcome = carry_out(plan, algorithm)
        with open(results, "w", encoding="utf-8") as file:
            json.dump(vars(outcome), file)
        return outcome.exit_code

    sys.exit(exit_code_of(train, debug="--debug" in args))


def _end_with_parent() -> None:
    """Wait until the process that started this one has ended, then send SIGTERM to this process, so that its run saves
    and ends."""
    sys.stdin.read()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # stdout and stderr may be pipes to the process that has ended
        os.dup2(nowhere, stream)
    os.kill(os.getpid(), signal.SIGTERM)
