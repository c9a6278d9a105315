"""This machine, and the files in it that processes leave behind."""

from __future__ import annotations

import glob
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

import psutil


def this_machine() -> str:
    """Return what no other machine says, nor a container with files of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


FILE_PREFIX = "rlmodule"


def file_prefix() -> str:
    """Return the beginning of the names of files that this process makes for those it starts, which remove them."""
    return f"{FILE_PREFIX}-{os.getpid()}-"


def remove_leftovers(folder: str) -> None:
    """Remove such files of processes that have ended: a killed process cannot do it."""
    for path in glob.glob(os.path.join(glob.escape(folder), f"{FILE_PREFIX}-*")):
        found = re.match(rf"{FILE_PREFIX}-(\d{{1,9}})-", os.path.basename(path))
        if found is not None and not psutil.pid_exists(int(found[1])):
            with suppress(OSError):  # another user's, or removed by another process
                os.unlink(path)
