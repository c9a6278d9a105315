"""SharedCounter: a count that can still be read after the process that counts was killed."""

from __future__ import annotations

import mmap
import os
import tempfile

_NUM_BYTES = 8


class SharedCounter:
    """A number that one process raises and another may read.

    In a file it is mapped, never written: counting takes no call of the system, and what was counted is there however
    the process ended. ``SharedCounter()`` is in the memory of this process alone.

    Attributes:
        cell: The number, int64, as ``cell[0]``: for loops to which a method call is too much.
        path: Of its file; None without one.
    """

    def __init__(self, mapped: mmap.mmap | None = None, path: str | None = None) -> None:
        self._mapped, self.path = mapped, path
        self.cell = memoryview(bytearray(_NUM_BYTES) if mapped is None else mapped).cast("q")

    @classmethod
    def create(cls, path: str | None = None) -> SharedCounter:
        """One in a new file, which begins with 0; without ``path`` in one of shared memory, or else of the temporary
        folder.

        Raises:
            FileExistsError: If there is a file already.
        """
        if path is None:
            folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
            file, path = tempfile.mkstemp(prefix="rlmodule-counter-", dir=folder)
        else:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, bytes(_NUM_BYTES))
            return cls(mmap.mmap(file, _NUM_BYTES), path)
        finally:
            os.close(file)

    @classmethod
    def attach(cls, path: str) -> SharedCounter | None:
        """The one in the file at ``path``; None if there is no such file on this machine.

        The name of the file is removed: nothing is left of it once the processes that mapped it have ended, in whatever
        way.
        """
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            os.unlink(path)
            return cls(mmap.mmap(file, _NUM_BYTES), path)
        finally:
            os.close(file)

    @property
    def count(self) -> int:
        """The number as it stands, also after :meth:`close`."""
        return self.cell[0]

    def close(self) -> None:
        """Let go of the file; the number stays what it was."""
        if self._mapped is not None:
            mapped, self._mapped = self._mapped, None
            last = self.count
            self.cell.release()
            mapped.close()
            self.cell = memoryview(bytearray(_NUM_BYTES)).cast("q")
            self.cell[0] = last
