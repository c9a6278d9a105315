"""This machine, and the files in it that processes leave behind."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

SHARED_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
"""The folder for files that processes of this machine share: in memory, if the system has such a folder."""


def file_prefix() -> str:
    """Return the beginning of the names of files that this process makes for those it starts, which remove them."""
    return f"rlmodule-{os.getpid()}-"


def remove_leftovers() -> None:
    """Remove such files of processes that have ended: a killed process cannot do it."""
    for path in Path(SHARED_FOLDER).glob("rlmodule-*"):
        found = re.match(r"rlmodule-(\d{1,9})-", path.name)
        if found is not None and not psutil.pid_exists(int(found[1])):
            with suppress(OSError):  # another user's, or removed by another process
                path.unlink()
