"""RayActor: holds a worker in another process, and answers calls with plain data even if the worker raises."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from catalog.actions.converters import action_converter_rules
from catalog.base import encoder_rules
from catalog.distributions.base import action_distribution_rules
from catalog.registry import distributions, models
from rlmodule.distributed.crash_report import write_crash_report
from rlmodule.distributed.failures import failure_of
from rlmodule.distributed.serialization import Packed, pack, unpack

_REGISTRIES = encoder_rules, action_distribution_rules, action_converter_rules, models, distributions


def get_registered() -> list[dict[str, Any]]:
    """Return all rules, models and distributions that are registered in this process, for :func:`set_registered` in
    another one. A process that does not run the user's script knows only those of this library."""
    return [vars(registry) for registry in _REGISTRIES]


def set_registered(registered: Sequence[dict[str, Any]]) -> None:
    """Register in this process what :func:`get_registered` returned in another one."""
    for registry, entries in zip(_REGISTRIES, registered, strict=True):
        vars(registry).update(entries)


class RayActor:
    """The Ray actor that holds one worker of :class:`RayWorkers`.

    :meth:`make` and :meth:`call` run one after the other, and :meth:`report` and :meth:`post` run in a second thread.
    ``make`` and ``call`` return a packed tuple: a :class:`Failure` or None, whether the worker made progress, and the
    value.

    Args:
        name: Name of the worker. Ray prints the name in front of each line that this process prints.
        path: The folders in which the main process looks for modules. This process also looks there.
    """

    def __init__(self, name: str, path: Sequence[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        self._name = name
        self._worker: Any = None
        self._num_raised = 0  # calls of this worker that raised
        self._posted: Packed = b""  # the last message to the worker
        self._received = self._posted  # the last one that the worker got

    def __repr__(self) -> str:
        return self._name

    def make(self, factory: Packed, index: int, incarnation: int, num_threads: int) -> Packed:
        """Build the worker for ``num_threads`` threads of torch. ``factory`` is a packed tuple: the factory, and what
        :func:`get_registered` returned. If an earlier worker of this process raised, stop that worker first."""
        torch.set_num_threads(num_threads)
        self._num_raised = 0
        try:
            if self._worker is not None:
                failed, self._worker = self._worker, None
                failed.stop()
                del failed  # free its memory before the next worker needs as much
            build, registered = unpack(factory)
            set_registered(registered)
            self._worker = build(index, incarnation)
        except BaseException as error:
            return pack((failure_of(error), False, None))
        return pack((None, False, None))

    def call(self, num_raised: float, method: str, args: Packed, *shared: Packed) -> Packed:
        """Call a method of the worker with the packed ``args``. ``shared`` has additional arguments, each packed
        separately.

        ``num_raised`` is the number of calls of the worker of which the caller knew that they had raised. If another
        call has raised since, nothing is called, and nobody reads the reply.
        """
        if num_raised < self._num_raised:
            return b""
        try:
            before = self._worker.progress
            posted = self._posted
            if posted is not self._received:
                self._received = posted
                self._worker.receive(unpack(posted))
            value = getattr(self._worker, method)(*unpack(args), *map(unpack, shared))
            return pack((None, self._worker.progress != before, value))
        except BaseException as error:  # even sys.exit() in a worker does not end the process
            self._num_raised += 1
            return pack((failure_of(error), False, None))

    def post(self, message: Packed) -> None:
        """Keep a message, which the worker's ``receive()`` gets before the next call. It replaces an earlier one."""
        self._posted = message

    def report(self, crash_path: str, place: Callable[[], tuple[str, str]]) -> tuple[int | None, int, str, str]:
        """Return the progress of the worker (None before it is built), the id of this process, and the id and address
        of its Ray node, which ``place()`` returns when called here.

        The first call makes this process report how it ends, in the file at ``crash_path``.
        """
        write_crash_report(crash_path)
        return None if self._worker is None else self._worker.progress, os.getpid(), *place()
