"""Train one run from the shell, and print its progress and result."""

import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from algorithms.algorithm import Algorithm
from algorithms.cli.checkpoints import ALLOW
from algorithms.cli.exits import FAILED, INTERRUPTED, OK
from algorithms.cli.flags import CommandFlags
from algorithms.config import AlgorithmConfig
from algorithms.registry import name_of
from algorithms.run.run_folder import RunFolder, new_run_dir, run_name
from algorithms.run.session import TrainingSession
from algorithms.run.text import return_text
from catalog.settings import setting, settings_of
from catalog_rl import PACKAGES

DEFAULT_STEPS = 200_000
"""Env steps to sample in a run without a preset."""
NEW_RUN_DIR = "runs/<algo>-<env>-<time>"
"""Default of ``--run-dir``, which means a new folder with such a name."""


class TrainFlags(CommandFlags):
    """Train an algorithm on an environment; every setting is a flag. ENV is a Gymnasium id, or your class or
    factory as my_module:name."""

    num_env_steps: int | None = setting(
        None,
        "Steps to sample from now on, over all environments; "
        f"None takes those of the preset, or {DEFAULT_STEPS:,} without one.",
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
    resume: Literal["auto"] | None = setting(
        None,
        "auto continues the run in --run-dir from its newest undamaged checkpoint, if any, until --num-env-steps "
        "are sampled in all; so the same command can restart a run that was killed.",
    )
    allow: list[str] | None = setting(None, ALLOW)
    quiet: bool = setting(False, "Print nothing but errors.")


@dataclass(frozen=True)
class TrainPlan:
    """The training that a command line asks for.

    Attributes:
        config: All settings, not yet validated; ``run_dir`` may be :data:`NEW_RUN_DIR`.
        flags: The command's own flags.
        num_env_steps: Env steps to sample from now on; 0 or less if a resumed run has already sampled all of them.
        begun_with: Origin of the settings, as text: a preset, the defaults or a checkpoint.
        checkpoint: The checkpoint to continue; None starts a new run.
        allow: Modules that the checkpoint may import.
        seeds: Seeds of several runs; empty for a single run.
    """

    config: AlgorithmConfig
    flags: TrainFlags
    num_env_steps: int
    begun_with: str
    checkpoint: Path | None
    allow: list[str]
    seeds: tuple[int, ...]

    def say(self, text: str) -> None:
        """Print ``text`` as a line, unless ``--quiet`` is set."""
        if not self.flags.quiet:
            print(text, flush=True)

    def build(self) -> Algorithm:
        """Build a new algorithm from the config. If the plan has a checkpoint, load the algorithm from it, with the
        settings of the config."""
        if self.checkpoint is None:
            return self.config.build()
        settings = {name: vars(self.config)[name] for name in settings_of(type(self.config))}
        return Algorithm.from_checkpoint(self.checkpoint, allow=self.allow, **settings)


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        exit_code: Exit code of a command that trains only this run.
        final_return: Mean return of the last evaluation; NaN without an evaluation, or if a signal stopped the run.
        env_steps: Env steps sampled, including those before a checkpoint from which the run continues.
        seconds: Wall time of the training.
    """

    exit_code: int
    final_return: float
    env_steps: int
    seconds: float


def train_once(plan: TrainPlan) -> int:
    """Train one run, print its result and the next commands, and return the exit code."""
    config, say = plan.config, plan.say
    if config.num_env_runners or config.num_learners:
        workers = f"{config.num_env_runners} env runners and {config.num_learners} learners"
        say(f"Starting {workers} on Ray, which can take a minute ...")
    with own_run_dir(config), plan.build() as algorithm:
        parameters = sum(parameter.numel() for parameter in algorithm.learner_group.module.parameters())
        more, step = ("", "") if plan.checkpoint is None else (" more", f", at step {algorithm.env_steps:,}")
        say(run_name(algorithm))
        say(f"  begun with  {plan.begun_with}{step}")
        say(f"  steps       {plan.num_env_steps:,}{more}")
        say(f"  seed        {algorithm.run_seed}{' (drawn)' if config.seed is None else ''}")
        say(f"  parameters  {parameters:,}")
        say(f"  run dir     {config.run_dir or 'none: nothing will be written'}")
        outcome = carry_out(plan, algorithm)
        if (folder := algorithm.report.folder) is not None:
            say("Wrote")
            for path in (folder.checkpoint, folder.best_checkpoint, folder.progress, folder.learning_curve):
                if path.exists():
                    say(f"  {path}")
            say(what_next(algorithm, folder))
    return outcome.exit_code


@contextmanager
def own_run_dir(config: AlgorithmConfig) -> Iterator[None]:
    """If ``run_dir`` is :data:`NEW_RUN_DIR`, create a new folder, set ``run_dir`` to it, and remove the folder after
    the block if it is empty."""
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


def carry_out(plan: TrainPlan, algorithm: Algorithm) -> Outcome:
    """Train ``algorithm`` as ``plan`` says, evaluate it, print the result, and return it."""
    say, target, first_step = plan.say, plan.flags.target_return, algorithm.env_steps
    progress = not plan.flags.quiet
    session = TrainingSession(algorithm, plan.num_env_steps, target, progress=progress, evaluate_at_end=True)
    session.run()
    steps, final = algorithm.env_steps - first_step, math.nan
    say(f"\nSampled {steps:,} env steps in {session.seconds:.1f} s ({steps / session.seconds:,.0f}/s).")
    if session.stopped_by is not None:
        return Outcome(INTERRUPTED, final, algorithm.env_steps, session.seconds)
    if session.evaluation is None:
        say("No episode has ended yet, so there is no evaluation.")
    else:
        played = session.evaluation["env_runners"]
        final, episodes = played["episode_return_mean"], played["num_episodes"]
        how = "sampled" if algorithm.config.evaluation_explore else "most likely"
        say(f"Evaluation: return {return_text(final)} over {episodes} episodes, taking {how} actions.")
    reached = target is None or session.reached or final >= target
    if not reached:
        print(f"The target return {target:g} was not reached.", file=sys.stderr)
    elif target is not None:
        say(f"The target return {target:g} was reached.")
    return Outcome(OK if reached else FAILED, final, algorithm.env_steps, session.seconds)


# --- what to do next --------------------------------------------------------------------------------------------------


def what_next(algorithm: Algorithm, folder: RunFolder) -> str:
    """Return a text that shows the commands and the Python code to evaluate, continue and use the run."""
    allow, run = allow_flag(algorithm.config), str(folder.path)
    acting = folder.best_checkpoint if folder.best_checkpoint.exists() else folder.checkpoint
    shell = commands(["evaluate", run, *allow], ["train", "--load", run, *allow])
    allowed = f", allow={allow[1:]!r}" if allow else ""
    act = "actions, state = algo.policies" if algorithm.config.is_multi_agent else "action, state = algo.policy"
    imports, own = "from algorithms import Algorithm", type(algorithm.config)
    if own.__module__ in allow:
        register = f"register_algorithm({name_of(algorithm.config)!r}, {own.__module__}.{own.__qualname__})"
        imports = f"import {own.__module__}\n    {imports}, register_algorithm\n\n    {register}"
    return f"""
Next:

{shell}

and in Python:

    {imports}

    with Algorithm.from_checkpoint({str(acting)!r}{allowed}) as algo:
        env = algo.config.make_env()
        (obs, info), state = env.reset(), None
        {act}.act(obs, state)"""


def allow_flag(config: AlgorithmConfig) -> list[str]:
    """Return the words of the flag ``--allow`` with the modules that a checkpoint of ``config`` needs: modules that
    settings name, and the module of a custom config class. Return an empty list if it needs no modules."""
    needed = dict.fromkeys([*config.modules_to_allow(), type(config).__module__])
    modules = [name for name in needed if name.partition(".")[0] not in PACKAGES]
    return ["--allow", *modules] if modules else []


def commands(*each: Sequence[str]) -> str:
    """Format the arguments of ``rlmodule`` commands as lines to paste into a shell."""
    program = ["rlmodule"]
    if shutil.which("rlmodule") is None and sys.argv[0].endswith(("rlmodule", "algorithms/cli/__main__.py")):
        program = [sys.executable, "-m", "algorithms.cli"]
    return "\n".join(f"  {shlex.join([*program, *words])}" for words in each)
