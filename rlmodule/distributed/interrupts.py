"""Ctrl-C without half-done work: it waits for the end of what must be whole, and interrupts what only waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _HeldBack:
    """Handles Ctrl-C in place of ``handler``: notes it, until :meth:`let_through`."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler, self._heard = handler, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._heard = True

    def let_through(self) -> None:
        """Give the place back, and handle what was noted."""
        signal.signal(signal.SIGINT, self._handler)
        heard, self._heard = self._heard, False
        if heard:
            self._handler(signal.SIGINT, None)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, or to the next part of it that is :func:`interruptible`."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _HeldBack) or not callable(handler) or not _in_main_thread():
        yield
        return
    held = _HeldBack(handler)
    # before, Ctrl-C raises with nothing changed; from here on it is noted
    signal.signal(signal.SIGINT, held)
    try:
        yield
    finally:
        held.let_through()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt this part of an :func:`uninterrupted` block, which only waits."""
    held = signal.getsignal(signal.SIGINT)
    if not isinstance(held, _HeldBack) or not _in_main_thread():
        yield
        return
    held.let_through()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, held)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
