"""What CKPT means in a command line: a checkpoint, or the run folder that it lies in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catalog.errors import closest, explain_error
from rlmodule.checkpoint import load_checkpoint

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
    raise FileNotFoundError(
        explain_error(f"checkpoint {path!r}", expected="a checkpoint or a run", got=got, remedy=remedy)
    )


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """What ``Algorithm.save`` wrote.

    Raises:
        ValueError: If it cannot be read, or something else wrote it.
    """
    content = load_checkpoint(folder)
    if missing := [name for name in _CONTENT if name not in content]:
        got = f"one without {', '.join(missing)}"
        remedy = "Load it with the version that wrote it, or save it again with this one."
        raise ValueError(
            explain_error(f"checkpoint {str(folder)!r}", expected="what algo.save() writes", got=got, remedy=remedy)
        )
    return content


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
