"""CrashReport: how a process ended, written by itself as far as it can, for the process that started it."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import tempfile
import time
from contextlib import suppress

import psutil

from rlmodule.distributed.processes import SHARED_FOLDER, file_prefix

_PATIENCE = 20
"""Hundredths of a second for an answer."""
_CALL = re.compile(r'File "(.*)", line (\d+) in (.*)')
_HOST = re.compile(r"^(call|make) \(.*ray_actor\.py:\d+\)$")


class CrashReport:
    """A file in which another process on this machine reports its end.

    Attributes:
        path: For :func:`write_crash_report`, which unlinks it, so that no file is left whichever process is killed.
    """

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(".log", file_prefix(), SHARED_FOLDER)
        self._file = os.fdopen(handle)

    def read(self) -> str:
        """The report; empty if there is none."""
        self._file.seek(0)
        return self._file.read().strip()

    def ask_where(self, process: psutil.Process) -> list[str]:
        """Ask ``process``, on this machine, which calls its worker is in, most recent first: ``step (/a/file.py:12)``.
        Empty if it does not answer, such as one that was stopped."""
        self._file.seek(0, os.SEEK_END)
        text = ""
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR2)
        for _ in range(_PATIENCE):
            time.sleep(0.01)
            before, text = text, text + self._file.read()
            if text and text == before:
                break
        for thread in text.split("\n\n"):
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
    """Have this process write to the file at ``path`` where it was when it crashed, or with which code it called
    ``os._exit``. Does nothing if the file is on another machine."""
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError:
        return
    with suppress(FileNotFoundError):  # closed, or taken for a leftover by a process that cannot see its owner
        os.unlink(path)
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR2, file)  # answers even while the GIL is held
    os.register_at_fork(after_in_child=faulthandler.disable)  # the end of a child process is not reported
    pid, end = os.getpid(), os._exit

    def report_and_exit(status: int) -> None:
        if os.getpid() == pid:
            os.write(file, f"os._exit({status})".encode())
        end(status)

    os._exit = report_and_exit
