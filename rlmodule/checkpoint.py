"""Checkpoints: tensors in safetensors, everything else in JSON. Loading one never runs code from it.

Layout of the folder::

    checkpoint.json        the tree of plain values with names in place of tensors
    tensors.safetensors    the tensors by these names
    replay.safetensors     the tensors of the entry ``replay``, if it exists
    manifest.json          the format, and the size and SHA-256 of each file: see :mod:`rlmodule.sealed_folder`
"""

import errno
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rlmodule.sealed_folder import (
    FORMATS,
    MANIFEST,
    MOST_VALUES_OF_JSON,
    DamagedFolder,
    StrPath,
    parse_json,
    parse_tensors,
    read_folder,
    standing_in,
    verify_folder,
    write_folder,
)

KIND = "checkpoint"
PLAIN, TENSORS, REPLAY = "checkpoint.json", "tensors.safetensors", "replay.safetensors"
# The two checkpoint folders of a run: name of each → name of the other.
SIBLING = {"checkpoint": "best_checkpoint", "best_checkpoint": "checkpoint"}
# Most levels of dicts and lists in the tree of a checkpoint.
DEEPEST = 100
_TENSOR = "__tensor__"


def save_checkpoint(path: StrPath, state: Mapping[str, Any]) -> Path:
    """Write ``state``, a tree of dicts and lists of tensors and plain values, as the folder ``path``.

    An earlier checkpoint at ``path`` is replaced in one step, once the new one is complete on disk. The permissions of
    the files follow the umask.

    Raises:
        OSError: If the folder cannot be written; an earlier checkpoint is then unchanged.
        FileExistsError: If ``path`` exists and is not a checkpoint.
        TypeError: If ``state`` has a value that is neither a tensor nor plain; names its place in the tree.
    """
    return prepare_checkpoint(state)(path)


def prepare_checkpoint(
    state: Mapping[str, Any], *, about: Mapping[str, Any] | None = None, copy: bool = False
) -> Callable[..., Path]:
    """Return a function ``write(path, keep=None)`` that writes ``state`` as :func:`save_checkpoint` does. If ``keep``
    is a path, it moves the earlier checkpoint there.

    Args:
        state: See :func:`save_checkpoint`.
        about: Plain values for the manifest.
        copy: Copy the tensors now, so that they may change before the checkpoint is written.

    Raises:
        TypeError: See :func:`save_checkpoint`.
    """
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(split_tensors(state, "", tensors), indent=1).encode()
    if (values := plain.count(b",")) > MOST_VALUES_OF_JSON:  # as they are counted when it is read
        raise TypeError(
            f"checkpoint state: expected at most {MOST_VALUES_OF_JSON:,} plain values, got {values:,}. Return arrays "
            "from get_state() as tensors."
        )
    rest: dict[str, Tensor] = {}
    replay: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        # The replay buffer is large, and is not needed to act: it gets a file that can be left out.
        part = replay if name.startswith("replay/") else rest
        part[name] = tensor.clone() if copy else tensor
    files: dict[str, bytes | Mapping[str, Tensor]] = {PLAIN: plain, TENSORS: rest}
    if replay:
        files[REPLAY] = replay

    def write(path: StrPath, keep: StrPath | None = None) -> Path:
        where = f"save({str(path)!r})"
        # not by the manifest, which policies, data sets and web pages have too
        return save_folder(where, path, KIND, files, lambda folder: (folder / PLAIN).exists(), about, keep)

    return write


def save_folder(
    where: str,
    path: StrPath,
    kind: str,
    files: Mapping[str, bytes | Mapping[str, Tensor]],
    is_earlier: Callable[[Path], bool],
    about: Mapping[str, Any] | None = None,
    keep: StrPath | None = None,
) -> Path:
    """Write a folder as :func:`rlmodule.sealed_folder.write_folder` does, but replace nothing other than an empty
    folder or one that ``is_earlier`` accepts. Return its absolute path. Error messages begin with ``where``.

    Raises:
        FileExistsError: If something else is there.
        OSError: If the folder cannot be written; the earlier one is then unchanged.
    """
    target = Path(path).absolute()
    try:
        is_free = not target.exists() or is_earlier(target) or (target.is_dir() and not any(target.iterdir()))
        if is_free:
            write_folder(target, kind, files, about, keep)
    except OSError as error:
        got = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            size = 0
            for content in files.values():
                size += (
                    len(content) if isinstance(content, bytes) else sum(tensor.nbytes for tensor in content.values())
                )
            free = shutil.disk_usage(target.parent).free
            got += f" ({size / 1e6:,.1f} MB to write, {free / 1e6:,.1f} MB free)"
        raise OSError(
            f"{where}: expected a folder to write to, got {got}. Choose another path, or free disk space or get "
            "permission there."
        ) from error
    if not is_free:
        raise FileExistsError(
            f"{where}: expected a new folder, an empty one or an earlier {kind}, got something else of that name. "
            "Choose another path."
        )
    return target


def holds_checkpoint(path: StrPath) -> bool:
    """Return whether ``path`` holds a checkpoint, of any format and in any state."""
    folder = standing_in(path)
    return any((folder / name).exists() for name in (MANIFEST, PLAIN))


def load_checkpoint(path: StrPath, *, replay: bool = True) -> dict[str, Any]:
    """Return the state that :func:`save_checkpoint` wrote, after verifying every file that is read. If ``replay`` is
    False, leave out the entry ``"replay"`` of the state, and do not read the file with its tensors.

    Raises:
        FileNotFoundError: If ``path`` has no checkpoint.
        ValueError: If the checkpoint is damaged or has another format; names the file, and the run's other checkpoint
            if that is sound.
    """
    return _read(path, partial(_load, replay=replay))


def verify_checkpoint(path: StrPath) -> dict[str, Any]:
    """Verify every file of a checkpoint, and return its manifest.

    Raises:
        FileNotFoundError: If ``path`` has no checkpoint.
        ValueError: As for :func:`load_checkpoint`.
    """
    return _read(path, lambda folder: verify_folder(folder, KIND))


def _read(path: StrPath, read: Callable[[StrPath], dict[str, Any]]) -> dict[str, Any]:
    """Return ``read(path)``. Raise the errors of :func:`load_checkpoint` if the checkpoint is missing or damaged."""
    if not holds_checkpoint(path):
        raise FileNotFoundError(
            f"load({str(path)!r}): expected a folder with {PLAIN}, got none. Pass the "
            "folder that algo.save(path) wrote, such as runs/<name>/checkpoint."
        )
    try:
        return read(path)
    except DamagedFolder as damage:
        got = str(damage)
        folder = standing_in(path)
        if not (folder / MANIFEST).exists():
            got += "; checkpoints of format 1 have none, and cannot be read"
        remedy = "Load another checkpoint; this one is damaged or from another version."
        if (folder / "policy.json").exists():
            remedy = "It holds a policy: load it with Policy.load() or MultiAgentPolicy.load()."
        with suppress(DamagedFolder, KeyError):  # KeyError: the folder is not one of a run's two
            other = folder.with_name(SIBLING[folder.name])
            verify_folder(other, KIND)
            remedy = f"Load {str(other)!r}, which is sound; this one is damaged or from another version."
        raise ValueError(
            f"load({str(path)!r}): expected a complete checkpoint of format {FORMATS[KIND]}, got one that "
            f"cannot be read ({got}). {remedy}"
        ) from damage


def _load(path: StrPath, replay: bool) -> dict[str, Any]:
    files = read_folder(path, KIND, None if replay else (PLAIN, TENSORS))
    if PLAIN not in files:
        raise DamagedFolder(f"{MANIFEST}: it does not list {PLAIN}")
    plain, tensors = parse_json(files.pop(PLAIN), PLAIN), dict[str, Tensor]()
    for name, content in files.items():
        tensors |= parse_tensors(content, name)
    if isinstance(plain, dict) and not replay:
        plain.pop("replay", None)
    try:
        state = join_tensors(plain, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFolder(f"{PLAIN}: {error}") from error
    if not isinstance(state, dict):
        raise DamagedFolder(f"{PLAIN}: it is not an object")
    return state


def split_tensors(value: Any, path: str, tensors: dict[str, Tensor], names: dict[int, str] | None = None) -> Any:
    """Return ``value`` with each tensor replaced by its name, and put the tensors into ``tensors`` under their names.

    Args:
        value: A tree of dicts, lists and tuples of tensors and plain values.
        path: Place of ``value`` in the whole tree, such as ``learners/module``; the names begin with it.
        tensors: The dict that receives the tensors by name, as CPU tensors. A tensor that occurs twice has one name.
        names: Names of the tensors stored so far, by ``id()``; new ones are added. None starts with none.

    Raises:
        TypeError: If the tree has another kind of value, or keys that are not unique as text.
    """
    names = {} if names is None else names
    if isinstance(value, Mapping):
        keys = [str(key) for key in value]
        if len({*keys}) < len(keys) or keys == [_TENSOR]:
            raise TypeError(
                f"checkpoint state at {path!r}: expected keys that differ as text, and other than "
                f"{_TENSOR!r} alone, got the keys {list(value)!r}. Use strings as keys."
            )
        return {
            str(key): split_tensors(child, f"{path}/{key}" if path else str(key), tensors, names)
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [split_tensors(child, f"{path}/{i}", tensors, names) for i, child in enumerate(value)]
    if isinstance(value, Tensor):
        if id(value) in names:
            return {_TENSOR: names[id(value)]}
        while path in tensors:  # a key "a/b" and the key "b" of a dict "a" give the same path
            path += "'"
        tensors[path], names[id(value)] = value.detach().cpu(), path
        return {_TENSOR: path}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"checkpoint state at {path!r}: expected a tensor, a plain value, or a dict or list of "
        f"these, got {type(value).__name__}. Convert it in get_state() and back in set_state()."
    )


def join_tensors(value: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> Any:
    """Return a copy of ``value`` in which ``tensors`` replace their names: the reverse of :func:`split_tensors`.

    Args:
        value: The result of :func:`split_tensors`, or that result as read from JSON.
        tensors: The tensors by name.
        depth: Number of dicts and lists around ``value`` in the whole tree.

    Raises:
        ValueError: If the tree is nested deeper than :data:`DEEPEST`, or names a tensor that is missing.
    """
    if depth > DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST}")
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            if value[_TENSOR] not in tensors:
                raise ValueError(f"the tensor {value[_TENSOR]!r} is missing")
            return tensors[value[_TENSOR]]
        return {key: join_tensors(child, tensors, depth + 1) for key, child in value.items()}
    if isinstance(value, list):
        return [join_tensors(child, tensors, depth + 1) for child in value]
    return value
