"""Ctrl-C without half-done work: it waits for the end of what must be whole, and interrupts what only waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_held_back: Handler | None = None
"""The handler of Ctrl-C while it is replaced by :func:`_note`, else None."""
_heard = False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, or to the next part of it that is :func:`interruptible`."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if _held_back is not None or not is_main or not callable(handler):
        yield
        return
    _hold_back(handler)
    try:
        yield
    finally:
        _let_through()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt this part of an :func:`uninterrupted` block, which only waits."""
    handler = _held_back
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _let_through()
    try:
        yield
    finally:
        _hold_back(handler)


def _hold_back(handler: Handler) -> None:
    global _held_back, _heard
    _heard = False
    signal.signal(signal.SIGINT, _note)  # before, Ctrl-C raises with nothing changed; from here on it is noted
    _held_back = handler


def _let_through() -> None:
    global _held_back
    handler, _held_back = _held_back, None
    if handler is None:  # Ctrl-C interrupted an interruptible part
        return
    signal.signal(signal.SIGINT, handler)
    if _heard:
        handler(signal.SIGINT, None)


def _note(number: int, frame: FrameType | None) -> None:
    global _heard
    _heard = True
