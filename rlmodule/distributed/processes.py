"""Names of files that processes on this machine share, and removal of the files that killed processes left."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

SHARED_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
"""The folder for files that processes of this machine share: in memory, if the system has such a folder."""


def file_prefix() -> str:
    """Return the prefix of the names of shared files of this process; it includes the process id."""
    return f"rlmodule-{os.getpid()}-"


def remove_leftovers() -> None:
    """Remove the shared files of processes that have ended; a process that was killed could not remove its own."""
    for path in Path(SHARED_FOLDER).glob("rlmodule-*"):
        found = re.match(r"rlmodule-(\d{1,9})-", path.name)
        if found is not None and not psutil.pid_exists(int(found[1])):
            with suppress(OSError):  # the file belongs to another user, or is already removed
                path.unlink()
