"""Check the memory of the machine before a large buffer is allocated."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

LARGE = 10**9
"""Bytes from which a buffer is logged as a warning, which Python shows by default, and not as info."""

logger = logging.getLogger("algorithms.replay")

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def memory_limit() -> int | None:
    """Return the most bytes this process can use: those of the machine or of its control group. None if unknown."""
    known = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # some systems lack sysconf or these names
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # the file is missing, or says "max"
            known.append(int(file.read_text()))
    return min((limit for limit in known if limit > 0), default=None)


def _limit_files() -> Iterator[Path]:
    """Yield the files that hold the memory limits of this process's control group (v1 or v2) and of its parents."""
    lines = _OWN_CGROUP.read_text().splitlines() if _OWN_CGROUP.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root, name = _CGROUPS, "memory.max"
        if "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        group = root / path.strip("/")
        yield from (folder / name for folder in (group, *group.parents) if folder.is_relative_to(root))


def check_memory(needed: int, capacity: int, largest: Callable[[int], int]) -> None:
    """Log the size of a replay buffer, and raise if it cannot fit into memory.

    Args:
        needed: Bytes the buffer needs.
        capacity: Its capacity in transitions.
        largest: Function that returns the greatest capacity for a number of bytes.

    Raises:
        MemoryError: If the buffer needs more than :func:`memory_limit`. The message names a capacity that fits.
    """
    limit, each = memory_limit(), needed / capacity
    level = logging.WARNING if needed >= LARGE else logging.INFO
    logger.log(level, "Replay of %s steps: %s, %s bytes a step", f"{capacity:,}", _readable(needed), f"{each:,.0f}")
    if limit is not None and needed > limit:
        raise MemoryError(
            f"a replay buffer of {capacity:,} transitions: expected at most {limit:,} bytes, the "
            f"memory available, got {needed:,} bytes, {each:,.0f} for each transition. Set "
            f"replay_capacity to at most {largest(limit):,}, or frame_stack_axis if observations "
            "stack frames."
        )


def _readable(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= LARGE else f"{size / 1e6:.1f} MB"
