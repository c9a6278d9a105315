"""The same run with several seeds: each in a process of its own, one after the other or side by side."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from algorithms.cli.exits import FAILED, INTERRUPTED, OK, TERMINATED, UsageError, exit_code_of
from algorithms.cli.next_steps import allow_flag, commands
from algorithms.cli.one_run import Outcome, TrainPlan, carry_out, own_run_dir
from algorithms.config import AlgorithmConfig
from algorithms.run.progress import return_text
from algorithms.run.run_folder import env_name
from algorithms.run.signals import stop_requests
from rlmodule.envs.make import make_vector_env, workers_ignore_ctrl_c

_SEEDS = r"\d+(\.\.\d+)?(,\d+(\.\.\d+)?)*"
_STOPPED = "\nStopped by Ctrl-C: runs finish their iteration and save. Ctrl-C again stops at once, without saving.\n"


def seeds_of(text: str | None) -> tuple[int, ...]:
    """The seeds that ``--seed`` lists: ``7``, ``1..5``, ``1,3,7``; none for None.

    Raises:
        UsageError: If they cannot be understood, or one comes twice.
    """
    if text is None:
        return ()
    parts = [part.split("..") for part in text.split(",")] if re.fullmatch(_SEEDS, text) else []
    seeds = tuple(seed for ends in parts for seed in range(int(ends[0]), int(ends[-1]) + 1))
    if not seeds or len({*seeds}) < len(seeds):
        expected, remedy = "a whole number >= 0, or several that differ", "Write --seed 1..5 or --seed 1,3,7."
        raise UsageError("--seed", expected=expected, got=repr(text), remedy=remedy)
    return seeds


def train_seeds(plan: TrainPlan, args: Sequence[str]) -> int:
    """Train one run for each of ``plan.seeds``, and tell what they come to together.

    Args:
        plan: What to train.
        args: The arguments that ``plan`` was made of, from which each process makes it again.

    Returns:
        0 if all of them succeeded, 130 or 143 if they were stopped, and else 1.
    """
    config = plan.config
    assert config.env is not None  # it is validated
    # what is wrong with the env is told once, not by every run
    make_vector_env(
        config.env, config.env_config, config.num_envs_per_env_runner, config.gym_env_vectorize_mode
    ).close()
    with own_run_dir(config):
        algorithm, how = config.algo_class.__name__, f"{plan.jobs} side by side" if plan.jobs > 1 else "one by one"
        plan.say(f"{algorithm} on {env_name(config.env)}, seeds {', '.join(map(str, plan.seeds))}, {how}")
        plan.say(f"  preset      {plan.begun_with}")
        plan.say(f"  steps       {plan.num_env_steps:,} each")
        plan.say(f"  run dir     {config.run_dir or 'none: nothing will be written'}")
        runs = Runs(plan, list(args))
        runs.finish()
        for line in runs.table():
            plan.say(line)
        if config.run_dir is not None:
            _draw(Path(config.run_dir), plan)
            if runs.best is not None:
                plan.say(f"\nNext:\n\n{_what_next(Path(config.run_dir), runs.best, plan.config)}")
    return runs.exit_code


def _what_next(folder: Path, best: int, config: AlgorithmConfig) -> str:
    """Commands to look at all runs together, and at the best of them."""
    run, allow = str(folder / f"seed-{best}"), allow_flag(config)
    return commands(["plot", str(folder)], ["evaluate", run, *allow], ["train", "--load", run, *allow])


def _draw(folder: Path, plan: TrainPlan) -> None:
    """The learning curve of all seeds together, from what their folders tell."""
    from algorithms.run.plotting import plot_runs

    if folder.is_dir():
        plan.say(f"\nWrote\n  {folder}")
    if any((folder / f"seed-{seed}" / "progress.jsonl").exists() for seed in plan.seeds):
        try:
            plot_runs([folder], folder / "learning_curve.png")
        except ValueError as error:  # such as runs in which no episode has ended
            print(f"No learning curve: {error}", file=sys.stderr)
        else:
            plan.say(f"  {folder / 'learning_curve.png'}")


@dataclass
class _Child:
    process: SpawnProcess
    outcome: Connection
    reader: threading.Thread | None


class Runs:
    """The processes of the seeds of a plan.

    They do not hear Ctrl-C, which a terminal sends to all processes: it is for us to end them. The first one, like a
    SIGTERM, asks them to finish their iteration and save; the second one kills them.
    """

    def __init__(self, plan: TrainPlan, args: list[str]) -> None:
        self.plan, self.args = plan, args
        self._waiting, self._running = list(plan.seeds), dict[int, _Child]()
        self._ended: dict[int, tuple[int, Outcome | None]] = {}
        self._stopped_by: signal.Signals | None = None

    def finish(self) -> None:
        """Run them all, or those that have begun before a signal asks to stop."""
        with stop_requests(self._on_signal):
            while self._running or (self._waiting and self._stopped_by is None):
                while self._waiting and len(self._running) < self.plan.jobs and self._stopped_by is None:
                    self._start(self._waiting.pop(0))
                wait([child.process.sentinel for child in self._running.values()])
                for seed, child in list(self._running.items()):
                    if not child.process.is_alive():
                        self._end(seed, child)

    @property
    def exit_code(self) -> int:
        """That of the command."""
        if self._stopped_by is not None:
            return INTERRUPTED if self._stopped_by is signal.SIGINT else TERMINATED
        return OK if all(code == OK for code, _ in self._ended.values()) else FAILED

    def table(self) -> Iterator[str]:
        """Lines on what each came to, and all together."""
        yield f"\n{'seed':>6}  {'return':>10}  {'steps':>12}  {'time':>8}"
        for seed in sorted(self.plan.seeds):
            if seed not in self._ended:
                yield f"{seed:>6}  not started"
                continue
            code, outcome = self._ended[seed]
            if outcome is None:
                yield f"{seed:>6}  {_how_it_ended(code)}"
                continue
            minutes, seconds = divmod(round(outcome.seconds), 60)
            missed = "  target missed" if outcome.exit_code == FAILED else ""
            figure = return_text(outcome.final_return)
            yield f"{seed:>6}  {figure:>10}  {outcome.env_steps:>12,}  {minutes:>5}:{seconds:02d}{missed}"
        known = [outcome.final_return for _, outcome in self._ended.values() if outcome is not None]
        known = [figure for figure in known if not math.isnan(figure)]
        if len(known) > 1:
            mean, deviation = statistics.mean(known), statistics.stdev(known)
            spread = f"{return_text(deviation)} (standard deviation of {len(known)} seeds)"
            yield f"  mean  {return_text(mean):>10} ± {spread}"

    @property
    def best(self) -> int | None:
        """The seed of the run with the highest final return; of those without one, the first that has ended well."""
        ended = {seed: outcome.final_return for seed, (_, outcome) in self._ended.items() if outcome is not None}
        return max(sorted(ended), key=lambda seed: (not math.isnan(ended[seed]), ended[seed]), default=None)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self, seed: int) -> None:
        plan, context = self.plan, multiprocessing.get_context("spawn")
        run_dir = None if plan.config.run_dir is None else str(Path(plan.config.run_dir) / f"seed-{seed}")
        receiver, sender = context.Pipe(duplex=False)
        reader, output = None, None
        if plan.jobs > 1:
            lines, output = context.Pipe(duplex=False)
            reader = threading.Thread(target=_pass_on, args=(lines, f"[seed {seed}] "), daemon=True)
        else:
            plan.say(f"\nSeed {seed}")
        with workers_ignore_ctrl_c():  # which a new process inherits
            process = context.Process(target=_child, args=(self.args, seed, run_dir, output, sender))
            process.start()
        sender.close()
        if output is not None:
            output.close()  # so that the reader finds an end
        if reader is not None:
            reader.start()
        self._running[seed] = _Child(process, receiver, reader)
        if self._stopped_by is not None:  # meanwhile
            process.terminate()

    def _end(self, seed: int, child: _Child) -> None:
        child.process.join()
        if child.reader is not None:
            child.reader.join()
        try:
            outcome = child.outcome.recv()
        except EOFError:
            outcome = None
        child.outcome.close()
        self._ended[seed] = child.process.exitcode or 0, outcome
        del self._running[seed]

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self._stopped_by is not None
        self._stopped_by = self._stopped_by or signal.Signals(number)
        if number == signal.SIGINT and not again:  # not print(): this may run in the middle of another one
            os.write(2, _STOPPED.encode())
        for child in self._running.values():
            if again and number == signal.SIGINT:
                child.process.kill()
            elif not again:
                child.process.terminate()


def _how_it_ended(code: int) -> str:
    if code in (TERMINATED, -signal.SIGTERM):
        return "stopped, and saved" if code == TERMINATED else "stopped before it began"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"failed (exit code {code})"


def _pass_on(lines: Connection, prefix: str) -> None:
    """Print what a process prints, each line with what it is about."""
    with open(lines.fileno(), encoding="utf-8", errors="replace", closefd=False) as text:
        for line in text:
            if line.strip():
                print(f"{prefix}{line.rstrip()}", file=sys.stderr, flush=True)
    lines.close()


# --- in the process of a seed -----------------------------------------------------------------------------------------


def _child(args: list[str], seed: int, run_dir: str | None, output: Connection | None, outcome: Connection) -> None:
    if output is not None:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run = partial(_train, args, seed, run_dir, outcome)
    sys.exit(exit_code_of(run, debug="--debug" in args))


def _train(args: list[str], seed: int, run_dir: str | None, outcome: Connection) -> int:
    from algorithms.cli.train import train_plan

    plan = train_plan(args).for_seed(seed, run_dir)
    with plan.build() as algorithm:
        came = carry_out(plan, algorithm)
    outcome.send(came)
    return came.exit_code


def _end_with_parent() -> None:
    """Ask the run to save and end when the process that started it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # which led to it
        os.dup2(nowhere, stream)
    os.kill(os.getpid(), signal.SIGTERM)
