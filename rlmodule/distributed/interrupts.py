"""Ctrl-C where nothing is half done: it waits for the end of what must be whole, and interrupts what only waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_held_back: Handler | None = None
"""What Ctrl-C called before it was made to wait; None while it need not."""
_heard = False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Have Ctrl-C wait for the end of the block, or for the next part of it that is :func:`interruptible`."""
    if _held_back is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        yield
        return
    _hold_back(handler)
    try:
        yield
    finally:
        _let_through()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within :func:`uninterrupted`, let Ctrl-C interrupt what only waits."""
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
    signal.signal(signal.SIGINT, _note)  # up to here it raises with nothing changed, and from here on it is noted
    _held_back = handler


def _let_through() -> None:
    global _held_back
    handler, _held_back = _held_back, None
    if handler is None:  # it interrupted what was interruptible
        return
    signal.signal(signal.SIGINT, handler)
    if _heard:
        handler(signal.SIGINT, None)


def _note(number: int, frame: FrameType | None) -> None:
    global _heard
    _heard = True
