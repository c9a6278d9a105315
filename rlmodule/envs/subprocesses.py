"""The processes of envs: they end with ours, can always be closed, and it can be told how one ended."""

import ctypes
import functools
import logging
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from gymnasium.vector import AsyncVectorEnv, VectorEnv

from rlmodule.envs.checks import EnvError

T = TypeVar("T")

CLOSE_SECONDS = 8.0
"""How long envs may take to close, all together."""
_AGAIN_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger("rlmodule.envs.make")


def follow_parent() -> None:
    """Let this process end with its parent and by it alone. A terminal sends Ctrl-C to worker processes too, which are
    not to answer; on Linux the kernel kills them when the parent ends, be that by a signal that no program can answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def in_lasting_thread(make: Callable[[], T]) -> T:
    """``make()`` in a thread that lasts as long as the process: a child's parent is, to the kernel, the *thread* that
    forked it."""
    if threading.current_thread() is threading.main_thread():
        return make()
    return _lasting_thread(os.getpid()).submit(make).result()


@functools.cache
def _lasting_thread(pid: int) -> ThreadPoolExecutor:
    """The thread of process ``pid``: one that was forked has none yet."""
    return ThreadPoolExecutor(1, "env processes")


def is_broken(env: AsyncVectorEnv) -> bool:
    """Whether one of its processes is gone."""
    return any(pipe is None for pipe in env.parent_pipes) or not all(p.is_alive() for p in env.processes)


def error_of_ended_process(env: AsyncVectorEnv, first_env_index: int, seeds: Sequence[int]) -> EnvError | None:
    """What to raise where a process of ``env`` ended without a word: which one, and its exit code or signal. None if
    none did.

    Args:
        env: One that could not be talked to.
        first_env_index: Index of its first env in the run.
        seeds: Of the last reset of each.
    """
    ended = multiprocessing.connection.wait([process.sentinel for process in env.processes], timeout=1)
    for index, (process, pipe) in enumerate(zip(env.processes, env.parent_pipes, strict=True)):
        if process.sentinel in ended and pipe is not None:  # without a pipe it told of its error
            process.join(1)
            code, seed = process.exitcode or 0, seeds[index]
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            text = (
                f"env {first_env_index + index}: expected a process that goes on, got one that "
                f"ended {how} (last seed {seed}). See what it printed; mode 'sync' runs the env in "
                "this process."
            )
            return EnvError(text, {"env": first_env_index + index, "seed": seed})
    return None


def end_processes(env: AsyncVectorEnv, grace: float = 0.0) -> None:
    """End the processes of ``env``: they are asked to close, and killed after ``grace`` seconds; at 0 they are killed
    without a word, as they may have been cut off in the middle of a message."""
    pipes = [pipe for pipe in env.parent_pipes if pipe is not None]
    deadline = time.monotonic() + grace
    if grace:
        for pipe in pipes:
            with suppress(OSError):
                pipe.send(("close", None))
        for process in env.processes:
            process.join(max(0.0, deadline - time.monotonic()))
    for process in env.processes:
        process.kill()  # not terminate(): they inherit whatever handler of SIGTERM we have
    for process in env.processes:
        process.join()
    for pipe in pipes:
        pipe.close()
    env.closed = True


def close_vector_env(env: VectorEnv[Any, Any, Any]) -> None:
    """Close ``env`` in about :data:`CLOSE_SECONDS` at most, after which none of its processes is left. Errors are
    logged."""
    if isinstance(env.unwrapped, AsyncVectorEnv) and not env.unwrapped.closed:
        end_processes(env.unwrapped, CLOSE_SECONDS)
    close_in_time(env, type(env.unwrapped).__name__)


def close_in_time(env: Any, name: str) -> None:
    """Call ``env.close()`` and log errors. After :data:`CLOSE_SECONDS`, raise TimeoutError in it, and again wherever
    that is caught; only in the main thread, which alone can be interrupted, and where there are such signals."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"not done in {CLOSE_SECONDS:g} s")

    limited = threading.current_thread() is threading.main_thread() and sys.platform != "win32"
    handler, timer = None, (0.0, 0.0)
    if limited:
        handler = signal.signal(signal.SIGALRM, interrupt)
        timer = signal.setitimer(signal.ITIMER_REAL, CLOSE_SECONDS, _AGAIN_SECONDS)
    try:
        env.close()
    except Exception:
        logger.warning("%s: close() failed", name, exc_info=True)
    finally:
        if limited:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
