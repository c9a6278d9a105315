"""RayActor: hosts a worker in a process of its own and answers in plain data, whatever the worker does."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch

from rlmodule.distributed.crash_report import write_crash_report
from rlmodule.distributed.serialization import Packed, pack, unpack
from rlmodule.distributed.workers import Failure
from rlmodule.envs.checks import EnvError

LONGEST_TEXT = 20_000
"""Characters of an error that are sent."""


class RayActor:
    """Holds one worker. Its methods run one after the other, but for :meth:`settle` and :meth:`progress`, which run
    beside them.

    A reply is packed: why there is no value, or None; whether the worker got on; and the value.

    Args:
        name: Of the worker, which Ray puts before what this process prints.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: Any = None

    def __repr__(self) -> str:
        return self._name

    def settle(self, report_path: str, place: Callable[[], tuple[str, str]]) -> tuple[int, str, str]:
        """Tell of the end of this process in a file; return its pid, its node and that one's address, by ``place``."""
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
        """Call a method; ``shared`` are further arguments, packed each for itself."""
        try:
            before = self._worker.progress
            positional, by_keyword = unpack(args)
            more = [unpack(packed) for packed in shared]
            value = getattr(self._worker, method)(*positional, *more, **by_keyword)
            return pack((None, self._worker.progress != before, value))
        except BaseException as error:  # also sys.exit(): the process is not the worker's to end
            return pack((failure_of(error), False, None))

    def progress(self) -> int:
        """A number that changes as long as the worker gets on."""
        return self._worker.progress


def failure_of(error: BaseException) -> Failure:
    """What was raised, as plain data."""
    name, place = type(error).__name__, {}
    try:
        message = str(error) or "(no message)"
    except Exception:  # an exception of its own class need not have a proper text
        message = "(no message: its __str__ raises)"
    told = "".join(traceback.format_exception(error))
    if isinstance(error, EnvError):
        place, told = error.place, ""  # its text has the traceback that counts
    return Failure("raised", name, message[:LONGEST_TEXT], told[-LONGEST_TEXT:], place)
