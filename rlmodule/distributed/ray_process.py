"""RayProcess: one worker in a process on a Ray cluster, and the calls of it."""

import contextlib
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import psutil

from rlmodule.distributed.crash_report import CrashReport
from rlmodule.distributed.failures import Failure, failure_of
from rlmodule.distributed.serialization import Packed, unpack

# Seconds in which a process must end once it is ended.
KILL_TIMEOUT_S = 1.0


@dataclass(eq=False)
class RayProcess:
    """The process of one worker, as the main process knows it.

    Attributes:
        room: The placement group with the CPUs and GPUs that Ray reserved for the worker; None if it needs no group.
        actor: Its :class:`RayActor`; None while the worker has no process.
        incarnation: Number of times the worker was restarted; -1 before it is first started.
        calls: References to the replies of its unanswered calls, oldest first.
        num_raised: Number of calls of this incarnation that raised.
        is_made: Whether the worker object was built. If not, its only call is the one that builds it.
        local: The process itself; None if it runs on another machine.
        address: Address of its machine; empty until the process reports the address.
        restart_at: Time at which the worker is restarted, by ``time.monotonic()``; None if no restart is planned.
        is_gone: Whether the worker failed and will not be restarted.
        asked: Reference to the report that the process was asked for; None if no report is awaited.
        progress: The last progress that the worker reported; None before the first report.
        sign_of_life_at: Time at which the worker was started, last answered, or last reported a new progress.
        crash_report: The file in which the process reports how it ends.
    """

    room: Any
    actor: Any = None
    incarnation: int = -1
    calls: deque[Any] = field(default_factory=deque)
    num_raised: int = 0
    is_made: bool = False
    local: psutil.Process | None = None
    address: str = ""
    restart_at: float | None = None
    is_gone: bool = False
    asked: Any = None
    progress: int | None = None
    sign_of_life_at: float = 0.0
    crash_report: CrashReport | None = None

    @property
    def is_up(self) -> bool:
        """Whether the worker is built and does not wait for a restart."""
        return self.is_made and self.restart_at is None

    @property
    def has_room(self) -> bool:
        """Whether Ray has reserved the worker's CPUs and GPUs, even if the process has not started yet."""
        from ray.util import placement_group_table

        return self.room is None or placement_group_table(self.room)["state"] == "CREATED"

    def start(self, actor_class: Any, name: str) -> None:
        """Start the process, a Ray actor of ``actor_class`` in :attr:`room`. Ray prints ``name`` in front of its
        lines."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # None, not "DEFAULT", which would start it outside of the room of a trial
        where = None if self.room is None else PlacementGroupSchedulingStrategy(self.room, 0)
        self.crash_report = CrashReport()
        self.actor = actor_class.options(scheduling_strategy=where).remote(name, sys.path)
        self.ask_for_report()

    def make(self, factory: Packed, worker: int, num_threads: int) -> None:
        """Begin to build the next incarnation of the worker with this index."""
        self.incarnation += 1
        self.restart_at, self.progress, self.sign_of_life_at = None, None, time.monotonic()
        self.is_made, self.num_raised = False, 0
        self.calls.append(self.actor.make.remote(factory, worker, self.incarnation, num_threads))

    def call(self, method: str, *args: Any) -> None:
        """Call a method of the worker. The arguments are the positional ones in a packed tuple, and then shared
        values."""
        if not self.calls:
            self.sign_of_life_at = time.monotonic()
        self.calls.append(self.actor.call.remote(self.num_raised, method, *args))

    def read_reply(self, timeout_s: float) -> tuple[Failure | None, bool, Any]:
        """Return what the reply to the oldest call contains: the failure of the call or None, whether the worker made
        progress, and the value. If the call raised, drop the later calls, which the worker does not execute."""
        import ray
        from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

        reply = self.calls[0]
        try:
            packed: Any = ray.get(reply, timeout=timeout_s)
        except RayError as error:
            lines = str(error).strip().splitlines() or ["(no message)"]
            # An error of Ray's own code is a traceback, whose last line gives the reason.
            message = lines[-1 if isinstance(error, RayTaskError) else 0].strip()
            if isinstance(error, OutOfMemoryError):
                message = str(error)
            elif isinstance(error, RayActorError):
                message = self._how_it_died(error)
            return Failure("died", type(error).__name__, message), False, None
        try:
            failure, made_progress, value = unpack(packed)
        except Exception as error:  # for example, a class that cannot be unpickled here
            return failure_of(error), False, None
        if failure is not None:
            self.num_raised += 1
            self.calls = deque([reply])
        return failure, made_progress, value

    def ask_for_report(self) -> None:
        """Ask the process to report the progress of the worker, without waiting for the reply. A second thread of the
        process replies, even while the worker is busy."""
        assert self.crash_report is not None
        report = self.actor.report.options(concurrency_group="control")
        self.asked = report.remote(self.crash_report.path, _place)

    def read_report(self) -> None:
        """Read the report of the process: the progress of the worker and, the first time, the process id and the
        machine."""
        import ray

        progress, pid, node, address = ray.get(self.asked)
        if not self.address or self.progress not in (None, progress):
            self.sign_of_life_at = time.monotonic()
        if not self.address and node == ray.get_runtime_context().get_node_id():
            with contextlib.suppress(psutil.NoSuchProcess):  # the process has already ended
                self.local = psutil.Process(pid)
        self.address, self.progress, self.asked = address, progress, None

    def _how_it_died(self, error: Exception) -> str:
        """Describe how the process ended, after a call of the worker failed with Ray's ``error``."""
        report = "" if self.crash_report is None else self.crash_report.read()
        if self.local is None and not report:  # on another machine, or lost before it said where it is
            return f"its process ended ({(str(error).splitlines() or [''])[-1].strip()})"
        # a crash and os._exit() leave a report; a process that gets SIGKILL cannot write one
        return f"its process ended by {report or 'SIGKILL or the like; the system sends it when memory runs out'}"

    def hang(self, timeout_s: float) -> Failure:
        """Return the failure of a worker that made no progress for ``timeout_s`` seconds. Its message has the worker's
        current calls, if the process reports them."""
        where = self.crash_report.ask_where(self.local) if self.crash_report and self.local else []
        message = f"no progress for {timeout_s:g} s" + (f", in {where[0]}" if where else "")
        calls = "".join(f"\n  {call}" for call in where)
        return Failure("hung", "TimeoutError", message, f"Its calls, most recent first:{calls}" if where else "")

    def end(self, at_once: bool = False) -> None:
        """End the process and drop its calls. With ``at_once``, wait until the process has ended."""
        import ray

        if self.actor is None:
            return
        ray.kill(self.actor, no_restart=True)
        if self.local is not None and at_once:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.local.kill()  # a process that is stopped or never returns to Python ignores ray.kill()
            psutil.wait_procs([self.local], KILL_TIMEOUT_S)  # from then on, its step counter does not change
        self.actor, self.is_made, self.asked, self.local, self.address = None, False, None, None, ""
        self.calls.clear()
        if self.crash_report is not None:
            self.crash_report.close()
            self.crash_report = None


def _place() -> tuple[str, str]:
    """Return the id of this process's node, and the node's address."""
    import ray

    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
