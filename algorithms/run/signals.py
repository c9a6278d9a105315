"""Taking Ctrl-C and SIGTERM for requests to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests(heard_by: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call ``heard_by`` on SIGINT and SIGTERM, unless the process ignores them; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, heard_by) for each in heard}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
