"""Workers: plain objects in processes of their own, called by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlmodule.distributed.interrupts import uninterrupted

MAX_IN_FLIGHT = 2
"""Calls that a worker may have before it: the one it is at, and the next, so that it never waits for its caller."""

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
"""Seconds before the first restart in a row, which grow threefold from one to the next, and the most they become."""

Factory = Callable[[int, int], Any]
"""Makes a worker from its index and the number of times that it was made before."""


@dataclass(frozen=True)
class Failure:
    """Why a worker did not answer. Plain data, so that no foreign exception need be understood here.

    Attributes:
        kind: It raised, its process died, it made no progress, or there was no room for a process.
        type: Name of the exception's class.
        message: Its text.
        traceback: As the worker's process would have printed it; empty if there was none.
        place: What is known of where: ``env``, ``seed``, ``step``, ``action``.
        final: Whether the worker will not be made again.
    """

    kind: Literal["raised", "died", "hung", "unplaced"]
    type: str
    message: str
    traceback: str = ""
    place: dict[str, Any] = field(default_factory=dict)
    final: bool = False

    @property
    def text(self) -> str:
        """What happened, in words, and maybe a traceback after an empty line."""
        return f"{self.type}: {self.message}" if self.kind == "raised" else self.message


class WorkerFailed(RuntimeError):
    """A worker in another process failed, and that is for the caller to know.

    Attributes:
        failure: How.
        name: Which worker, such as ``env runner 1``.
    """

    def __init__(self, name: str, failure: Failure, remedy: str) -> None:
        self.failure, self.name = failure, name
        got, _, details = failure.text.partition("\n\n")
        expected = "no error" if failure.kind == "raised" else "an answer"
        text = f"{name}: expected {expected}, got {got.rstrip().removesuffix('.')}. {remedy}"
        super().__init__("\n\n".join(part for part in (text, details, failure.traceback) if part))

    def __reduce__(self) -> Any:
        return _restarted, (str(self), self.name, self.failure)


def _restarted(text: str, name: str, failure: Failure) -> WorkerFailed:
    error = WorkerFailed(name, failure, "")
    error.args = (text,)
    return error


@dataclass(frozen=True)
class RestartPolicy:
    """When a worker that failed is made again.

    Attributes:
        enabled: Whether it is at all.
        max_in_a_row: How often without an answer in between.
    """

    enabled: bool = True
    max_in_a_row: int = 5

    def delay_after(self, failures: int) -> float | None:
        """Seconds to wait after so many failures in a row; None if that was the last."""
        if not self.enabled or failures > self.max_in_a_row:
            return None
        return min(MAX_DELAY_S, FIRST_DELAY_S * 3 ** (failures - 1))


@dataclass(frozen=True)
class Answer:
    """What came of one call.

    Attributes:
        worker: Who was called.
        ticket: What :meth:`WorkerGroup.submit` returned for the call.
        value: What the method returned; its arrays may be read-only. None if it failed.
        failure: Why there is no value; None if there is one.
    """

    worker: int
    ticket: int
    value: Any = None
    failure: Failure | None = None


class WorkerGroup(ABC):
    """Workers of one kind, called by index.

    Attributes:
        name: What one of them is called in errors.
        num_restarts: How many were made anew so far.
        num_bytes_shared: Bytes that :meth:`share` sent to workers, each counted for itself.
    """

    num_restarts = 0
    num_bytes_shared = 0

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._kept: list[Answer] = []  # that came while others were waited for

    @abstractmethod
    def is_up(self, worker: int) -> bool:
        """Whether the worker can be called now."""

    @abstractmethod
    def is_gone(self, worker: int) -> bool:
        """Whether it failed for good."""

    @abstractmethod
    def in_flight(self, worker: int) -> int:
        """Calls it has not answered yet."""

    @abstractmethod
    def submit(self, worker: int, method: str, *args: Any, shared: Any = None, **kwargs: Any) -> int:
        """Call ``worker.method(*args)``, and do not wait.

        Args:
            worker: Which one; it must be up, with less than ``MAX_IN_FLIGHT`` calls in flight.
            method: Name of the method.
            *args: Its arguments.
            shared: What :meth:`share` gave: its value becomes the last positional argument.
            **kwargs: Its arguments by keyword.

        Returns:
            The ticket that its answer will have.
        """

    def collect(self, timeout: float | None = None) -> list[Answer]:
        """The answers that are there, in order of their coming; waits for the first, or for a worker to come up.

        Args:
            timeout: Seconds after which to return with nothing; None waits as long as there is something to wait for.
        """
        if not self._kept:
            with uninterrupted():
                self._kept += self._collect(timeout)
        kept, self._kept = self._kept, []
        return kept

    def keep(self, answers: Iterable[Answer]) -> None:
        """Have :meth:`collect` return these, too."""
        self._kept.extend(answers)

    @abstractmethod
    def _collect(self, timeout: float | None) -> list[Answer]:
        """See :meth:`collect`; Ctrl-C may interrupt it where it waits, and what was taken by then is not lost."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Make ``value`` ready to be sent to many workers; it is copied once."""

    @abstractmethod
    def restart(self, worker: int, incarnation: int | None = None, delay: float = 0.0) -> None:
        """End the worker, and what it had to do, and make another in its place; it is up when that is done.

        Args:
            worker: Which one.
            incarnation: The number of the one that is made, by default the next.
            delay: Seconds to let pass in between.
        """

    @abstractmethod
    def restart_later(self, worker: int, failure: Failure) -> Failure:
        """As :meth:`restart`, after a delay that grows from one time to the next; returns ``failure``, final if the
        worker failed too often and is gone."""

    @abstractmethod
    def incarnation(self, worker: int) -> int:
        """How often the worker was made anew."""

    @abstractmethod
    def stop(self) -> None:
        """Let every worker ``stop()``, and end what they live in; a second call does nothing."""

    def call(
        self, method: str, *args: Any, workers: Iterable[int] | None = None, shared: Any = None, **kwargs: Any
    ) -> list[Answer]:
        """Call several workers, all that are up by default, and wait for their answers: in the order of the workers.

        Answers to calls that were in flight before are kept for :meth:`collect`.
        """
        called = [i for i in range(self.size) if self.is_up(i)] if workers is None else list(workers)
        return self.answers([self.submit(worker, method, *args, shared=shared, **kwargs) for worker in called])

    def answers(self, tickets: Sequence[int]) -> list[Answer]:
        """Wait for the answers to these calls, in the order of ``tickets``; others are kept for :meth:`collect`."""
        found: dict[int, Answer] = {}
        with uninterrupted():
            while len(found) < len(tickets):
                for answer in self._collect(None):
                    if answer.ticket in tickets:
                        found[answer.ticket] = answer
                    else:
                        self._kept.append(answer)
        return [found[ticket] for ticket in tickets]

    def wait_until_up(self) -> None:
        """Wait for those that are being made again, and until all others take a call. Answers are kept for
        :meth:`collect`."""
        with uninterrupted():
            while not all(self._takes_a_call(worker) or self.is_gone(worker) for worker in range(self.size)):
                self._kept += self._collect(None)

    def _takes_a_call(self, worker: int) -> bool:
        return self.is_up(worker) and self.in_flight(worker) < MAX_IN_FLIGHT

    def values(self, answers: Sequence[Answer], remedy: str = "See the traceback below.") -> list[Any]:
        """The values of ``answers``.

        Raises:
            WorkerFailed: If one failed.
        """
        for answer in answers:
            if answer.failure is not None:
                raise WorkerFailed(f"{self.name} {answer.worker}", answer.failure, remedy)
        return [answer.value for answer in answers]
