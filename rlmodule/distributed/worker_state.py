"""WorkerState: what is known of each worker in a process of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import psutil

from rlmodule.distributed.crash_report import CrashReport
from rlmodule.distributed.workers import Failure


@dataclass
class Call:
    """A call that was made.

    Attributes:
        reply: Reference to what :meth:`RayActor.call` returns.
    """

    ticket: int
    reply: Any


@dataclass
class WorkerState:
    """One worker's place in the group.

    Attributes:
        room: What Ray has set aside for it, as a placement group; None if it needs none.
        host: Its actor; None while there is none.
        incarnation: How often it was made anew.
        calls: Those it has not answered, oldest first.
        making: The call that makes it; None once it is up.
        placed: Reference to where its process is; None once that is known.
        process: Its own, if that runs on this machine.
        address: Of the machine it is on.
        failures: In a row, without an answer in between.
        restart_at: When it is to be made anew.
        gone: Whether it never will be.
        asked: Reference to its progress, if it was asked.
        progress, sign_of_life_at: What it said, None before the first time, and when that last changed.
        crash_report: How its process ended.
    """

    room: Any = None
    host: Any = None
    incarnation: int = -1
    calls: deque[Call] = field(default_factory=deque)
    making: Call | None = None
    placed: Any = None
    process: psutil.Process | None = None
    address: str = ""
    failures: int = 0
    restart_at: float | None = None
    gone: bool = False
    asked: Any = None
    progress: int | None = None
    sign_of_life_at: float = 0.0
    crash_report: CrashReport | None = None


def how_it_died(state: WorkerState, error: Exception) -> str:
    """What is known of the end of a process that was not ours to wait for."""
    report = "" if state.crash_report is None else state.crash_report.read()
    if state.process is None and not report:  # on another machine, or on one that was lost before it said where it is
        return f"its process ended ({(str(error).splitlines() or [''])[-1].strip()})"
    return f"its process ended by {report or 'SIGKILL, as the system sends it when memory runs out, or the like'}"


def hang_of(state: WorkerState, timeout_s: float) -> Failure:
    """That a process makes no progress, and where it is, as far as it can be asked."""
    where = state.crash_report.ask_where(state.process) if state.crash_report and state.process else []
    message = f"no progress for {timeout_s:g} s" + (f", in {where[0]}" if where else "")
    calls = "".join(f"\n  {call}" for call in where)
    return Failure("hung", "TimeoutError", message, f"It is in, most recent call first:{calls}" if where else "")
