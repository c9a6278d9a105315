"""One run at a time in a folder: a lock that ends with its holder, however that one ends."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path

from catalog.errors import explain_error

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None


class FolderLock:
    """Held by the run that writes into a folder, as a lock of the kernel on its file ``.lock``.

    The kernel releases it when the process dies; :meth:`release` also removes the file. Where the platform or the file
    system has no such locks, nothing is refused.

    Args:
        folder: The folder, which exists.

    Raises:
        BlockingIOError: If another run holds it, of this process too.
        OSError: If the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / ".lock"
        file = _locked(path)
        while not _is_at(file, path):  # its holder removed it after we had opened it
            os.close(file)
            file = _locked(path)
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        # runs too when an algorithm that nobody stopped is collected
        self._finalizer = weakref.finalize(self, _release, file, path, os.getpid())

    def release(self) -> None:
        """Let other runs in; a second call changes nothing."""
        self._finalizer()


def _locked(path: Path) -> int:
    """The file's descriptor, locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if fcntl is None:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(file, 20).decode()
        os.close(file)
        raise _held(path.parent, holder) from None
    except OSError:  # the file system has no locks
        pass
    return file


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _release(file: int, path: Path, holder: int) -> None:
    if os.getpid() == holder:  # and no fork of it, whose lock is its parent's
        with suppress(OSError):  # a folder that is gone; Windows, which removes no open file
            path.unlink()
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # forks have the descriptor too, so that closing it is not enough
    os.close(file)


def _held(folder: Path, holder: str) -> BlockingIOError:
    mine = holder == str(os.getpid())
    remedy = "Choose another, or wait for its end."
    if mine:
        remedy = "Choose another, or call stop() on the algorithm that writes there."
    return BlockingIOError(
        explain_error(
            f"run_dir {str(folder)!r}",
            expected="a folder in which no run is training",
            got=f"a run is training in it (process {holder or 'unknown'}{', this one' if mine else ''})",
            remedy=remedy,
        )
    )
