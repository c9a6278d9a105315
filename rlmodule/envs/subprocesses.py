"""Functions for env processes: terminate them when this process exits, close them, and find out how one ended."""

import ctypes
import functools
import logging
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from gymnasium.vector import AsyncVectorEnv, VectorEnv

from rlmodule.envs.checks import EnvError

T = TypeVar("T")

CLOSE_SECONDS = 8.0
"""Time in seconds that all envs of a vector env together may take to close."""
_AGAIN_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger("rlmodule.envs.make")


def follow_parent() -> None:
    """Make this process ignore Ctrl-C and, on Linux, SIGHUP, and terminate when its parent exits.

    A terminal sends Ctrl-C, and SIGHUP when it closes, to worker processes too, but only their parent may end them. On
    Linux the kernel kills this process when the parent exits, even if a signal that cannot be handled killed the
    parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def in_lasting_thread(make: Callable[[], T]) -> T:
    """Return ``make()``, which starts processes. Run it in a thread that lasts as long as this process. Otherwise, the
    kernel would kill processes that call :func:`follow_parent` when the *thread* that forked them exits."""
    if threading.current_thread() is threading.main_thread():
        return make()
    return _lasting_thread(os.getpid()).submit(make).result()


@functools.cache
def _lasting_thread(pid: int) -> ThreadPoolExecutor:
    """Return the executor of the thread in which :func:`in_lasting_thread` runs calls. There is one for each process
    ``pid``, because a forked process copies the cache of this function but not the thread."""
    return ThreadPoolExecutor(1, "env processes")


def is_broken(env: AsyncVectorEnv) -> bool:
    """Return whether any process of ``env`` has ended."""
    return None in env.parent_pipes or not all(p.is_alive() for p in env.processes)


def error_of_ended_process(env: AsyncVectorEnv, first_env_index: int, seeds: Sequence[int]) -> EnvError | None:
    """Return an error that names the env and the exit code or signal of the first process of ``env`` that ended without
    reporting an exception. Wait up to 1 s for a process to end. Return None if there is no such process.

    Args:
        env: A vector env, after sending to or receiving from one of its processes has failed.
        first_env_index: Index of its first env in the run.
        seeds: The seed of the last reset of each env.
    """
    ended = multiprocessing.connection.wait([process.sentinel for process in env.processes], timeout=1)
    for index, (process, pipe) in enumerate(zip(env.processes, env.parent_pipes, strict=True)):
        if process.sentinel in ended and pipe is not None:  # without a pipe: it sent its error before it ended
            process.join(1)
            code = process.exitcode or 0
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            text = (
                f"env {first_env_index + index}: expected a process that continues, got one that ended {how} (last "
                f"seed {seeds[index]}). See what it printed; mode 'sync' runs the env in this process."
            )
            return EnvError(text, {"env": first_env_index + index, "seed": seeds[index]})
    return None


def end_processes(env: AsyncVectorEnv, grace: float = 0.0) -> None:
    """End the processes of ``env``: ask them to close, and kill them after ``grace`` seconds.

    With a ``grace`` of 0, kill them at once. Use this after an interrupt that may have cut off a message to them.
    """
    pipes = [pipe for pipe in env.parent_pipes if pipe is not None]
    deadline = time.monotonic() + grace
    if grace:
        for pipe in pipes:
            with suppress(OSError):
                pipe.send(("close", None))
        for process in env.processes:
            process.join(max(0.0, deadline - time.monotonic()))
    for process in env.processes:
        process.kill()  # not terminate(): they inherit this process's handler of SIGTERM
    for process in env.processes:
        process.join()
    for pipe in pipes:
        pipe.close()
    env.closed = True


def close_vector_env(env: VectorEnv) -> None:
    """Close ``env`` and end all its processes, within about :data:`CLOSE_SECONDS`. Log errors instead of raising
    them."""
    inner = env.unwrapped
    if isinstance(inner, AsyncVectorEnv) and not inner.closed:
        end_processes(inner, CLOSE_SECONDS)
    close_in_time(env, type(inner).__name__)


def close_in_time(env: Any, name: str) -> None:
    """Call ``env.close()``, and log errors under ``name`` instead of raising them. After :data:`CLOSE_SECONDS`,
    :func:`alarm` interrupts the call with a TimeoutError."""
    try:
        with alarm(CLOSE_SECONDS, TimeoutError(f"not done in {CLOSE_SECONDS:g} s")):
            env.close()
    except Exception:
        logger.warning("%s: close() failed", name, exc_info=True)


@contextmanager
def alarm(seconds: float, error: BaseException) -> Iterator[None]:
    """Raise ``error`` in the block after ``seconds``, wherever the block is, and again in short intervals, in case its
    code catches the error. Alarms that others set ring later. Works only in the main thread, and not on Windows."""

    def interrupt(*_: Any) -> None:
        raise error

    with ExitStack() as undo:
        if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
            handler = signal.signal(signal.SIGALRM, interrupt)  # None if it was not set by Python
            undo.callback(signal.signal, signal.SIGALRM, handler or signal.SIG_DFL)
            timer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
            undo.callback(signal.setitimer, signal.ITIMER_REAL, *timer)
        yield
