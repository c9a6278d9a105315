"""Find and load the argument CKPT of a command: a checkpoint, or a run folder."""

import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from algorithms.cli.exits import UsageError
from algorithms.cli.flags import CommandFlags, is_config_class, register_own
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.run.checkpoints import checkpoint_in
from algorithms.run.results import read_result
from algorithms.run.saved_settings import folders_below
from algorithms.run.text import return_text
from catalog.settings import setting
from catalog_rl import closest, printable
from rlmodule.checkpoint import holds_checkpoint
from rlmodule.encoding import NotReadable
from rlmodule.modules.policy import Policy
from rlmodule.sealed_folder import MANIFEST


class CheckpointFlags(CommandFlags):
    """Base class for the flags of a command that reads CKPT."""

    allow: list[str] | None = setting(None, "Your modules that the checkpoint may import.")


class PolicyFlags(CheckpointFlags):
    """Base class for the flags of a command that writes the policy of CKPT."""

    module_id: str | None = setting(None, "Id of the policy to write, if the run has several.")


def find_checkpoint(path: str, *, best_first: bool = False) -> Path:
    """Return ``path`` if it is a checkpoint, else the checkpoint in the run folder ``path``.

    Args:
        path: A checkpoint, or a run folder.
        best_first: Prefer the best checkpoint of a run to its last checkpoint, and take the best seed of several.

    Raises:
        FileNotFoundError: If there is no checkpoint; names checkpoints in folders below ``path``, or the folder with
            the most similar name.
    """
    folder = checkpoint_in(best_seed(path) if best_first else path, best_first=best_first)
    if holds_checkpoint(folder):
        return folder
    remedy = "It is written at the end of a run, or more often: --checkpoint-interval 10."
    if below := folders_below(folder, MANIFEST):
        remedy = f"Pass one of those below it: {', '.join(map(str, below[:5]))}."
    elif not folder.exists() and folder.parent.is_dir():
        remedy = f"Pass a run's folder.{closest(folder.name, [other.name for other in folder.parent.iterdir()])}"
    raise FileNotFoundError(f"checkpoint {path!r}: expected a checkpoint or a run with one, got none. {remedy}")


def best_seed(path: str) -> str:
    """Return the run with the highest final return if ``path`` is a folder with the runs of several seeds, and print
    which one it is on stderr. Return ``path`` if it is anything else."""
    runs = [run for run in sorted(Path(path).glob("seed-*")) if holds_checkpoint(run / "checkpoint")]
    if not runs:
        return path
    finals = {run: read_result(run).final_return for run in runs}
    best = max(runs, key=lambda run: (not math.isnan(finals[run]), finals[run]))
    print(
        f"{printable(str(best))}: the best of {len(runs)} seeds, final return {return_text(finals[best])}",
        file=sys.stderr,
    )
    return str(best)


def load_policy(path: str, flags: PolicyFlags) -> Policy:
    """Return the policy of ``path``: a run, a checkpoint, a folder that ``policy.save()`` wrote, or the best run in a
    folder with the runs of several seeds."""
    allow = modules_in(flags.allow)
    with allowing(allow):
        return Policy.load(best_seed(path), module_id=flags.module_id, allow=allow)


def modules_in(allow: Sequence[str] | None) -> list[str]:
    """Return the modules in ``--allow`` without ``__main__``, because a command cannot import the script that trained
    the run."""
    return [name for name in allow or () if name != "__main__"]


def saved_config_class(content: Mapping[str, Any], allow: Sequence[str]) -> type[AlgorithmConfig]:
    """Return the config class of a checkpoint's algorithm. To find a custom algorithm, import the modules in ``allow``
    and register the config classes that they define.

    Args:
        content: The result of :func:`read_checkpoint`.
        allow: Import paths that the user allows.

    Raises:
        UsageError: If no such algorithm is registered.
    """
    name = content["algorithm"].upper()
    if name not in ALGORITHMS:
        for module in (importlib.import_module(path.partition(":")[0]) for path in allow):
            for found in [*vars(module).values()]:
                if is_config_class(found) and found.__module__ == module.__name__:
                    register_own(found)
    if name not in ALGORITHMS:
        module = ", ".join(modules_in([content.get("config_module", "MODULE")])) or "MODULE"
        raise UsageError(
            f"checkpoint: expected a run of a known algorithm ({', '.join(ALGORITHMS)}), got one of "
            f"{content['algorithm']}. If it is one of yours, type --allow {module}, the module with its config class."
        )
    return config_class(name)


@contextmanager
def allowing(allow: Sequence[str]) -> Iterator[None]:
    """Within the block, catch errors about code that a checkpoint may not import, and raise a ``ValueError`` whose
    message also names the ``--allow`` flag to type."""
    try:
        yield
    except NotReadable as error:
        modules = dict.fromkeys(modules_in([*allow, *error.modules]))
        settings = dict.fromkeys(name for names in error.modules.values() for name in names)
        remedies = [f"type --allow {' '.join(modules)}"] if modules else []
        remedies += ["setting=... is --setting"] if settings or not error.modules else []
        remedy = "; ".join(remedies)
        if "__main__" in error.modules:
            keywords = ", ".join(f"{name}=..." for name in settings or ["rl_module_spec"])
            remedy = (
                "no command can import that script: move its classes to a module my_module, and save the checkpoint "
                f"with them, without training again: Algorithm.from_checkpoint(path, {keywords}).save('saved_again'). "
                "Then type --allow my_module"
            )
        raise ValueError(f"{error} In a shell, {remedy}.") from error
