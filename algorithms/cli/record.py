"""``rlmodule record``: play episodes with a checkpoint, and write them as a data set."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from algorithms.cli.checkpoints import CheckpointFlags, allowing, find_checkpoint, modules_in
from algorithms.cli.evaluate import objects_without_training
from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import parse
from algorithms.recording import record as record_played
from algorithms.recording import record_replay
from algorithms.run.checkpoints import load_algorithm, read_checkpoint
from algorithms.run.progress import display
from algorithms.run.run_folder import run_name
from catalog.settings import setting


class RecordFlags(CheckpointFlags):
    """Play with the policy of CKPT, and write what it saw and did as the data set DIR, for --data. CKPT is a
    checkpoint, or a run folder, which stands for its best checkpoint, or for its last one if no best one exists. Of
    several policies, each gets a folder below DIR."""

    episodes: int | None = setting(None, "Episodes to play; None plays 100, unless --num-env-steps is typed.", ge=1)
    num_env_steps: int | None = setting(None, "Env steps to play, over all environments, instead of episodes.", ge=1)
    explore: bool = setting(False, "Sample the actions instead of taking the most likely ones.")
    from_replay: bool = setting(False, "Play nothing, and write the steps in the replay buffer of the last checkpoint.")
    format: Literal["own", "minari"] = setting("own", "Layout of the folder: this library's own, or that of Minari.")
    seed: int | None = setting(None, "Seed of the episodes; None takes the seed of the run.", ge=0)


def record(args: Sequence[str]) -> int:
    """Run ``rlmodule record``; return its exit code."""
    flags, (path, out), _ = parse(RecordFlags, "rlmodule record", "CKPT DIR", args, count=range(2, 3))
    if flags.episodes is not None and flags.num_env_steps is not None:
        raise UsageError("--episodes: expected no --num-env-steps with it, got both. Leave one of them out.")
    if flags.from_replay and (flags.episodes or flags.num_env_steps or flags.explore or flags.seed is not None):
        raise UsageError("--from-replay: expected nothing that is played with it, got a flag. Leave it out.")
    folder = Path(out)
    if folder.is_file() or (folder.exists() and any(folder.iterdir())):
        raise UsageError(f"DIR: expected a new folder, got {out!r}, which is a file or has files. Choose another.")
    if flags.format == "minari" and not re.fullmatch(r"[\w-]+-v\d+", folder.name):
        raise UsageError(f"DIR: expected a name such as cartpole/expert-v0 for Minari, got {out!r}. Choose another.")
    allow = modules_in(flags.allow)
    # the best checkpoint plays best, and the last one has the whole replay buffer
    checkpoint = find_checkpoint(path, best_first=not flags.from_replay)
    content = read_checkpoint(checkpoint, replay=False)
    if content["config"].get("env") is None:
        raise UsageError(
            f"{checkpoint}: expected a run with an env to play, got one that learned from data alone. Name the env in "
            "training: rlmodule train bc CartPole-v1 --data DIR, for example."
        )
    objects = objects_without_training(content, allow, with_replay=flags.from_replay)
    if flags.seed is not None:
        objects["seed"] = flags.seed
    with allowing(allow):
        algorithm = load_algorithm(checkpoint, allow, objects, trains=False)
    with algorithm:
        print(f"{run_name(algorithm)}, trained for {algorithm.metrics.clock_text}")
        if flags.from_replay:
            datasets = record_replay(algorithm)
        else:
            in_steps = flags.num_env_steps is not None
            count = flags.num_env_steps or flags.episodes or 100
            unit = "steps" if in_steps else "episodes"
            with display(count, enabled=True, waiting=f"recording {count:,} {unit}") as show:
                datasets = record_played(
                    algorithm,
                    num_episodes=None if in_steps else count,
                    num_env_steps=flags.num_env_steps,
                    explore=flags.explore,
                    show=lambda done: show(done, f"recorded {done:,}/{count:,} {unit}"),
                )
    for policy_id, dataset in datasets.items():
        target = folder if len(datasets) == 1 else folder / f"{policy_id}{'-v0' if flags.format == 'minari' else ''}"
        written = dataset.save(target) if flags.format == "own" else dataset.to_minari(target)
        print(f"\n{written}\n{dataset.describe()}")
    return OK
