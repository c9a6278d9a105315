"""``rlmodule train``: a run from the shell, and what it tells."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from algorithms.algorithm import Algorithm
from algorithms.cli.exits import FAILED, INTERRUPTED, OK
from algorithms.cli.explain import DEFAULT_ALGO
from algorithms.cli.flags import NEW_RUN_DIR, algorithm_config, config_from, leading, parse_settings
from algorithms.config import AlgorithmConfig
from algorithms.run_folder import new_run_dir, run_name
from algorithms.session import TrainingSession
from algorithms.settings import settings_of


@dataclass(kw_only=True)
class TrainFlags:
    """Train an algorithm; every setting of its config is a flag."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Gymnasium id of the environment."""
    num_env_steps: int = 200_000
    """Steps to sample, over all environments."""
    target_return: float | None = None
    """Stop once the mean return of an evaluation (of recent training episodes, without --evaluation-interval) is at
    least this; exit code 1 if it is not reached."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing but errors."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the traceback of an error."""


def train(args: Sequence[str]) -> int:
    """Train ALGO on ENV, and write the run's folder."""
    config, flags = train_config(args)
    config.validate()
    with _own_run_dir(config), config.build() as algorithm:
        return _run(algorithm, flags)


def train_config(args: Sequence[str]) -> tuple[AlgorithmConfig, TrainFlags]:
    """The config that the arguments of ``rlmodule train`` describe, and the flags that are not settings.

    Raises:
        UsageError: If algorithm or a flag are unknown.
        TypeError, ValueError: If a value does not fit its setting; names the flag.
        SystemExit: After --help, or if a value cannot be read.
    """
    name = leading(args, "train", "ALGO")
    algo = algorithm_config(name)
    flags = parse_settings(TrainFlags, f"rlmodule train {name.lower()}", args[1:], algo(), settings_of(algo))
    return config_from(algo(), flags).update({"env": flags.env}), flags


@contextmanager
def _own_run_dir(config: AlgorithmConfig) -> Iterator[None]:
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


def _run(algorithm: Algorithm, flags: TrainFlags) -> int:
    """Train and tell; returns the exit code."""
    session = TrainingSession(algorithm, flags.num_env_steps, flags.target_return, progress=not flags.quiet)
    say = _silent if flags.quiet else partial(print, flush=True)
    _introduce(algorithm, say)
    first_step = algorithm.env_steps
    result = session.run()
    steps = algorithm.env_steps - first_step
    say(f"\nSampled {steps:,} env steps in {session.seconds:.1f} s ({steps / session.seconds:,.0f}/s).")
    folder = session.folder
    if folder is not None:
        say("Wrote")
        for path in (folder.checkpoint, folder.progress, folder.learning_curve):
            say(f"  {path}")
    if session.stopped_by is not None:
        return INTERRUPTED
    final, target = _final_evaluation(algorithm, result, say), flags.target_return
    if folder is not None:
        say(_what_next(algorithm, folder.checkpoint))
    if target is None:
        return OK
    if not session.reached and not final >= target:
        print(f"The target return {target:g} was not reached.", file=sys.stderr)
        return FAILED
    say(f"\nThe target return {target:g} was reached.")
    return OK


def _introduce(algorithm: Algorithm, say: Callable[[str], None]) -> None:
    config = algorithm.config
    parameters = sum(parameter.numel() for parameter in algorithm.get_module().parameters())
    say(run_name(algorithm))
    say(f"  seed        {algorithm.run_seed}{' (drawn)' if config.seed is None else ''}")
    say(f"  parameters  {parameters:,}")
    say(f"  run dir     {config.run_dir or 'none: nothing will be written'}")


def _final_evaluation(algorithm: Algorithm, result: Mapping[str, Any], say: Callable[[str], None]) -> float:
    """Mean return of the last iteration's evaluation, or of one made now; NaN if no episode ever ends."""
    config = algorithm.config
    if "evaluation" not in result:
        if not result["env_runners"]["num_episodes_lifetime"]:
            say("No episode has ended yet, so there is no evaluation.")
            return float("nan")
        result = {"evaluation": algorithm.evaluate()}
    final = result["evaluation"]["env_runners"]["episode_return_mean"]
    how = "sampled" if config.evaluation_explore else "most likely"
    say(f"Evaluation: return {final:.1f} over {config.evaluation_duration} episodes, taking {how} actions.")
    return final


def _what_next(algorithm: Algorithm, checkpoint: Path) -> str:
    """How to act with the checkpoint, and where to read more."""
    config, name = algorithm.config, type(algorithm).__name__.lower()
    env_id = str(config.env)
    allow = f", allow=[{env_id.partition(':')[0]!r}]" if ":" in env_id else ""
    env_config = f", **{dict(config.env_config)!r}" if config.env_config else ""
    command = ["rlmodule", "explain", env_id]
    command += [] if name == DEFAULT_ALGO else ["--algo", name]
    command += ["--env-config", json.dumps(config.env_config)] if config.env_config else []
    return f"""
Next, in Python:

    import gymnasium
    from algorithms import Algorithm

    env = gymnasium.make({env_id!r}{env_config})
    with Algorithm.from_checkpoint({str(checkpoint)!r}{allow}) as algo:
        (obs, info), state = env.reset(), None
        action, state = algo.policy.act(obs, state)

and to see how networks are chosen for this environment:

    {shlex.join(command)}"""


def _silent(text: str) -> None:
    """Print nothing."""
