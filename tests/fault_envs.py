"""Envs that go wrong on schedule and count their own steps, for code that has to survive them.

A :class:`FaultEnv` is made from plain settings, so that it works in any process that can import this module. What
happens is decided by the *index* of the env in the run: it is known from the seed of the first reset, as the runner
derives it from the run's seed. An env that was rebuilt has another seed, hence no index, and is struck by what is
planned for ``ANY`` alone.

Every env made is a *life* with a number, in order of making over all processes, and a small file in a common folder,
which outlives it: how often ``step`` was called, and which seeds it was reset with.
"""

import ctypes
import functools
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlmodule.seeding import int_seed

ANY = -1
"""In a plan: every env, also those that were rebuilt."""

MOST_ENVS = 64


class Unpicklable(Exception):
    def __init__(self, message: str, more: Any) -> None:
        super().__init__(message)
        self.more = more

    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise AttributeError("no text")


ERRORS: dict[str, Any] = {
    "plain": lambda: ZeroDivisionError("of all things"),
    "empty": lambda: RuntimeError(),
    "unpicklable": lambda: Unpicklable("a lock inside", lambda: None),
    "huge": lambda: OSError("long " * 200_000),
    "unreadable": lambda: Unreadable(),
    "broken pipe": lambda: BrokenPipeError("to my own simulator"),
}
"""Kinds of faults that raise."""


def _spin() -> None:
    while True:
        pass


ENDS: dict[str, Any] = {
    "os._exit": lambda: os._exit(0),
    "sys.exit": lambda: sys.exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "segfault": lambda: ctypes.string_at(0),
}
"""Kinds that end the process."""

HANGS: dict[str, Any] = {"sleep": lambda: time.sleep(3600), "spin": _spin}
"""Kinds that do not return."""


def strike(kind: str | None) -> None:
    """Let a fault of ``kind`` happen; nothing if it is None."""
    if kind in ERRORS:
        raise ERRORS[kind]()
    if kind is not None:
        {**ENDS, **HANGS}[kind]()


@functools.cache
def _index_of_seed(run_seed: int, role: str) -> dict[int, int]:
    return {int_seed(run_seed, role, index, 0): index for index in range(MOST_ENVS)}


class FaultEnv(gym.Env):
    """Random observations and ends, which depend on its seed alone, and rewards, which depend on the action.

    Args:
        folder: Where the files of all lives go.
        steps: By index (or ``ANY``): the kind of fault in its n-th call of ``step``, counted from 1.
        resets: The same for its calls of ``reset``.
        lives: By number of life: the kind of fault while it is made.
        close: The kind of fault in ``close``, of every env.
        run_seed, role: Those of the runner.
        mean_length: Of episodes.
        pause: Seconds that a step takes.
    """

    def __init__(
        self,
        folder: str,
        steps: Mapping[int, Mapping[int, str]] | None = None,
        resets: Mapping[int, Mapping[int, str]] | None = None,
        lives: Mapping[int, str] | None = None,
        close: str | None = None,
        run_seed: int = 1,
        role: str = "env",
        mean_length: float = 12.0,
        pause: float = 0.0,
    ) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._steps, self._resets, self._close = steps or {}, resets or {}, close
        self._indices, self._end, self._pause = _index_of_seed(run_seed, role), 1 / mean_length, pause
        self._index: int | None = None
        self._num_steps = self._num_resets = 0
        self._path, self._calls = _begin_life(folder)
        strike((lives or {}).get(int(self._path.stem)))

    def _planned(self, plan: Mapping[int, Mapping[int, str]], call: int) -> str | None:
        own = {} if self._index is None else plan.get(self._index, {})
        return own.get(call, plan.get(ANY, {}).get(call))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._num_resets += 1
        if seed is not None:
            self._index = self._indices.get(seed, self._index)
            with self._path.open("ab") as file:
                file.write(struct.pack("q", seed))
        strike(self._planned(self._resets, self._num_resets))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        struct.pack_into("q", self._calls, 0, self._num_steps)
        strike(self._planned(self._steps, self._num_steps))
        if self._pause:
            time.sleep(self._pause)
        terminated = bool(self.np_random.random() < self._end)
        return self._obs(), 1.0 + float(action), terminated, False, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-0.9, 0.9, 3).astype(np.float32)

    def close(self) -> None:
        strike(self._close)


def _begin_life(folder: str) -> tuple[Path, mmap.mmap]:
    """A new file in ``folder``, named by the first number that is free, and its first 8 bytes."""
    number = len(os.listdir(folder))
    while True:
        path = Path(folder, f"{number}.life")
        try:
            with path.open("x+b", buffering=0) as file:
                file.write(bytes(8))
                return path, mmap.mmap(file.fileno(), 8)
        except FileExistsError:
            number += 1


def num_lives(folder: str | Path) -> int:
    """How many envs were made."""
    return len([*Path(folder).glob("*.life")])


def num_step_calls(folder: str | Path) -> int:
    """How often ``step`` was called, of all envs together."""
    return sum(struct.unpack("q", path.read_bytes()[:8])[0] for path in Path(folder).glob("*.life"))


def seeds_of_lives(folder: str | Path) -> list[list[int]]:
    """The seeds that each life was reset with, by number of life."""
    contents = [Path(folder, f"{life}.life").read_bytes() for life in range(num_lives(folder))]
    return [[seed for (seed,) in struct.iter_unpack("q", content[8:])] for content in contents]
