"""RayActor: hosts a worker in a process of its own and answers in plain data, whatever the worker does."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from rlmodule.distributed.crash_report import write_crash_report
from rlmodule.distributed.failures import failure_of
from rlmodule.distributed.serialization import Packed, pack, unpack


class RayActor:
    """Holds one worker. Its methods run one after the other, except :meth:`settle` and :meth:`progress`, which run
    in a thread of their own.

    :meth:`make` and :meth:`call` return, packed, a :class:`Failure` or None, whether the worker made progress, and the
    value.

    Args:
        name: Of the worker; Ray puts it before what this process prints.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: Any = None

    def __repr__(self) -> str:
        return self._name

    def settle(self, report_path: str, place: Callable[[], tuple[str, str]]) -> tuple[int, str, str]:
        """Have the end of this process reported in a file; return its pid, its node and the node's address."""
        write_crash_report(report_path)
        return os.getpid(), *place()

    def make(self, factory: Packed, index: int, incarnation: int, num_threads: int) -> Packed:
        """Make the worker, in place of one that raised if there is one."""
        torch.set_num_threads(num_threads)
        try:
            if self._worker is not None:
                failed, self._worker = self._worker, None
                failed.stop()
                del failed
            self._worker = unpack(factory)(index, incarnation)
        except BaseException as error:
            return pack((failure_of(error), False, None))
        return pack((None, False, None))

    def call(self, method: str, args: Packed, *shared: Packed) -> Packed:
        """Call a method of the worker; ``shared`` are further arguments, each packed on its own."""
        try:
            before = self._worker.progress
            value = getattr(self._worker, method)(*unpack(args), *map(unpack, shared))
            return pack((None, self._worker.progress != before, value))
        except BaseException as error:  # including sys.exit(): the process is not the worker's to end
            return pack((failure_of(error), False, None))

    def progress(self) -> int:
        """A number that changes as long as the worker makes progress."""
        return self._worker.progress
