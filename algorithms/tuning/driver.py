"""Train the seeds of trials in processes, and stop trials that are worse than others."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

from algorithms.loggers.base import clock_of, numbers_of
from algorithms.loggers.jsonl import read_rows
from algorithms.run.jobs import Job, Jobs
from algorithms.run.progress import Show
from algorithms.run.results import read_result
from algorithms.run.text import duration_text, return_text
from algorithms.tuning.study import SeedResult, Study, Trial
from algorithms.tuning.trials import wait_until_free

RUNGS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Shares of a run's steps at which a trial may be stopped."""
FEWEST_OTHERS = 4
"""Other trials at a rung from which on their median counts."""
NUM_TESTED = 3
"""How many of the best trials are trained with other seeds at the end."""
MOST_FAILED = 3
"""Failed trials that end a study in which no other trial has ended."""
SECONDS_BETWEEN_CHECKS = 2.0
"""Time between two looks at the rows of the runs."""


@dataclass
class Driver:
    """Trains the seeds of trials.

    Attributes:
        study: The study.
        jobs: Runs the commands.
        command: The command of a run, given its trial and its seed.
        amount: Steps of a run.
        metric: Path of the return at a rung.
        prunes: Whether to stop trials that are worse than others.
        show: Shows the progress.
    """

    study: Study
    jobs: Jobs
    command: Callable[[Trial, int], Sequence[str]]
    amount: int
    metric: str
    prunes: bool
    show: Show
    _runs: dict[Job, tuple[Trial, int]] = field(default_factory=dict)
    _judged: set[tuple[int, int, int]] = field(default_factory=set)
    _pruned: set[int] = field(default_factory=set)
    _begun: float = field(default_factory=perf_counter)

    def search(self, seeds: range, most: int, propose: Callable[[], Trial]) -> None:
        """Train trials until ``most`` have ended, or a signal asks to stop.

        Args:
            seeds: Seeds of each trial.
            most: Number of trials in all.
            propose: Adds the next trial to the study, and returns it.
        """
        while True:
            while self.jobs.has_room:
                trial = self._next_trial(seeds, most, propose)
                if trial is None:
                    break
                seed = next(seed for seed in seeds if seed not in trial.results)
                self._runs[self._start(trial, seed)] = trial, seed
            if not self._runs:
                return
            for job in self.jobs.wait(SECONDS_BETWEEN_CHECKS):
                trial, seed = self._runs.pop(job)
                self._note(trial, seed, job)
            if self.prunes:
                self._judge()
            if self.jobs.stopped_by is None:
                self._tell(seeds, most)
            self._show(most)

    def test(self, seeds: range) -> None:
        """Train the best trials with seeds that no trial saw."""
        runs = []
        for trial in self.study.finished()[:NUM_TESTED]:
            runs += [(trial, seed) for seed in seeds if seed not in trial.results]
        ended = self.jobs.run_all(runs, lambda run: self._start(*run))
        for num_ended, ((trial, seed), job) in enumerate(ended, 1):
            self._note(trial, seed, job)
            self.show(len(self.study.trials), f"testing the best trials: {len(runs) - num_ended} runs left")
        if self.jobs.stopped_by is None:
            for trial in {trial.number: trial for trial, _ in runs}.values():
                self.study.tell(trial, "finished", trial.error)
                if trial.error:
                    print(f"Trial {trial.number}: a test failed. {trial.error}", file=sys.stderr, flush=True)

    def _next_trial(self, seeds: range, most: int, propose: Callable[[], Trial]) -> Trial | None:
        """Return the trial whose next seed is to be trained: one that has begun, else a new one. None if all seeds of
        all trials have begun."""
        for trial in self.study.trials:
            goes_on = trial.state == "running" and trial.number not in self._pruned and not trial.error
            if goes_on and len(trial.results) < len(seeds):
                return trial
        return propose() if len(self.study.trials) < most else None

    def _start(self, trial: Trial, seed: int) -> Job:
        wait_until_free(self._run_of(trial, seed), self.jobs)
        trial.results[seed] = SeedResult()
        return self.jobs.start("", self.command(trial, seed))

    def _run_of(self, trial: Trial, seed: int) -> Path:
        return self.study.folder_of(trial) / f"seed-{seed}"

    def _note(self, trial: Trial, seed: int, job: Job) -> None:
        """Note what the run of a seed that has ended has reached."""
        result, run = trial.results[seed], self._run_of(trial, seed)
        result.rungs = self._rungs_of(run)
        try:
            reached = read_result(run)
        except ValueError:
            reached = None
        if reached is not None:
            result.steps, result.digest = reached.clock, reached.digest
        if self.jobs.stopped_by is not None or trial.number in self._pruned:
            return
        if job.exit_code == 0 and reached is not None and not math.isnan(reached.final_return):
            result.final = reached.final_return
        elif not trial.error:
            got = job.last_line or f"its process ended with exit code {job.exit_code}"
            if job.exit_code == 0:
                got = "no return, since no episode has ended."
            trial.error = f"seed {seed}: {got}"
            self._stop(trial)

    def _stop(self, trial: Trial) -> None:
        for job, (of_trial, _) in self._runs.items():
            if of_trial is trial:
                job.process.terminate()

    def _rungs_of(self, run: Path) -> list[float | None]:
        """Return the last return before each rung that a run has reached."""
        rungs: list[float | None] = []
        value = None
        for row in read_rows(run / "progress.jsonl"):
            value = numbers_of(row).get(self.metric, value)
            while len(rungs) < len(RUNGS) and clock_of(row) >= RUNGS[len(rungs)] * self.amount:
                rungs.append(value)
        return rungs

    def _judge(self) -> None:
        """Stop the trials that are worse than the median of the others at a rung that all their seeds which have begun
        have reached."""
        for trial, seed in self._runs.values():
            trial.results[seed].rungs = self._rungs_of(self._run_of(trial, seed))
        for trial in {trial.number: trial for trial, _ in self._runs.values()}.values():
            seeds = tuple(trial.results)
            for rung in range(trial.num_rungs):
                judged = trial.number, rung, len(seeds)
                if judged not in self._judged:
                    self._judged.add(judged)
                    if self.is_worse(trial, rung, seeds):
                        self._pruned.add(trial.number)
                        self._stop(trial)

    def is_worse(self, trial: Trial, rung: int, seeds: tuple[int, ...]) -> bool:
        """Return whether ``trial`` is worse than the median of the others, with the same seeds at the same rung."""
        value = trial.value_at(rung, seeds)
        values = [other.value_at(rung, seeds) for other in self.study.trials if other is not trial]
        others = [other for other in values if other is not None]
        return value is not None and len(others) >= FEWEST_OTHERS and value < median(others)

    def _tell(self, seeds: range, most: int) -> None:
        """Write how trials ended of which no run is left.

        Raises:
            ValueError: If only failed trials have ended, and these are several or all ``most``.
        """
        busy = {trial.number for trial, _ in self._runs.values()}
        for trial in self.study.trials:
            if trial.state != "running" or trial.number in busy:
                continue
            if trial.number in self._pruned:
                self.study.tell(trial, "pruned")
            elif trial.error:
                self.study.tell(trial, "failed", trial.error)
                print(f"Trial {trial.number} failed. {trial.error}", file=sys.stderr, flush=True)
            elif len(trial.results) == len(seeds):
                self.study.tell(trial, "finished")
        ended = [trial for trial in self.study.trials if trial.state != "running"]
        if len(ended) >= min(MOST_FAILED, most) and all(trial.state == "failed" for trial in ended):
            raise ValueError(
                f"tune(): expected trials that train, got {len(ended)} that failed. {ended[-1].error} Correct that, "
                "and choose another folder."
            )

    def _show(self, most: int) -> None:
        states = [trial.state for trial in self.study.trials]
        num_ended = len(states) - states.count("running")
        facts = [f"{num_ended}/{most} trials", f"{states.count('pruned')} pruned", f"{states.count('failed')} failed"]
        for best in self.study.finished()[:1]:
            facts.append(f"best {return_text(best.value or 0.0)} (trial {best.number})")
        facts.append(f"{len(self._runs)} runs, {duration_text(perf_counter() - self._begun)}")
        self.show(num_ended, "  ".join(facts))
