"""Failures of workers in other processes: what is known of one, the error it raises, and when to restart."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any, Literal

from rlmodule.envs.checks import EnvError

LONGEST_TEXT = 20_000
"""Characters of an error that are sent between processes."""

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
"""Seconds before the first restart in a row, which triple from one restart to the next, and their maximum."""


@dataclass(frozen=True)
class Failure:
    """Why a worker did not answer. Plain data, since the driver may lack the class of the exception.

    Attributes:
        kind: It raised, its process died, it made no progress, or there was no room for its process.
        type: Name of the exception's class.
        message: Its text.
        traceback: As the worker's process would have printed it; empty if there was none.
        place: Where an env raised, as far as it is known: ``env``, ``seed``, ``step``, ``action``.
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
        """What happened, possibly with a traceback after an empty line."""
        return f"{self.type}: {self.message}" if self.kind == "raised" else self.message


def failure_of(error: BaseException) -> Failure:
    """Describe what was raised as plain data."""
    try:
        message = str(error) or "(no message)"
    except Exception:  # an exception of the user's own class may have a __str__ that fails
        message = "(no message: its __str__ raises)"
    name, message = type(error).__name__, message[:LONGEST_TEXT]
    if isinstance(error, EnvError):  # its text already has the traceback of the env
        return Failure("raised", name, message, place=error.place)
    return Failure("raised", name, message, "".join(traceback.format_exception(error))[-LONGEST_TEXT:])


class WorkerFailed(RuntimeError):
    """A worker in another process failed, and the run cannot continue without it.

    Attributes:
        name: Which worker, such as ``env runner 1``.
        failure: What happened.
    """

    def __init__(self, name: str, failure: Failure, remedy: str) -> None:
        super().__init__(name, failure, remedy)
        self.name, self.failure, self._remedy = name, failure, remedy

    def __str__(self) -> str:
        got, _, details = self.failure.text.partition("\n\n")
        expected = "no error" if self.failure.kind == "raised" else "an answer"
        text = f"{self.name}: expected {expected}, got {got.rstrip().removesuffix('.')}. {self._remedy}"
        return "\n\n".join(part for part in (text, details, self.failure.traceback) if part)


def restart_delay(failures: int, max_in_a_row: int) -> float | None:
    """Seconds to wait before a restart.

    Args:
        failures: How often the worker has failed in a row.
        max_in_a_row: Restarts in a row, without an answer in between; 0 for none at all.

    Returns:
        The delay; None if the last failure ends it.
    """
    if failures > max_in_a_row:
        return None
    return min(MAX_DELAY_S, FIRST_DELAY_S * 3 ** (failures - 1))
