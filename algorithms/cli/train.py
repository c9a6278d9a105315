"""``rlmodule train``: make a training plan from the command line, and carry it out."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms.cli.checkpoints import allowing, find_checkpoint, modules_in, saved_config_class
from algorithms.cli.exits import UsageError
from algorithms.cli.flags import algorithm_config, changed_settings, parse, parse_early, settings_in
from algorithms.cli.one_run import DEFAULT_STEPS, DEFAULT_UPDATES, NEW_RUN_DIR, TrainFlags, TrainPlan, train_once
from algorithms.cli.seeds import seeds_of, train_seeds
from algorithms.cli.values import environment
from algorithms.config import AlgorithmConfig
from algorithms.presets import Preset, find_preset
from algorithms.registry import ALGORITHMS, name_of
from algorithms.run.checkpoints import checkpoint_in, read_checkpoint, run_folder_of
from algorithms.run.goal import Budget, Goal, read_goal
from algorithms.run.run_folder import RunFolder
from algorithms.run.saved_settings import plain_settings, read_about
from algorithms.run.text import path_text
from catalog.settings import settings_of
from catalog_rl import closest

_OWN = ("seed", "run_dir")  # settings that are among the command's own flags
NO_PRESET = Preset(DEFAULT_STEPS, reached="")


def train(args: Sequence[str]) -> int:
    """Run ``rlmodule train``; return its exit code."""
    if args and args[0] in ("-h", "--help"):
        helps = " or ".join(f"`rlmodule train {name.lower()} --help`" for name in ALGORITHMS)
        try:
            parse(TrainFlags, "rlmodule train", "ALGO ENV", ["--help"])
        finally:  # parse() exits after printing the help
            print(f"Settings are flags, too: {helps}.")
    plan = train_plan(args)
    plan.config.validate()
    _check_run_folders(plan)
    return train_seeds(plan, args) if plan.seeds else train_once(plan)


def _check_run_folders(plan: TrainPlan) -> None:
    """Raise the error of a folder that is in use before envs and workers start. Say so if a run begins again."""
    run_dir = plan.config.run_dir
    if plan.checkpoint is not None or run_dir is None or run_dir == NEW_RUN_DIR:
        return
    if plan.seeds and (about := read_about(Path(run_dir))):
        raise FileExistsError(
            f"run_dir {run_dir!r}: expected a folder for the runs of several seeds, got {about['algorithm']} with seed "
            f"{about['seed']}. Choose another."
        )
    folders = {Path(run_dir, f"seed-{seed}"): seed for seed in plan.seeds} or {Path(run_dir): plan.config.seed}
    for path, seed in folders.items():
        if plan.flags.resume is not None and checkpoint_in(path) != path:  # the run goes on
            continue
        run = f"{name_of(plan.config)} with seed {seed}"
        folder = RunFolder(path, clock=0, run=run, begins_again=plan.flags.resume is not None)
        if folder.has_begun_again:
            plan.say(f"{path_text(path)}: the run there ended before its first checkpoint. It begins again.")
        folder.undo()


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
    content: dict[str, Any] = {} if checkpoint is None else read_checkpoint(checkpoint, replay=False)
    prog = "rlmodule train"
    if early.load is not None:
        algo, arguments, count = saved_config_class(content, allow), "--load CKPT (no ALGO, no ENV)", range(1)
    elif early.config is not None:
        file = _read_config(early.config)
        algo, arguments, count = saved_config_class(file, allow), "--config FILE (no ALGO, no ENV)", range(1)
        content = content or file  # a resumed run has the settings of its checkpoint
    elif args and not args[0].startswith("-"):
        algo, prog, arguments, count = algorithm_config(args[0]), f"rlmodule train {args[0]}", "ENV", range(1, 2)
        if "data" in settings_of(algo):
            arguments, count = "[ENV]", range(2)
        args = args[1:]
    else:
        got = repr(args[0]) if args else "nothing"
        raise UsageError(f"rlmodule train: expected ALGO first, got {got}. rlmodule --help shows how.")
    known = {name: item for name, item in settings_of(algo).items() if name not in _OWN}
    flags, envs, typed = parse(TrainFlags, prog, arguments, args, count=count, settings=settings_in(algo(), known))
    seeds = seeds_of(flags.seed)
    _refuse_contradictions(flags, seeds)

    env: dict[str, Any] = {}
    preset, begun_with = NO_PRESET, str(checkpoint or flags.config)
    if flags.load is None and flags.config is None:
        env = {"env": environment(envs[0]) if envs else None}
        preset, origin = preset_of(algo, env["env"], flags.preset)
        if checkpoint is None:
            begun_with = origin
    if content:
        replaced = {name: value for name, value in typed.items() if name in known} | env
        config = _saved_config(algo, checkpoint, content, allow, replaced)
    else:
        config = algo(**preset.settings).update(env)

    folder = _folder_of_run(flags, checkpoint, seeds)
    run_dir = flags.run_dir if folder is None or flags.run_dir != NEW_RUN_DIR else str(folder)
    # Typed flags are applied last: they override the preset and the checkpoint.
    overrides = env | changed_settings(typed, config) | {"run_dir": run_dir}
    if len(seeds) == 1:
        overrides["seed"] = seeds[0]
    config = config.copy().update(overrides)
    # The run there begins again, or that of --config is repeated: with the seed it drew, and its goal.
    repeated = Path(flags.config).parent if flags.config is not None and Path(flags.config).name == "run.json" else None
    kept = None
    for run in filter(None, (folder, repeated)):
        if checkpoint is None and config.seed is None and not seeds:
            config.seed = _drawn_seed(run)
        kept = kept or _kept_goal(flags, run)
    budget, amount = budget_of(flags.num_env_steps, flags.num_updates, config, preset)
    if kept is not None and checkpoint is None:
        budget, amount = kept.budget, kept.amount
    return TrainPlan(
        config=config,
        flags=flags,
        budget=budget,
        amount=amount,
        kept=kept,
        begun_with=begun_with,
        checkpoint=checkpoint,
        overrides=frozenset(overrides),
        allow=allow,
        seeds=seeds if len(seeds) > 1 else (),
    )


def budget_of(
    num_env_steps: int | None, num_updates: int | None, config: AlgorithmConfig, preset: Preset
) -> tuple[Budget, int]:
    """Return what a run counts, and how much of it is to be done from now on. The numbers are those that were typed,
    or None.

    Raises:
        UsageError: If both were typed.
    """
    if num_updates is not None and num_env_steps is not None:
        raise UsageError("--num-updates: expected no --num-env-steps with it, got both. Leave one of them out.")
    if num_updates is not None:
        return "num_updates", num_updates
    if num_env_steps is None and not (config.can_sample and config.env is not None):
        return "num_updates", DEFAULT_UPDATES
    return "num_env_steps", num_env_steps or preset.num_env_steps


def _refuse_contradictions(flags: TrainFlags, seeds: Sequence[int]) -> None:
    """Raise ``UsageError`` for a flag that has no effect with the others. ``seeds`` are those of ``--seed``."""
    if flags.load is not None and (flags.preset not in ("auto", "none") or len(seeds) > 1):
        raise UsageError("--load: expected neither --preset nor several seeds with it, got one. Leave that out.")
    if flags.jobs > 1 and len(seeds) < 2:
        raise UsageError(
            "--jobs: expected several seeds to train at a time, got one. Leave it out, or add --seed 1..5."
        )
    if flags.config is not None and (flags.load is not None or flags.preset != "auto"):
        raise UsageError("--config: expected neither --load nor --preset with it, got one. Leave that out.")
    if flags.allow and flags.load is None and flags.resume is None and flags.config is None:
        raise UsageError(
            "--allow: expected a checkpoint to load, got none. What is typed here is trusted: leave it out."
        )


def _read_config(path: str) -> dict[str, Any]:
    """Return the content of a file with the settings of a run.

    Raises:
        UsageError: If there is no such file, or it holds something else.
    """
    content: Any = None
    got = "something else"
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        got = f"{type(error).__name__}: {error}"
    match content:
        case {"algorithm": str(), "config": dict()}:
            return content
    raise UsageError(
        f'--config: expected a JSON file such as {{"algorithm": "PPO", "config": {{"env": "CartPole-v1"}}}}, got '
        f"{path!r} with {got}. Pass run.json of a run's folder."
    )


def _saved_config(
    algo: type[AlgorithmConfig],
    checkpoint: Path | None,
    content: Mapping[str, Any],
    allow: Sequence[str],
    replaced: Mapping[str, Any],
) -> AlgorithmConfig:
    """Return the config of a checkpoint, or of the file of ``--config``. Settings in ``replaced`` have the values
    there: their saved values are not decoded, and may name code that ``allow`` lacks.

    Raises:
        UsageError: If the checkpoint is of another algorithm than ``algo``, or its run is in another env.
        ValueError: If a saved setting names code that is not allowed.
    """
    if saved_config_class(content, allow) is not algo:
        got = f"{content['algorithm']} in {checkpoint}"
        raise UsageError(f"--resume: expected a run of {name_of(algo())}, got {got}. Choose another --run-dir.")
    with allowing(allow):
        config = algo.from_dict(content["config"], allow=allow, **replaced)
    settings = content["config"], config.to_dict()
    saved, typed = (plain_settings(content["algorithm"], of_run).get("env") for of_run in settings)
    if checkpoint is not None and saved not in (None, typed):
        raise UsageError(f"--resume: expected a run in {typed}, got {saved} in {checkpoint}. Choose another --run-dir.")
    return config


def _folder_of_run(flags: TrainFlags, checkpoint: Path | None, seeds: Sequence[int]) -> Path | None:
    """Return the folder of the run that resumes or begins again; of several seeds, which share a goal, that of the
    first. Return None for a new run, or a checkpoint that is in no run folder."""
    if checkpoint is not None:
        return run_folder_of(checkpoint)
    if flags.resume is None:
        return None
    folder = Path(str(flags.run_dir))
    return folder / f"seed-{seeds[0]}" if len(seeds) > 1 else folder


def _kept_goal(flags: TrainFlags, folder: Path) -> Goal | None:
    """Return the goal of the run in ``folder``, or None if it has none, or ``--num-env-steps`` or ``--num-updates``
    replaces it."""
    if flags.num_env_steps is not None or flags.num_updates is not None:
        return None
    goal = read_goal(folder)
    if goal is None or flags.target_return is None:
        return goal
    return dataclasses.replace(goal, target_return=flags.target_return)


def _drawn_seed(run: Path) -> int | None:
    """Return the seed of the run in the folder ``run``, or None if no run is there."""
    about = read_about(run)
    seed = None if about is None else about["seed"]
    return seed if type(seed) is int and seed >= 0 else None  # anyone may have edited the file


def _to_resume(flags: TrainFlags) -> Path | None:
    """Return the checkpoint from which ``--resume auto`` continues. Return None without that flag, or if no checkpoint
    exists. Raise ``UsageError`` if other flags contradict ``--resume``."""
    if flags.resume is None:
        return None
    if flags.load:
        raise UsageError(f"--resume: expected no --load with it, got {flags.load}. Leave one of them out.")
    if flags.run_dir is None or flags.run_dir == NEW_RUN_DIR:
        raise UsageError("--resume: expected one run in a folder, got no --run-dir. Type --run-dir runs/mine.")
    if len(seeds_of(flags.seed)) > 1:  # each run looks for its checkpoint
        return None
    run = Path(flags.run_dir)
    checkpoint = checkpoint_in(run)
    return None if checkpoint == run else checkpoint  # the folder itself stands for no checkpoint


def preset_of(algo: type[AlgorithmConfig], env: Any, chosen: str) -> tuple[Preset, str]:
    """Return the preset that the flag ``--preset`` selects, and a text that describes it. ``chosen`` is the flag's
    value: the name of a preset, "auto" for that of ``env`` if there is one, or "none". Without a preset, return
    one without settings, and a text on the defaults. Raise ``UsageError`` if ``chosen`` names no preset."""
    defaults = f"the defaults of {algo().algo_class.__name__}"
    env_id = env if chosen == "auto" else chosen
    preset = None if chosen == "none" else find_preset(algo.presets, env_id)
    if preset is not None:
        how = f"{len(preset.settings)} settings of its own" if preset.settings else defaults
        how += " reached" if preset.measured else ""
        return preset, f"the preset of {env_id}: {how} {preset.reached}, after {preset.num_env_steps:,} steps"
    if chosen in ("auto", "none"):
        return NO_PRESET, defaults
    choices = ("auto", "none", *algo.presets)
    raise UsageError(
        f"--preset: expected one of {', '.join(choices)}, got {chosen!r}. Choose one.{closest(chosen, choices)}"
    )
