"""RayWorkers: plain objects in processes of their own, on this machine or on others, called by index.

Workers are started, watched and restarted from here; each lives in a :class:`RayActor`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from rlmodule.distributed.crash_report import CrashReport
from rlmodule.distributed.failures import Failure, WorkerFailed, failure_of, restart_delay
from rlmodule.distributed.interrupts import interruptible, uninterrupted
from rlmodule.distributed.processes import remove_leftovers
from rlmodule.distributed.ray_actor import RayActor
from rlmodule.distributed.resources import Resources, check_room, no_room, room_remedy
from rlmodule.distributed.serialization import check_portable, num_bytes, pack, unpack
from rlmodule.settings import LearnerSettings, RunnerSettings

OLDEST_RAY = (2, 55)
"""Before it, a Ray cluster could be taken over by a web page (CVE-2026-27482, CVE-2026-41486)."""

MAX_IN_FLIGHT = 2
"""Calls that a worker may have: the one it is at, and the next, so that it never waits for its caller."""

PLACING_TIMEOUT_S, SPAWNING_TIMEOUT_S = 20.0, 120.0
"""Seconds that a worker may wait for its CPUs and GPUs; and, once it has them, for a process, and then to be made: a
busy machine takes long to start one and import what it needs."""

STOP_TIMEOUT_S, KILL_TIMEOUT_S = 4.0, 1.0
"""Seconds that a worker has to close what it holds, and then to end by itself."""

logger = logging.getLogger(__name__)


def start_ray() -> None:
    """Connect to the Ray that ``RAY_ADDRESS`` names, or start one on this machine; do nothing if it is connected.

    Raises:
        ImportError: If Ray is missing or too old.
        ConnectionError: If the cluster does not answer, or asks for a token.
    """
    version = importlib.metadata.version("ray")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise ImportError(
            f"ray: expected version {oldest} or later, got {version}. Run: pip install "
            f'"ray>={oldest}", or set num_env_runners=0 and num_learners=0.'
        )
    # not what Ray finds running on this machine, which may be somebody else's
    address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        # Ray starts workers at a niceness of 15, at which they get next to nothing of cores that others use
        os.environ.setdefault("RAY_worker_niceness", "0")
        if "ray" not in sys.modules:
            # Ray's switch for one machine alone: its processes then listen on 127.0.0.1. Ray reads it when it is
            # imported, and its processes when they start, which must agree.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized():
        return
    try:
        ray.init(address, include_dashboard=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError) as error:
        if address == "local":
            raise
        got = (str(error).splitlines() or ["(no message)"])[0].rstrip(".")
        remedy = "`ray status` shows whether it runs; without RAY_ADDRESS, a Ray of its own starts on this machine."
        if "authentication" in f"{error} {error.__cause__}".lower():
            got = "one that asks for its token"
            remedy = "In the shell of the script: export RAY_AUTH_MODE=token, with the cluster's token in "
            remedy += "~/.ray/auth_token. `ray start` asks for tokens wherever it finds that file."
        raise ConnectionError(
            f"RAY_ADDRESS={address}: expected a Ray cluster that lets this process in, got {got}. {remedy}"
        ) from None


def check_resources(settings: str, *workers: tuple[int, Resources]) -> None:
    """Check that the cluster has what workers ask for, whether it is free or not; start Ray if there are any.

    Args:
        settings: The settings that ask for it, for the error.
        *workers: How many of each kind, and what one of the kind asks for, which it must find on one node.

    Raises:
        ValueError: If the cluster has less; names what is asked for and what there is.
    """
    asked = [(number, each) for number, each in workers if number]
    if asked:
        start_ray()
        import ray

        check_room(settings, asked, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def check_resources_of(runners: RunnerSettings, learners: LearnerSettings) -> None:
    """Check that the cluster has what all workers of a run ask for together; see :func:`check_resources`."""
    check_resources(
        f"num_env_runners={runners.num_env_runners}, num_learners={learners.num_learners}",
        (runners.num_env_runners, {"CPU": runners.num_cpus_per_env_runner}),
        (learners.num_learners, {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}),
    )


@dataclass(frozen=True)
class Answer:
    """The result of one call.

    Attributes:
        worker: Who was called.
        ticket: What :meth:`RayWorkers.submit` returned for the call.
        value: What the method returned; its arrays may be read-only. None if it failed.
        failure: Why there is no value; None if there is one.
    """

    worker: int
    ticket: int
    value: Any = None
    failure: Failure | None = None


@dataclass
class _State:
    """What is known of one worker.

    Attributes:
        room: What Ray has set aside for it, as a placement group; None if it needs none.
        actor: Its :class:`RayActor`; None while there is none.
        incarnation: How often it was restarted.
        calls: Tickets of the calls it has not answered and references to their replies, oldest first.
        is_made: Whether it was made; if not, the only call is that which makes it.
        placed: Reference to where its process is; None once that is known.
        process: Its own, if that runs on this machine.
        address: Of the machine it is on.
        failures: In a row, without an answer in between.
        restart_at: When it is to be restarted.
        is_gone: Whether it never will be.
        asked: Reference to its progress, if it was asked.
        progress, sign_of_life_at: What it said, None before the first time, and when that last changed.
        crash_report: How its process ended.
    """

    room: Any = None
    actor: Any = None
    incarnation: int = -1
    calls: deque[tuple[int, Any]] = field(default_factory=deque)
    is_made: bool = False
    placed: Any = None
    process: psutil.Process | None = None
    address: str = ""
    failures: int = 0
    restart_at: float | None = None
    is_gone: bool = False
    asked: Any = None
    progress: int | None = None
    sign_of_life_at: float = 0.0
    crash_report: CrashReport | None = None

    @property
    def is_up(self) -> bool:
        return self.is_made and self.restart_at is None

    def how_it_died(self, error: Exception) -> str:
        """Describe the end of a process that this one could not wait for."""
        report = "" if self.crash_report is None else self.crash_report.read()
        if self.process is None and not report:  # on another machine, or lost before it said where it is
            return f"its process ended ({(str(error).splitlines() or [''])[-1].strip()})"
        return f"its process ended by {report or 'SIGKILL, as the system sends it when memory runs out, or the like'}"

    def hang(self, timeout_s: float) -> Failure:
        """Describe a process that makes no progress, and where it is if it can say so."""
        where = self.crash_report.ask_where(self.process) if self.crash_report and self.process else []
        message = f"no progress for {timeout_s:g} s" + (f", in {where[0]}" if where else "")
        calls = "".join(f"\n  {call}" for call in where)
        return Failure("hung", "TimeoutError", message, f"It is in, most recent call first:{calls}" if where else "")


@dataclass(frozen=True)
class _Shared:
    """A packed value: a reference to it in Ray's store, or the value itself if it is small."""

    ref: Any
    num_bytes: int


class RayWorkers:
    """Workers of one kind in processes of their own, called by index.

    Args:
        name: What one of them is called in errors.
        size: How many.
        factory: Makes one from its index and the number of times that it was made before; sent by pickle.
        num_cpus, num_gpus: What Ray sets aside for each.
        num_threads: Threads of torch in each; None for as many as it has whole CPUs, and at least one.
        timeout_s: Seconds without progress after which one counts as hung.
        max_restarts: How often one that failed is restarted, in a row without an answer in between.

    Attributes:
        num_restarts: Restarts so far.
        num_bytes_shared: Bytes of shared arguments that were sent, counted for each worker.

    Raises:
        ValueError: If the cluster has not as many CPUs or GPUs.
        WorkerFailed: If one cannot be made.
        TypeError: If the factory cannot be pickled.
    """

    def __init__(
        self,
        name: str,
        size: int,
        factory: Callable[[int, int], Any],
        *,
        num_cpus: float,
        num_gpus: float = 0.0,
        num_threads: int | None = None,
        timeout_s: float,
        max_restarts: int,
    ) -> None:
        self.name, self.size = name, size
        self.num_restarts = self.num_bytes_shared = 0
        self._resources = {"CPU": num_cpus, "GPU": num_gpus}
        check_resources(f"{size} {name}s", (size, self._resources))
        import ray

        check_portable(name, factory)
        self._factory = pack(factory)
        self._num_threads = num_threads or max(1, int(num_cpus))
        self._timeout_s, self._max_restarts = timeout_s, max_restarts
        self._poll_s = min(1.0, timeout_s / 4)
        options: Any = {"num_cpus": num_cpus, "num_gpus": num_gpus, "concurrency_groups": {"control": 1}}
        kind = type(name.title().replace(" ", ""), (RayActor,), {})  # whose name is that of the process
        self._actor_class: Any = ray.remote(**options)(kind)
        rooms: list[Any] = []
        self._rooms, self._give_back = rooms, weakref.finalize(self, _give_back, rooms)
        self._give_back.atexit = False  # Ray does it then
        self._here = ray.get_runtime_context().get_node_id()
        self._states = [_State() for _ in range(size)]
        self._kept: list[Answer] = []  # arrived while the caller waited for others
        self._tickets = 0
        self._watched_at = time.monotonic()
        self._is_stopped = False
        self._is_built = False
        remove_leftovers()
        logger.info("starting %d %s%s on Ray", size, name, "s" if size > 1 else "")
        try:
            for worker in range(size):
                self._spawn(worker)
            self._wait_for_first()
        except BaseException:
            self.stop()
            raise

    def _wait_for_first(self) -> None:
        while not all(state.is_up for state in self._states):
            for answer in self._collect(None):
                failure = answer.failure
                assert failure is not None  # since nothing was called
                if failure.final:
                    remedy = f"num_{self.name.replace(' ', '_')}s=0 debugs it in this process."
                    remedy = room_remedy(self.name) if failure.kind == "unplaced" else remedy
                    raise WorkerFailed(f"{self.name} {answer.worker}", failure, remedy)
        self._is_built = True

    # --- calls --------------------------------------------------------------------------------------------------------

    def is_up(self, worker: int) -> bool:
        """Whether the worker can be called now."""
        return self._states[worker].is_up

    def is_gone(self, worker: int) -> bool:
        """Whether it failed and will not be restarted."""
        return self._states[worker].is_gone

    def in_flight(self, worker: int) -> int:
        """Calls it has not answered yet."""
        state = self._states[worker]
        return len(state.calls) if state.is_made else 0

    def incarnation(self, worker: int) -> int:
        """How often the worker was restarted."""
        return self._states[worker].incarnation

    def raise_incarnation(self, worker: int, least: int) -> int:
        """Count the worker as restarted at least so often, as in a run that continues; returns how often."""
        state = self._states[worker]
        state.incarnation = max(state.incarnation, least)
        return state.incarnation

    def pids(self) -> list[int | None]:
        """The processes of the workers; None for those that have none, or none on this machine."""
        return [None if state.process is None else state.process.pid for state in self._states]

    @property
    def address(self) -> str:
        """The address at which the other workers reach the first one: the loopback if all are on one machine."""
        addresses = {state.address for state in self._states}
        return "127.0.0.1" if len(addresses) == 1 else self._states[0].address

    def submit(self, worker: int, method: str, *args: Any, shared: Any = None) -> int:
        """Call ``worker.method(*args)`` without waiting.

        Args:
            worker: Which one; it must be up, with less than ``MAX_IN_FLIGHT`` calls in flight.
            method: Name of the method.
            *args: Its arguments.
            shared: What :meth:`share` returned; its value becomes the last argument.

        Returns:
            The ticket that the answer will have.
        """
        state = self._states[worker]
        if not self._takes_a_call(worker):
            raise RuntimeError(f"{self.name} {worker} takes no call now: ask is_up() and in_flight() first")
        with uninterrupted():
            if not state.calls:
                state.sign_of_life_at = time.monotonic()
            refs = ()
            if shared is not None:
                self.num_bytes_shared += shared.num_bytes
                refs = (shared.ref,)
            return self._remote(state, state.actor.call, method, pack(args), *refs)

    def _remote(self, state: _State, method: Any, *args: Any) -> int:
        self._tickets += 1
        state.calls.append((self._tickets, method.remote(*args)))
        return self._tickets

    def share(self, value: Any) -> _Shared:
        """Prepare ``value`` to be sent to many workers; it is copied once."""
        import ray

        packed = pack(value)
        # what is small goes along with each call: Ray's store would take longer than the copies
        return _Shared(packed if isinstance(packed, bytes) else ray.put(packed), num_bytes(packed))

    def collect(self, timeout: float | None = None) -> list[Answer]:
        """Return the answers that have arrived, in that order; wait for the first, or for a worker to come up.

        Args:
            timeout: Seconds after which to return with nothing; None waits as long as there is something to wait for.
        """
        if not self._kept:
            with uninterrupted():
                self._kept += self._collect(timeout)
        kept, self._kept = self._kept, []
        return kept

    def keep(self, answers: Iterable[Answer]) -> None:
        """Have :meth:`collect` return these as well."""
        self._kept.extend(answers)

    def call(self, method: str, *args: Any, workers: Iterable[int] | None = None, shared: Any = None) -> list[Answer]:
        """Call several workers, by default all that are up, and wait for their answers, in the order of the workers."""
        called = [i for i in range(self.size) if self.is_up(i)] if workers is None else list(workers)
        return self.answers([self.submit(worker, method, *args, shared=shared) for worker in called])

    def answers(self, tickets: Sequence[int]) -> list[Answer]:
        """Wait for the answers to these calls, in the order of ``tickets``; keep others for :meth:`collect`."""
        found: dict[int, Answer] = {}
        with uninterrupted():
            while len(found) < len(tickets):
                for answer in self._collect(None):
                    if answer.ticket in tickets:
                        found[answer.ticket] = answer
                    else:
                        self._kept.append(answer)
        return [found[ticket] for ticket in tickets]

    def values(self, answers: Sequence[Answer]) -> list[Any]:
        """The values of ``answers``.

        Raises:
            WorkerFailed: If a call failed.
        """
        for answer in answers:
            if answer.failure is not None:
                raise WorkerFailed(f"{self.name} {answer.worker}", answer.failure, "See the traceback below.")
        return [answer.value for answer in answers]

    def wait_until_up(self) -> None:
        """Wait until all workers that are not gone take a call; keep answers for :meth:`collect`."""
        with uninterrupted():
            while not all(self._takes_a_call(worker) or self.is_gone(worker) for worker in range(self.size)):
                self._kept += self._collect(None)

    def _takes_a_call(self, worker: int) -> bool:
        return self.is_up(worker) and self.in_flight(worker) < MAX_IN_FLIGHT

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float | None) -> list[Answer]:
        """See :meth:`collect`. Ctrl-C may interrupt it while it waits, before it has taken anything."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._forgive_unwatched_time()
            self._spawn_due()
            now = time.monotonic()
            until = [now + self._poll_s] if deadline is None else [now + self._poll_s, deadline]
            until += [state.restart_at for state in self._states if state.restart_at is not None]
            ready = self._wait(max(0.0, min(until) - now))
            answers = [answer for worker in ready for answer in self._take_reply(worker)]
            answers += self._give_up_hung()
            expects = any(state.calls or state.restart_at is not None for state in self._states)
            if answers or ready or not expects or (deadline is not None and time.monotonic() >= deadline):
                return answers

    def _forgive_unwatched_time(self) -> None:
        """Do not count time in which nobody collected progress."""
        now = time.monotonic()
        away, self._watched_at = now - self._watched_at, now
        if away > 2 * self._poll_s:
            for state in self._states:
                state.sign_of_life_at = min(now, state.sign_of_life_at + away)

    def _wait(self, timeout: float) -> list[int]:
        """The workers whose oldest call is answered, after ``timeout`` at the latest."""
        import ray

        # a worker answers in order: only its oldest call need be looked at
        oldest = {state.calls[0][1]: worker for worker, state in enumerate(self._states) if state.calls}
        with interruptible():
            if not oldest:
                time.sleep(timeout)
                return []
            ready, _ = ray.wait([*oldest], num_returns=1, timeout=timeout)
        if ready and len(oldest) > 1:
            ready, _ = ray.wait([*oldest], num_returns=len(oldest), timeout=0)
        return [oldest[ref] for ref in ready]

    def _take_reply(self, worker: int) -> list[Answer]:
        """The answer to the oldest call, or to all calls if the worker failed; none to that which made it."""
        state = self._states[worker]
        ticket, reply = state.calls[0]
        value, failure, made_progress = self._unpacked(state, reply)
        if failure is not None and (failure.kind == "died" or not state.is_made):
            return self._lose(worker, failure)
        state.calls.popleft()
        state.sign_of_life_at = time.monotonic()
        if not state.is_made:
            self._note_place(state)
            state.is_made = True
            return []
        if made_progress:
            state.failures = 0
        return [Answer(worker, ticket, value, failure)]

    def _unpacked(self, state: _State, reply: Any) -> tuple[Any, Failure | None, bool]:
        """What a call returned, why it returned nothing, and whether the worker made progress."""
        import ray
        from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

        try:
            packed: Any = ray.get(reply, timeout=self._timeout_s)
        except RayError as error:
            lines = str(error).strip().splitlines() or ["(no message)"]
            # of other errors the answer alone is lost; what was raised in Ray's own code says why in its last line
            message = lines[-1 if isinstance(error, RayTaskError) else 0].strip()
            if isinstance(error, OutOfMemoryError):
                message = str(error)
            elif isinstance(error, RayActorError):
                message = state.how_it_died(error)
            return None, Failure("died", type(error).__name__, message), False
        try:
            failure, made_progress, value = unpack(packed)
            return value, failure, made_progress
        except Exception as error:  # such as of a class that cannot be unpickled here
            return None, failure_of(error), False

    def _note_place(self, state: _State) -> None:
        """Note where a process is that has started."""
        import ray

        if state.placed is not None:
            pid, node, state.address = ray.get(state.placed)
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                state.process = psutil.Process(pid) if node == self._here else None
            state.placed = None
        state.sign_of_life_at = time.monotonic()

    def _give_up_hung(self) -> list[Answer]:
        """End workers that make no progress or find no room; ask busy ones for their progress."""
        import ray
        from ray.exceptions import RayError

        answers: list[Answer] = []
        for worker, state in enumerate(self._states):
            if not state.calls:
                continue
            now, waited = time.monotonic(), time.monotonic() - state.sign_of_life_at
            if state.placed is not None:
                if ray.wait([state.placed], timeout=0)[0]:
                    with contextlib.suppress(RayError):  # the call that makes it will fail as well
                        self._note_place(state)
                        waited = 0.0
                elif waited > PLACING_TIMEOUT_S and not self._has_room(state):
                    message = no_room(self._resources, free=ray.available_resources(), present=ray.cluster_resources())
                    answers += self._lose(worker, Failure("unplaced", "TimeoutError", message))
                    continue
            if state.asked is not None and ray.wait([state.asked], timeout=0)[0]:
                with contextlib.suppress(RayError):  # the call itself will fail as well
                    progress: Any = ray.get(state.asked)
                    if state.progress not in (None, progress):
                        state.sign_of_life_at, waited = now, 0.0
                    state.progress = progress
                state.asked = None
            timeout_s = self._timeout_s if state.is_made else max(self._timeout_s, SPAWNING_TIMEOUT_S)
            if waited > timeout_s:
                answers += self._lose(worker, state.hang(timeout_s))
            elif state.asked is None and state.is_made and waited > self._poll_s / 2:
                state.asked = state.actor.progress.options(concurrency_group="control").remote()
        return answers

    def _has_room(self, state: _State) -> bool:
        """Whether CPUs and GPUs are set aside for it: then its process is on its way, however long that takes."""
        from ray.util import placement_group_table

        return state.room is None or placement_group_table(state.room)["state"] == "CREATED"

    # --- starting, restarting and ending ------------------------------------------------------------------------------

    def _spawn(self, worker: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        state = self._states[worker]
        state.incarnation += 1
        state.restart_at, state.progress, state.sign_of_life_at = None, None, time.monotonic()
        state.is_made = False
        if state.actor is None:
            state.room = state.room or self._set_aside()
            state.crash_report = CrashReport()
            where = "DEFAULT" if state.room is None else PlacementGroupSchedulingStrategy(state.room, 0)
            name = f"{self.name} {worker}".replace(" ", "_")
            state.actor = self._actor_class.options(scheduling_strategy=where).remote(name)
            settle = state.actor.settle.options(concurrency_group="control")
            state.placed = settle.remote(state.crash_report.path, _place)
        self._remote(state, state.actor.make, self._factory, worker, state.incarnation, self._num_threads)

    def _set_aside(self) -> Any:
        """Room for one worker until :meth:`stop`: nobody else takes it while the worker is restarted."""
        from ray.util import get_current_placement_group, placement_group

        asked = {name: number for name, number in self._resources.items() if number}
        if not asked or get_current_placement_group() is not None:  # such as a trial of Tune, which has its own room
            return None
        self._rooms.append(placement_group([asked]))
        return self._rooms[-1]

    def _spawn_due(self) -> None:
        for worker, state in enumerate(self._states):
            if state.restart_at is not None and state.restart_at <= time.monotonic():
                self.num_restarts += 1
                self._spawn(worker)

    def restart(self, worker: int, delay: float = 0.0) -> None:
        """End the worker, drop its calls, and start another in its place after ``delay`` seconds."""
        state = self._states[worker]
        with uninterrupted():
            self._end(state, at_once=True)
            state.is_gone = False
            state.restart_at = time.monotonic() + delay
            self._spawn_due()

    def restart_later(self, worker: int, failure: Failure) -> Failure:
        """Restart the worker after a delay that grows with each failure in a row; returns ``failure``, final if it
        failed too often and is gone."""
        with uninterrupted():
            return self._lose(worker, failure)[0].failure or failure

    def _lose(self, worker: int, failure: Failure) -> list[Answer]:
        """End a worker that failed and plan its restart, if there is one; returns the failure for each of its calls."""
        state = self._states[worker]
        tickets = [ticket for ticket, _ in state.calls] or [0]
        state.failures += 1
        may_help = self._is_built or failure.kind == "died"
        delay = restart_delay(state.failures, self._max_restarts) if may_help else None
        # the first time that a worker raises, its process is still good for another one
        if failure.kind != "raised" or state.failures > 1 or delay is None or not state.is_up or state.calls:
            self._end(state, at_once=failure.kind != "raised")
        state.is_gone = delay is None
        state.restart_at = None if delay is None else time.monotonic() + delay
        failure = replace(failure, final=state.is_gone)
        if self._is_built or not failure.final:  # what ends build() is in its error
            again = "" if delay is None else f", another one is made in {delay:.2g} s"
            again += ", in a new process" if again and state.actor is None else ""
            text = f"{failure.text}\n\n{failure.traceback}".strip()
            if state.failures > 1:  # the first one had the traceback
                text = failure.text.partition("\n")[0]
            logger.warning("%s %d failed%s: %s", self.name, worker, again, text)
        return [Answer(worker, ticket, failure=failure) for ticket in tickets]

    def _end(self, state: _State, at_once: bool = False) -> None:
        """Kill the process and forget its calls."""
        import ray

        if state.actor is None:
            return
        ray.kill(state.actor, no_restart=True)
        if state.process is not None and at_once:
            with contextlib.suppress(psutil.NoSuchProcess):
                state.process.kill()  # one that is stopped or never returns to Python does not hear Ray
            psutil.wait_procs([state.process], KILL_TIMEOUT_S)  # so that its step counter stays as it is
        state.actor, state.is_made, state.placed, state.asked, state.process = None, False, None, None, None
        state.calls.clear()
        if state.crash_report is not None:
            state.crash_report.close()
            state.crash_report = None

    def stop(self) -> None:
        """Call ``stop()`` of every worker and end the processes; a second call does nothing."""
        import ray

        if self._is_stopped:
            return
        self._is_stopped = True
        if not ray.is_initialized():  # whoever ended Ray ended them
            return
        closing = [state.actor.call.remote("stop", pack(())) for state in self._states if state.is_made]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=STOP_TIMEOUT_S)
        processes = [state.process for state in self._states if state.process is not None]
        for state in self._states:
            self._end(state)
        for process in psutil.wait_procs(processes, KILL_TIMEOUT_S)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._give_back()


def _place() -> tuple[str, str]:
    """The node of this process, and its address."""
    import ray

    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


def _give_back(rooms: Sequence[Any]) -> None:
    import ray
    from ray.util import remove_placement_group

    if ray.is_initialized():
        for room in rooms:
            remove_placement_group(room)
