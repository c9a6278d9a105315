"""Checkpoints: tensors in safetensors, everything else in JSON. Loading one runs no code of its author.

Layout of the folder::

    checkpoint.json        format version, and the tree of plain values with names in place of tensors
    tensors.safetensors    the tensors by these names
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catalog.errors import explain_error

FORMAT = 1
_TENSOR = "__tensor__"


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> Path:
    """Write ``state``, a tree of dicts and lists of tensors and plain values, as the folder ``path``.

    An earlier checkpoint at ``path`` is replaced only once the new one is complete on disk.

    Raises:
        OSError: If the folder cannot be written; the earlier checkpoint is then untouched.
        FileExistsError: If ``path`` exists and is no checkpoint.
        TypeError: If ``state`` holds something that is neither tensor nor plain value; names where.
    """
    from safetensors.torch import save_file

    target = Path(path).absolute()
    if target.exists() and not (target / "checkpoint.json").exists() and (target.is_file() or any(target.iterdir())):
        raise FileExistsError(
            explain_error(
                f"save({str(path)!r})",
                expected="a new folder, an empty one or an earlier checkpoint",
                got="something else of that name",
                remedy="Choose another path.",
            )
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    plain = _strip(state, "", tensors)
    staged = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        save_file(tensors, staged / "tensors.safetensors")
        (staged / "checkpoint.json").write_text(json.dumps({"format": FORMAT, "state": plain}, indent=1))
        for file in staged.iterdir():
            with open(file, "rb+") as handle:
                os.fsync(handle.fileno())
        _replace(staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state that :func:`save_checkpoint` wrote.

    Raises:
        FileNotFoundError: If there is no checkpoint at ``path``.
        ValueError: If it is damaged, or of a format this version does not know.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(path)
    if not (folder / "checkpoint.json").exists():
        raise FileNotFoundError(
            explain_error(
                f"load({str(path)!r})",
                expected="a folder with checkpoint.json",
                got="none",
                remedy="Pass the folder that algo.save(path) wrote, such as runs/<name>/checkpoint.",
            )
        )
    try:
        content = json.loads((folder / "checkpoint.json").read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, which this version does not know")
        return _restore(content["state"], load_file(folder / "tensors.safetensors"))
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise ValueError(
            explain_error(
                f"load({str(path)!r})",
                expected=f"a complete checkpoint of format {FORMAT}",
                got=f"one that cannot be read ({error})",
                remedy="Load another checkpoint; this one is damaged or from another version.",
            )
        ) from error


def _strip(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` with each tensor put into ``tensors`` and replaced by its name."""
    if isinstance(value, Mapping):
        keys = [str(key) for key in value]
        if len({*keys}) < len(keys) or keys == [_TENSOR]:
            raise TypeError(
                explain_error(
                    f"checkpoint state at {path!r}",
                    expected=f"keys that differ as text, and other than {_TENSOR!r} alone",
                    got=f"the keys {list(value)!r}",
                    remedy="Use strings as keys.",
                )
            )
        return {str(key): _strip(child, f"{path}/{key}" if path else str(key), tensors) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_strip(child, f"{path}/{i}", tensors) for i, child in enumerate(value)]
    if isinstance(value, Tensor):
        # cloned: safetensors refuses tensors that share memory
        while path in tensors:  # a key with a slash in it, next to a dict
            path += "'"
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: path}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        explain_error(
            f"checkpoint state at {path!r}",
            expected="a tensor, a plain value, or a dict or list of these",
            got=type(value).__name__,
            remedy="Convert it in get_state() and back in set_state().",
        )
    )


def _restore(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _restore(child, tensors) for key, child in value.items()}
    if isinstance(value, list):
        return [_restore(child, tensors) for child in value]
    return value


def _replace(staged: Path, target: Path) -> None:
    """Put ``staged`` in the place of ``target``, which is moved aside first, since a rename needs a free name."""
    if not target.exists():
        os.rename(staged, target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    try:
        os.rename(target, aside / "checkpoint")
        try:
            os.rename(staged, target)
        except BaseException:
            os.rename(aside / "checkpoint", target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
