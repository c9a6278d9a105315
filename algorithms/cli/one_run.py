"""A run from the shell, and what it tells."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from algorithms.algorithm import Algorithm
from algorithms.cli.exits import FAILED, INTERRUPTED, OK
from algorithms.cli.next_steps import what_next
from algorithms.config import AlgorithmConfig
from algorithms.run.progress import return_text
from algorithms.run.run_folder import new_run_dir, run_name
from algorithms.run.session import TrainingSession
from catalog.settings import settings_of

NEW_RUN_DIR = "runs/<algo>-<env>-<time>"
"""Default of ``--run-dir``: a folder of this name, made anew."""


@dataclass(frozen=True)
class TrainPlan:
    """What a command line asks to train.

    Attributes:
        config: All settings, not yet validated; ``run_dir`` may be :data:`NEW_RUN_DIR`.
        num_env_steps: Env steps to sample.
        target_return: Mean return at which to stop; None for none.
        begun_with: What the settings began with: a preset, the defaults or a checkpoint, in words.
        checkpoint: The run to go on with; None begins one.
        allow: Modules that the checkpoint may import.
        seeds: Those of several runs; empty for a single one.
        jobs: How many of these run side by side.
        quiet: Whether to print nothing but errors.
        debug: Whether errors show their traceback.
    """

    config: AlgorithmConfig
    num_env_steps: int
    target_return: float | None
    begun_with: str
    checkpoint: Path | None
    allow: tuple[str, ...]
    seeds: tuple[int, ...]
    jobs: int
    quiet: bool
    debug: bool

    @property
    def say(self) -> Callable[[str], None]:
        """Prints a line, or nothing."""
        return _silent if self.quiet else partial(print, flush=True)

    def for_seed(self, seed: int, run_dir: str | None) -> TrainPlan:
        """The plan of one of its runs."""
        config = self.config.copy().update({"seed": seed, "run_dir": run_dir})
        return dataclasses.replace(self, config=config, seeds=())

    def build(self) -> Algorithm:
        """The algorithm, new or as the checkpoint has it."""
        if self.checkpoint is None:
            return self.config.build()
        settings = {name: vars(self.config)[name] for name in settings_of(type(self.config))}
        return Algorithm.from_checkpoint(self.checkpoint, allow=self.allow, **settings)


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        exit_code: Of the command, if this is its only run.
        final_return: Mean return of the last evaluation; NaN if there is none.
        env_steps: Env steps sampled, before a checkpoint too.
        seconds: Wall time of the training.
    """

    exit_code: int
    final_return: float
    env_steps: int
    seconds: float


def train_once(plan: TrainPlan) -> Outcome:
    """Train one run to its end, and tell what it comes to and what to do next."""
    if workers := workers_text(plan.config):
        plan.say(f"Starting {workers} on Ray, which can take a minute ...")
    with own_run_dir(plan.config), plan.build() as algorithm:
        for line in introduction(plan, algorithm):
            plan.say(line)
        outcome = carry_out(plan, algorithm)
        folder = algorithm.report.folder
        if folder is not None:
            plan.say("Wrote")
            for path in (folder.checkpoint, folder.best_checkpoint, folder.progress, folder.learning_curve):
                if path.exists():
                    plan.say(f"  {path}")
            plan.say(what_next(algorithm, folder))
    return outcome


@contextmanager
def own_run_dir(config: AlgorithmConfig) -> Iterator[None]:
    """Put a new folder's path where ``run_dir`` is :data:`NEW_RUN_DIR`; the folder goes again if it stays empty."""
    if config.run_dir != NEW_RUN_DIR:
        yield
        return
    folder = new_run_dir(config.algo_class.__name__, config.env)
    config.update({"run_dir": str(folder)})
    try:
        yield
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def workers_text(config: AlgorithmConfig) -> str:
    """How many processes ``config`` asks for, such as ``2 env runners and 1 learner``; empty for none."""
    numbers = {"env runner": config.num_env_runners, "learner": config.num_learners}
    return " and ".join(f"{number} {name}{'s' if number > 1 else ''}" for name, number in numbers.items() if number)


def introduction(plan: TrainPlan, algorithm: Algorithm) -> Iterator[str]:
    """Lines on what is going to run."""
    config = algorithm.config
    parameters = sum(parameter.numel() for parameter in algorithm.get_module().parameters())
    yield run_name(algorithm)
    if plan.checkpoint is None:
        yield f"  preset      {plan.begun_with}"
    else:
        yield f"  from        {plan.begun_with}, at step {algorithm.env_steps:,}"
    yield f"  steps       {plan.num_env_steps:,}{' more' if plan.checkpoint is not None else ''}"
    yield f"  seed        {algorithm.run_seed}{' (drawn)' if config.seed is None else ''}"
    yield f"  parameters  {parameters:,}"
    yield f"  run dir     {config.run_dir or 'none: nothing will be written'}"


def carry_out(plan: TrainPlan, algorithm: Algorithm) -> Outcome:
    """Train, evaluate, and say what came of it."""
    say, target = plan.say, plan.target_return
    session = TrainingSession(algorithm, plan.num_env_steps, target, progress=not plan.quiet, evaluate_at_end=True)
    first_step = algorithm.env_steps
    session.run()
    steps = algorithm.env_steps - first_step
    say(f"\nSampled {steps:,} env steps in {session.seconds:.1f} s ({steps / session.seconds:,.0f}/s).")
    if session.stopped_by is not None:
        return Outcome(INTERRUPTED, math.nan, algorithm.env_steps, session.seconds)
    final = _final_evaluation(session, say)
    reached = target is None or session.reached or final >= target
    if not reached:
        print(f"The target return {target:g} was not reached.", file=sys.stderr)
    elif target is not None:
        say(f"The target return {target:g} was reached.")
    return Outcome(OK if reached else FAILED, final, algorithm.env_steps, session.seconds)


def _final_evaluation(session: TrainingSession, say: Callable[[str], None]) -> float:
    """Mean return of the evaluation of the run's end; NaN if no episode ever ended."""
    if session.evaluation is None:
        say("No episode has ended yet, so there is no evaluation.")
        return math.nan
    final = session.evaluation["env_runners"]
    how = "sampled" if session.algorithm.config.evaluation_explore else "most likely"
    mean, episodes = final["episode_return_mean"], final["num_episodes"]
    say(f"Evaluation: return {return_text(mean)} over {episodes} episodes, taking {how} actions.")
    return mean


def _silent(text: str) -> None:
    """Print nothing."""
