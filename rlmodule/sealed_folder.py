"""Folders of files that are written atomically, and verified when they are read: checkpoints and policies.

``manifest.json`` names every file of the folder with its size and SHA-256, and ends with the SHA-256 of its own text
before that entry::

    {"kind": "checkpoint", "format": 2, "versions": {…}, "about": {…}, "files": {name: {"size": …, "sha256": …}},
     "sha256": …}

The digests prove that the files are as they were written, not who wrote them.
"""

import ctypes
import errno
import hashlib
import json
import math
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

import torch
from filelock import lock_descriptor
from torch import Tensor

from catalog_rl import printable

StrPath: TypeAlias = str | os.PathLike[str]
Result = TypeVar("Result")

MANIFEST = "manifest.json"
FORMATS = {"checkpoint": 2, "policy": 1, "dataset": 1}
"""The format of each kind of folder that is written and read."""
MOST_BYTES_OF_MANIFEST = 1_000_000
MOST_DIMS = 64
"""Most sizes of a tensor's shape, as in NumPy."""

# Most values of a JSON file, counted by its commas. Reading so many takes a few seconds; thousands of envs have fewer.
MOST_VALUES_OF_JSON = 2**22
_INTS = {torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64"}
_UNSIGNED = {torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.bool: "BOOL"}
_FLOATS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
_DTYPES = {**_INTS, **_UNSIGNED, **_FLOATS, torch.complex64: "C64"}
_DTYPES_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100  # of Linux
_CHUNK = 1 << 20
# A link could lead anywhere, and opening a FIFO would wait for a process that writes to it.
_OPEN = os.O_RDONLY | (os.O_BINARY if sys.platform == "win32" else os.O_NOFOLLOW | os.O_NONBLOCK)


class DamagedFolder(ValueError):
    """Raised if a folder is not as it was written. The message names the file and says why, in a few words.

    Args:
        text: The message. Names in it may be those of the folder, so it is made ``catalog_rl.printable``.
    """

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


# --- write ------------------------------------------------------------------------------------------------------------


def write_folder(
    path: StrPath,
    kind: str,
    files: Mapping[str, bytes | Mapping[str, Tensor]],
    about: Mapping[str, Any] | None = None,
    keep: StrPath | None = None,
) -> None:
    """Write ``files`` and their manifest as the folder ``path``, in place of an earlier folder of this kind.

    The new folder is written next to ``path``, flushed to the disk, and then exchanged with the earlier one. So a
    complete folder exists at every moment, even if the process is killed. Permissions follow the umask.

    Args:
        path: The folder; a link is followed. Folders above it are created.
        kind: One of :data:`FORMATS`.
        files: Content by name: bytes, or tensors by name, which are written as safetensors. Contiguous tensors on the
            CPU are not copied.
        about: Plain values for the manifest, which can be read without the files.
        keep: Path to which the earlier folder is moved instead of being deleted. It replaces a folder already there.

    Raises:
        OSError: If the folder cannot be written; the earlier one is then unchanged.
    """
    target = Path(path).resolve()
    with staged_folder(target) as staged:
        listed = {name: _write(staged / name, _chunks(content)) for name, content in files.items()}
        libraries = ("catalog-rl", "torch", "numpy", "gymnasium", "safetensors")
        versions = {"python": platform.python_version(), **{name: version(name) for name in libraries}}
        body = {"kind": kind, "format": FORMATS[kind], "versions": versions, "about": about or {}, "files": listed}
        _write(staged / MANIFEST, [_sealed(body)])
        _flush(staged)
        _take_place(staged, target)
        if keep is not None and staged.exists():
            shutil.rmtree(keep, ignore_errors=True)
            os.rename(staged, keep)
            _flush(Path(keep).parent)
        _flush(target.parent)
    _sweep(target)


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Create a folder next to ``target``, with the folders above it, and lock it within the block. Delete it at the end
    if it still exists; to keep it, give it the name ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        staged = target.with_name(f".{target.name}-{uuid4().hex}")
        staged.mkdir()  # unlike a folder of tempfile, it follows the umask
        with ExitStack() as held:
            # Before it is locked, another process that saves may take the folder for a leftover and delete it.
            with suppress(FileNotFoundError):
                held.enter_context(_locked(staged, wait=True))
            if not staged.exists():
                continue
            try:
                yield staged
            finally:
                shutil.rmtree(staged, ignore_errors=True)
            return


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a folder until the block or this process ends, and yield True. Yield False if the file system or platform
    has no locks, or if another process holds the lock; with ``wait``, wait until that process releases it."""
    if sys.platform == "win32":  # Windows cannot open folders
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    is_locked = False
    try:
        with suppress(OSError):
            is_locked = lock_descriptor(handle, blocking=wait)
        yield is_locked
    finally:
        os.close(handle)


def _leftovers(target: Path) -> list[Path]:
    """Return the temporary folders of saves of ``target``, in progress or left behind by killed processes."""
    name = re.compile(rf"\.{re.escape(target.name)}-[0-9a-f]{{32}}")
    return [found for found in target.parent.iterdir() if name.fullmatch(found.name)]


def _sweep(target: Path) -> None:
    """Delete the temporary folders that killed processes left next to ``target``. Skip those that are still locked."""
    for left in _leftovers(target):
        with suppress(OSError), _locked(left) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(left, ignore_errors=True)


def _chunks(content: bytes | Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """Return the bytes of a file as a list of buffers. They share the memory of tensors that are contiguous and on the
    CPU: a replay buffer may be too large to copy, which the safetensors library does for a file in memory."""
    if isinstance(content, bytes):
        return [content]
    # Widest types first: each tensor then lies at a multiple of its item size.
    tensors = sorted(content.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    arrays: list[memoryview] = []
    end = 0
    for name, tensor in tensors:
        raw = bytes_of(tensor)
        begin, end = end, end + raw.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
        arrays.append(raw.numpy().data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *arrays]


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of ``tensor`` as uint8 ``[n]`` on the CPU, as a view if it is there and contiguous."""
    # Not reshape(-1), as one item may keep a stride of 0, which cannot be viewed as bytes.
    return tensor.detach().cpu().contiguous().as_strided([tensor.numel()], [1]).view(torch.uint8)


def _write(file: Path, chunks: Sequence[bytes | memoryview]) -> dict[str, Any]:
    """Write and flush a new file; return its size and its SHA-256, which is computed at the same time."""
    digest = hashlib.sha256()

    def hash_chunks() -> None:
        for chunk in chunks:
            digest.update(chunk)

    hashing = Thread(target=hash_chunks)
    hashing.start()
    size = 0
    try:
        with open(file, "xb") as opened:
            for chunk in chunks:
                size += opened.write(chunk)
            opened.flush()
            os.fsync(opened.fileno())
    finally:
        hashing.join()
    return {"size": size, "sha256": digest.hexdigest()}


def _sealed(body: Mapping[str, Any]) -> bytes:
    """Return ``body`` and its SHA-256 as the JSON text of a manifest. A file with any other text counts as damaged."""
    digest = hashlib.sha256(json.dumps(body, indent=1).encode()).hexdigest()
    return (json.dumps({**body, "sha256": digest}, indent=1) + "\n").encode()


def _flush(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _take_place(staged: Path, target: Path) -> None:
    """Give the folder ``staged`` the name ``target``, and the folder of that name, if any, the name ``staged``.

    Linux exchanges both names in one step. On file systems that cannot, ``target`` is missing for a moment, in which
    :func:`standing_in` finds the earlier folder.
    """
    try:
        os.rename(staged, target)  # succeeds if `target` is missing or an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchange(staged, target):
        return
    aside = target.with_name(f".{target.name}-{uuid4().hex}")
    os.rename(target, aside)
    try:
        os.rename(staged, target)
    except BaseException:
        os.rename(aside, target)
        raise
    os.rename(aside, staged)


def _exchange(staged: Path, target: Path) -> bool:
    """Exchange the names of two folders in one step; return False where that is not possible."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    # Python has no call for it. Both paths are absolute, so the folder that they could be relative to does not matter.
    if not libc.renameat2(_AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(target))


# --- read -------------------------------------------------------------------------------------------------------------


def standing_in(path: StrPath) -> Path:
    """Return ``path`` or, if it is missing, the complete folder that an interrupted save left next to it."""
    path = Path(path)
    if path.exists() or not path.parent.is_dir():
        return path
    complete = [left for left in _leftovers(path) if (left / MANIFEST).is_file()]
    return max(complete, key=lambda left: (left / MANIFEST).stat().st_mtime_ns, default=path)


def read_folder(
    path: StrPath, kind: str, names: Collection[str] | None = None, others: Collection[str] = ()
) -> dict[str, bytearray]:
    """Return the content of the files in a folder that :func:`write_folder` wrote, after verifying them.

    A folder that is replaced in the meantime is read again, so the files belong together. Memory is bounded by the size
    of the files.

    Args:
        path: The folder.
        kind: One of :data:`FORMATS`.
        names: The files to verify and return; of the others, only the sizes are compared. None for all.
        others: Names of files that may be in the folder without being in the manifest, such as ``README.md``.

    Raises:
        DamagedFolder: If a file is missing, not listed in the manifest, not a regular file, or different from its
            entry; if the manifest is damaged or missing; or if the folder is of another kind or format.
    """
    return _consistently(path, lambda folder, manifest: _verified(folder, manifest, names, others, True), kind)


def verify_folder(path: StrPath, kind: str) -> dict[str, Any]:
    """Verify a folder as :func:`read_folder` does, without keeping the files in memory, and return its manifest.

    Raises:
        DamagedFolder: As for :func:`read_folder`.
    """

    def verify(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
        _verified(folder, manifest, None, (), False)
        return manifest

    return _consistently(path, verify, kind)


def read_manifest(path: StrPath, kind: str) -> dict[str, Any]:
    """Return the verified manifest of a folder, without reading the files.

    Raises:
        DamagedFolder: If the manifest is damaged or missing, or the folder is of another kind or format.
    """
    return _consistently(path, lambda _, manifest: manifest, kind)


def _consistently(path: StrPath, read: Callable[[Path, dict[str, Any]], Result], kind: str) -> Result:
    """Return ``read(folder, manifest)``. Read again if the folder was replaced in the meantime."""
    while True:
        folder = standing_in(path)
        before = _identity(folder)
        try:
            return read(folder, _manifest(folder, kind))
        except DamagedFolder:
            if _identity(standing_in(path)) not in (None, before):
                continue
            raise


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what distinguishes the manifest of a folder from one that replaces it, even with the same content. None if
    there is no manifest."""
    with suppress(OSError):
        found = os.stat(folder / MANIFEST)
        return found.st_ino, found.st_mtime_ns
    return None


def _manifest(folder: Path, kind: str) -> dict[str, Any]:
    """Return the manifest. Raise DamagedFolder unless it is complete and of this kind and format."""
    with _opened(folder, MANIFEST) as (file, size):
        if size > MOST_BYTES_OF_MANIFEST:
            raise DamagedFolder(f"{MANIFEST}: expected at most {MOST_BYTES_OF_MANIFEST} bytes, got {size}")
        sealed, _ = _read(file, size)
    manifest = parse_json(sealed, MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(files := manifest.get("files"), dict):
        raise DamagedFolder(f"{MANIFEST}: it lists no files")
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    if manifest.get("kind") != kind or manifest.get("format") != FORMATS[kind]:
        got = f"a {manifest.get('kind')} of format {manifest.get('format')}"
        raise DamagedFolder(f"{MANIFEST}: it is of {got}; this version reads a {kind} of format {FORMATS[kind]}")
    if _sealed(body) != sealed:
        raise DamagedFolder(f"{MANIFEST}: it does not have the SHA-256 that it ends with")
    for name, entry in files.items():
        is_in_folder = Path(name).name == name and name not in ("", "..") and name.isprintable()
        if not is_in_folder or not isinstance(entry, dict) or type(entry.get("size")) is not int:
            raise DamagedFolder(f"{MANIFEST}: {name!r} is not a file of the folder")
    return manifest


def _verified(
    folder: Path, manifest: Mapping[str, Any], names: Collection[str] | None, others: Collection[str], keep: bool
) -> dict[str, bytearray]:
    """Verify a folder as :func:`read_folder` does, with the same ``names`` and ``others``. Return the content of each
    file in ``names``, by name; without ``keep``, the contents are incomplete."""
    files = manifest["files"]
    try:
        found = {*os.listdir(folder)} - {MANIFEST}
    except OSError as error:
        raise DamagedFolder(f"{folder.name}: {error.strerror}") from error
    for name in sorted(found - files.keys() - {*others}):
        raise DamagedFolder(f"{name}: it is not in {MANIFEST}")
    contents: dict[str, bytearray] = {}
    for name, entry in files.items():
        with _opened(folder, name) as (file, size):
            # Before the content is read: a file must not take more memory than its manifest promises.
            if size != entry["size"]:
                raise DamagedFolder(f"{name}: expected {entry['size']} bytes, got {size}")
            if names is not None and name not in names:
                continue
            contents[name], digest = _read(file, size, keep=keep)
        if digest != entry.get("sha256"):
            raise DamagedFolder(f"{name}: expected the SHA-256 {entry.get('sha256')}, got {digest}")
    return contents


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[tuple[FileIO, int]]:
    """Open a file of a folder, and yield it with its size. Raise DamagedFolder if it is no regular file, or if the
    block cannot read it or has too little memory for it."""
    path = folder / name
    if path.is_symlink():  # O_NOFOLLOW would refuse it too, with a text about too many levels, but not on Windows
        raise DamagedFolder(f"{name}: it is a link, which is not followed; copy the folder with cp -rL if you trust it")
    try:
        with open(path, "rb", buffering=0, opener=lambda file, _: os.open(file, _OPEN)) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise DamagedFolder(f"{name}: it is not a regular file")
            yield file, about.st_size
    except OSError as error:
        raise DamagedFolder(f"{name}: {error.strerror or error}") from error
    except MemoryError as error:
        raise DamagedFolder(f"{name}: it needs more memory than is available") from error


def _read(file: FileIO, size: int, *, keep: bool = True) -> tuple[bytearray, str]:
    """Return the content of an open file of ``size`` bytes, and its SHA-256. Without ``keep``, one buffer serves for
    all parts of the file, and the content is the last part."""
    content = bytearray(size if keep else min(size, _CHUNK))
    digest = hashlib.sha256()
    num_read = 0
    while num_read < size:
        begin = num_read if keep else 0
        window = memoryview(content)[begin : begin + _CHUNK]
        count = file.readinto(window)
        if not count:  # it was cut off in the meantime, which the digest shows
            break
        digest.update(window[:count])
        num_read += count
    return content, digest.hexdigest()


def parse_json(content: bytes | bytearray, name: str) -> Any:
    """Parse the JSON of the file ``name``.

    Raises:
        DamagedFolder: If the content has more values than :data:`MOST_VALUES_OF_JSON`, is not valid JSON, is nested too
            deeply, or repeats a key within an object.
    """
    if (commas := content.count(b",")) > MOST_VALUES_OF_JSON:
        raise DamagedFolder(f"{name}: expected at most {MOST_VALUES_OF_JSON:,} values, got {commas:,}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a key occurs twice")
        return found

    try:
        return json.loads(content, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise DamagedFolder(f"{name}: {error}") from error


def parse_tensors(content: bytearray, name: str) -> dict[str, Tensor]:
    """Return the tensors in ``content``, the safetensors file ``name``. They share its memory, unlike those that the
    safetensors library makes of bytes.

    Raises:
        DamagedFolder: If ``content`` is not a valid safetensors file.
    """
    begin = 8 + int.from_bytes(content[:8], "little")
    if begin > len(content):
        raise DamagedFolder(f"{name}: its header is longer than the file")
    header = parse_json(content[8:begin], name)
    tensors: dict[str, Tensor] = {}
    try:
        header.pop("__metadata__", None)
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        last_end = 0
        for key, entry in entries:
            start, end = entry["data_offsets"]
            # Each tensor begins where the one before ends: no byte belongs to two tensors, or to none.
            if start != last_end or begin + end > len(content):
                raise ValueError(key)
            tensors[key] = _tensor(content, begin + start, begin + end, entry["dtype"], entry["shape"])
            last_end = end
        if begin + last_end != len(content):
            raise ValueError("bytes after the last tensor")
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:  # torch raises the last
        raise DamagedFolder(f"{name}: its header does not fit its content ({error})") from error
    return tensors


def _tensor(content: bytearray, begin: int, end: int, dtype_name: str, shape: list[int]) -> Tensor:
    """Return the tensor that the bytes from ``begin`` to ``end`` hold, as their memory. Raise ValueError if they are
    not as many as its type and shape need."""
    dtype = _DTYPES_BY_NAME[dtype_name]
    # Before they are multiplied: the product of many large sizes takes minutes, and their text fills the memory.
    if len(shape) > MOST_DIMS or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"a shape that is no list of up to {MOST_DIMS} sizes")
    count = math.prod(shape)
    if end - begin != count * dtype.itemsize:
        raise ValueError(f"{end - begin} bytes for a shape of {shape}")
    if count == 0:  # torch makes no view of nothing
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=begin).reshape(shape)
