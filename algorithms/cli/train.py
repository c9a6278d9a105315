"""``rlmodule train``: what is to be trained, from the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from algorithms.cli.checkpoints import (
    Allow,
    allowing,
    find_checkpoint,
    modules_in,
    read_checkpoint,
    saved_config_class,
)
from algorithms.cli.exits import UsageError
from algorithms.cli.flags import algorithm_config, apply, parse, parse_settings, words_after
from algorithms.cli.one_run import NEW_RUN_DIR, TrainPlan, train_once
from algorithms.cli.seeds import seeds_of, train_seeds
from algorithms.cli.values import environment
from algorithms.config import AlgorithmConfig
from algorithms.presets import Preset, find_preset
from algorithms.registry import ALGORITHMS, name_of
from algorithms.run.run_folder import RunFolder, env_name, run_folder_of
from algorithms.settings.encoding import encode
from catalog.errors import closest
from catalog.settings import settings_of

DEFAULT_STEPS = 200_000
"""Env steps of a run without a preset."""
_OWN = ("seed", "run_dir")  # settings that are among the command's own flags


@dataclass(kw_only=True)
class TrainFlags:
    """Train an algorithm on an environment; every setting is a flag."""

    env: Annotated[
        tyro.conf.Positional[str | None], tyro.conf.arg(metavar="ENV", help_behavior_hint="(needed without --load)")
    ] = None
    """Gymnasium id, or a class or factory of yours as my_module:name."""
    num_env_steps: Annotated[
        int | None,
        tyro.conf.arg(help_behavior_hint=f"(default: the preset's, else {DEFAULT_STEPS:,})"),
    ] = None
    """Steps to sample from now on, over all environments."""
    target_return: float | None = None
    """Stop once the mean return of an evaluation (of recent training episodes, without --evaluation-interval) is at
    least this; exit code 1 if it is not reached."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="N|N..M|N,M,...", help_behavior_hint="(default: drawn)")] = None
    """Seed of every random stream of the run; several make a run each."""
    jobs: int = 1
    """Runs side by side, where there are several seeds."""
    run_dir: str | None = NEW_RUN_DIR
    """Folder for logs, checkpoints, videos and learning_curve.png, with one below it for each of several seeds; None
    writes no files."""
    preset: Annotated[str, tyro.conf.arg(metavar="auto|none|ENV_ID")] = "auto"
    """Settings to begin with, as measured on an environment: auto takes those of ENV, if there are any; `rlmodule list
    presets` shows all. A flag that is typed wins."""
    load: Annotated[str | None, tyro.conf.arg(metavar="CKPT")] = None
    """Go on with a run: its folder, or a checkpoint in it. It keeps its settings but for the flags that are typed;
    leave out ALGO and ENV."""
    allow: Allow = None
    """Modules of yours that the checkpoint may import."""
    quiet: bool = False
    """Print nothing but errors."""
    debug: bool = False
    """Show the traceback of an error."""


def train(args: Sequence[str]) -> int:
    """Train ALGO on ENV, and write the run's folder."""
    if args and args[0] in ("-h", "--help"):
        each = " or ".join(f"`rlmodule train {name.lower()} --help`" for name in ALGORITHMS)
        try:
            parse(TrainFlags, "rlmodule train ALGO", ["--help"])
        finally:
            print(f"Settings are flags, too: {each}.")
    plan = train_plan(args)
    plan.config.validate()
    run_dir = plan.config.run_dir
    if plan.checkpoint is None and run_dir not in (None, NEW_RUN_DIR):
        for folder in [Path(run_dir, f"seed-{seed}") for seed in plan.seeds] or [run_dir]:
            RunFolder(folder, env_steps=0).undo()  # refuses a folder before envs and workers start
    return train_seeds(plan, args) if plan.seeds else train_once(plan).exit_code


def train_plan(args: Sequence[str]) -> TrainPlan:
    """Return what the arguments of ``rlmodule train`` ask for.

    Raises:
        UsageError: If algorithm, environment, preset or a flag are unknown, or a value cannot be read.
        TypeError, ValueError: If a value does not fit its setting; names the flag.
        FileNotFoundError: If there is no checkpoint to load.
        SystemExit: After --help.
    """
    allow, load = modules_in(words_after("--allow", args)), words_after("--load", args)
    checkpoint = find_checkpoint(load[0], best_first=False) if load else None
    content = {} if checkpoint is None else read_checkpoint(checkpoint)
    if args and not args[0].startswith("-"):
        name, args = args[0], args[1:]
        algo, prog = algorithm_config(name), f"rlmodule train {name if ':' in name else name.lower()}"
    elif checkpoint is not None:
        algo, prog = saved_config_class(content, allow, checkpoint), "rlmodule train"
    else:
        got = repr(args[0]) if args else "nothing"
        raise UsageError("rlmodule train", "ALGO first", got, "rlmodule --help shows how.")
    known = {setting: item for setting, item in settings_of(algo).items() if setting not in _OWN}
    flags, typed = parse_settings(TrainFlags, prog, args, algo(), known)
    env, preset = None if flags.env is None else environment(flags.env), None
    if checkpoint is not None:
        config, begun = _loaded(algo, content, checkpoint, env, flags.preset, typed, allow), str(checkpoint)
    elif env is None:
        remedy = "Name one, such as CartPole-v1 or my_module:make_env; --load CKPT goes on with a run."
        raise UsageError(prog, "an environment, ENV", "none", remedy)
    else:
        preset, begun = _preset(algo, env, flags.preset)
        config = algo(**(preset.settings if preset else {})).update({"env": env})
    config, seeds = apply(typed, config), seeds_of(flags.seed)
    if len(seeds) > 1 and checkpoint is not None:
        raise UsageError("--seed", "one seed with --load", flags.seed, "Leave it out: the run has its own.")
    steps, target = flags.num_env_steps, flags.target_return
    if steps is not None and steps < 1:
        raise UsageError("--num-env-steps", "at least 1", steps, "Type --num-env-steps 200000, for example.")
    if target is not None and not math.isfinite(target):
        raise UsageError("--target-return", "a finite number", target, "Leave it out for none.")
    if flags.jobs < 1:
        raise UsageError("--jobs", "at least 1", flags.jobs, "1 trains one seed after the other.")
    if flags.jobs > 1 and len(seeds) < 2:
        raise UsageError("--jobs", "several seeds to train at a time", "one", "Leave it out, or type --seed 1..5.")
    if allow and checkpoint is None:
        raise UsageError("--allow", "a checkpoint to load", "none", "Leave it out: what is typed here is trusted.")
    run_dir = flags.run_dir
    if checkpoint is not None and run_dir == NEW_RUN_DIR:
        run_dir = str(run_folder_of(checkpoint) or NEW_RUN_DIR)
    return TrainPlan(
        config=config.update({"run_dir": run_dir} | ({"seed": seeds[0]} if len(seeds) == 1 else {})),
        num_env_steps=(preset.num_env_steps if preset else DEFAULT_STEPS) if steps is None else steps,
        target_return=target,
        begun_with=begun,
        checkpoint=checkpoint,
        allow=allow,
        seeds=seeds if len(seeds) > 1 else (),
        jobs=flags.jobs,
        quiet=flags.quiet,
        debug=flags.debug,
    )


def _preset(algo: type[AlgorithmConfig], env: Any, chosen: str) -> tuple[Preset | None, str]:
    """The preset that ``--preset`` chooses, and a line about it."""
    name = algo().algo_class.__name__
    env_id = env if chosen == "auto" else chosen
    preset = None if chosen == "none" else find_preset(algo.presets, env_id)
    if chosen == "none" or (chosen == "auto" and preset is None):
        return None, f"none{' for this env' if chosen == 'auto' else ''}: the defaults of {name}"
    if preset is None:
        choices = ("auto", "none", *algo.presets)
        raise UsageError(
            "--preset", f"one of {', '.join(choices)}", repr(chosen), f"Choose one.{closest(chosen, choices)}"
        )
    how = f"{len(preset.settings)} settings of its own" if preset.settings else f"the defaults of {name}"
    return preset, f"{env_id}: {how} {preset.promise}, after {preset.num_env_steps:,} steps"


def _loaded(
    algo: type[AlgorithmConfig],
    content: dict[str, Any],
    checkpoint: Path,
    env: Any,
    preset: str,
    typed: dict[str, Any],
    allow: Sequence[str],
) -> AlgorithmConfig:
    """Return the config of a checkpoint; what was typed is not looked for in there."""
    where, given = f"--load {checkpoint}", {name: typed[name] for name in typed if name in settings_of(algo)}
    if algo is not saved_config_class(content, allow, checkpoint):
        raise UsageError(where, f"a run of {name_of(algo())}", f"one of {content['algorithm']}", "Leave ALGO out.")
    if preset not in ("auto", "none"):
        raise UsageError("--preset", "none with --load", repr(preset), "Leave it out: the run has its settings.")
    if env is not None:
        given["env"] = env
        if encode(env) != content["config"]["env"]:
            raise UsageError(where, f"a run on {env_name(env)}", "one on another env", "Leave ENV out.")
    with allowing(allow, checkpoint):
        return algo.from_dict(content["config"], allow=allow, **given)
