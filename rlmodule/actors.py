"""Workers on Ray: a process each, on this machine or on others. The only file that imports Ray, and not before it must.

Workers are made, watched, and made again from here. A worker is a plain object; what it lives in is a :class:`_Host`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from catalog.errors import explain_error
from rlmodule.env_guard import EnvError
from rlmodule.last_words import LastWords, tell_last_words
from rlmodule.os_processes import Process, wait_for_end
from rlmodule.wire import check_portable, num_bytes, pack, unpack
from rlmodule.workers import MAX_IN_FLIGHT, Answer, Factory, Failure, WorkerFailed, WorkerGroup

OLDEST_RAY = (2, 55)
"""Before it, a Ray cluster could be taken over by a web page (CVE-2026-27482, CVE-2026-41486)."""

PLACING_TIMEOUT_S, SPAWNING_TIMEOUT_S = 20.0, 120.0
"""Seconds that a worker may wait for its CPUs and GPUs; and, where those are free, for a process, and then to be made:
a busy machine takes long to start one and import what it needs."""

STOP_TIMEOUT_S, KILL_TIMEOUT_S = 4.0, 1.0
"""Seconds that a worker has to close what it holds, and then to end by itself."""

INLINE_BYTES = 2**16
"""Up to so many bytes, what is shared goes along with each call: Ray's store would take longer than the copies."""

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
"""Seconds before the first restart in a row, which grow threefold from one to the next, and the most they become."""

LONGEST_TEXT = 20_000
"""Characters of an error that are sent."""

logger = logging.getLogger(__name__)


def start_ray() -> None:
    """Connect to Ray, or start it on this machine, unless that was done: as ``RAY_ADDRESS`` says.

    Raises:
        ImportError: If Ray is missing or too old.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version == "none" or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        remedy = f'Run: pip install "ray>={oldest}", or set num_env_runners=0 and num_learners=0.'
        raise ImportError(explain_error("ray", expected=f"version {oldest} or later", got=version, remedy=remedy))
    import ray

    if not ray.is_initialized():
        # not what Ray finds running on this machine, which may be somebody else's
        ray.init(os.environ.get("RAY_ADDRESS", "local"), include_dashboard=False, logging_level=logging.ERROR)


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

    present = ray.cluster_resources()
    for name, number in asked.items():
        if number > present.get(name, 0.0) + 1e-9:
            remedy = f"Ask for less, or begin with ray.init(num_{name.lower()}s={number:g}), as if there were so many."
            expected, got = f"at most the {present.get(name, 0.0):g} {name}s of the cluster", f"{number:g} {name}s"
            raise ValueError(explain_error(settings, expected=expected, got=got, remedy=remedy))
    for one in each:
        if not _fits_a_node(one):
            there = "; ".join(sorted({_listed(node, one) for node in _nodes()}))
            expected, got = f"workers that each fit on one node: {there}", f"one with {_listed(one, one)}"
            remedy = "Ask for less for each, or add a larger node."
            raise ValueError(explain_error(settings, expected=expected, got=got, remedy=remedy))


def _nodes() -> list[Mapping[str, float]]:
    """What each node has that is there, whether free or not."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _fits_a_node(asked: Mapping[str, float]) -> bool:
    return any(all(number <= node.get(name, 0.0) + 1e-9 for name, number in asked.items()) for node in _nodes())


def _listed(numbers: Mapping[str, float], asked: Mapping[str, float]) -> str:
    return ", ".join(f"{numbers.get(name, 0.0):g} {name}s" for name, number in asked.items() if number)


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


_Reply = list[Any]
"""Why there is no value, or None; whether the worker got on; and the value, packed."""


class _Host:
    """What a worker lives in. Its methods run one after the other, but for those of the group ``control``, which run
    beside them."""

    _worker: Any = None

    def settle(self, last_words: str) -> tuple[Process, str, str]:
        """Tell of the end of this process in a file; returns it, its node, and the address of that."""
        import ray

        tell_last_words(last_words)
        return Process.this(), ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def make(self, factory: list[Any], index: int, incarnation: int, num_threads: int) -> _Reply:
        """Make the worker, in place of one that raised if there is one."""
        torch.set_num_threads(num_threads)
        try:
            if self._worker is not None:
                failed, self._worker = self._worker, None
                failed.stop()
                del failed
            self._worker = unpack(factory)(index, incarnation)
        except BaseException as error:
            return [_failure(error), False]
        return [None, False, *pack(None)]

    def call(self, method: str, args: list[Any], *shared: Any) -> _Reply:
        """Call a method; ``shared`` are further arguments, packed each for itself."""
        try:
            before = self._worker.progress
            positional, by_keyword = unpack(args)
            more = [unpack(packed) for packed in shared]
            value = pack(getattr(self._worker, method)(*positional, *more, **by_keyword))
            return [None, self._worker.progress != before, *value]
        except BaseException as error:  # also sys.exit(): the process is not the worker's to end
            return [_failure(error), False]

    def progress(self) -> int:
        """A number that changes as long as the worker gets on."""
        return self._worker.progress


def _failure(error: BaseException) -> Failure:
    name, place = type(error).__name__, {}
    try:
        message = str(error) or "(no message)"
    except Exception:  # an exception of its own class need not have a proper text
        message = "(no message: its __str__ raises)"
    told = "".join(traceback.format_exception(error))
    if isinstance(error, EnvError):
        place, told = error.place, ""  # its text has the traceback that counts
    return Failure("raised", name, message[:LONGEST_TEXT], told[-LONGEST_TEXT:], place)


@dataclass
class _Call:
    """A call that was made.

    Attributes:
        reply: Reference to what :meth:`_Host.call` returns.
    """

    ticket: int
    reply: Any


@dataclass
class _Slot:
    """One worker's place in the group.

    Attributes:
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
        last_words: What its process tells of its end.
    """

    host: Any = None
    incarnation: int = -1
    calls: deque[_Call] = field(default_factory=deque)
    making: _Call | None = None
    placed: Any = None
    process: Process | None = None
    address: str = ""
    failures: int = 0
    restart_at: float | None = None
    gone: bool = False
    asked: Any = None
    progress: int | None = None
    sign_of_life_at: float = 0.0
    last_words: LastWords | None = None


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

    shares_memory = False

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
        self._actor: Any = ray.remote(**options)(_Host)
        self._here = ray.get_runtime_context().get_node_id()
        self._slots = [_Slot() for _ in range(size)]
        self._tickets = 0
        self._watched_at = time.monotonic()
        self._stopped = False
        LastWords.remove_leftovers()
        try:
            for worker in range(size):
                self._spawn(worker)
            self._wait_for_first()
        except BaseException:
            self.stop()
            raise

    # --- what a caller asks -------------------------------------------------------------------------------------------

    def is_up(self, worker: int) -> bool:
        slot = self._slots[worker]
        return slot.host is not None and slot.making is None and slot.restart_at is None

    def is_gone(self, worker: int) -> bool:
        return self._slots[worker].gone

    def in_flight(self, worker: int) -> int:
        return len(self._slots[worker].calls)

    def incarnation(self, worker: int) -> int:
        return self._slots[worker].incarnation

    def pids(self) -> list[int | None]:
        """The processes of the workers; None for those that have none, or none on this machine."""
        return [None if slot.process is None else slot.process.pid for slot in self._slots]

    @property
    def address(self) -> str:
        """Where the others find the first worker: nowhere else than on this machine, if all are on it."""
        return "127.0.0.1" if None not in self.pids() else self._slots[0].address

    def submit(self, worker: int, method: str, *args: Any, shared: Any = None, **kwargs: Any) -> int:
        slot = self._slots[worker]
        if not self.is_up(worker) or len(slot.calls) >= MAX_IN_FLIGHT:
            raise RuntimeError(f"{self.name} {worker} takes no call now: ask is_up() and in_flight() first")
        if not slot.calls:
            slot.sign_of_life_at = time.monotonic()
        refs = ()
        if shared is not None:
            self.num_bytes_shared += shared.num_bytes
            refs = (shared.ref,)
        slot.calls.append(self._remote(slot.host.call, method, pack((args, kwargs)), *refs))
        return self._tickets

    def _remote(self, method: Any, *args: Any) -> _Call:
        self._tickets += 1
        return _Call(self._tickets, method.remote(*args))

    def share(self, value: Any) -> _Shared:
        import ray

        packed = pack(value)
        size = num_bytes(packed)
        return _Shared(packed if size <= INLINE_BYTES else ray.put(packed), size)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float | None) -> list[Answer]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._note_watching()
            self._spawn_due()
            answers, came_up = self._take_ready(self._seconds_to_wait(deadline))
            answers += self._give_up_hung()
            expects = any(slot.calls or slot.making or slot.restart_at is not None for slot in self._slots)
            if answers or came_up or not expects or (deadline is not None and time.monotonic() >= deadline):
                return answers

    def _note_watching(self) -> None:
        """What nobody saw while nobody looked proves nothing."""
        now = time.monotonic()
        away, self._watched_at = now - self._watched_at, now
        if away > 2 * self._poll_s:
            for slot in self._slots:
                slot.sign_of_life_at = min(now, slot.sign_of_life_at + away)

    def _seconds_to_wait(self, deadline: float | None) -> float:
        now = time.monotonic()
        until = [now + self._poll_s, *([] if deadline is None else [deadline])]
        until += [slot.restart_at for slot in self._slots if slot.restart_at is not None]
        return max(0.0, min(until) - now)

    def _take_ready(self, timeout: float) -> tuple[list[Answer], bool]:
        """Answers that came within ``timeout``, and whether a worker came up."""
        import ray

        # a worker answers in order: only its oldest call need be looked at
        oldest = {
            (slot.making or slot.calls[0]).reply: i for i, slot in enumerate(self._slots) if slot.making or slot.calls
        }
        if not oldest:
            time.sleep(timeout)
            return [], False
        ready, _ = ray.wait([*oldest], num_returns=1, timeout=timeout)
        if ready and len(oldest) > 1:
            ready, _ = ray.wait([*oldest], num_returns=len(oldest), timeout=0)
        answers: list[Answer] = []
        came_up = False
        for worker in (oldest[ref] for ref in ready):
            if self._slots[worker].making is None:
                answers += self._finish_call(worker)
            elif failed := self._finish_making(worker):
                answers += failed
            else:
                came_up = True
        return answers, came_up

    def _finish_call(self, worker: int) -> list[Answer]:
        slot = self._slots[worker]
        call = slot.calls[0]
        slot.sign_of_life_at = time.monotonic()
        value, failure, got_on = self._value_of(slot, call)
        if failure is not None and failure.kind == "died":
            return self._lose(worker, failure)
        slot.calls.popleft()
        if got_on:
            slot.failures = 0
        return [Answer(worker, call.ticket, value, failure)]

    def _finish_making(self, worker: int) -> list[Answer]:
        slot = self._slots[worker]
        assert slot.making is not None
        _, failure, _ = self._value_of(slot, slot.making)
        if failure is not None:
            return self._lose(worker, failure)
        self._note_place(slot)
        slot.making = None
        return []

    def _note_place(self, slot: _Slot) -> None:
        """Note where a process is that has begun."""
        import ray

        if slot.placed is not None:
            process, node, slot.address = ray.get(slot.placed)
            slot.process = process if node == self._here else None
            slot.placed = None
        slot.sign_of_life_at = time.monotonic()

    def _value_of(self, slot: _Slot, call: _Call) -> tuple[Any, Failure | None, bool]:
        """What a call came to, why to nothing, and whether the worker got on."""
        import ray
        from ray.exceptions import OutOfMemoryError, RayActorError, RayError

        try:
            failure, got_on, *value = ray.get(call.reply, timeout=self._timeout_s)
        except OutOfMemoryError as error:
            return None, Failure("died", type(error).__name__, str(error)), False
        except RayActorError as error:
            return None, Failure("died", type(error).__name__, _how_it_died(slot, error)), False
        except RayError as error:  # the answer is lost, whatever became of the process
            return None, Failure("died", type(error).__name__, _first_line(error)), False
        try:
            return (unpack(value) if failure is None else None), failure, got_on
        except Exception as error:  # such as of a class that cannot be made again
            return None, _failure(error), False

    def _give_up_hung(self) -> list[Answer]:
        """End workers that make no progress, or find no room; asks those that are busy how far they are."""
        import ray
        from ray.exceptions import RayError

        answers: list[Answer] = []
        for worker, slot in enumerate(self._slots):
            if slot.host is None or not (slot.calls or slot.making):
                continue
            now = time.monotonic()
            if slot.placed is not None:
                if ray.wait([slot.placed], timeout=0)[0]:
                    with contextlib.suppress(RayError):  # of which the making will tell
                        self._note_place(slot)
                elif (waited := now - slot.sign_of_life_at) > PLACING_TIMEOUT_S and (
                    waited > SPAWNING_TIMEOUT_S or not self._is_room()
                ):
                    answers += self._lose(worker, self._no_room())
                continue
            if slot.asked is not None and ray.wait([slot.asked], timeout=0)[0]:
                with contextlib.suppress(RayError):  # of which the call itself will tell
                    progress: Any = ray.get(slot.asked)
                    if slot.progress not in (None, progress):
                        slot.sign_of_life_at = now
                    slot.progress = progress
                slot.asked = None
            timeout_s = self._timeout_s if slot.making is None else max(self._timeout_s, SPAWNING_TIMEOUT_S)
            if now - slot.sign_of_life_at > timeout_s:
                message = f"no progress for {timeout_s:g} s"
                answers += self._lose(worker, Failure("hung", "TimeoutError", message))
            elif slot.asked is None and slot.making is None and now - slot.sign_of_life_at > self._poll_s / 2:
                slot.asked = slot.host.progress.options(concurrency_group="control").remote()
        return answers

    def _is_room(self) -> bool:
        """Whether there seems to be: Ray tells not what is free on one node."""
        import ray

        if not _fits_a_node(self._resources):
            return False
        free = ray.available_resources()
        return all(number <= free.get(name, 0.0) + 1e-9 for name, number in self._resources.items())

    def _no_room(self) -> Failure:
        import ray

        asked = _listed(self._resources, self._resources)
        free, present = ray.available_resources(), ray.cluster_resources()
        named = [name for name, number in self._resources.items() if number]
        there = ", ".join(f"{free.get(name, 0.0):g} of {present.get(name, 0.0):g} {name}s" for name in named)
        message = f"no room or process in time: it asks for {asked}, and {there} are free"
        return Failure("unplaced", "TimeoutError", message)

    # --- making, ending and making again ------------------------------------------------------------------------------

    def _spawn(self, worker: int, incarnation: int | None = None) -> None:
        slot = self._slots[worker]
        slot.incarnation = slot.incarnation + 1 if incarnation is None else incarnation
        slot.restart_at, slot.progress, slot.sign_of_life_at = None, None, time.monotonic()
        if slot.host is None:
            slot.last_words = LastWords()
            slot.host = self._actor.remote()
            slot.placed = slot.host.settle.options(concurrency_group="control").remote(slot.last_words.path)
        slot.making = self._remote(slot.host.make, self._factory, worker, slot.incarnation, self._num_threads)

    def _spawn_due(self) -> None:
        for worker, slot in enumerate(self._slots):
            if slot.restart_at is not None and slot.restart_at <= time.monotonic():
                self.num_restarts += 1
                self._spawn(worker)

    def _wait_for_first(self) -> None:
        while not all(self.is_up(worker) for worker in range(self.size)):
            for answer in self._collect(None):
                assert answer.failure is not None  # since nothing was called
                if answer.failure.final or answer.failure.kind != "died":
                    raise WorkerFailed(f"{self.name} {answer.worker}", answer.failure, "Mend what it says.")

    def _lose(self, worker: int, failure: Failure) -> list[Answer]:
        """End a worker that failed; what it had to do has failed too, and it is made again later, or never."""
        slot = self._slots[worker]
        tickets = [call.ticket for call in slot.calls] or [0]
        slot.failures += 1
        delay = self._policy.delay_after(slot.failures)
        # the first time that a worker raises, its process is still good for another one
        if failure.kind != "raised" or slot.failures > 1 or delay is None or not self.is_up(worker) or slot.calls:
            self._end(slot, at_once=failure.kind != "raised")
        slot.gone = delay is None
        slot.restart_at = None if delay is None else time.monotonic() + delay
        failure = replace(failure, final=slot.gone)
        again = "" if delay is None else f"; another one is made in {delay:.1g} s"
        logger.warning("%s %d: %s: %s%s", self.name, worker, failure.type, failure.message, again)
        return [Answer(worker, ticket, failure=failure) for ticket in tickets]

    def restart_later(self, worker: int, failure: Failure) -> Failure:
        return (self._lose(worker, failure)[0].failure) or failure

    def restart(self, worker: int, incarnation: int | None = None) -> None:
        slot = self._slots[worker]
        self._end(slot, at_once=True)
        slot.gone = False
        self.num_restarts += 1
        self._spawn(worker, incarnation)

    def _end(self, slot: _Slot, at_once: bool = False) -> None:
        """Have the process killed, and forget what it had to do."""
        import ray

        if slot.host is None:
            return
        ray.kill(slot.host, no_restart=True)
        if slot.process is not None and at_once:
            slot.process.kill()  # who is stopped, or never looks up, does not hear Ray
            wait_for_end([slot.process], KILL_TIMEOUT_S)  # so that what it counted stays as it is
        slot.host, slot.making, slot.placed, slot.asked, slot.process = None, None, None, None, None
        slot.calls.clear()
        if slot.last_words is not None:
            slot.last_words.close()
            slot.last_words = None

    def stop(self) -> None:
        import ray

        if self._stopped:
            return
        self._stopped = True
        if not ray.is_initialized():  # who ended Ray ended them
            return
        up = [slot for slot in self._slots if slot.host is not None and slot.making is None]
        if up:
            closing = [self._remote(slot.host.call, "stop", pack(((), {}))).reply for slot in up]
            ray.wait(closing, num_returns=len(closing), timeout=STOP_TIMEOUT_S)
        processes = [slot.process for slot in self._slots if slot.process is not None]
        for slot in self._slots:
            self._end(slot)
        for process in wait_for_end(processes, KILL_TIMEOUT_S):
            process.kill()


def _first_line(error: Exception) -> str:
    """What Ray says first; of what was raised in a worker it is the end that says what."""
    from ray.exceptions import RayTaskError

    lines = str(error).strip().splitlines() or ["(no message)"]
    return lines[-1 if isinstance(error, RayTaskError) else 0].strip()[:LONGEST_TEXT]


def _how_it_died(slot: _Slot, error: Exception) -> str:
    """What is known of the end of a process that was not ours to wait for."""
    if slot.process is None and slot.placed is None:  # on another machine
        return f"its process ended ({(str(error).splitlines() or [''])[-1].strip()})"
    told = "" if slot.last_words is None else slot.last_words.read()
    return f"its process ended by {told or 'SIGKILL, as the system sends it when memory runs out, or the like'}"


@dataclass(frozen=True)
class _Shared:
    """Something packed: a reference to it in Ray's store, or if it is small itself."""

    ref: Any
    num_bytes: int
