"""``rlmodule train``: make a training plan from the command line, and carry it out."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algorithms.cli.checkpoints import allowing, find_checkpoint, modules_in, saved_config_class
from algorithms.cli.exits import UsageError
from algorithms.cli.flags import algorithm_config, changed_settings, parse, parse_early, settings_in
from algorithms.cli.one_run import DEFAULT_STEPS, NEW_RUN_DIR, TrainFlags, TrainPlan, train_once
from algorithms.cli.seeds import seeds_of, train_seeds
from algorithms.cli.values import environment
from algorithms.config import AlgorithmConfig
from algorithms.presets import Preset, find_preset
from algorithms.registry import ALGORITHMS, name_of
from algorithms.run.checkpoints import checkpoint_in, read_checkpoint, run_folder_of
from algorithms.run.goal import read_goal
from algorithms.run.run_folder import RunFolder
from algorithms.run.saved_settings import read_about
from catalog.errors import closest
from catalog.settings import settings_of

_OWN = ("seed", "run_dir")  # settings that are among the command's own flags


def train(args: Sequence[str]) -> int:
    """Train ALGO on ENV, and write the run's folder."""
    if args and args[0] in ("-h", "--help"):
        each = " or ".join(f"`rlmodule train {name.lower()} --help`" for name in ALGORITHMS)
        try:
            parse(TrainFlags, "rlmodule train", "ALGO ENV", ["--help"])
        finally:
            print(f"Settings are flags, too: {each}.")
    plan = train_plan(args)
    plan.config.validate()
    run_dir = plan.config.run_dir
    if plan.checkpoint is None and run_dir not in (None, NEW_RUN_DIR):
        run, resumes = f"{name_of(plan.config)} with seed {plan.config.seed}", plan.flags.resume is not None
        for folder in [Path(run_dir, f"seed-{seed}") for seed in plan.seeds] or [run_dir]:
            # raises for a folder in use before envs and workers start
            opened = RunFolder(folder, env_steps=0, run=run, begins_again=resumes)
            if opened.has_begun_again:
                plan.say(f"{run_dir}: the run there ended before its first checkpoint. It begins again.")
            opened.undo()
    return train_seeds(plan, args) if plan.seeds else train_once(plan)


def train_plan(args: Sequence[str]) -> TrainPlan:
    """Return the plan for the arguments of ``rlmodule train``.

    Raises:
        UsageError: If the algorithm, environment, preset or a flag is unknown, or a value does not fit its flag.
        FileNotFoundError: If there is no checkpoint to load.
        SystemExit: With code 0, after printing the help for ``--help``.
    """
    # The algorithm decides which settings are flags, and --load with --allow decides the algorithm: read these first.
    early = parse_early(TrainFlags, args)
    allow = modules_in(early.allow)
    checkpoint = _to_resume(early) or (find_checkpoint(early.load) if early.load else None)
    content: dict[str, Any] = {} if checkpoint is None else read_checkpoint(checkpoint)
    if early.load is not None:
        algo, prog, words, count = saved_config_class(content, allow), "rlmodule train", "--load CKPT", range(1)
    elif args and not args[0].startswith("-"):
        name, args = args[0], args[1:]
        algo, prog, words, count = algorithm_config(name), f"rlmodule train {name}", "ENV", range(1, 2)
    else:
        got = repr(args[0]) if args else "nothing"
        raise UsageError(f"rlmodule train: expected ALGO first, got {got}. rlmodule --help shows how.")
    known = {setting: item for setting, item in settings_of(algo).items() if setting not in _OWN}
    settings = settings_in(algo(), known)
    flags, envs, typed = parse(TrainFlags, prog, words, args, count=count, settings=settings)
    seeds, preset, run_dir = seeds_of(flags.seed), None, flags.run_dir
    begun, env = str(checkpoint), dict[str, Any]()
    if envs:
        env = {"env": environment(envs[0])}
        preset, source = _preset(algo, env["env"], flags.preset)
        begun = source if checkpoint is None else begun
    elif flags.preset not in ("auto", "none") or len(seeds) > 1:
        raise UsageError("--load: expected neither --preset nor several seeds with it, got one. Leave that out.")
    if checkpoint is None:
        config = algo(**(preset.settings if preset else {})).update(env)
    else:
        if saved_config_class(content, allow) is not algo:
            got = f"{content['algorithm']} in {checkpoint}"
            raise UsageError(f"--resume: expected a run of {name_of(algo())}, got {got}. Choose another --run-dir.")
        with allowing(allow):  # typed settings replace saved ones, which may then stay unreadable
            given = {name: value for name, value in typed.items() if name in known} | env
            config = algo.from_dict(content["config"], allow=allow, **given)
        if run_dir == NEW_RUN_DIR:
            run_dir = str(run_folder_of(checkpoint) or NEW_RUN_DIR)
    if flags.jobs > 1 and len(seeds) < 2:
        raise UsageError(
            "--jobs: expected several seeds to train at a time, got one. Leave it out, or add --seed 1..5."
        )
    if allow and early.load is None and early.resume is None:
        raise UsageError(
            "--allow: expected a checkpoint to load, got none. What is typed here is trusted: leave it out."
        )
    # Typed flags are applied last: they override the preset and the checkpoint.
    overrides = env | changed_settings(typed, config) | {"run_dir": run_dir}
    if len(seeds) == 1:
        overrides["seed"] = seeds[0]
    config = config.copy().update(overrides)
    kept = None
    if flags.num_env_steps is None and (checkpoint is not None or flags.resume is not None):
        folder = Path(str(run_dir)) if checkpoint is None else run_folder_of(checkpoint)
        kept = None if folder is None else read_goal(folder)
    if kept is not None and flags.target_return is not None:
        kept = dataclasses.replace(kept, target_return=flags.target_return)
    if flags.resume is not None and checkpoint is None and not seeds:  # the run may begin again, with the seed it drew
        config.seed = _drawn_seed(Path(str(run_dir)))
    steps = flags.num_env_steps or (preset.num_env_steps if preset else DEFAULT_STEPS)
    return TrainPlan(
        config=config,
        flags=flags,
        num_env_steps=steps,
        kept=kept,
        begun_with=begun,
        checkpoint=checkpoint,
        overrides=frozenset(overrides),
        allow=allow,
        seeds=seeds if len(seeds) > 1 else (),
    )


def _drawn_seed(run: Path) -> int | None:
    """Return the seed of the run in the folder ``run``, or None if no run is there."""
    seed = (read_about(run) or {"seed": None})["seed"]
    return seed if type(seed) is int and seed >= 0 else None


def _to_resume(flags: TrainFlags) -> Path | None:
    """Return the checkpoint from which ``--resume auto`` continues. Return None without that flag, or if no checkpoint
    exists. Raise ``UsageError`` if other flags contradict ``--resume``."""
    if flags.resume is None:
        return None
    if flags.load:
        raise UsageError(f"--resume: expected no --load with it, got {flags.load}. Leave one of them out.")
    if flags.run_dir in (None, NEW_RUN_DIR) or len(seeds_of(flags.seed)) > 1:
        got = "several seeds" if len(seeds_of(flags.seed)) > 1 else "no --run-dir"
        raise UsageError(f"--resume: expected one run in a folder, got {got}. Type --run-dir runs/mine, and one seed.")
    checkpoint = checkpoint_in(str(flags.run_dir))
    return None if checkpoint == Path(str(flags.run_dir)) else checkpoint


def _preset(algo: type[AlgorithmConfig], env: Any, chosen: str) -> tuple[Preset | None, str]:
    """Return the preset that the flag ``--preset`` selects, and a text that describes it. ``chosen`` is the flag's
    value: the name of a preset, "auto" for that of ``env`` if there is one, or "none". Without a preset, return None
    and a text on the defaults. Raise ``UsageError`` if ``chosen`` names no preset."""
    defaults = f"the defaults of {algo().algo_class.__name__}"
    env_id = env if chosen == "auto" else chosen
    preset = None if chosen == "none" else find_preset(algo.presets, env_id)
    if preset is not None:
        how = f"{len(preset.settings)} settings of its own" if preset.settings else defaults
        how += " reached" if preset.measured else ""
        return preset, f"the preset of {env_id}: {how} {preset.reached}, after {preset.num_env_steps:,} steps"
    if chosen in ("auto", "none"):
        return None, defaults
    choices = ("auto", "none", *algo.presets)
    raise UsageError(
        f"--preset: expected one of {', '.join(choices)}, got {chosen!r}. Choose one.{closest(chosen, choices)}"
    )
