"""``rlmodule evaluate``: measure a checkpoint, record videos of it, or show it in a window."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms.algorithm import Algorithm
from algorithms.cli.checkpoints import CheckpointFlags, allowing, find_checkpoint, modules_in, saved_config_class
from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import parse
from algorithms.cli.values import environment
from algorithms.run.callbacks import CALLBACK_SETTINGS
from algorithms.run.checkpoints import load_algorithm, read_checkpoint
from algorithms.run.evaluation import evaluation_summary, play
from algorithms.run.run_folder import run_name
from algorithms.run.text import return_text
from algorithms.run.video import player_of, watch
from catalog.settings import setting, settings_of
from rlmodule.modules.policy import Policy
from rlmodule.modules.policy_files import SPEC, read_policies
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.seeding import int_seed
from rlmodule.settings import RunnerSettings

_UNSET = (*CALLBACK_SETTINGS, "loggers", "run_dir", "evaluation_interval")
# Setting that does not affect how a policy acts → value that replaces it, so that code it names is not imported.
_OF_TRAINING = {**dict.fromkeys(_UNSET), "replay_in_checkpoints": False}


class EvaluateFlags(CheckpointFlags):
    """Play episodes with the policy of CKPT, and print their returns. CKPT is a checkpoint, or a run folder, which
    stands for its best checkpoint, or for its last checkpoint if no best one exists. A folder with the runs of several
    seeds stands for the best run. With --env, CKPT may be a folder that policy.save() wrote, or a run that learned from
    data alone."""

    episodes: int = setting(20, "Episodes to play.", ge=1)
    video: str | None = setting(None, "Folder for videos, which show additional episodes.")
    num_videos: int | None = setting(None, "Episodes to record; None records one, with --video.", ge=1)
    render: bool = setting(False, "Play the episodes in a window, one after the other, at the env's own speed.")
    explore: bool = setting(False, "Sample the actions instead of taking the most likely ones.")
    seed: int | None = setting(None, "Seed of the episodes; None takes the seed of the run.", ge=0)
    num_envs: int | None = setting(None, "Environments to step together; None takes the setting of the run.", ge=1)
    env_config: dict[str, Any] | None = setting(None, "The env_config; None takes that of the run.")
    env: str | None = setting(
        None, "The env to play, for a saved policy, or for a run that has none; None takes that of the run."
    )
    json: bool = setting(False, "Print the result as JSON.")


def evaluate(args: Sequence[str]) -> int:
    """Run ``rlmodule evaluate``; return its exit code."""
    flags, (path,), _ = parse(EvaluateFlags, "rlmodule evaluate", "CKPT", args)
    if flags.num_videos is not None and flags.video is None:
        raise UsageError("--num-videos: expected --video with it, got none. Say where to: --video videos.")
    if flags.render and (flags.video is not None or flags.num_envs is not None):
        raise UsageError(
            "--render: expected neither --video nor --num-envs with it, got one. Leave one of them out: a window shows "
            "one environment, and is not recorded."
        )
    if (Path(path) / SPEC).exists():
        result = {"policy": path, **_evaluate_policy(path, flags)}
    else:
        checkpoint = find_checkpoint(path, best_first=True)
        result = {"checkpoint": str(checkpoint), **_evaluate_checkpoint(checkpoint, flags)}
    if flags.json:
        print(json.dumps(result, default=str))
    else:
        _print(result)
    return OK


def objects_without_training(
    content: Mapping[str, Any], allow: Sequence[str], *, with_replay: bool = False
) -> dict[str, Any]:
    """Return settings with which to load a checkpoint only to act: without callbacks, loggers and data, and unless
    ``with_replay``, without its replay buffer. ``content`` is the result of :func:`read_checkpoint`."""
    known = settings_of(saved_config_class(content, allow))
    objects = {name: value for name, value in _OF_TRAINING.items() if name in known}
    objects |= {name: item.default for name, item in known.items() if item.section == "offline"}
    if with_replay:
        objects.pop("replay_in_checkpoints", None)
    return objects


def _evaluate_checkpoint(checkpoint: Path, flags: EvaluateFlags) -> dict[str, Any]:
    """Play episodes with the policy of a checkpoint in the env of its run, and return the result of
    :meth:`Algorithm.evaluate`."""
    allow = modules_in(flags.allow)
    content = read_checkpoint(checkpoint, replay=False)
    objects = objects_without_training(content, allow)
    has_env = content["config"].get("env") is not None
    if has_env != (flags.env is None):
        expected, got = ("no --env", flags.env) if has_env else ("--env, since the run learned from data alone", "none")
        remedy = "Leave it out: a run plays its own env." if has_env else "Type --env CartPole-v1, for example."
        raise UsageError(f"{checkpoint}: expected {expected}, got {got}. {remedy}")
    if flags.env is not None:
        objects["env"] = environment(flags.env)
    typed = {"seed": flags.seed, "evaluation_num_envs": flags.num_envs, "evaluation_env_config": flags.env_config}
    objects |= {name: value for name, value in typed.items() if value is not None}
    video_dir = None if flags.video is None else Path(flags.video).absolute()  # before envs are made
    with allowing(allow):
        algorithm = load_algorithm(checkpoint, allow, objects, trains=False)
    with algorithm:
        if not flags.json:
            print(f"{run_name(algorithm)}, trained for {algorithm.metrics.clock_text}")
            print(f"  checkpoint   {checkpoint}")
            print(f"  actions      {'sampled' if flags.explore else 'most likely'}")
            print(f"  seed         {algorithm.run_seed}", flush=True)
        if flags.render:
            return _watched(algorithm, flags)
        return algorithm.evaluate(
            num_episodes=flags.episodes,
            explore=flags.explore,
            num_videos=0 if flags.video is None else flags.num_videos or 1,
            video_dir=video_dir,
            progress=True,
        )


def _print(result: dict[str, Any]) -> None:
    played = result["env_runners"]
    mean, episodes = return_text(played["episode_return_mean"]), played["num_episodes"]
    print(f"\nreturn       {mean}, the mean of {episodes:,} episodes")
    print(f"  from       {return_text(played['episode_return_min'])}")
    print(f"  to         {return_text(played['episode_return_max'])}")
    print(f"length       {played['episode_len_mean']:,.1f} steps")
    for video in result.get("videos", ()):
        print(f"video        {video['path']} (return {return_text(video['episode_return'])})")


def _evaluate_policy(path: str, flags: EvaluateFlags) -> dict[str, Any]:
    """Play episodes with the saved policy at ``path`` in the env of ``--env``, and return a result in the form of
    :meth:`Algorithm.evaluate`. A saved policy holds its spaces, but does not name an env."""
    if flags.env is None or flags.render or flags.video is not None:
        raise UsageError(
            f"{path}: expected --env, and neither --video nor --render, for a saved policy, got {flags.env}. Type "
            "--env CartPole-v1, for example; evaluate the run itself to see it."
        )
    policy_ids = read_policies(path, path)["modules"]
    if len(policy_ids) > 1:
        raise UsageError(
            f"{path}: expected the policy of one agent, got {', '.join(policy_ids)}. Evaluate the run itself."
        )
    allow = modules_in(flags.allow)
    with allowing(allow):
        module = Policy.load(path, allow=allow).module
    settings = RunnerSettings(
        env=environment(flags.env),
        env_config=flags.env_config or {},
        num_envs_per_env_runner=min(flags.num_envs or 8, flags.episodes),  # an env without an episode only costs time
    )
    runner = EnvRunner(settings, run_seed=flags.seed or 0, role="evaluation_env")
    try:
        expected = (module.observation_space, module.action_space)
        spaces = (runner.observation_space, runner.action_space)
        # A run builds its module for the spaces of its env, so a runner does not compare them. This env is any.
        if spaces != expected:
            raise ValueError(
                f"--env: expected an env with the spaces of the policy, {expected}, got {spaces}. Name another."
            )
        runner.set_module(module)
        _, summary = play(runner, flags.episodes, in_episodes=True, explore=flags.explore, progress=not flags.json)
    finally:
        runner.stop()
    return {"env_runners": summary}


def _watched(algorithm: Algorithm, flags: EvaluateFlags) -> dict[str, Any]:
    """Show episodes in a window, and return a result in the form of :meth:`Algorithm.evaluate`."""
    seed = int_seed(algorithm.run_seed, "video", algorithm.clock)
    settings = algorithm.config.for_evaluation()
    seen = watch(player_of(algorithm), settings, num_episodes=flags.episodes, seed=seed, explore=flags.explore)
    returns, lengths = zip(*seen, strict=True)
    return {"env_runners": evaluation_summary(returns, lengths, sum(lengths))}
