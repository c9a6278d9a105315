"""Workers on Ray: a process each, on this machine or on others. The only file that imports Ray, and not before it must.

Workers are made, watched, and made again from here. A worker is a plain object, which lives in a :class:`RayActor`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from rlmodule.distributed.crash_report import CrashReport
from rlmodule.distributed.interrupts import interruptible, uninterrupted
from rlmodule.distributed.ray_actor import LONGEST_TEXT, RayActor, failure_of
from rlmodule.distributed.resources import check_asked, no_cluster, no_room, room_remedy
from rlmodule.distributed.serialization import check_portable, num_bytes, pack, unpack
from rlmodule.distributed.worker_state import Call, WorkerState, hang_of, how_it_died
from rlmodule.distributed.workers import (
    MAX_IN_FLIGHT,
    Answer,
    Factory,
    Failure,
    RestartPolicy,
    WorkerFailed,
    WorkerGroup,
)
from rlmodule.settings import LearnerSettings, RunnerSettings

OLDEST_RAY = (2, 55)
"""Before it, a Ray cluster could be taken over by a web page (CVE-2026-27482, CVE-2026-41486)."""

PLACING_TIMEOUT_S, SPAWNING_TIMEOUT_S = 20.0, 120.0
"""Seconds that a worker may wait for its CPUs and GPUs; and, once it has them, for a process, and then to be made: a
busy machine takes long to start one and import what it needs."""

STOP_TIMEOUT_S, KILL_TIMEOUT_S = 4.0, 1.0
"""Seconds that a worker has to close what it holds, and then to end by itself."""

logger = logging.getLogger(__name__)


def start_ray() -> None:
    """Connect to Ray, or start it on this machine, unless that was done: as ``RAY_ADDRESS`` says.

    Raises:
        ImportError: If Ray is missing or too old.
        ConnectionError: If the cluster does not answer, or asks for a token.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version == "none" or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
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
        raise ConnectionError(no_cluster(address, error)) from None


def check_resources(asked: Mapping[str, float], settings: str, each: Sequence[Mapping[str, float]] = ()) -> None:
    """Whether the cluster has what is asked for at all; starts Ray if need be.

    Args:
        asked: Number by resource: ``CPU``, ``GPU``.
        settings: Which settings ask for it, for the error.
        each: Numbers by resource that one worker asks for, of each kind: it must find them on one node.

    Raises:
        ValueError: If it has not; names what is asked and what there is.
    """
    start_ray()
    import ray

    check_asked(asked, settings, each, present=ray.cluster_resources(), nodes=_nodes())


def check_resources_of(runners: RunnerSettings, learners: LearnerSettings) -> None:
    """Check, if there are any workers, that the cluster has what all of a run ask for together.

    Raises:
        ValueError: See :func:`check_resources`.
    """
    runner = {"CPU": runners.num_cpus_per_env_runner}
    learner = {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}
    workers = [(runners.num_env_runners, runner), (learners.num_learners, learner)]
    if each := [one for number, one in workers if number]:
        asked = {name: sum(number * one.get(name, 0) for number, one in workers) for name in ("CPU", "GPU")}
        where = f"num_env_runners={runners.num_env_runners}, num_learners={learners.num_learners}"
        check_resources(asked, where, each)


def _nodes() -> list[Mapping[str, float]]:
    """What each node has that is there, whether free or not."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _place() -> tuple[str, str]:
    """The node of this process, and its address."""
    import ray

    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


class RayWorkers(WorkerGroup):
    """Workers in processes of their own.

    Args:
        name: What one of them is called in errors.
        size: How many.
        factory: Makes one; sent to its process by pickle.
        num_cpus, num_gpus: What Ray sets aside for each.
        num_threads: Threads of torch in each; None for as many as it has whole CPUs, and at least one.
        timeout_s: Seconds without progress after which one counts as hung.
        policy: When failed ones are made again.

    Raises:
        ValueError: If the cluster has not as many CPUs or GPUs.
        WorkerFailed: If one cannot be made.
        TypeError: If the factory cannot be pickled.
    """

    def __init__(
        self,
        name: str,
        size: int,
        factory: Factory,
        *,
        num_cpus: float,
        num_gpus: float = 0.0,
        num_threads: int | None = None,
        timeout_s: float,
        policy: RestartPolicy,
    ) -> None:
        super().__init__(name, size)
        self._resources = {"CPU": num_cpus, "GPU": num_gpus}
        check_resources({n: size * one for n, one in self._resources.items()}, f"{size} {name}s", [self._resources])
        import ray

        check_portable(name, factory)
        self._factory = pack(factory)
        self._num_threads = num_threads or max(1, int(num_cpus))
        self._timeout_s, self._policy = timeout_s, policy
        self._poll_s = min(1.0, timeout_s / 4)
        options: Any = {"num_cpus": num_cpus, "num_gpus": num_gpus, "concurrency_groups": {"control": 1}}
        kind = type(name.title().replace(" ", ""), (RayActor,), {})  # whose name is that of the process
        self._actor: Any = ray.remote(**options)(kind)
        rooms: list[Any] = []
        self._rooms, self._give_back = rooms, weakref.finalize(self, _give_back, rooms)
        self._give_back.atexit = False  # Ray does it then
        self._here = ray.get_runtime_context().get_node_id()
        self._states = [WorkerState() for _ in range(size)]
        self._tickets = 0
        self._watched_at = time.monotonic()
        self._stopped = False
        self._is_built = False
        CrashReport.remove_leftovers()
        logger.info("starting %d %s%s on Ray", size, name, "s" if size > 1 else "")
        try:
            for worker in range(size):
                self._spawn(worker)
            self._wait_for_first()
        except BaseException:
            self.stop()
            raise

    # --- what a caller asks -------------------------------------------------------------------------------------------

    def is_up(self, worker: int) -> bool:
        state = self._states[worker]
        return state.host is not None and state.making is None and state.restart_at is None

    def is_gone(self, worker: int) -> bool:
        return self._states[worker].gone

    def in_flight(self, worker: int) -> int:
        return len(self._states[worker].calls)

    def incarnation(self, worker: int) -> int:
        return self._states[worker].incarnation

    def pids(self) -> list[int | None]:
        """The processes of the workers; None for those that have none, or none on this machine."""
        return [None if state.process is None else state.process.pid for state in self._states]

    @property
    def address(self) -> str:
        """Where the others find the first worker: nowhere else than on its machine, if all are on one."""
        addresses = {state.address for state in self._states}
        return "127.0.0.1" if len(addresses) == 1 else self._states[0].address

    def submit(self, worker: int, method: str, *args: Any, shared: Any = None, **kwargs: Any) -> int:
        state = self._states[worker]
        if not self.is_up(worker) or len(state.calls) >= MAX_IN_FLIGHT:
            raise RuntimeError(f"{self.name} {worker} takes no call now: ask is_up() and in_flight() first")
        with uninterrupted():
            if not state.calls:
                state.sign_of_life_at = time.monotonic()
            refs = ()
            if shared is not None:
                self.num_bytes_shared += shared.num_bytes
                refs = (shared.ref,)
            state.calls.append(self._remote(state.host.call, method, pack((args, kwargs)), *refs))
            return self._tickets

    def _remote(self, method: Any, *args: Any) -> Call:
        self._tickets += 1
        return Call(self._tickets, method.remote(*args))

    def share(self, value: Any) -> _Shared:
        import ray

        packed = pack(value)
        # what is small goes along with each call: Ray's store would take longer than the copies
        return _Shared(packed if isinstance(packed, bytes) else ray.put(packed), num_bytes(packed))

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float | None) -> list[Answer]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._note_watching()
            self._spawn_due()
            answers, came_up = self._take_ready(self._seconds_to_wait(deadline))
            answers += self._give_up_hung()
            expects = any(state.calls or state.making or state.restart_at is not None for state in self._states)
            if answers or came_up or not expects or (deadline is not None and time.monotonic() >= deadline):
                return answers

    def _note_watching(self) -> None:
        """What nobody saw while nobody looked proves nothing."""
        now = time.monotonic()
        away, self._watched_at = now - self._watched_at, now
        if away > 2 * self._poll_s:
            for state in self._states:
                state.sign_of_life_at = min(now, state.sign_of_life_at + away)

    def _seconds_to_wait(self, deadline: float | None) -> float:
        now = time.monotonic()
        until = [now + self._poll_s, *([] if deadline is None else [deadline])]
        until += [state.restart_at for state in self._states if state.restart_at is not None]
        return max(0.0, min(until) - now)

    def _take_ready(self, timeout: float) -> tuple[list[Answer], bool]:
        """Answers that came within ``timeout``, and whether a worker came up."""
        import ray

        # a worker answers in order: only its oldest call need be looked at
        oldest = {
            (state.making or state.calls[0]).reply: i
            for i, state in enumerate(self._states)
            if state.making or state.calls
        }
        if not oldest:
            with interruptible():
                time.sleep(timeout)
            return [], False
        with interruptible():
            ready, _ = ray.wait([*oldest], num_returns=1, timeout=timeout)
        if ready and len(oldest) > 1:
            ready, _ = ray.wait([*oldest], num_returns=len(oldest), timeout=0)
        answers: list[Answer] = []
        came_up = False
        for worker in (oldest[ref] for ref in ready):
            if self._states[worker].making is None:
                answers += self._finish_call(worker)
            elif failed := self._finish_making(worker):
                answers += failed
            else:
                came_up = True
        return answers, came_up

    def _finish_call(self, worker: int) -> list[Answer]:
        state = self._states[worker]
        call = state.calls[0]
        state.sign_of_life_at = time.monotonic()
        value, failure, got_on = self._value_of(state, call)
        if failure is not None and failure.kind == "died":
            return self._lose(worker, failure)
        state.calls.popleft()
        if got_on:
            state.failures = 0
        return [Answer(worker, call.ticket, value, failure)]

    def _finish_making(self, worker: int) -> list[Answer]:
        state = self._states[worker]
        assert state.making is not None
        _, failure, _ = self._value_of(state, state.making)
        if failure is not None:
            return self._lose(worker, failure)
        self._note_place(state)
        state.making = None
        return []

    def _note_place(self, state: WorkerState) -> None:
        """Note where a process is that has begun."""
        import ray

        if state.placed is not None:
            pid, node, state.address = ray.get(state.placed)
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                state.process = psutil.Process(pid) if node == self._here else None
            state.placed = None
        state.sign_of_life_at = time.monotonic()

    def _value_of(self, state: WorkerState, call: Call) -> tuple[Any, Failure | None, bool]:
        """What a call came to, why to nothing, and whether the worker got on."""
        import ray
        from ray.exceptions import OutOfMemoryError, RayActorError, RayError

        try:
            reply: Any = ray.get(call.reply, timeout=self._timeout_s)
        except OutOfMemoryError as error:
            return None, Failure("died", type(error).__name__, str(error)), False
        except RayActorError as error:
            return None, Failure("died", type(error).__name__, how_it_died(state, error)), False
        except RayError as error:  # the answer is lost, whatever became of the process
            return None, Failure("died", type(error).__name__, _first_line(error)), False
        try:
            failure, got_on, value = unpack(reply)
            return value, failure, got_on
        except Exception as error:  # such as of a class that cannot be made again
            return None, failure_of(error), False

    def _give_up_hung(self) -> list[Answer]:
        """End workers that make no progress, or find no room; asks those that are busy how far they are."""
        import ray
        from ray.exceptions import RayError

        answers: list[Answer] = []
        for worker, state in enumerate(self._states):
            if state.host is None or not (state.calls or state.making):
                continue
            now = time.monotonic()
            if state.placed is not None:
                if ray.wait([state.placed], timeout=0)[0]:
                    with contextlib.suppress(RayError):  # of which the making will tell
                        self._note_place(state)
                elif (waited := now - state.sign_of_life_at) > PLACING_TIMEOUT_S and not self._has_room(state):
                    answers += self._lose(worker, self._no_room())
                elif waited > SPAWNING_TIMEOUT_S:
                    message = f"no process within {SPAWNING_TIMEOUT_S:g} s, though there is room for it"
                    answers += self._lose(worker, Failure("hung", "TimeoutError", message))
                continue
            if state.asked is not None and ray.wait([state.asked], timeout=0)[0]:
                with contextlib.suppress(RayError):  # of which the call itself will tell
                    progress: Any = ray.get(state.asked)
                    if state.progress not in (None, progress):
                        state.sign_of_life_at = now
                    state.progress = progress
                state.asked = None
            timeout_s = self._timeout_s if state.making is None else max(self._timeout_s, SPAWNING_TIMEOUT_S)
            if now - state.sign_of_life_at > timeout_s:
                answers += self._lose(worker, hang_of(state, timeout_s))
            elif state.asked is None and state.making is None and now - state.sign_of_life_at > self._poll_s / 2:
                state.asked = state.host.progress.options(concurrency_group="control").remote()
        return answers

    def _has_room(self, state: WorkerState) -> bool:
        """Whether CPUs and GPUs are set aside for it: then its process is on its way, however long that takes."""
        from ray.util import placement_group_table

        return state.room is None or placement_group_table(state.room)["state"] == "CREATED"

    def _no_room(self) -> Failure:
        import ray

        message = no_room(self._resources, free=ray.available_resources(), present=ray.cluster_resources())
        return Failure("unplaced", "TimeoutError", message)

    # --- making, ending and making again ------------------------------------------------------------------------------

    def _spawn(self, worker: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        state = self._states[worker]
        state.incarnation += 1
        state.restart_at, state.progress, state.sign_of_life_at = None, None, time.monotonic()
        if state.host is None:
            state.room = state.room or self._set_aside()
            state.crash_report = CrashReport()
            where = "DEFAULT" if state.room is None else PlacementGroupSchedulingStrategy(state.room, 0)
            name = f"{self.name} {worker}".replace(" ", "_")
            state.host = self._actor.options(scheduling_strategy=where).remote(name)
            settle = state.host.settle.options(concurrency_group="control")
            state.placed = settle.remote(state.crash_report.path, _place)
        state.making = self._remote(state.host.make, self._factory, worker, state.incarnation, self._num_threads)

    def _set_aside(self) -> Any:
        """Room for one worker, until :meth:`stop`: nobody else takes it while another one is made in its place."""
        from ray.util import get_current_placement_group, placement_group

        asked = {name: number for name, number in self._resources.items() if number}
        if not asked or get_current_placement_group() is not None:  # the latter has room of its own, as a trial of Tune
            return None
        self._rooms.append(placement_group([asked]))
        return self._rooms[-1]

    def _spawn_due(self) -> None:
        for worker, state in enumerate(self._states):
            if state.restart_at is not None and state.restart_at <= time.monotonic():
                self.num_restarts += 1
                self._spawn(worker)

    def _wait_for_first(self) -> None:
        while not all(self.is_up(worker) for worker in range(self.size)):
            for answer in self._collect(None):
                failure = answer.failure
                assert failure is not None  # since nothing was called
                if failure.final:
                    remedy = f"num_{self.name.replace(' ', '_')}s=0 debugs it in this process."
                    remedy = room_remedy(self.name) if failure.kind == "unplaced" else remedy
                    raise WorkerFailed(f"{self.name} {answer.worker}", failure, remedy)
        self._is_built = True

    def _lose(self, worker: int, failure: Failure) -> list[Answer]:
        """End a worker that failed; what it had to do has failed too, and it is made again later, or never."""
        state = self._states[worker]
        tickets = [call.ticket for call in state.calls] or [0]
        state.failures += 1
        may_help = self._is_built or failure.kind == "died"
        delay = self._policy.delay_after(state.failures) if may_help else None
        # the first time that a worker raises, its process is still good for another one
        if failure.kind != "raised" or state.failures > 1 or delay is None or not self.is_up(worker) or state.calls:
            self._end(state, at_once=failure.kind != "raised")
        state.gone = delay is None
        state.restart_at = None if delay is None else time.monotonic() + delay
        failure = replace(failure, final=state.gone)
        if self._is_built or not failure.final:  # what ends build() is told by its error
            again = "" if delay is None else f", another one is made in {delay:.2g} s"
            again += ", in a new process" if again and state.host is None else ""
            told = f"{failure.text}\n\n{failure.traceback}".strip()
            if state.failures > 1:  # the first one had the traceback
                told = failure.text.partition("\n")[0]
            logger.warning("%s %d failed%s: %s", self.name, worker, again, told)
        return [Answer(worker, ticket, failure=failure) for ticket in tickets]

    def restart_later(self, worker: int, failure: Failure) -> Failure:
        with uninterrupted():
            return (self._lose(worker, failure)[0].failure) or failure

    def restart(self, worker: int, incarnation: int | None = None, delay: float = 0.0) -> None:
        state = self._states[worker]
        with uninterrupted():
            self._end(state, at_once=True)
            state.gone = False
            if incarnation is not None:
                state.incarnation = incarnation - 1
            state.restart_at = time.monotonic() + delay
            self._spawn_due()

    def _end(self, state: WorkerState, at_once: bool = False) -> None:
        """Have the process killed, and forget what it had to do."""
        import ray

        if state.host is None:
            return
        ray.kill(state.host, no_restart=True)
        if state.process is not None and at_once:
            with contextlib.suppress(psutil.NoSuchProcess):
                state.process.kill()  # who is stopped, or never looks up, does not hear Ray
            psutil.wait_procs([state.process], KILL_TIMEOUT_S)  # so that what it counted stays as it is
        state.host, state.making, state.placed, state.asked, state.process = None, None, None, None, None
        state.calls.clear()
        if state.crash_report is not None:
            state.crash_report.close()
            state.crash_report = None

    def stop(self) -> None:
        import ray

        if self._stopped:
            return
        self._stopped = True
        if not ray.is_initialized():  # who ended Ray ended them
            return
        up = [state for state in self._states if state.host is not None and state.making is None]
        if up:
            closing = [self._remote(state.host.call, "stop", pack(((), {}))).reply for state in up]
            ray.wait(closing, num_returns=len(closing), timeout=STOP_TIMEOUT_S)
        processes = [state.process for state in self._states if state.process is not None]
        for state in self._states:
            self._end(state)
        for process in psutil.wait_procs(processes, KILL_TIMEOUT_S)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._give_back()


def _give_back(rooms: Sequence[Any]) -> None:
    import ray
    from ray.util import remove_placement_group

    if ray.is_initialized():
        for room in rooms:
            remove_placement_group(room)


def _first_line(error: Exception) -> str:
    """What Ray says first; of what was raised in a worker it is the end that says what."""
    from ray.exceptions import RayTaskError

    lines = str(error).strip().splitlines() or ["(no message)"]
    return lines[-1 if isinstance(error, RayTaskError) else 0].strip()[:LONGEST_TEXT]


@dataclass(frozen=True)
class _Shared:
    """Something packed: a reference to it in Ray's store, or if it is small itself."""

    ref: Any
    num_bytes: int
