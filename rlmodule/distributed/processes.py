"""Names of the files that processes on this machine share, and removal of files that killed processes left."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

# Folder for the files that processes on this machine share. It is in memory if the system has such a folder.
SHARED_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


def file_prefix() -> str:
    """Return the prefix of the file names, without folder, of this process's shared files. It has the process id."""
    return f"rlmodule-{os.getpid()}-"


def remove_leftovers() -> None:
    """Remove the shared files of processes that have ended, since a process that was killed could not remove its own
    files."""
    for path in Path(SHARED_FOLDER).glob("rlmodule-*"):
        found = re.match(r"rlmodule-(\d{1,9})-", path.name)
        if found is not None and not psutil.pid_exists(int(found[1])):
            with suppress(OSError):  # the file belongs to another user, or is already removed
                path.unlink()
