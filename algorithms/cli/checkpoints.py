"""What CKPT means in a command line: a checkpoint, or the run folder that it lies in."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import tyro

from algorithms.cli.exits import UsageError
from algorithms.cli.flags import is_config_class, register_own
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.settings.encoding import NotReadable
from catalog.errors import closest
from rlmodule.checkpoint import load_checkpoint

Allow = Annotated[list[str] | None, tyro.conf.arg(metavar="MODULE [MODULE ...]")]
"""The flag --allow."""

_CONTENT = ("algorithm", "run_seed", "config", "modules", "state")


def find_checkpoint(path: str, *, best_first: bool) -> Path:
    """The checkpoint folder that ``path`` is, or that the run folder at ``path`` holds.

    Args:
        path: A folder that ``save`` wrote, or the folder of a run.
        best_first: Whether a run's best checkpoint is wanted rather than its last one, if it has one.

    Raises:
        FileNotFoundError: If there is none; says what is there instead.
    """
    folder = Path(path)
    names = ("best_checkpoint", "checkpoint") if best_first else ("checkpoint",)
    for candidate in (folder, *(folder / name for name in names)):
        if (candidate / "checkpoint.json").is_file():
            return candidate
    got, remedy = _instead(folder)
    raise FileNotFoundError(f"checkpoint {path!r}: expected a checkpoint or a run, got {got}. {remedy}")


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """What ``Algorithm.save`` wrote.

    Raises:
        ValueError: If it cannot be read, or something else wrote it.
    """
    content = load_checkpoint(folder)
    if missing := [name for name in _CONTENT if name not in content]:
        raise ValueError(
            f"checkpoint {str(folder)!r}: expected what algo.save() writes, got one without "
            f"{', '.join(missing)}. Load it with the version that wrote it, or save it again with "
            "this one."
        )
    return content


def modules_in(allow: Sequence[str] | None) -> tuple[str, ...]:
    """Return the modules that ``--allow`` names, without the script that trained, which a shell cannot import.

    Raises:
        UsageError: For names with commas between them.
    """
    if joined := [name for name in allow or () if "," in name]:
        expected, remedy = "one word per module", f"Type --allow {' '.join(','.join(joined).split(','))}."
        raise UsageError("--allow", expected=expected, got=repr(joined[0]), remedy=remedy)
    return tuple(name for name in allow or () if name != "__main__")


def saved_config_class(content: Mapping[str, Any], allow: Sequence[str], checkpoint: Path) -> type[AlgorithmConfig]:
    """Find the config class of a checkpoint's algorithm; for one of the user's, import the modules in ``allow``.

    Raises:
        UsageError: If it is not known.
    """
    name = content["algorithm"].upper()
    if name not in ALGORITHMS:
        for module in (importlib.import_module(path.partition(":")[0]) for path in allow):
            for found in [*vars(module).values()]:
                if is_config_class(found) and found.__module__ == module.__name__:
                    register_own(found)
    if name not in ALGORITHMS:
        where, got = f"checkpoint {str(checkpoint)!r}", f"one of {content['algorithm']}"
        expected = f"a run of a known algorithm ({', '.join(ALGORITHMS)})"
        remedy = "If it is one of yours, type --allow MODULE, the one with its config class."
        raise UsageError(where, expected=expected, got=got, remedy=remedy)
    return config_class(name)


@contextmanager
def allowing(allow: Sequence[str], checkpoint: Path) -> Iterator[None]:
    """Add to an error about code that ``checkpoint`` names how a shell allows it, besides what ``allow`` has."""
    try:
        yield
    except NotReadable as error:
        if of_script := error.modules.get("__main__"):
            where, expected = f"checkpoint {str(checkpoint)!r}", "code that a shell can import"
            got = f"code of the script that trained it (for {', '.join(of_script)})"
            remedy = f"Load it in that script, by Algorithm.from_checkpoint({str(checkpoint)!r}, allow=['__main__']); "
            remedy += "or move the code to a module of its own and train again."
            raise ValueError(f"{where}: expected {expected}, got {got}. {remedy}") from error
        flags = f"type --allow {' '.join(dict.fromkeys([*allow, *error.modules]))}" if error.modules else ""
        told = " and ".join(filter(None, (flags, "setting=... is --setting")))
        raise ValueError(f"{error} In a shell, {told}.") from error


def _instead(folder: Path) -> tuple[str, str]:
    """What there is at ``folder``, which is no checkpoint, and what to do."""
    whole = "Pass a folder such as runs/NAME/checkpoint, or the run's: runs/NAME."
    if not folder.exists():
        beside = [other.name for other in folder.parent.iterdir()] if folder.parent.is_dir() else []
        return "a path where nothing is", f"{whole}{closest(folder.name, beside)}"
    if folder.is_file():
        return "a file", f"Pass the folder that it lies in: {folder.parent}."
    if (folder / "tensors.safetensors").exists():
        return "one without its checkpoint.json", "Pass another; this one is not complete."
    if (folder / "best_checkpoint").exists():
        return "a run that has only its best", f"Pass {folder / 'best_checkpoint'}."
    if (folder / "run.json").exists():
        return "a run that has none yet", "It is written at the end, or more often: --checkpoint-interval 10."
    if runs := sorted(each.parent.parent.name for each in folder.glob("*/checkpoint/checkpoint.json")):
        return "a folder without one", f"It holds several runs: add /{' or /'.join(runs[:5])}."
    return "a folder without one", whole
