"""Train one run from the shell, and print its progress and result."""

import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from algorithms.algorithm import Algorithm
from algorithms.cli.checkpoints import CheckpointFlags
from algorithms.cli.exits import FAILED, INTERRUPTED, OK
from algorithms.config import AlgorithmConfig
from algorithms.registry import name_of
from algorithms.run.goal import Budget, Goal, spent
from algorithms.run.jobs import allow_flag
from algorithms.run.run_folder import RunFolder, new_run_dir, run_name
from algorithms.run.session import TrainingSession
from algorithms.run.text import path_text, return_text
from algorithms.run.wrong_calls import check_budget
from catalog.settings import setting

DEFAULT_STEPS = 200_000
"""Env steps to sample in a run without a preset."""
DEFAULT_UPDATES = 20_000
"""Gradient steps to take in a run that learns from data alone."""
NEW_RUN_DIR = "runs/<algo>-<env>-<time>"
"""Default of ``--run-dir``, which means a new folder with such a name."""


class TrainFlags(CheckpointFlags):
    """Train an algorithm on an environment; every setting is a flag. ENV is a Gymnasium id, or your class or
    factory as my_module:name. A run that learns from --data alone needs none, except to evaluate in."""

    num_env_steps: int | None = setting(
        None,
        "Steps to sample from now on, over all environments; for a resumed run, None takes what is left of its "
        f"goal. Else None takes those of the preset, or {DEFAULT_STEPS:,} without one.",
        ge=1,
    )
    num_updates: int | None = setting(
        None,
        "Gradient steps to take from --data from now on, instead of --num-env-steps. None takes "
        f"{DEFAULT_UPDATES:,} where there is nothing but data to learn from.",
        ge=1,
    )
    target_return: float | None = setting(
        None,
        "Stop once the mean return of an evaluation (of recent training episodes, without --evaluation-interval) is at "
        "least this; exit code 1 if it is not reached.",
    )
    seed: str | None = setting(
        None, "Seed of every random stream of the run; 1..5 or 1,3,7 trains a run for each. None draws one."
    )
    jobs: int = setting(1, "Number of runs to train at the same time, with several seeds.", ge=1)
    run_dir: str | None = setting(
        NEW_RUN_DIR,
        "Folder for logs, checkpoints, videos and learning_curve.png, with one below it for each of several seeds; "
        "None writes no files.",
    )
    preset: str = setting(
        "auto",
        "Measured settings to begin with: auto takes those of ENV or else the defaults, none takes the defaults, an id "
        "takes those of that env; `rlmodule list presets` lists them. Flags override the preset.",
    )
    load: str | None = setting(
        None,
        "Continue a run: its folder, or a checkpoint in it. The run keeps its settings, except for the flags you type; "
        "leave out ALGO and ENV.",
    )
    config: str | None = setting(
        None,
        "Begin with the algorithm and the settings in a JSON file, such as run.json in a run's folder, except for the "
        "flags you type; leave out ALGO and ENV.",
    )
    resume: Literal["auto"] | None = setting(
        None,
        "auto continues the run in --run-dir from its newest undamaged checkpoint, or begins it again if it has none, "
        "until --num-env-steps are sampled in all, None being the goal it began with. The same command can restart a "
        "run that was killed, and ends with the exit code of the run.",
    )
    hints: bool = setting(True, "Print the commands and the code to go on with after the run.")
    quiet: bool = setting(False, "Print nothing but errors.")


@dataclass(frozen=True)
class TrainPlan:
    """The training that a command line asks for.

    Attributes:
        config: All settings, not yet validated; ``run_dir`` may be :data:`NEW_RUN_DIR`.
        flags: The command's own flags.
        budget: What to count: env steps, or updates from data.
        amount: How many to take: from now on, or with ``--resume`` in all.
        kept: The goal of the run that resumes or is repeated, unless the command line has another.
        begun_with: Origin of the settings, as text: a preset, the defaults or a checkpoint.
        checkpoint: The checkpoint to continue; None starts a new run.
        overrides: Names of the settings in ``config`` that replace those of the checkpoint. The checkpoint chose all
            other settings, so these are bounded by what it holds.
        allow: Modules that the checkpoint may import.
        seeds: Seeds of several runs; empty for a single run.
    """

    config: AlgorithmConfig
    flags: TrainFlags
    budget: Budget
    amount: int
    kept: Goal | None
    begun_with: str
    checkpoint: Path | None
    overrides: frozenset[str]
    allow: list[str]
    seeds: tuple[int, ...]

    def say(self, text: str) -> None:
        """Print ``text`` as a line, unless ``--quiet`` is set."""
        if not self.flags.quiet:
            print(text, flush=True)

    def build(self) -> Algorithm:
        """Build a new algorithm from the config. If the plan has a checkpoint, load the algorithm from it, with the
        settings that ``overrides`` names."""
        if self.checkpoint is None:
            return self.config.build()
        settings = {name: vars(self.config)[name] for name in self.overrides}
        return Algorithm.from_checkpoint(self.checkpoint, allow=self.allow, **settings)

    def goal(self, algorithm: Algorithm) -> Goal:
        """Return when ``algorithm``, which this plan has built, ends. ``--load`` trains on also after its run has
        reached its goal, and ``--resume`` does not."""
        resumes = self.flags.resume is not None
        if self.kept is not None and (resumes or self.kept.stopped_by(algorithm) not in ("steps", "target")):
            return self.kept
        before = 0 if resumes else spent(self.budget, algorithm.metrics)
        return Goal(self.amount + before, self.flags.target_return, self.budget)


def train_once(plan: TrainPlan) -> int:
    """Train one run, print its result and the next commands, and return the exit code."""
    config, say = plan.config, plan.say
    if config.num_env_runners or config.num_learners:
        workers = f"{config.num_env_runners} env runners and {config.num_learners} learners"
        say(f"Starting {workers} on Ray, which can take a minute ...")
    with own_run_dir(config), plan.build() as algorithm:
        session = _session(plan, algorithm)
        if is_done := session.is_done:
            done = "taken" if algorithm.metrics.updates else "sampled"
            say(f"{plan.checkpoint} has {done} {algorithm.metrics.clock_text}: nothing is left to do.")
        else:
            _announce(plan, session)
        exit_code = _carry_out(plan, session)
        if not is_done and (folder := algorithm.report.folder) is not None:
            say("Wrote")
            for path in (folder.checkpoint, folder.best_checkpoint, folder.progress, folder.learning_curve):
                if path.exists():
                    say(f"  {path_text(path)}")
            if plan.flags.hints:
                say(what_next(algorithm, folder))
    return exit_code


def _announce(plan: TrainPlan, session: TrainingSession) -> None:
    """Print what is about to be trained."""
    config, say, algorithm = plan.config, plan.say, session.algorithm
    parameters = sum(parameter.numel() for parameter in algorithm.learner_group.module.parameters())
    step = "" if plan.checkpoint is None else f", at step {algorithm.clock:,}"
    say(run_name(algorithm))
    say(f"  starts from {plan.begun_with}{step}")
    unit = "updates" if session.goal.budget == "num_updates" else "steps"
    say(f"  {unit:<11} {_steps_text(plan, session)}")
    say(f"  seed        {algorithm.run_seed}{' (drawn)' if config.seed is None else ''}")
    say(f"  parameters  {parameters:,}")
    say(f"  run dir     {config.run_dir or 'none: nothing will be written'}")
    say(f"  threads     {algorithm.num_threads}")


def _steps_text(plan: TrainPlan, session: TrainingSession) -> str:
    """Return the steps that are left to take as text, and for a resumed run, how they follow from its goal."""
    left = f"{max(0, session.amount):,}"
    if plan.checkpoint is None:
        return left
    if plan.kept is None:
        return f"{left} more"
    target = "" if plan.kept.target_return is None else f" or a return of {plan.kept.target_return:g}"
    kept = f"the run's goal of {plan.kept.amount:,}{target}"
    return f"{left} more, what is left of {kept}" if session.goal is plan.kept else f"{left} more, as {kept} is reached"


@contextmanager
def own_run_dir(config: AlgorithmConfig) -> Iterator[None]:
    """If ``run_dir`` is :data:`NEW_RUN_DIR`, create a new folder, set ``run_dir`` to it, and remove the folder after
    the block if it is empty."""
    if config.run_dir != NEW_RUN_DIR:
        yield
        return
    folder = new_run_dir(config.algo_class.__name__, config.env)
    config.update({"run_dir": str(folder)})
    folder = folder.absolute()  # an env may change the working directory
    try:
        yield
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _carry_out(plan: TrainPlan, session: TrainingSession) -> int:
    """Train as ``plan`` says, evaluate, print the result, and return the exit code. Of a run that resumes, do only what
    is left."""
    say, algorithm = plan.say, session.algorithm
    session.run()
    if session.signal is not signal.SIGINT:
        session.raise_signal()
    steps, target = session.taken, session.goal.target_return
    if steps:
        done = f"Took {steps:,} updates" if session.goal.budget == "num_updates" else f"Sampled {steps:,} env steps"
        say(f"\n{done} in {session.seconds:.1f} s ({steps / session.seconds:,.0f}/s).")
    if session.signal is not None:
        return INTERRUPTED
    final = algorithm.metrics.return_evaluated_last
    if session.evaluation is not None:
        episodes = session.evaluation["env_runners"]["num_episodes"]
        how = "sampled" if algorithm.config.evaluation_explore else "most likely"
        say(f"Evaluation: return {return_text(final)} over {episodes} episodes, taking {how} actions.")
    elif algorithm.config.env is None:
        say("Evaluate it in an env: there is none in this run.")
    elif not algorithm.metrics.episodes:
        say("No episode has ended yet, so there is no evaluation.")
    reached = target is None or session.reached or final >= target
    if not reached:
        print(f"The target return {target:g} was not reached.", file=sys.stderr)
    elif target is not None:
        say(f"The target return {target:g} was reached.")
    return OK if reached else FAILED


def _session(plan: TrainPlan, algorithm: Algorithm) -> TrainingSession:
    goal, resumes = plan.goal(algorithm), plan.flags.resume is not None
    session = TrainingSession(algorithm, goal, not plan.flags.quiet, evaluate_at_end=True, resumes=resumes)
    check_budget(algorithm, {goal.budget: session.amount})
    return session


# --- what to do next --------------------------------------------------------------------------------------------------


def what_next(algorithm: Algorithm, folder: RunFolder) -> str:
    """Return a text that shows the commands and the Python code to evaluate, continue and use the run."""
    allow, run = allow_flag(algorithm.config), path_text(folder.path)
    acting = path_text(folder.best_checkpoint if folder.best_checkpoint.exists() else folder.checkpoint)
    has_env = algorithm.config.env is not None
    played = [] if has_env else ["--env", "ENV"]
    shell = commands(["evaluate", run, *played, *allow], ["train", "--load", run, *allow])
    allowed = f", allow={allow[1:]!r}" if allow else ""
    act = "actions, state = algo.policies" if algorithm.config.is_multi_agent else "action, state = algo.policy"
    imports, config_class = "from algorithms import Algorithm", type(algorithm.config)
    if (module := config_class.__module__) in allow:  # a checkpoint has only the name of a custom algorithm
        register = f"register_algorithm({name_of(algorithm.config)!r}, {module}.{config_class.__qualname__})"
        imports = f"import {module}\n    {imports}, register_algorithm\n\n    {register}"
    return f"""
Next:

{shell}

and in Python:

    {imports}

    with Algorithm.from_checkpoint({acting!r}{allowed}) as algo:
        env = {"algo.config.make_env()" if has_env else "..."}
        (obs, info), state = env.reset(), None
        {act}.act(obs, state)"""


def commands(*command_lines: Sequence[str]) -> str:
    """Format the arguments of ``rlmodule`` commands as lines to paste into a shell."""
    program = ["rlmodule"]
    if shutil.which("rlmodule") is None and sys.argv[0].endswith(("rlmodule", "algorithms/cli/__main__.py")):
        program = [sys.executable, "-m", "algorithms.cli"]
    return "\n".join(f"  {shlex.join([*program, *words])}" for words in command_lines)
