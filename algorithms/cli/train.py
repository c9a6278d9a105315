"""``rlmodule train``: what is to be trained, from the command line."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import gymnasium as gym
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
from algorithms.cli.flags import (
    Typed,
    algorithm_config,
    checked_value,
    is_config_class,
    leading,
    parse_settings,
    show_common_help,
    value_of,
)
from algorithms.cli.next_steps import program
from algorithms.cli.one_run import NEW_RUN_DIR, TrainPlan, train_once
from algorithms.cli.seeds import seeds_of, train_seeds
from algorithms.cli.values import environment, imported
from algorithms.config import AlgorithmConfig
from algorithms.presets import Preset, find_preset
from algorithms.registry import ALGORITHMS, config_class, name_of
from algorithms.run.run_folder import env_name, run_folder_of
from algorithms.settings.encoding import encode
from algorithms.settings.fields import Setting, settings_of
from catalog.errors import closest, explain_error

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
        tyro.conf.arg(metavar="INT", help_behavior_hint=f"(default: the preset's, else {DEFAULT_STEPS:,})"),
    ] = None
    """Steps to sample from now on, over all environments; 200k and 1e6 are numbers, too."""
    target_return: Annotated[
        float | None,
        tyro.conf.arg(
            metavar="FLOAT",
            help="Stop once the mean return of an evaluation (of recent training episodes, without "
            "--evaluation-interval) is at least this; exit code 1 if it is not reached.",
        ),
    ] = None
    seed: Annotated[str | None, tyro.conf.arg(metavar="N|N..M|N,M,...", help_behavior_hint="(default: drawn)")] = None
    """Seed of every random stream of the run; several make a run each."""
    jobs: int = 1
    """Runs side by side, where there are several seeds."""
    run_dir: Annotated[
        str | None,
        tyro.conf.arg(
            help="Folder for logs, checkpoints, videos and learning_curve.png, with one below it for each of several "
            "seeds; None writes no files.",
        ),
    ] = NEW_RUN_DIR
    preset: Annotated[
        str,
        tyro.conf.arg(
            metavar="auto|none|ENV_ID",
            help="Settings to begin with, as measured on an environment: auto takes those of ENV, if there are any; "
            "`rlmodule list presets` shows all. A flag that is typed wins.",
        ),
    ] = "auto"
    load: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="CKPT",
            help="Go on with a run: its folder, or a checkpoint in it. It keeps its settings but for the flags that "
            "are typed; leave out ALGO and ENV.",
        ),
    ] = None
    allow: Allow = None
    """Modules of yours that the checkpoint may import; may be repeated."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing but errors."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the traceback of an error."""


def train(args: Sequence[str]) -> int:
    """Train ALGO on ENV, and write the run's folder."""
    if args and args[0] in ("-h", "--help"):
        _help([*args[1:], ""][0])
    plan = train_plan(args)
    plan.config.validate()
    _check_run_dir(plan)
    return train_seeds(plan, args) if plan.seeds else train_once(plan).exit_code


def _check_run_dir(plan: TrainPlan) -> None:
    """Raise where ``--run-dir`` holds a run, or cannot be written to: before anything is told or made.

    Raises:
        FileExistsError, OSError: Says what to type instead.
    """
    run_dir = plan.config.run_dir
    if plan.checkpoint is not None or run_dir is None or run_dir == NEW_RUN_DIR:
        return
    whole = Path(run_dir)
    for folder in [whole / f"seed-{seed}" for seed in plan.seeds] or [whole]:
        where, about = f"--run-dir {folder}", folder / "run.json"
        if (folder / "checkpoint").exists():
            remedy = f"Choose another, or go on with it: {' '.join(program())} train --load {shlex.quote(str(folder))}."
        elif about.is_file() and about.stat().st_size:
            remedy = "Choose another; this one ended before its first checkpoint."
        else:
            continue
        raise FileExistsError(
            explain_error(where, expected="a folder without a run", got="one with a run in it", remedy=remedy)
        )
    there = next(path for path in (whole.absolute(), *whole.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        got = "a folder that is read-only" if there.is_dir() else "a file"
        remedy = "Choose another, or None to write nothing."
        raise OSError(
            explain_error(f"--run-dir {run_dir}", expected="a folder to write to", got=f"{got}, {there}", remedy=remedy)
        )


def _help(topic: str) -> NoReturn:
    """Show the help where no algorithm is named, or that of the one which is the topic."""
    if topic.upper() in ALGORITHMS:
        train_plan([topic, "--help"])
    show_common_help(TrainFlags, "rlmodule train", {name: _flags_of(config_class(name)) for name in ALGORITHMS}, topic)


def _flags_of(algo: type[AlgorithmConfig]) -> dict[str, Setting]:
    return {setting: item for setting, item in settings_of(algo).items() if setting not in _OWN}


def train_plan(args: Sequence[str]) -> TrainPlan:
    """What the arguments of ``rlmodule train`` ask for.

    Raises:
        UsageError: If algorithm, environment, preset or a flag are unknown, or a value cannot be read.
        TypeError, ValueError: If a value does not fit its setting; names the flag.
        FileNotFoundError: If there is no checkpoint to load.
        SystemExit: After --help, or if a value is missing.
    """
    load = value_of("--load", args)
    name = leading(args, "train", "ALGO") if load is None or not args[0].startswith("-") else None
    if name is not None and name.upper() not in ALGORITHMS and (name in gym.registry or _is_env(name, args)):
        remedy = f"Name one first: rlmodule train ppo {name}."
        raise _usage("rlmodule train", f"an algorithm ({', '.join(ALGORITHMS).lower()})", repr(name), remedy)
    checkpoint = None if load is None else find_checkpoint(load, best_first=False)
    content = None if checkpoint is None else read_checkpoint(checkpoint)
    if name is not None:
        algo = algorithm_config(name)
    else:
        assert content is not None
        assert checkpoint is not None
        algo = saved_config_class(content, modules_in(value_of("--allow", args)), checkpoint)
    prog = " ".join(["rlmodule train", *([] if name is None else [name if ":" in name else name.lower()])])
    typed = parse_settings(TrainFlags, prog, args if name is None else args[1:], algo(), _flags_of(algo))
    flags, preset = typed.flags, None
    if content is not None and checkpoint is not None:
        config = typed.applied_to(_loaded(algo, content, typed, checkpoint))
        begun = str(checkpoint)
    else:
        env = _env_of(flags, prog)
        preset, begun = _preset(algo, env, flags.preset)
        config = typed.applied_to(algo(**(preset.settings if preset else {}))).update({"env": env})
    seeds = seeds_of(flags.seed)
    if len(seeds) > 1 and content is not None:
        raise _usage("--seed", "one seed with --load", flags.seed, "Leave it out: the run has its own.")
    steps, target = flags.num_env_steps, flags.target_return
    if steps is not None and steps < 1:
        raise _usage("--num-env-steps", "at least 1", str(steps), "Type --num-env-steps 200k, for example.")
    if target is not None and not math.isfinite(target):
        raise _usage("--target-return", "a finite number", str(target), "Leave it out for none.")
    if flags.jobs < 1:
        raise _usage("--jobs", "at least 1", str(flags.jobs), "1 trains one seed after the other.")
    if flags.jobs > 1 and len(seeds) < 2:
        raise _usage("--jobs", "several seeds to train at a time", "one", "Leave it out, or type --seed 1..5.")
    if flags.allow is not None and load is None:
        raise _usage("--allow", "a checkpoint to load", "none", "Leave it out: what is typed here is trusted.")
    own = {"run_dir": flags.run_dir} | ({"seed": seeds[0]} if len(seeds) == 1 else {})
    if content is not None and checkpoint is not None and flags.run_dir == NEW_RUN_DIR:
        own["run_dir"] = str(run_folder_of(checkpoint) or NEW_RUN_DIR)
    every = settings_of(algo)
    config.update({setting: checked_value(every[setting], value) for setting, value in own.items()})
    return TrainPlan(
        config=config,
        num_env_steps=(preset.num_env_steps if preset else DEFAULT_STEPS) if steps is None else steps,
        target_return=target,
        begun_with=begun,
        checkpoint=checkpoint,
        allow=modules_in(flags.allow),
        seeds=seeds if len(seeds) > 1 else (),
        jobs=flags.jobs,
        quiet=flags.quiet,
        debug=flags.debug,
    )


def _is_env(path: str, args: Sequence[str]) -> bool:
    """Whether ``my_module:name`` in place of the algorithm is an env: no other follows, and it is no config class."""
    following = args[1] if len(args) > 1 else "-"
    if ":" not in path or not following.startswith("-") or following.startswith("--load"):
        return False
    with suppress(UsageError):
        return not is_config_class(imported("ALGO", path))
    return True


def _env_of(flags: TrainFlags, prog: str) -> Any:
    if flags.env is None:
        remedy = "Name one, such as CartPole-v1 or my_module:make_env; --load CKPT goes on with a run."
        raise _usage(prog, "an environment, ENV", "none", remedy)
    return environment(flags.env)


def _preset(algo: type[AlgorithmConfig], env: Any, chosen: str) -> tuple[Preset | None, str]:
    """The preset that ``--preset`` chooses, and a line about it."""
    name = algo().algo_class.__name__
    env_id = env if chosen == "auto" else chosen
    preset = None if chosen == "none" else find_preset(algo.presets, env_id)
    if chosen == "none" or (chosen == "auto" and preset is None):
        return None, f"none{' for this env' if chosen == 'auto' else ''}: the defaults of {name}"
    if preset is None:
        choices = ("auto", "none", *algo.presets)
        raise _usage("--preset", f"one of {', '.join(choices)}", repr(chosen), f"Choose one.{closest(chosen, choices)}")
    how = f"{len(preset.settings)} settings of its own" if preset.settings else f"the defaults of {name}"
    return preset, f"{env_id}: {how} {preset.promise}, after {preset.num_env_steps:,} steps"


def _loaded(
    algo: type[AlgorithmConfig], content: dict[str, Any], typed: Typed[TrainFlags], checkpoint: Path
) -> AlgorithmConfig:
    """The config of a checkpoint; what was typed is not looked for in there."""
    where, flags = f"--load {checkpoint}", typed.flags
    if algo is not saved_config_class(content, modules_in(flags.allow), checkpoint):
        raise _usage(where, f"a run of {name_of(algo())}", f"one of {content['algorithm']}", "Leave ALGO out.")
    if flags.preset not in ("auto", "none"):
        raise _usage("--preset", "none with --load", repr(flags.preset), "Leave it out: the run has its settings.")
    objects = dict(typed.settings)
    if flags.env is not None:
        objects["env"] = environment(flags.env)
        if encode(objects["env"]) != content["config"]["env"]:
            raise _usage(where, f"a run on {env_name(objects['env'])}", "one on another env", "Leave ENV out.")
    allow = modules_in(flags.allow)
    with allowing(allow, checkpoint):
        return algo.from_dict(content["config"], allow=allow, **objects)


def _usage(where: str, expected: str, got: object, remedy: str) -> UsageError:
    return UsageError(explain_error(where, expected=expected, got=got, remedy=remedy))
