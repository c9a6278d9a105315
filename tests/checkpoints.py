"""Checkpoints changed by somebody who knows the digests: the folder is sound, what is in it is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlmodule.sealed_folder import write_folder


def rewrite(folder: Path, change: Callable[[Any], Any]) -> None:
    """Replace the tree of plain values by what ``change`` makes of it, or does to it if it returns None."""
    content = json.loads((folder / "checkpoint.json").read_text())
    changed = change(content)
    replace(folder, "checkpoint.json", json.dumps(content if changed is None else changed).encode())


def replace(folder: Path, name: str, content: bytes) -> None:
    """Replace or add a file, with its digest."""
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "manifest.json"}
    write_folder(folder, "checkpoint", {**files, name: content})
