"""How much memory there is, asked before a large buffer is allocated."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from catalog.errors import explain_error

LARGE = 10**9
"""Bytes from which on it is worth a warning, which Python shows unless told not to."""

logger = logging.getLogger("algorithms.replay")

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def memory_limit() -> int | None:
    """Bytes this process can have at most: those of the machine, or of its control group. None if not known."""
    limits = list[int]()
    with suppress(AttributeError, ValueError, OSError):  # not on every system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError):  # no control groups
        group = _CGROUPS / _OWN_CGROUP.read_text().rpartition("::/")[2].strip()
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such file, or "max"
                limits.append(int((folder / "memory.max").read_text()))
    return min(limits, default=None)


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
            explain_error(
                f"a replay buffer of {capacity:,} transitions",
                expected=f"at most the {limit:,} bytes of memory there are",
                got=f"{needed:,} bytes, {each:,.0f} for each transition",
                remedy=f"Set replay_capacity to at most {largest(limit):,}, or frame_stack_axis if observations stack "
                "frames.",
            )
        )


def _readable(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= LARGE else f"{size / 1e6:.1f} MB"
