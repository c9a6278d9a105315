"""Checkpoints: tensors in safetensors, everything else in JSON. Loading one never runs code from it.

Layout of the folder::

    checkpoint.json        format version, and the tree of plain values with names in place of tensors
    tensors.safetensors    the tensors by these names
"""

import json
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
from torch import Tensor

StrPath: TypeAlias = str | os.PathLike[str]

FORMAT = 1
PLAIN, TENSORS = "checkpoint.json", "tensors.safetensors"
SIBLING = {"checkpoint": "best_checkpoint", "best_checkpoint": "checkpoint"}
"""The two checkpoint folders of a run: name of each → name of the other."""
_TENSOR = "__tensor__"


def save_checkpoint(path: StrPath, state: Mapping[str, Any]) -> Path:
    """Write ``state``, a tree of dicts and lists of tensors and plain values, as the folder ``path``.

    An earlier checkpoint at ``path`` is replaced once the new one is complete on disk. The permissions of the files
    follow the umask.

    Raises:
        OSError: If the folder cannot be written; an earlier checkpoint is then unchanged.
        FileExistsError: If ``path`` exists and is not a checkpoint.
        TypeError: If ``state`` has a value that is neither a tensor nor plain; names its place in the tree.
    """
    from safetensors import SafetensorError

    target = Path(path).absolute()
    tensors: dict[str, Tensor] = {}
    plain = split_tensors(state, "", tensors)
    try:
        is_empty = target.is_dir() and not any(target.iterdir())
        if is_empty or not target.exists() or (target / PLAIN).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, plain, tensors)
            return target
    except (OSError, SafetensorError) as error:
        got = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise OSError(
            f"save({str(path)!r}): expected a folder to write to, got {got}. Choose another path, "
            "or free disk space or get permission there."
        ) from error
    raise FileExistsError(
        f"save({str(path)!r}): expected a new folder, an empty one or an earlier checkpoint, got "
        "something else of that name. Choose another path."
    )


def _write(target: Path, plain: Any, tensors: dict[str, Tensor]) -> None:
    """Write both files into a temporary folder next to ``target``, then replace ``target`` by that folder."""
    from safetensors.torch import save_file

    staged = target.with_name(f".{target.name}-{uuid4().hex}")  # unlike a folder of tempfile, it follows the umask
    staged.mkdir()
    try:
        save_file(tensors, staged / TENSORS)
        (staged / PLAIN).write_text(json.dumps({"format": FORMAT, "state": plain}, indent=1))
        (staged / TENSORS).chmod(stat.S_IMODE((staged / PLAIN).stat().st_mode))  # safetensors ignores the umask
        for file in staged.iterdir():
            with open(file, "rb+") as handle:
                os.fsync(handle.fileno())
        _replace(staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def load_checkpoint(path: StrPath) -> dict[str, Any]:
    """Return the state that :func:`save_checkpoint` wrote.

    Raises:
        FileNotFoundError: If ``path`` has no checkpoint.
        ValueError: If the checkpoint is damaged or has another format; names the run's other checkpoint if that can be
            read.
    """
    folder = Path(path)
    if not (folder / PLAIN).exists():
        raise FileNotFoundError(
            f"load({str(path)!r}): expected a folder with checkpoint.json, got none. Pass the "
            "folder that algo.save(path) wrote, such as runs/<name>/checkpoint."
        )
    try:
        return _read(folder)
    except _Damaged as damage:
        remedy = "Load another checkpoint; this one is damaged or from another version."
        with suppress(_Damaged, KeyError):  # KeyError: the folder is not one of a run's two
            other = folder.with_name(SIBLING[folder.name])
            _read(other)
            remedy = f"Load {str(other)!r}, which is sound; this one is damaged or from another version."
        raise ValueError(
            f"load({str(path)!r}): expected a complete checkpoint of format {FORMAT}, got one that "
            f"cannot be read ({damage}). {remedy}"
        ) from damage


class _Damaged(Exception):
    """Raised if a checkpoint cannot be read. The message says why, in a few words."""


def _read(folder: Path) -> dict[str, Any]:
    """Return the state in ``folder``.

    Raises:
        _Damaged: If the checkpoint cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content = json.loads((folder / PLAIN).read_text())
    except (ValueError, OSError) as error:
        raise _Damaged(f"{PLAIN}: {error}") from error
    if not isinstance(content, dict) or not content.keys() >= {"format", "state"}:
        raise _Damaged(f"{PLAIN} lacks the format or the state")
    if content["format"] != FORMAT:
        raise _Damaged(f"it is of format {content['format']}")
    try:
        return join_tensors(content["state"], load_file(folder / TENSORS))
    except KeyError as error:
        raise _Damaged(f"{TENSORS} lacks {error}") from error
    except (ValueError, TypeError, OSError, SafetensorError) as error:
        raise _Damaged(f"{TENSORS}: {error}") from error


def split_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` with each tensor replaced by its name, and put the tensors into ``tensors`` under their names.

    Args:
        value: A tree of dicts, lists and tuples of tensors and plain values.
        path: Place of ``value`` in the whole tree, such as ``learners/module``; the names begin with it.
        tensors: The dict that receives the tensors.

    Raises:
        TypeError: If the tree has another kind of value, or keys that are not unique as text.
    """
    if isinstance(value, Mapping):
        keys = [str(key) for key in value]
        if len({*keys}) < len(keys) or keys == [_TENSOR]:
            raise TypeError(
                f"checkpoint state at {path!r}: expected keys that differ as text, and other than "
                f"{_TENSOR!r} alone, got the keys {list(value)!r}. Use strings as keys."
            )
        return {
            str(key): split_tensors(child, f"{path}/{key}" if path else str(key), tensors)
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [split_tensors(child, f"{path}/{i}", tensors) for i, child in enumerate(value)]
    if isinstance(value, Tensor):
        while path in tensors:  # a key "a/b" and the key "b" of a dict "a" give the same path
            path += "'"
        # a clone, since safetensors refuses tensors that share memory
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: path}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"checkpoint state at {path!r}: expected a tensor, a plain value, or a dict or list of "
        f"these, got {type(value).__name__}. Convert it in get_state() and back in set_state()."
    )


def join_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return ``value`` with the tensors that :func:`split_tensors` took out back in their places."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: join_tensors(child, tensors) for key, child in value.items()}
    if isinstance(value, list):
        return [join_tensors(child, tensors) for child in value]
    return value


def _replace(staged: Path, target: Path) -> None:
    """Rename ``staged`` to ``target``. An existing ``target`` is moved aside first, and moved back on an error."""
    aside = target.with_name(f".{target.name}-old-{uuid4().hex}")
    if target.exists():
        os.rename(target, aside)
    try:
        os.rename(staged, target)
    except BaseException:
        if aside.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)
