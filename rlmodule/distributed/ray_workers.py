"""RayWorkers: starts objects in other processes, calls them by index, and restarts those that fail.

Each worker is in its own Ray actor, a :class:`RayActor`, on this machine or on another machine of the cluster.
"""

import contextlib
import importlib.metadata
import logging
import math
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

# Oldest version in which no web page can take control of a cluster (CVE-2026-27482, CVE-2026-41486).
OLDEST_RAY = (2, 55)

# Largest number of unanswered calls of a worker: one that runs, and one that waits, so that no worker is idle.
MAX_IN_FLIGHT = 2

# Seconds in which Ray must reserve a worker's CPUs and GPUs, and seconds in which its process must start, which is also
# the least time limit for building the worker. A busy machine is slow to start a process and to import packages.
PLACING_TIMEOUT_S, SPAWNING_TIMEOUT_S = 20.0, 120.0

# Seconds in which a worker must return from `stop()`, and seconds in which its process must then end.
STOP_TIMEOUT_S, KILL_TIMEOUT_S = 4.0, 1.0

logger = logging.getLogger(__name__)


def start_ray() -> None:
    """Connect to the Ray cluster at ``RAY_ADDRESS``, or start Ray on this machine if ``RAY_ADDRESS`` is not set.

    A second call does nothing.

    Raises:
        ImportError: If Ray is not installed, or its version is too old.
        ConnectionError: If the cluster does not answer, or asks for a token.
    """
    version = importlib.metadata.version("ray")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise ImportError(
            f"ray: expected version {oldest} or later, got {version}. Run: pip install "
            f'"ray>={oldest}", or set num_env_runners=0 and num_learners=0.'
        )
    # Without an address, ray.init() would join any cluster that runs on this machine, even another user's.
    address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        # Ray's default niceness of 15 leaves workers almost no time on a core that another program uses.
        os.environ.setdefault("RAY_worker_niceness", "0")
        if "ray" not in sys.modules:
            # With 0, Ray's processes listen on 127.0.0.1 alone. Ray reads this when it is imported and again in each
            # process that it starts. Both must read the same value, so it is too late once Ray is imported.
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
        remedy = "`ray status` shows whether it runs. Unset RAY_ADDRESS to start Ray on this machine instead."
        if "authentication" in f"{error} {error.__cause__}".lower():
            got = "one that asks for a token"
            remedy = "Put the cluster's token in ~/.ray/auth_token and run: export RAY_AUTH_MODE=token. A cluster asks "
            remedy += "for a token if `ray start` found that file on its machine."
        raise ConnectionError(
            f"RAY_ADDRESS={address}: expected a Ray cluster that accepts this process, got {got}. {remedy}"
        ) from None


def check_resources(settings: str, *workers: tuple[int, Resources]) -> None:
    """Raise unless the cluster is large enough for the workers. Start Ray first if any workers are asked for.

    Resources that other programs use at the moment count as available.

    Args:
        settings: The settings that ask for the workers; the error text begins with them.
        *workers: For each kind of worker, the number of workers, and the resources of one worker, which a single node
            must have, such as ``(4, {"CPU": 1.0, "GPU": 0.5})``.

    Raises:
        ValueError: If the cluster is too small; names the resources that are asked for and those that exist.
    """
    asked = [(number, resources) for number, resources in workers if number]
    if asked:
        start_ray()
        import ray

        check_room(settings, asked, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def check_resources_of(runners: RunnerSettings, learners: LearnerSettings) -> None:
    """Raise unless the cluster is large enough for all env runners and learners of a run together; see
    :func:`check_resources`."""
    check_resources(
        f"num_env_runners={runners.num_env_runners}, num_learners={learners.num_learners}",
        (runners.num_env_runners, {"CPU": runners.num_cpus_per_env_runner}),
        (learners.num_learners, {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}),
    )


@dataclass(frozen=True)
class Answer:
    """The answer to one call of :class:`RayWorkers`.

    Attributes:
        worker: Index of the worker.
        value: The value that the method returned, or None if the call failed. Arrays in it may be read-only.
        failure: Why the call failed; None if it succeeded.
    """

    worker: int
    value: Any = None
    failure: Failure | None = None


@dataclass
class _State:
    """The state of one worker, as the main process knows it.

    Attributes:
        room: The placement group with the CPUs and GPUs that Ray reserved for the worker; None if it needs no group.
        actor: Its :class:`RayActor`; None while the worker has no process.
        incarnation: Number of times it was restarted; -1 before it is first started.
        calls: References to the replies of its unanswered calls, oldest first.
        num_raised: Number of calls of this incarnation that raised.
        is_made: Whether the worker object was built. If not, its only call is the one that builds it.
        process: Its process; None if the process runs on another machine.
        address: Address of its machine; empty until its process reports the address.
        failures: Number of failures in a row, without a call in between that made progress.
        restart_at: Time at which it is restarted, by ``time.monotonic()``; None if no restart is planned.
        is_gone: Whether it failed and will not be restarted.
        asked: Reference to the report that its process was asked for; None if no report is awaited.
        progress: The last progress that it reported; None before the first report.
        sign_of_life_at: Time at which it was started, last answered, or last reported a new progress.
        crash_report: The file in which its process reports how it ended.
    """

    room: Any = None
    actor: Any = None
    incarnation: int = -1
    calls: deque[Any] = field(default_factory=deque)
    num_raised: int = 0
    is_made: bool = False
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
        """Describe how the worker's process ended, after a call to it failed with Ray's ``error``."""
        report = "" if self.crash_report is None else self.crash_report.read()
        if self.process is None and not report:  # on another machine, or lost before it said where it is
            return f"its process ended ({(str(error).splitlines() or [''])[-1].strip()})"
        # a crash and os._exit() leave a report; a process that gets SIGKILL cannot write one
        return f"its process ended by {report or 'SIGKILL or the like; the system sends it when memory runs out'}"

    def hang(self, timeout_s: float) -> Failure:
        """Return the failure of a worker that made no progress for ``timeout_s`` seconds. Its message has the worker's
        current calls, if the worker's process reports them."""
        where = self.crash_report.ask_where(self.process) if self.crash_report and self.process else []
        message = f"no progress for {timeout_s:g} s" + (f", in {where[0]}" if where else "")
        calls = "".join(f"\n  {call}" for call in where)
        return Failure("hung", "TimeoutError", message, f"Its calls, most recent first:{calls}" if where else "")


@dataclass(frozen=True)
class _Shared:
    """A packed value for several workers.

    Attributes:
        ref: The packed value itself if it is small, otherwise a reference to it in Ray's object store.
        num_bytes: Its size in bytes.
    """

    ref: Any
    num_bytes: int


class RayWorkers:
    """Workers of one kind, each in a process of its own, called by index.

    A worker is any object with an attribute ``progress`` that changes while it works, a method ``stop()`` and, to get
    what is posted, a method ``receive(message)``.

    Args:
        name: Name of one worker in error texts, such as ``env runner``.
        size: Number of workers.
        factory: ``factory(index, incarnation)`` builds a worker in its process. The incarnation is 0 at first, and each
            restart adds 1. The factory is pickled.
        num_cpus, num_gpus: CPUs and GPUs that Ray reserves for each worker.
        num_threads: Number of torch threads in each worker; None takes ``num_cpus`` rounded down, but at least 1.
        timeout_s: Seconds without progress after which a worker counts as hung.
        max_restarts: Largest number of restarts of one worker in a row, without a call in between that makes progress.

    Attributes:
        num_restarts: Restarts so far, of all workers.
        num_bytes_shared: Bytes of shared arguments sent so far, summed over the workers that received them.

    Raises:
        ValueError: If the cluster is too small.
        WorkerFailed: If a worker cannot be built.
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
        kind = type(name.title().replace(" ", ""), (RayActor,), {})  # Ray names the process after it
        self._actor_class: Any = ray.remote(**options)(kind)
        rooms: list[Any] = []
        self._rooms, self._give_back = rooms, weakref.finalize(self, _give_back, rooms)
        self._give_back.atexit = False  # when Python exits, Ray frees the rooms itself
        self._here = ray.get_runtime_context().get_node_id()
        self._states = [_State() for _ in range(size)]
        self._kept: list[Answer] = []  # for collect(): they arrived during call() or wait_until_up()
        self._watched_at = time.monotonic()
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
        """Wait until all workers are built.

        Raises:
            WorkerFailed: If a worker cannot be built.
        """
        while not all(state.is_up for state in self._states):
            for answer in self._collect(None):
                failure = answer.failure
                assert failure is not None  # no call was submitted yet
                if failure.final:
                    remedy = f"num_{self.name.replace(' ', '_')}s=0 debugs it in this process."
                    remedy = room_remedy(self.name) if failure.kind == "unplaced" else remedy
                    raise WorkerFailed(f"{self.name} {answer.worker}", failure, remedy)
        self._is_built = True

    # --- calls --------------------------------------------------------------------------------------------------------

    def is_up(self, worker: int) -> bool:
        """Return whether the worker is built and does not wait for a restart."""
        return self._states[worker].is_up

    def is_gone(self, worker: int) -> bool:
        """Return whether the worker failed and will not be restarted."""
        return self._states[worker].is_gone

    def in_flight(self, worker: int) -> int:
        """Return the number of unanswered calls of the worker; 0 if it is not built yet."""
        state = self._states[worker]
        return len(state.calls) if state.is_made else 0

    def incarnation(self, worker: int) -> int:
        """Return the number of times the worker was restarted."""
        return self._states[worker].incarnation

    def raise_incarnation(self, worker: int, least: int) -> int:
        """Raise the worker's number of restarts to ``least`` if it is lower, and return the number.

        A run that continues from a checkpoint calls this method, so as not to repeat the random streams of earlier
        incarnations.
        """
        state = self._states[worker]
        state.incarnation = max(state.incarnation, least)
        return state.incarnation

    def pids(self) -> list[int | None]:
        """Return the process ids of the workers; None for a worker without a process on this machine."""
        return [None if state.process is None else state.process.pid for state in self._states]

    @property
    def address(self) -> str:
        """The address at which the other workers reach worker 0; 127.0.0.1 if all workers are on one machine."""
        addresses = {state.address for state in self._states}
        return "127.0.0.1" if len(addresses) == 1 else self._states[0].address

    def submit(self, worker: int, method: str, *args: Any, shared: Any = None) -> None:
        """Call a method of a worker without waiting for the answer. A worker answers its calls in the order of
        submission. If one of them raises, those that were submitted before its answer is collected are not executed
        and get no answer.

        Args:
            worker: Index of the worker; it must be up, with fewer than ``MAX_IN_FLIGHT`` unanswered calls.
            method: Name of the method.
            *args: Arguments of the method.
            shared: A value that :meth:`share` prepared; it becomes the last argument.

        Raises:
            RuntimeError: If the worker is not up, or has too many unanswered calls.
        """
        state = self._states[worker]
        if not state.is_up or len(state.calls) >= MAX_IN_FLIGHT:
            raise RuntimeError(
                f"RayWorkers.submit(): expected a worker that takes a call now, got {self.name} {worker}, which does "
                "not. Check is_up() and in_flight() first."
            )
        with uninterrupted():
            if not state.calls:
                state.sign_of_life_at = time.monotonic()
            refs = () if shared is None else (self._ref_of(shared),)
            state.calls.append(state.actor.call.remote(state.num_raised, method, pack(args), *refs))

    def post(self, worker: int, shared: _Shared) -> None:
        """Pass a value that :meth:`share` prepared to the method ``receive()`` of a worker before it executes another
        call, even one that was submitted before. Do not wait for it. The worker must be up. It does not get messages
        that are replaced by a later one in the meantime."""
        self._states[worker].actor.post.options(concurrency_group="control").remote(self._ref_of(shared))

    def _ref_of(self, shared: _Shared) -> Any:
        """Return the reference to a shared value, to send it to a worker, and count its bytes."""
        self.num_bytes_shared += shared.num_bytes
        return shared.ref

    def share(self, value: Any) -> _Shared:
        """Pack ``value`` once, as an argument for several workers. Pass the result to :meth:`submit` as ``shared``, or
        to :meth:`post`."""
        import ray

        packed = pack(value)
        # A small value is sent with each call: that is faster than a detour through Ray's store.
        return _Shared(packed if isinstance(packed, bytes) else ray.put(packed), num_bytes(packed))

    def collect(self, timeout: float | None = None) -> list[Answer]:
        """Wait until an answer arrives or a worker is built, and return the answers in the order of their arrival.

        Args:
            timeout: Largest number of seconds to wait; None sets no limit. In any case, the call returns once no worker
                has an unanswered call and none waits for a restart.
        """
        if not self._kept:
            with uninterrupted():
                self._kept += self._collect(timeout)
        kept, self._kept = self._kept, []
        return kept

    def keep(self, answers: Iterable[Answer]) -> None:
        """Store ``answers`` for the next call of :meth:`collect`, which returns them without waiting for new
        answers."""
        self._kept.extend(answers)

    def call(self, method: str, args: Mapping[int, tuple[Any, ...]]) -> list[Answer]:
        """Wait until several workers have answered all calls, call them, and wait for their answers. Answers to earlier
        calls are kept for :meth:`collect`.

        Args:
            method: Name of the method.
            args: Arguments of the method, by the index of the worker; see :meth:`submit`.

        Returns:
            The answers, in the order of ``args``.
        """
        found: dict[int, Answer] = {}
        with uninterrupted():
            self.wait_until_up(args)
            for worker, given in args.items():
                self.submit(worker, method, *given)
            while len(found) < len(args):
                for answer in self._collect(None):
                    if answer.worker in args and answer.worker not in found:
                        found[answer.worker] = answer
                    else:
                        self._kept.append(answer)
        return [found[worker] for worker in args]

    def wait_until_up(self, workers: Collection[int] | None = None) -> None:
        """Wait until the workers, by default all, are up and have answered all calls, or are gone. Answers that arrive
        in the meantime are kept for :meth:`collect`."""
        with uninterrupted():
            for worker in range(self.size) if workers is None else workers:
                while not self.is_gone(worker) and (not self.is_up(worker) or self.in_flight(worker)):
                    self._kept += self._collect(None)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float | None) -> list[Answer]:
        """Wait for new answers and return them, as :meth:`collect` does, but ignore those that :meth:`keep` stored.

        Ctrl-C can interrupt only the wait. Answers are taken from the workers after the wait, so none is lost.
        """
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
        """Do not count the time in which the caller was not collecting answers as time without progress."""
        now = time.monotonic()
        away, self._watched_at = now - self._watched_at, now
        if away > 2 * self._poll_s:
            for state in self._states:
                state.sign_of_life_at = min(now, state.sign_of_life_at + away)

    def _wait(self, timeout: float) -> list[int]:
        """Return the workers whose oldest call is answered. Wait for the first such worker for up to ``timeout``
        seconds."""
        import ray

        # A worker answers in order, so no later call of it can be answered yet.
        oldest = {state.calls[0]: worker for worker, state in enumerate(self._states) if state.calls}
        with interruptible():
            if not oldest:
                time.sleep(timeout)
                return []
            ready, _ = ray.wait([*oldest], num_returns=1, timeout=timeout)
        if ready and len(oldest) > 1:
            ready, _ = ray.wait([*oldest], num_returns=len(oldest), timeout=0)
        return [oldest[ref] for ref in ready]

    def _take_reply(self, worker: int) -> list[Answer]:
        """Return the answer to the worker's oldest call. If its process ended, return an answer with the failure for
        each of its calls.

        If the oldest call is the one that builds the worker, its reply is not an answer, and the list is empty.
        """
        state = self._states[worker]
        failure, made_progress, value = self._unpacked(state, state.calls[0])
        if failure is not None and (failure.kind == "died" or not state.is_made):
            return self._lose(worker, failure)
        state.calls.popleft()
        state.sign_of_life_at = time.monotonic()
        if not state.is_made:
            if not state.address:
                self._read_report(state)
            state.is_made = True
            return []
        if made_progress:
            state.failures = 0
        return [Answer(worker, value, failure)]

    def _unpacked(self, state: _State, reply: Any) -> tuple[Failure | None, bool, Any]:
        """Return what ``reply``, the oldest one, contains: the failure of the call or None, whether the worker made
        progress, and the value. If the call raised, drop the later calls, which the worker does not execute."""
        import ray
        from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

        try:
            packed: Any = ray.get(reply, timeout=self._timeout_s)
        except RayError as error:
            lines = str(error).strip().splitlines() or ["(no message)"]
            # An error of Ray's own code is a traceback, whose last line gives the reason.
            message = lines[-1 if isinstance(error, RayTaskError) else 0].strip()
            if isinstance(error, OutOfMemoryError):
                message = str(error)
            elif isinstance(error, RayActorError):
                message = state.how_it_died(error)
            return Failure("died", type(error).__name__, message), False, None
        try:
            failure, made_progress, value = unpack(packed)
        except Exception as error:  # for example, a class that cannot be unpickled here
            return failure_of(error), False, None
        if failure is not None:
            state.num_raised += 1
            state.calls = deque([reply])
        return failure, made_progress, value

    def _ask(self, state: _State) -> None:
        """Ask a worker's process to report its progress, without waiting for the reply. A second thread of the process
        replies, even while the worker is busy."""
        assert state.crash_report is not None
        report = state.actor.report.options(concurrency_group="control")
        state.asked = report.remote(state.crash_report.path, _place)

    def _read_report(self, state: _State) -> None:
        """Read the report of a worker's process: the progress of the worker and, the first time, the process id and the
        machine."""
        import ray

        progress, pid, node, address = ray.get(state.asked)
        if not state.address or state.progress not in (None, progress):
            state.sign_of_life_at = time.monotonic()
        if not state.address and node == self._here:
            with contextlib.suppress(psutil.NoSuchProcess):  # the process has already ended
                state.process = psutil.Process(pid)
        state.address, state.progress, state.asked = address, progress, None

    def _give_up_hung(self) -> list[Answer]:
        """End the workers that made no progress, or got no room on the cluster, for too long. Ask busy workers for
        their progress.

        Returns:
            An answer with the failure for each unanswered call of the workers that were ended.
        """
        import ray
        from ray.exceptions import RayError

        answers: list[Answer] = []
        for worker, state in enumerate(self._states):
            if not state.calls:
                continue
            if state.asked is not None and ray.wait([state.asked], timeout=0)[0]:
                with contextlib.suppress(RayError):  # the calls of such a process fail too, and report why
                    self._read_report(state)
            waited = time.monotonic() - state.sign_of_life_at
            timeout_s = self._timeout_s if state.is_made else max(self._timeout_s, SPAWNING_TIMEOUT_S)
            if not state.address and waited > PLACING_TIMEOUT_S and not self._has_room(state):
                message = no_room(self._resources, free=ray.available_resources(), present=ray.cluster_resources())
                answers += self._lose(worker, Failure("unplaced", "TimeoutError", message))
            elif waited > timeout_s:
                answers += self._lose(worker, state.hang(timeout_s))
            elif state.asked is None and state.is_made and waited > self._poll_s / 2:
                self._ask(state)
        return answers

    def _has_room(self, state: _State) -> bool:
        """Return whether Ray has reserved the worker's CPUs and GPUs, even if its process has not started yet."""
        from ray.util import placement_group_table

        return state.room is None or placement_group_table(state.room)["state"] == "CREATED"

    # --- starting, restarting and ending ------------------------------------------------------------------------------

    def _spawn(self, worker: int) -> None:
        """Build the worker's next incarnation: in its process if that still runs, otherwise in a new process."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        state = self._states[worker]
        state.incarnation += 1
        state.restart_at, state.progress, state.sign_of_life_at = None, None, time.monotonic()
        state.is_made, state.num_raised = False, 0
        if state.actor is None:
            state.room = state.room or self._set_aside()
            state.crash_report = CrashReport()
            # None, not "DEFAULT", which would start it outside of the room of a trial
            where = None if state.room is None else PlacementGroupSchedulingStrategy(state.room, 0)
            name = f"{self.name} {worker}".replace(" ", "_")
            state.actor = self._actor_class.options(scheduling_strategy=where).remote(name)
            self._ask(state)
        state.calls.append(state.actor.make.remote(self._factory, worker, state.incarnation, self._num_threads))

    def _set_aside(self) -> Any:
        """Reserve the CPUs and GPUs of one worker until :meth:`stop`, so that it still has them after a restart. Return
        the placement group, or None if the worker needs no group."""
        from ray.util import get_current_placement_group, placement_group

        asked = {name: number for name, number in self._resources.items() if number}
        if not asked or get_current_placement_group() is not None:  # a trial of Ray Tune has its own room
            return None
        self._rooms.append(placement_group([asked]))
        return self._rooms[-1]

    def _spawn_due(self) -> None:
        """Restart the workers whose restart delay is over."""
        for worker, state in enumerate(self._states):
            if state.restart_at is not None and state.restart_at <= time.monotonic():
                self.num_restarts += 1
                self._spawn(worker)

    def restart(self, worker: int, delay: float = 0.0) -> None:
        """End the worker's process, drop the worker's calls, and start the worker again after ``delay`` seconds."""
        state = self._states[worker]
        with uninterrupted():
            self._end(state, at_once=True)
            state.is_gone = False
            state.restart_at = time.monotonic() + delay
            self._spawn_due()

    def restart_later(self, worker: int, failure: Failure) -> Failure:
        """Plan a restart of the worker, after a delay that grows with each failure in a row.

        Returns:
            ``failure``, marked as final if the worker failed too often and is not restarted.
        """
        with uninterrupted():
            return self._lose(worker, failure)[0].failure or failure

    def _lose(self, worker: int, failure: Failure) -> list[Answer]:
        """End a worker that failed, and plan its restart if it has restarts left.

        Returns:
            An answer with the failure for each unanswered call of the worker. If it has no such call, a single answer.
        """
        state = self._states[worker]
        num_answers = max(1, len(state.calls))
        state.failures += 1
        may_help = self._is_built or failure.kind == "died"
        delay = restart_delay(state.failures, self._max_restarts) if may_help else None
        # After the first error in a row, the next worker is built in the same process, which saves the start of one.
        if failure.kind != "raised" or state.failures > 1 or delay is None or not state.is_up or state.calls:
            self._end(state, at_once=failure.kind != "raised")
        state.is_gone = delay is None
        state.restart_at = None if delay is None else time.monotonic() + delay
        failure = replace(failure, final=state.is_gone)
        if self._is_built or not failure.final:  # a failure that ends build() is in the error of build()
            again = "" if delay is None else f"; it restarts in {delay:.2g} s"
            again += ", in a new process" if again and state.actor is None else ""
            text = f"{failure.text}\n\n{failure.traceback}".strip()
            if state.failures > 1:  # the first failure was logged with its traceback
                text = failure.text.partition("\n")[0]
            logger.warning("%s %d failed%s: %s", self.name, worker, again, text)
        return [Answer(worker, failure=failure)] * num_answers

    def _end(self, state: _State, at_once: bool = False) -> None:
        """End the worker's process and drop the worker's calls. With ``at_once``, wait until the process has ended."""
        import ray

        if state.actor is None:
            return
        ray.kill(state.actor, no_restart=True)
        if state.process is not None and at_once:
            with contextlib.suppress(psutil.NoSuchProcess):
                state.process.kill()  # a process that is stopped or never returns to Python ignores ray.kill()
            psutil.wait_procs([state.process], KILL_TIMEOUT_S)  # from then on, its step counter does not change
        state.actor, state.is_made, state.asked, state.process, state.address = None, False, None, None, ""
        state.calls.clear()
        if state.crash_report is not None:
            state.crash_report.close()
            state.crash_report = None

    def stop(self) -> None:
        """Call ``stop()`` of every worker, and end the processes. A second call does nothing."""
        import ray

        if self._give_back.alive and ray.is_initialized():  # ray.shutdown() ends the processes, too
            made = [state.actor for state in self._states if state.is_made]
            closing = [actor.call.remote(math.inf, "stop", pack(())) for actor in made]  # whatever raised before
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=STOP_TIMEOUT_S)
            processes = [state.process for state in self._states if state.process is not None]
            for state in self._states:
                self._end(state)
            for process in psutil.wait_procs(processes, KILL_TIMEOUT_S)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._give_back()  # does nothing if it was called before


def _place() -> tuple[str, str]:
    """Return the id of this process's node, and the node's address."""
    import ray

    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


def _give_back(rooms: Sequence[Any]) -> None:
    """Free the CPUs and GPUs that Ray reserved in the placement groups ``rooms``."""
    import ray
    from ray.util import remove_placement_group

    if ray.is_initialized():
        for room in rooms:
            remove_placement_group(room)
