"""SharedCounter: a count that can still be read after the process that counts was killed."""

from __future__ import annotations

import mmap
import os
from functools import partial
from io import FileIO

_NUM_BYTES = 8


class SharedCounter:
    """A number that one process raises and another may read.

    It is in a file that is mapped into memory and never written: counting takes no system call, and the count outlives
    the process however that ends. Without a file it is in the memory of this process alone.

    Attributes:
        cell: The number, int64, as ``cell[0]``: for loops to which a method call is too much.
    """

    def __init__(self, file: FileIO | None = None) -> None:
        memory = bytearray(_NUM_BYTES) if file is None else mmap.mmap(file.fileno(), _NUM_BYTES)
        self.cell = memoryview(memory).cast("q")

    @classmethod
    def create(cls, path: str) -> SharedCounter:
        """Make one in a new file that this user alone can read, with 0.

        Raises:
            FileExistsError: If there is a file already.
        """
        with FileIO(path, "x+", opener=partial(os.open, mode=0o600)) as file:
            file.truncate(_NUM_BYTES)
            return cls(file)

    @classmethod
    def attach(cls, path: str) -> SharedCounter | None:
        """Return the one in the file at ``path``; None if there is no such file on this machine.

        The name of the file is removed: nothing is left of it once the processes that mapped it have ended, in whatever
        way.
        """
        try:
            with FileIO(path, "r+") as file:
                os.unlink(path)
                return cls(file)
        except FileNotFoundError:
            return None

    @property
    def count(self) -> int:
        """The number as it stands."""
        return self.cell[0]
