"""``rlmodule push``: write the policy of a run to a repository of the Hugging Face Hub."""

import json
from collections.abc import Sequence
from pathlib import Path

from algorithms.cli.checkpoints import PolicyFlags, load_policy
from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import parse
from catalog.settings import setting


class PushFlags(PolicyFlags):
    """Write the policy of CKPT, with a model card, to the repository REPO (user/name) of the Hugging Face Hub. CKPT is
    a run, a checkpoint, a folder that policy.save() wrote, or one with the runs of several seeds."""

    evaluation: str | None = setting(None, "A file with the output of rlmodule evaluate CKPT --json, for the card.")
    env: str | None = setting(None, "Name of the env, for the card.")
    command: str | None = setting(None, "The command that trained the policy, for the card.")
    film: str | None = setting(None, "A video of an episode, an mp4 file.")
    private: bool = setting(False, "Make a new repository private.")


def push(args: Sequence[str]) -> int:
    """Run ``rlmodule push``; return its exit code."""
    flags, (path, repo_id), _ = parse(PushFlags, "rlmodule push", "CKPT REPO", args, count=range(2, 3))
    evaluation = None
    if flags.evaluation is not None:
        try:
            evaluation = dict(json.loads(Path(flags.evaluation).read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise UsageError(
                f"--evaluation: expected a file with JSON of an evaluation, got {flags.evaluation!r} ({error}). Type "
                f"rlmodule evaluate {path} --json > evaluation.json."
            ) from error
    policy = load_policy(path, flags)
    about = {"evaluation": evaluation, "env": flags.env, "command": flags.command, "film": flags.film}
    print(policy.push_to_hub(repo_id, **about, private=flags.private or None))
    return OK
