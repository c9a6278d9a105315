"""``rlmodule evaluate``: what a checkpoint has learned, in numbers, in videos or in a window."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from algorithms.algorithm import Algorithm
from algorithms.cli.checkpoints import (
    Allow,
    allowing,
    find_checkpoint,
    modules_in,
    read_checkpoint,
    saved_config_class,
)
from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import parse
from algorithms.run.callbacks import CALLBACKS
from algorithms.run.metrics import episode_summary
from algorithms.run.progress import return_text
from algorithms.run.run_folder import run_name
from algorithms.run.video import watch
from catalog.checks import check_value
from catalog.settings import settings_of
from rlmodule.seeding import int_seed

_OF_TRAINING: dict[str, Any] = {
    "callbacks_class": None,
    **dict.fromkeys(CALLBACKS),
    "loggers": None,
    "run_dir": None,
    "evaluation_interval": None,
    "evaluation_num_videos": 0,
    "checkpoint_interval": None,
    "replay_in_checkpoints": False,
}
"""Settings without which a policy acts as it does with them, so that nothing they name is needed."""


@dataclass(kw_only=True)
class EvaluateFlags:
    """Play episodes with the policy of a checkpoint, and tell how it does."""

    ckpt: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CKPT")]
    """A checkpoint, or a run folder: then its best checkpoint, or its last if there is no best."""
    episodes: int = 20
    """Episodes to play."""
    video: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder to write videos to, of further episodes."""
    num_videos: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: 1, with --video)")] = None
    """Episodes to record."""
    render: bool = False
    """Play the episodes in a window, one after the other, at the env's own speed."""
    explore: bool = False
    """Sample the actions instead of taking the most likely ones."""
    seed: int | None = None
    """Seed of the episodes; None takes that of the run."""
    num_envs: int | None = None
    """Environments to step together; None does as the run's own evaluations."""
    env_config: dict[str, Any] | None = None
    """What to evaluate with in place of the run's env_config."""
    allow: Allow = None
    """Modules of yours that the checkpoint may import."""
    json: bool = False
    """Print the result as JSON."""
    debug: bool = False
    """Show the traceback of an error."""


def evaluate(args: Sequence[str]) -> int:
    """Play episodes with a checkpoint; --video records and --render shows them."""
    flags = parse(EvaluateFlags, "rlmodule evaluate", args)
    _check(flags)
    checkpoint = find_checkpoint(flags.ckpt, best_first=True)
    with _loaded(checkpoint, flags) as algorithm:
        if not flags.json:
            print(f"{run_name(algorithm)}, trained for {algorithm.env_steps:,} env steps")
            print(f"  checkpoint   {checkpoint}")
            print(f"  actions      {'sampled' if flags.explore else 'most likely'}")
            print(f"  seed         {algorithm.run_seed}", flush=True)
        result = _watched(algorithm, flags) if flags.render else _measured(algorithm, flags)
    if flags.json:
        print(json.dumps({"checkpoint": str(checkpoint), **result}, default=str))
    else:
        print(_text(result))
    return OK


def _check(flags: EvaluateFlags) -> None:
    """Raise a UsageError for flags that would not have an effect."""
    if flags.num_videos is not None and flags.video is None:
        remedy = "Say where to: --video videos."
        raise UsageError("--num-videos", expected="--video with it", got="none", remedy=remedy)
    for flag, given in (("--video", flags.video), ("--num-envs", flags.num_envs)):
        if flags.render and given is not None:
            remedy = "Leave one of them out: a window shows one environment, and is not recorded."
            raise UsageError(flag, expected="no --render with it", got="both", remedy=remedy)


def _loaded(checkpoint: Path, flags: EvaluateFlags) -> Algorithm:
    """The algorithm, without what only its training needed."""
    content = read_checkpoint(checkpoint)
    allow = modules_in(flags.allow)
    known = settings_of(saved_config_class(content, allow, checkpoint))
    objects = {name: value for name, value in _OF_TRAINING.items() if name in known}
    for name, value in content["config"].items():
        if name not in objects and isinstance(value, dict) and "__pass_again__" in value:
            raise ValueError(
                f"{name} of {str(checkpoint)!r}: expected what a shell can load, got "
                f"{value['__pass_again__']}, which could not be saved. Evaluate it in Python: "
                f"Algorithm.from_checkpoint({str(checkpoint)!r}, {name}=...).evaluate()."
            )
    for name, flag, value in (
        ("seed", "--seed", flags.seed),
        ("evaluation_num_envs", "--num-envs", flags.num_envs),
        ("evaluation_env_config", "--env-config", flags.env_config),
    ):
        if value is not None:
            objects[name] = check_value(flag, value, known[name].hint, known[name].bounds, known[name].doc)
    with allowing(allow, checkpoint):
        return Algorithm.from_checkpoint(checkpoint, allow=allow, **objects)


def _measured(algorithm: Algorithm, flags: EvaluateFlags) -> dict[str, Any]:
    num_videos = 0 if flags.video is None else 1 if flags.num_videos is None else flags.num_videos
    return algorithm.evaluate(
        num_episodes=flags.episodes,
        explore=flags.explore,
        num_videos=num_videos,
        video_dir=flags.video,
        progress=True,
    )


def _watched(algorithm: Algorithm, flags: EvaluateFlags) -> dict[str, Any]:
    """Show the episodes; the same as :func:`_measured` returns."""
    seed = int_seed(algorithm.run_seed, "video", algorithm.env_steps)
    settings = algorithm.config.for_evaluation()
    seen = watch(algorithm.policy, settings, num_episodes=flags.episodes, seed=seed, explore=flags.explore)
    returns, lengths = zip(*seen, strict=True)
    return {
        "env_runners": episode_summary(returns, lengths) | {"num_episodes": len(seen), "num_env_steps": sum(lengths)}
    }


def _text(result: dict[str, Any]) -> str:
    told = result["env_runners"]
    lines = [
        "",
        f"return       {return_text(told['episode_return_mean'])}, the mean of {told['num_episodes']:,} episodes",
        f"  from       {return_text(told['episode_return_min'])}",
        f"  to         {return_text(told['episode_return_max'])}",
        f"length       {told['episode_len_mean']:,.1f} steps",
    ]
    for video in result.get("videos", ()):
        lines.append(f"video        {video['path']} (return {return_text(video['episode_return'])})")
    return "\n".join(lines)
