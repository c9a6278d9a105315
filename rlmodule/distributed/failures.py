"""Failures of workers in other processes: their description, and the error that reports them."""

import traceback
from dataclasses import dataclass, field
from typing import Any, Literal

from rlmodule.envs.checks import EnvError

# Largest number of characters of a message or traceback that are sent to another process.
LONGEST_TEXT = 20_000


@dataclass(frozen=True)
class Failure:
    """The failure of a worker, as plain data, because the main process may be unable to import the exception's class.

    Attributes:
        kind: ``"raised"``: it raised an exception; ``"died"``: its process ended; ``"hung"``: it made no progress;
            ``"unplaced"``: the cluster had no room for its process.
        type: Name of the exception's class.
        message: Message of the exception.
        traceback: Traceback in the worker's process; empty if it has none.
        place: Where an env raised: ``env``, ``seed``, ``step`` and ``action``, as far as they are known.
        final: Whether the worker will not be restarted.
    """

    kind: Literal["raised", "died", "hung", "unplaced"]
    type: str
    message: str
    traceback: str = ""
    place: dict[str, Any] = field(default_factory=dict)
    final: bool = False

    @property
    def text(self) -> str:
        """The failure in words; a traceback may follow after an empty line."""
        return f"{self.type}: {self.message}" if self.kind == "raised" else self.message


def failure_of(error: BaseException) -> Failure:
    """Return the :class:`Failure` that describes an exception."""
    try:
        message = str(error) or "(no message)"
    except Exception:  # __str__ of a user's exception class may raise
        message = "(no message: its __str__ raises)"
    name, message = type(error).__name__, message[:LONGEST_TEXT]
    if isinstance(error, EnvError):  # its message ends with the traceback of the env
        return Failure("raised", name, message, place=error.place)
    return Failure("raised", name, message, "".join(traceback.format_exception(error))[-LONGEST_TEXT:])


class WorkerFailed(RuntimeError):
    """Raised if a worker in another process failed and the call cannot continue without it.

    Args:
        name, failure: See the attributes.
        remedy: Sentences for the error text that say what the user can do.

    Attributes:
        name: Name of the worker, such as ``env runner 1``.
        failure: The failure of the worker.
    """

    def __init__(self, name: str, failure: Failure, remedy: str) -> None:
        super().__init__(name, failure, remedy)
        self.name, self.failure, self._remedy = name, failure, remedy

    def __str__(self) -> str:
        got, _, details = self.failure.text.partition("\n\n")
        expected = "no error" if self.failure.kind == "raised" else "an answer"
        text = f"{self.name}: expected {expected}, got {got.rstrip().removesuffix('.')}. {self._remedy}"
        return "\n\n".join(part for part in (text, details, self.failure.traceback) if part)
