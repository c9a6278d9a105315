"""RayWorkers: starts objects in other processes, calls them by index, and restarts those that fail.

Each worker is in its own Ray actor, a :class:`RayActor`, on this machine or on another machine of the cluster.
"""

import contextlib
import logging
import math
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil

from rlmodule.distributed.failures import Failure, WorkerFailed
from rlmodule.distributed.interrupts import interruptible, uninterrupted
from rlmodule.distributed.processes import remove_leftovers
from rlmodule.distributed.ray_actor import RayActor, get_registered
from rlmodule.distributed.ray_cluster import check_resources, free, reserve
from rlmodule.distributed.ray_process import KILL_TIMEOUT_S, RayProcess
from rlmodule.distributed.resources import no_room, room_remedy
from rlmodule.distributed.restarts import RestartPolicy, WorkerAccounts
from rlmodule.distributed.serialization import check_portable, num_bytes, pack

# Largest number of unanswered calls of a worker: one that runs, and one that waits, so that no worker is idle.
MAX_IN_FLIGHT = 2

# Seconds in which Ray must reserve a worker's CPUs and GPUs, and seconds in which its process must start, which is also
# the least time limit for building the worker. A busy machine is slow to start a process and to import packages.
PLACING_TIMEOUT_S, SPAWNING_TIMEOUT_S = 20.0, 120.0

# Seconds in which a worker must return from `stop()`.
STOP_TIMEOUT_S = 4.0

logger = logging.getLogger(__name__)


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
        restarts: Decides which of the workers that fail are restarted.
        accounts: The record in which restarts and bytes of shared arguments are counted.

    Attributes:
        accounts: See the argument.
        seconds_waited: Total seconds in :meth:`collect`, and in :func:`wait_for_any` for these workers.

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
        restarts: RestartPolicy,
        accounts: WorkerAccounts,
    ) -> None:
        self.name, self.size = name, size
        self.accounts, self._restarts = accounts, restarts
        self.seconds_waited = 0.0
        self._resources = {"CPU": num_cpus, "GPU": num_gpus}
        check_resources(f"{size} {name}s", (size, self._resources))
        import ray

        registered = get_registered()
        check_portable(name, factory)
        check_portable(f"{name}, what is registered", registered)
        self._factory = pack((factory, registered))
        self._num_threads = num_threads or max(1, int(num_cpus))
        self._timeout_s, self._poll_s = timeout_s, min(1.0, timeout_s / 4)
        options: Any = {"num_cpus": num_cpus, "num_gpus": num_gpus, "concurrency_groups": {"control": 1}}
        kind = type(name.title().replace(" ", ""), (RayActor,), {})  # Ray names the process after it
        self._actor_class: Any = ray.remote(**options)(kind)
        rooms = [reserve(self._resources) for _ in range(size)]
        self._processes = [RayProcess(room) for room in rooms]
        self._give_back = weakref.finalize(self, free, rooms)
        self._give_back.atexit = False  # when Python exits, Ray frees the rooms itself
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
        while not all(process.is_up for process in self._processes):
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
        return self._processes[worker].is_up

    def is_gone(self, worker: int) -> bool:
        """Return whether the worker failed and will not be restarted."""
        return self._processes[worker].is_gone

    def in_flight(self, worker: int) -> int:
        """Return the number of unanswered calls of the worker; 0 if it is not built yet."""
        process = self._processes[worker]
        return len(process.calls) if process.is_made else 0

    def incarnation(self, worker: int) -> int:
        """Return the number of times the worker was restarted."""
        return self._processes[worker].incarnation

    def raise_incarnation(self, worker: int, least: int) -> int:
        """Raise the worker's number of restarts to ``least`` if it is lower, and return the number.

        A run that continues from a checkpoint calls this method, so as not to repeat the random streams of earlier
        incarnations.
        """
        process = self._processes[worker]
        process.incarnation = max(process.incarnation, least)
        return process.incarnation

    def pids(self) -> list[int | None]:
        """Return the process ids of the workers; None for a worker without a process on this machine."""
        return [None if process.local is None else process.local.pid for process in self._processes]

    @property
    def address(self) -> str:
        """The address at which the other workers reach worker 0; 127.0.0.1 if all workers are on one machine."""
        addresses = {process.address for process in self._processes}
        return "127.0.0.1" if len(addresses) == 1 else self._processes[0].address

    def submit(self, worker: int, method: str, *args: Any, shared: Any = None) -> int:
        """Call a method of a worker without waiting for the answer. A worker answers its calls in the order of
        submission. If one of them raises, those that were submitted before its answer is collected are not executed
        and get no answer.

        Args:
            worker: Index of the worker; it must be up, with fewer than ``MAX_IN_FLIGHT`` unanswered calls.
            method: Name of the method.
            *args: Arguments of the method.
            shared: A value that :meth:`share` prepared; it becomes the last argument.

        Returns:
            The size of the packed ``args`` in bytes.

        Raises:
            RuntimeError: If the worker is not up, or has too many unanswered calls.
        """
        process = self._processes[worker]
        if not process.is_up or len(process.calls) >= MAX_IN_FLIGHT:
            raise RuntimeError(
                f"RayWorkers.submit(): expected a worker that takes a call now, got {self.name} {worker}, which does "
                "not. Check is_up() and in_flight() first."
            )
        with uninterrupted():
            refs = () if shared is None else (self._ref_of(shared),)
            packed = pack(args)
            process.call(method, packed, *refs)
        return num_bytes(packed)

    def post(self, worker: int, shared: _Shared) -> None:
        """Pass a value that :meth:`share` prepared to the method ``receive()`` of a worker before it executes another
        call, even one that was submitted before. Do not wait for it. The worker must be up. It does not get messages
        that are replaced by a later one in the meantime."""
        self._processes[worker].actor.post.options(concurrency_group="control").remote(self._ref_of(shared))

    def _ref_of(self, shared: _Shared) -> Any:
        """Return the reference to a shared value, to send it to a worker, and count its bytes."""
        self.accounts.num_bytes_shared += shared.num_bytes
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
            start = time.monotonic()
            with uninterrupted():
                self._kept += self._collect(timeout)
            self.seconds_waited += time.monotonic() - start
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

    def wait_until_up(self, workers: Collection[int] | None = None, *, timeout: float = math.inf) -> None:
        """Wait until the workers, by default all, are up and have answered all calls, or are gone, for up to
        ``timeout`` seconds. Answers that arrive in the meantime are kept for :meth:`collect`."""
        deadline = time.monotonic() + timeout
        with uninterrupted():
            for worker in range(self.size) if workers is None else workers:
                while not self.is_gone(worker) and (not self.is_up(worker) or self.in_flight(worker)):
                    if (left := deadline - time.monotonic()) <= 0:
                        return
                    self._kept += self._collect(left)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float | None) -> list[Answer]:
        """Wait for new answers and return them, as :meth:`collect` does, but ignore those that :meth:`keep` stored.

        Ctrl-C can interrupt only the wait. Answers are taken from the workers after the wait, so none is lost.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._forgive_unwatched_time()
            self._spawn_due()
            until_due = self._seconds_until_due()
            ready = self._wait(until_due if deadline is None else min(until_due, max(0.0, deadline - time.monotonic())))
            answers = [answer for worker in ready for answer in self._take_reply(worker)]
            answers += self._give_up_hung()
            expects = any(process.calls or process.restart_at is not None for process in self._processes)
            if answers or ready or not expects or (deadline is not None and time.monotonic() >= deadline):
                return answers

    def _forgive_unwatched_time(self) -> None:
        """Do not count the time in which the caller was not collecting answers as time without progress."""
        now = time.monotonic()
        away, self._watched_at = now - self._watched_at, now
        if away > 2 * self._poll_s:
            for process in self._processes:
                process.sign_of_life_at = min(now, process.sign_of_life_at + away)

    def _seconds_until_due(self) -> float:
        """Return the seconds until a worker must be restarted, or must be checked for progress."""
        now = time.monotonic()
        restarts = [process.restart_at for process in self._processes if process.restart_at is not None]
        return max(0.0, min([now + self._poll_s, *restarts]) - now)

    def _awaited(self) -> dict[Any, int]:
        """Return the reply to the oldest call of each worker that has one, with the worker. A worker answers in order,
        so no later call of it can be answered yet."""
        return {process.calls[0]: worker for worker, process in enumerate(self._processes) if process.calls}

    def _wait(self, timeout: float) -> list[int]:
        """Return the workers whose oldest call is answered. Wait for the first such worker for up to ``timeout``
        seconds."""
        import ray

        oldest = self._awaited()
        with interruptible():
            if not oldest:
                time.sleep(timeout)
                return []
            ready, _ = ray.wait([*oldest], num_returns=1, timeout=timeout)
        if ready and len(oldest) > 1:
            ready, _ = ray.wait([*oldest], num_returns=len(oldest), timeout=0)
        return [oldest[ref] for ref in ready]

    def _take_reply(self, worker: int) -> list[Answer]:
        """Return the answer to the worker's oldest call. If the worker is lost, return an answer with the failure for
        each of its calls.

        If the oldest call is the one that builds the worker, its reply is not an answer, and the list is empty.
        """
        process = self._processes[worker]
        failure, made_progress, value = process.read_reply(self._timeout_s)
        # The worker is already executing the call behind a reply that cannot be read. Only when its process has ended
        # does its step counter say what both calls have cost.
        if failure is not None and (failure.kind == "died" or not process.is_made or len(process.calls) > 1):
            return self._lose(worker, failure)
        process.calls.popleft()
        process.sign_of_life_at = time.monotonic()
        if not process.is_made:
            if not process.address:
                process.read_report()
            process.is_made = True
            return []
        if made_progress:
            self._restarts.forgive(worker)
        return [Answer(worker, value, failure)]

    def _give_up_hung(self) -> list[Answer]:
        """End the workers that made no progress, or got no room on the cluster, for too long. Ask busy workers for
        their progress.

        Returns:
            An answer with the failure for each unanswered call of the workers that were ended.
        """
        import ray
        from ray.exceptions import RayError

        answers: list[Answer] = []
        for worker, process in enumerate(self._processes):
            if not process.calls:
                continue
            if process.asked is not None and ray.wait([process.asked], timeout=0)[0]:
                with contextlib.suppress(RayError):  # the calls of such a process fail too, and report why
                    process.read_report()
            waited = time.monotonic() - process.sign_of_life_at
            timeout_s = self._timeout_s if process.is_made else max(self._timeout_s, SPAWNING_TIMEOUT_S)
            if not process.address and waited > PLACING_TIMEOUT_S and not process.has_room:
                message = no_room(self._resources, free=ray.available_resources(), present=ray.cluster_resources())
                answers += self._lose(worker, Failure("unplaced", "TimeoutError", message))
            elif waited > timeout_s:
                answers += self._lose(worker, process.hang(timeout_s))
            elif process.asked is None and process.is_made and waited > self._poll_s / 2:
                process.ask_for_report()
        return answers

    # --- starting, restarting and ending ------------------------------------------------------------------------------

    def _spawn(self, worker: int) -> None:
        """Build the worker's next incarnation: in its process if that still runs, otherwise in a new process."""
        process = self._processes[worker]
        if process.actor is None:
            process.start(self._actor_class, f"{self.name} {worker}".replace(" ", "_"))
        process.make(self._factory, worker, self._num_threads)

    def _spawn_due(self) -> None:
        """Restart the workers whose restart delay is over."""
        for worker, process in enumerate(self._processes):
            if process.restart_at is not None and process.restart_at <= time.monotonic():
                self.accounts.num_restarts += 1
                self._spawn(worker)

    def restart(self, worker: int, delay: float = 0.0) -> None:
        """End the worker's process, drop the worker's calls, and start the worker again after ``delay`` seconds."""
        process = self._processes[worker]
        with uninterrupted():
            process.end(at_once=True)
            process.is_gone = False
            process.restart_at = time.monotonic() + delay
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
        process = self._processes[worker]
        num_answers = max(1, len(process.calls))
        delay = self._restarts.delay_after_failure(worker)
        if not self._is_built and failure.kind != "died":
            delay = None  # what cannot be built raises again
        is_first = self._restarts.failures[worker] == 1
        # After the first error in a row, the next worker is built in the same process, which saves the start of one.
        is_idle = failure.kind == "raised" and process.is_up and not process.calls
        if not (is_idle and is_first) or delay is None:
            process.end(at_once=not is_idle)
        process.is_gone = delay is None
        process.restart_at = None if delay is None else time.monotonic() + delay
        failure = replace(failure, final=process.is_gone)
        if self._is_built or not failure.final:  # a failure that ends build() is in the error of build()
            again = "" if delay is None else f"; it restarts in {delay:.2g} s"
            again += ", in a new process" if again and process.actor is None else ""
            text = f"{failure.text}\n\n{failure.traceback}".strip()
            if not is_first:  # the first failure was logged with its traceback
                text = failure.text.partition("\n")[0]
            logger.warning("%s %d failed%s: %s", self.name, worker, again, text)
        return [Answer(worker, failure=failure)] * num_answers

    def stop(self) -> None:
        """Call ``stop()`` of every worker, and end the processes. A second call does nothing."""
        import ray

        if self._give_back.alive and ray.is_initialized():  # ray.shutdown() ends the processes, too
            made = [process.actor for process in self._processes if process.is_made]
            closing = [actor.call.remote(math.inf, "stop", pack(())) for actor in made]  # whatever raised before
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=STOP_TIMEOUT_S)
            running = [process.local for process in self._processes if process.local is not None]
            for process in self._processes:
                process.end()
            for still_running in psutil.wait_procs(running, KILL_TIMEOUT_S)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    still_running.kill()
        self._give_back()  # does nothing if it was called before


def wait_for_any(workers: RayWorkers, *others: RayWorkers) -> None:
    """Wait until a worker of any kind has answered, or must be restarted or checked. Take no answer: call
    :meth:`RayWorkers.collect` of each kind afterwards, with a timeout of 0.

    Args:
        workers: The workers for which the caller waits, in whose ``seconds_waited`` the wait counts.
        *others: Workers of other kinds, whose answers end the wait as well.
    """
    import ray

    kinds = (workers, *others)
    awaited = [reply for kind in kinds for reply in kind._awaited()]
    timeout, start = min(kind._seconds_until_due() for kind in kinds), time.monotonic()
    try:
        if awaited:
            ray.wait(awaited, num_returns=1, timeout=timeout)
        else:
            time.sleep(timeout)
    finally:
        workers.seconds_waited += time.monotonic() - start
