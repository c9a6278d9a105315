"""Last words: how a process ended, as far as it could tell, for who was not there."""

from __future__ import annotations

import faulthandler
import os
import tempfile
from contextlib import suppress

from rlmodule.os_processes import file_prefix, remove_leftovers


class LastWords:
    """A file for another process on this machine to tell of its end.

    Attributes:
        path: For :func:`tell_last_words`, which removes the name: nothing is left of the file, whoever is killed.
    """

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(prefix=file_prefix(), suffix=".log")
        self._file = os.fdopen(handle)

    @staticmethod
    def remove_leftovers() -> None:
        """Remove files of processes that were killed before the other one had removed the name."""
        remove_leftovers(tempfile.gettempdir())

    def read(self) -> str:
        """What was told; empty if nothing was."""
        self._file.seek(0)
        return self._file.read().strip()

    def close(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        self._file.close()


def tell_last_words(path: str) -> None:
    """Let this process write to the file at ``path`` where it was when it crashed, or with which code it called
    ``os._exit``. Nothing, if the file is on another machine."""
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError:
        return
    os.unlink(path)
    faulthandler.enable(file)
    os.register_at_fork(after_in_child=faulthandler.disable)  # the end of a child is not ours
    pid, end = os.getpid(), os._exit

    def tell_and_end(status: int) -> None:
        if os.getpid() == pid:
            os.write(file, f"os._exit({status})".encode())
        end(status)

    os._exit = tell_and_end
