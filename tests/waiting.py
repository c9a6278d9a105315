"""Wait for events in tests. No test depends on how long anything takes: machines are busy."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 300.0
"""Seconds after which a test that waits counts as hung."""


def wait_for(condition: Callable[[], object]) -> None:
    """Return once ``condition()`` is true; fail if that takes longer than any busy machine would."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened in {PATIENCE_S:g} s"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
