"""Delay Ctrl-C until work that must not be left half done has finished, and let Ctrl-C interrupt a wait within that
work."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _HeldBack:
    """A Ctrl-C handler that stands in for ``handler``, and only records Ctrl-C until :meth:`let_through` is called."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler, self._heard = handler, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._heard = True

    def let_through(self) -> None:
        """Restore the replaced handler, and call it if Ctrl-C was pressed in the meantime."""
        signal.signal(signal.SIGINT, self._handler)
        heard, self._heard = self._heard, False
        if heard:
            self._handler(signal.SIGINT, None)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, or to the next :func:`interruptible` part of it. This has no effect outside
    the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _HeldBack) or not callable(handler) or not _in_main_thread():
        yield
        return
    held = _HeldBack(handler)
    # a Ctrl-C before this line raises with nothing changed yet; a later one is held
    signal.signal(signal.SIGINT, held)
    try:
        yield
    finally:
        held.let_through()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt this part of an :func:`uninterrupted` block. The part must not change any state."""
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
