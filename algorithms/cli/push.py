"""``rlmodule push``: write the policy of a run to a repository of the Hugging Face Hub."""

import json
from collections.abc import Sequence
from pathlib import Path

from algorithms.cli.checkpoints import ALLOW, allowing, best_seed, modules_in
from algorithms.cli.exits import OK, UsageError
from algorithms.cli.flags import CommandFlags, parse
from catalog.settings import setting
from rlmodule.modules.policy import Policy


class PushFlags(CommandFlags):
    """Write the policy of CKPT, with a model card, to the repository REPO (user/name) of the Hugging Face Hub. CKPT is
    a run, a checkpoint, a folder that policy.save() wrote, or one with the runs of several seeds."""

    evaluation: str | None = setting(None, "A file with the output of rlmodule evaluate CKPT --json, for the card.")
    env: str | None = setting(None, "Name of the env, for the card.")
    command: str | None = setting(None, "The command that trained the policy, for the card.")
    film: str | None = setting(None, "A video of an episode, an mp4 file.")
    private: bool = setting(False, "Make a new repository private.")
    module_id: str | None = setting(None, "Id of the policy to write, if the run has several.")
    allow: list[str] | None = setting(None, ALLOW)


def push(args: Sequence[str]) -> int:
    """Run ``rlmodule push``; return its exit code."""
    flags, (path, repo_id), _ = parse(PushFlags, "rlmodule push", "CKPT REPO", args, count=range(2, 3))
    evaluation = None
    if flags.evaluation is not None:
        try:
            evaluation = json.loads(Path(flags.evaluation).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--evaluation: expected a file with JSON, got {flags.evaluation!r} ({error}). Type rlmodule evaluate "
                f"{path} --json > evaluation.json."
            ) from error
    allow = modules_in(flags.allow)
    with allowing(allow):
        policy = Policy.load(best_seed(path), module_id=flags.module_id, allow=allow)
    about = {"evaluation": evaluation, "env": flags.env, "command": flags.command, "film": flags.film}
    print(policy.push_to_hub(repo_id, **about, private=flags.private or None))
    return OK
