"""One run at a time in a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from errno import ENOLCK, ENOSYS, ENOTSUP
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock


def lock_folder(folder: Path) -> BaseFileLock:
    """Lock ``folder`` for the run that writes into it, by the kernel's lock on its file ``.lock``.

    The lock is free when it is released or collected, or when the process dies. Where the file system has no such
    locks, nothing is refused.

    Raises:
        BlockingIOError: If another run holds it, also one of this process.
        OSError: If the folder cannot be written to.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text()
        how = "call stop() on the algorithm of this process" if holder == str(os.getpid()) else "wait for its end"
        raise BlockingIOError(
            f"run_dir {str(folder)!r}: expected a folder in which no run is training, got a run is training in it "
            f"(process {holder or 'unknown'}). Choose another, or {how}."
        ) from None
    except OSError as error:
        if error.errno not in (ENOLCK, ENOSYS, ENOTSUP):
            raise
    with suppress(OSError):  # Windows lets nobody write to a locked file
        path.write_text(str(os.getpid()))
    return lock
