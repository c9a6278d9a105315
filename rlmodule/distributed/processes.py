"""Processes of this machine, known by more than their pid, which the system gives away again."""

from __future__ import annotations

import glob
import os
import re
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        pid: Its number.
        started: When it began, as the system tells: another process of the same number began at another time. Empty
            where no system tells; such a process is left alone.
    """

    pid: int
    started: str

    @classmethod
    def this(cls) -> Process:
        """The one this runs in."""
        return cls(os.getpid(), _started(os.getpid()))

    def is_there(self) -> bool:
        """Whether it has not ended, or nobody took notice of its end."""
        return self.started != "" and _started(self.pid) == self.started

    def kill(self) -> None:
        """End it at once, if it is there."""
        if self.is_there():
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


def wait_for_end(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    """Give processes a little time; returns those that are there yet."""
    until = time.monotonic() + timeout_s
    while (left := [process for process in processes if process.is_there()]) and time.monotonic() < until:
        time.sleep(0.005)
    return left


def this_machine() -> str:
    """What no other machine says, nor a container with files of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


FILE_PREFIX = "rlmodule"


def file_prefix() -> str:
    """What the names of files begin with that this process makes for those it starts, who remove them."""
    return f"{FILE_PREFIX}-{os.getpid()}-"


def remove_leftovers(folder: str) -> None:
    """Remove such files of processes that have ended: who is killed cannot do it."""
    for path in glob.glob(os.path.join(glob.escape(folder), f"{FILE_PREFIX}-*")):
        found = re.match(rf"{FILE_PREFIX}-(\d+)-", os.path.basename(path))
        if found is not None and _has_ended(int(found[1])):
            with suppress(OSError):  # another user's, or removed by another process
                os.unlink(path)


def _started(pid: int) -> str:
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return told.rpartition(")")[2].split()[19]  # the name before it may have spaces and brackets


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False  # another user's
    return False
