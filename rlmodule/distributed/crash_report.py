"""CrashReport: how a process ended, written by itself as far as it could, for the process that started it."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import tempfile
import time
from contextlib import suppress

import psutil

from rlmodule.distributed.processes import file_prefix, remove_leftovers

_PATIENCE = 20
"""Hundredths of a second for an answer."""
_CALL = re.compile(r'File "(.*)", line (\d+) in (.*)')
_HOST = re.compile(r"^(call|make) \(.*ray_actor\.py:\d+\)$")


class CrashReport:
    """A file for another process on this machine to tell of its end.

    Attributes:
        path: For :func:`write_crash_report`, which removes the name: nothing is left of the file, whoever is killed.
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

    def ask_where(self, process: psutil.Process) -> list[str]:
        """Which calls the worker of ``process``, of this machine, is in, most recent first: ``step (/a/file.py:12)``.
        None if it does not say, as one that was stopped."""
        self._file.seek(0, os.SEEK_END)
        told = ""
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR2)
        for _ in range(_PATIENCE):
            time.sleep(0.01)
            before, told = told, told + self._file.read()
            if told and told == before:
                break
        for thread in told.split("\n\n"):
            calls = [f"{name} ({path}:{line})" for path, line, name in _CALL.findall(thread)]
            inside = [i for i, call in enumerate(calls) if _HOST.search(call)]
            if inside:
                return calls[: inside[0]]
        return []

    def close(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        self._file.close()


def write_crash_report(path: str) -> None:
    """Let this process write to the file at ``path`` where it was when it crashed, or with which code it called
    ``os._exit``. Nothing, if the file is on another machine."""
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError:
        return
    os.unlink(path)
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR2, file)  # answers also while Python's lock is held, or never given back
    os.register_at_fork(after_in_child=faulthandler.disable)  # the end of a child is not ours
    pid, end = os.getpid(), os._exit

    def tell_and_end(status: int) -> None:
        if os.getpid() == pid:
            os.write(file, f"os._exit({status})".encode())
        end(status)

    os._exit = tell_and_end
