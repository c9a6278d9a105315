"""CrashReport: a file in which a process reports how it ended, for the process that started it."""

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
"""Time in which a process must answer, in hundredths of a second."""
_CALL = re.compile(r'File "(.*)", line (\d+) in (.*)')
_HOST = re.compile(r"^(call|make) \(.*ray_actor\.py:\d+\)$")


class CrashReport:
    """Creates and reads the file in which another process on this machine reports how it ended.

    Attributes:
        path: Path of the file, to pass to :func:`write_crash_report` in the other process. That function unlinks the
            file, so that no file is left even if both processes are killed.
    """

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(".log", file_prefix(), SHARED_FOLDER)
        self._file = os.fdopen(handle)

    def read(self) -> str:
        """Return the report, or an empty string if the process wrote none."""
        self._file.seek(0)
        return self._file.read().strip()

    def ask_where(self, process: psutil.Process) -> list[str]:
        """Return the current calls of the worker in ``process``, innermost first, each as ``step (/a/file.py:12)``.

        Return an empty list if the process does not answer, for example because SIGSTOP stopped it.
        """
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
            # the worker runs in the thread with a call of RayActor, whose own calls are left out
            inside = [i for i, call in enumerate(calls) if _HOST.search(call)]
            if inside:
                return calls[: inside[0]]
        return []

    def close(self) -> None:
        """Close the file, and unlink it unless the other process has already done so."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        self._file.close()


def write_crash_report(path: str) -> None:
    """Make this process write to the file at ``path`` how it ends: the current calls in a crash, or the exit code of
    ``os._exit``. On SIGUSR2, it also writes its current calls, for :meth:`CrashReport.ask_where`.

    Do nothing if the file does not exist, as on another machine.
    """
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError:
        return
    with suppress(FileNotFoundError):  # the reader closed it, or remove_leftovers() ran in another container
        os.unlink(path)
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR2, file)  # answers even while the GIL is held
    os.register_at_fork(after_in_child=faulthandler.disable)  # a child's end is none of this process
    pid, end = os.getpid(), os._exit

    def report_and_exit(status: int) -> None:
        if os.getpid() == pid:
            os.write(file, f"os._exit({status})".encode())
        end(status)

    os._exit = report_and_exit
