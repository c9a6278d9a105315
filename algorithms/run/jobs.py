"""Run commands in processes of their own, several at a time."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Self

from algorithms.run.session import stop_requests, write_in_handler
from catalog_rl import PACKAGES

if TYPE_CHECKING:
    from algorithms.config import AlgorithmConfig

Item = TypeVar("Item")

_STOPPED = "\nStopped by Ctrl-C: runs finish their iteration and save. Ctrl-C again stops at once, without saving.\n"


@dataclass(eq=False)
class Job:
    """A command in a process.

    Attributes:
        name: Name of the job, for its lines.
        process: The process.
        started: Time of the start, by ``perf_counter()``.
        seconds: Wall time of the command, once it has ended.
        last_line: The last line that it printed, if its output is read.
    """

    name: str
    process: subprocess.Popen[str]
    started: float = field(default_factory=perf_counter)
    seconds: float = 0.0
    last_line: str = ""

    @property
    def exit_code(self) -> int | None:
        """The exit code; negative for a signal that killed the process, None while it runs."""
        return self.process.returncode


class Jobs:
    """Runs commands in other processes. Each has a new session, so that a terminal sends Ctrl-C to this process alone.
    On the first Ctrl-C or SIGTERM, this process asks the others to finish their iteration and save. On a second
    Ctrl-C, it kills them. If this process dies, the others save and end.

    A context manager: the processes that still run at its end are asked to save, and waited for.

    Args:
        most: How many to run at the same time. With more than one, each computes on one thread.
        on_line: Called with a job's name and each line that it prints, in a thread of the job. None lets the job print
            to this process's terminal.
        program: The module whose ``main(args)`` is the command. The default is ``rlmodule``.

    Attributes:
        running: The jobs that run.
        stopped_by: The signal that asked to stop; None if there was none.
    """

    def __init__(
        self,
        most: int,
        on_line: Callable[[str, str], None] | None = None,
        program: str = "algorithms.cli.main",
    ) -> None:
        self.most, self._on_line, self._program = most, on_line, program
        self.running: list[Job] = []
        self.stopped_by: signal.Signals | None = None
        self._ended: queue.Queue[Job] = queue.Queue()
        self._requests = stop_requests(self._on_signal)

    def __enter__(self) -> Self:
        self._requests.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        try:
            for job in self.running:
                job.process.terminate()
            while self.running:
                self.wait()
        finally:
            self._requests.__exit__(*exc_info)

    @property
    def has_room(self) -> bool:
        """Whether another job may start: fewer than ``most`` run, and no signal asked to stop."""
        return len(self.running) < self.most and self.stopped_by is None

    def start(self, name: str, args: Sequence[str]) -> Job:
        """Start the command with ``args``, and return its job."""
        # Pass on where Python finds modules, which depends on how this process was started.
        code = (
            f"import sys; sys.path[:] = {[*map(str, sys.path)]}; from algorithms.run.jobs import end_with_parent; "
            f"end_with_parent(); from {self._program} import main; sys.exit(main({[*args]}))"
        )
        threads = {"OMP_NUM_THREADS": "1"} if self.most > 1 else {}  # jobs at the same time share the cores
        output = None if self._on_line is None else subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,  # which closes when this process ends
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=os.environ | threads,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        job = Job(name, process)
        self.running.append(job)
        if self.stopped_by is not None:  # the signal came before the job was among those that run
            process.terminate()
        threading.Thread(target=self._follow, args=(job,), daemon=True).start()
        return job

    def run_all(self, items: Iterable[Item], start: Callable[[Item], Job]) -> Iterator[tuple[Item, Job]]:
        """Call ``start``, which starts a job, for each of ``items``, as soon as there is room. Yield each item with its
        job when that has ended. After a signal, start no more."""
        waiting, item_of = list(items), dict[Job, Item]()
        while item_of or (waiting and self.has_room):
            while waiting and self.has_room:
                item = waiting.pop(0)
                item_of[start(item)] = item
            for job in self.wait():
                yield item_of.pop(job), job

    def wait(self, timeout: float | None = None) -> list[Job]:
        """Wait until a job ends, or for ``timeout`` seconds. Return the job that has ended, which no longer runs, in a
        list, which is empty if none has."""
        try:
            job = self._ended.get(timeout=timeout)
        except queue.Empty:
            return []
        self.running.remove(job)
        return [job]

    def _follow(self, job: Job) -> None:
        """Read the output of ``job`` until it ends."""
        with job.process:
            for line in filter(str.strip, job.process.stdout or ()):
                job.last_line = line.rstrip()
                if self._on_line is not None:
                    self._on_line(job.name, job.last_line)
            job.process.wait()  # before the block closes stdin, which would stop a process that is about to end
        job.seconds = perf_counter() - job.started
        self._ended.put(job)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.stopped_by is not None
        self.stopped_by = self.stopped_by or signal.Signals(number)
        if number == signal.SIGINT and not again:
            write_in_handler(_STOPPED)
        for job in [*self.running]:
            if again and number == signal.SIGINT:
                job.process.kill()
            elif not again:
                job.process.terminate()


def allow_flag(config: AlgorithmConfig) -> list[str]:
    """Return the words of the flag ``--allow`` with the modules that a checkpoint of ``config`` needs: modules that
    settings name, and the module of a custom config class. Return an empty list if it needs no modules."""
    needed = dict.fromkeys([*config.modules_to_allow(), type(config).__module__])
    modules = [name for name in needed if name.partition(".")[0] not in PACKAGES]
    return ["--allow", *modules] if modules else []


# --- in the process of a job ------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """From now on, wait in a thread until the process that started this one has ended. Then send SIGTERM to this
    process, so that its run saves and ends."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    sys.stdin.read()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # stdout and stderr may be pipes to the process that has ended
        os.dup2(nowhere, stream)
    os.kill(os.getpid(), signal.SIGTERM)
