"""How much memory there is, asked before a large buffer is allocated."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

LARGE = 10**9
"""Bytes from which on it is worth a warning, which Python shows unless told not to."""

logger = logging.getLogger("algorithms.replay")

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def memory_limit() -> int | None:
    """Bytes this process can have at the most: those of the machine, or of its control group. None if not known."""
    known = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on every system
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            known.append(int(file.read_text()))
    return min((limit for limit in known if limit > 0), default=None)


def _limit_files() -> Iterator[Path]:
    """Where the limits of the process's own control groups and of all above them stand, in version 2 or 1."""
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
    """Log how many bytes a buffer of ``capacity`` transitions needs, and see that there are so many.

    Args:
        needed: Bytes.
        capacity: Transitions.
        largest: The capacity that fits into so many bytes.

    Raises:
        MemoryError: If it surely cannot; says which capacity could.
    """
    limit, each = memory_limit(), needed / capacity
    level = logging.WARNING if needed >= LARGE else logging.INFO
    logger.log(level, "Replay of %s steps: %s, %s bytes a step", f"{capacity:,}", _readable(needed), f"{each:,.0f}")
    if limit is not None and needed > limit:
        raise MemoryError(
            f"a replay buffer of {capacity:,} transitions: expected at most the {limit:,} bytes of "
            f"memory there are, got {needed:,} bytes, {each:,.0f} for each transition. Set "
            f"replay_capacity to at most {largest(limit):,}, or frame_stack_axis if observations "
            "stack frames."
        )


def _readable(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= LARGE else f"{size / 1e6:.1f} MB"
