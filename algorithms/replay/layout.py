"""The layout of a replay buffer: the contents of a row, the number of rows, and the bytes they take."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import psutil
import tree
from gymnasium import Space

from algorithms.replay.prioritized import PrioritizedReplay
from catalog.checks import Bounds, check_value
from catalog.past import sampled_space
from catalog_rl import unknown
from rlmodule.data.rollout import allocate_observations

if TYPE_CHECKING:
    from algorithms.replay.sequences import SequenceReplay

LARGE = 10**9
"""Size in bytes of buffers that are reported in a warning, which Python shows by default, not at info level."""

StackAxes: TypeAlias = int | Mapping[str, int]
"""Axis along which an observation stacks frames. For a Dict or Tuple, a mapping from the paths of leaves to axes."""

logger = logging.getLogger("algorithms.replay")

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class StoredLeaf:
    """How the ring stores one leaf of a nested observation or action.

    Attributes:
        path: Keys and indices that lead to the leaf, joined by dots. Empty if the space is not nested.
        shape: Shape of one entry in a rollout.
        dtype: Dtype in a rollout.
        axis: Axis of ``shape`` along which frames are stacked, oldest first. None if the leaf stacks no frames.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int | None = None

    @property
    def num_frames(self) -> int:
        """Number of frames in a stack; 1 if the leaf stacks none."""
        return 1 if self.axis is None else self.shape[self.axis]

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Shape of one entry in the ring: of the newest frame alone, if the leaf stacks frames."""
        return self.shape if self.axis is None else self.shape[: self.axis] + self.shape[self.axis + 1 :]

    def frames_of(self, array: np.ndarray) -> np.ndarray:
        """Return a view of entries ``[..., *shape]`` as ``[frames, ..., *kept_shape]``, the newest frame last."""
        return array[None] if self.axis is None else np.moveaxis(array, self.axis - len(self.shape), 0)


def stored_leaves(space: Space, frame_stack_axis: StackAxes | None = None) -> list[StoredLeaf]:
    """Return how the ring stores each leaf of ``space``, in the order of ``tree.flatten``.

    Args:
        space: An observation or action space.
        frame_stack_axis: Axis along which observations stack frames, or axes by path; None stores whole entries. A path
            that leads to several leaves, as ``"a.b"`` does if the keys have dots, sets the axis of all of them.

    Raises:
        ValueError: If no leaf has a given path, or a leaf has no such axis.
    """
    axes = {} if frame_stack_axis is None else frame_stack_axis
    if not isinstance(axes, Mapping):
        axes = {"": axes}
    leaves = []
    for keys, array in tree.flatten_with_path(allocate_observations(space, 0)):
        path, shape = ".".join(map(str, keys)), array.shape[1:]
        axis = _checked_axis(path, shape, axes[path]) if path in axes else None
        leaves.append(StoredLeaf(path, shape, array.dtype, axis))
    paths = [leaf.path for leaf in leaves]
    for path in axes:
        if path not in paths:
            raise unknown(axis_of(path), "paths", paths, path, "Give the axis by path: {path: axis}.")
    return leaves


def _checked_axis(path: str, shape: tuple[int, ...], axis: Any) -> int:
    """Return ``axis`` of ``shape``, counted from the front. Raise ``ValueError`` if there is no such axis."""
    rank = len(shape)
    if isinstance(axis, bool) or not isinstance(axis, int) or axis not in range(-rank, rank):
        raise ValueError(
            f"{axis_of(path)}: expected an axis of the shape {shape}, got {axis!r}. Name the axis along "
            "which one observation, without a batch dimension, stacks its frames."
        )
    return axis % rank


def axis_of(path: str) -> str:
    """Return how errors name the axis of the leaf at ``path``."""
    return "frame_stack_axis" + (f"[{path!r}]" if path else "")


class ReplayLayout:
    """The size and shape of a buffer, computed before anything is allocated. Arguments as for :class:`ReplayBuffer`.

    Attributes:
        capacity: Number of transitions, over all envs.
        num_envs: Number of columns of the ring.
        prioritized: Settings for drawing by priority; None for uniform draws.
        rows: Number of rows of the ring.
        num_anchors: Number of recurrent states kept for each column at first; 0 if samples are rows.
        kept_rows: Number of rows that hold transitions.
        obs: How a row stores the leaves of an observation.
        actions: How a row stores the leaves of an action.
        num_bytes: Bytes of the arrays that the buffer allocates when it is built.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        capacity: int,
        num_envs: int,
        prioritized: PrioritizedReplay | None,
        sequences: SequenceReplay | None,
        frame_stack_axis: StackAxes | None,
    ) -> None:
        check_value("ReplayBuffer(capacity)", capacity, int, Bounds(ge=1), "Transitions in all.")
        check_value("ReplayBuffer(num_envs)", num_envs, int, Bounds(ge=1), "Envs in all.")
        self.obs = stored_leaves(observation_space, frame_stack_axis)
        self.actions = stored_leaves(sampled_space(action_space))
        self.capacity, self.num_envs, self.prioritized = capacity, num_envs, prioritized
        self.kept_rows = -(-capacity // num_envs)
        # One more row holds the newest observation, and others the older frames of the oldest stack.
        self.rows = self.kept_rows + max(leaf.num_frames for leaf in self.obs)
        leaves = (*self.obs, *self.actions)
        bytes_of_step = sum(math.prod(leaf.kept_shape) * leaf.dtype.itemsize for leaf in leaves)
        bytes_of_step += 4 * (1 + any(leaf.axis is not None for leaf in self.obs))  # int32 indices of the SparseRows
        bytes_of_step += 5  # a float32 reward and a byte of flags
        samples = places = self.rows * num_envs
        self.num_anchors = states = 0
        self._spare_rows = self.rows - self.kept_rows
        if sequences is not None:
            self._spare_rows += 2 * sequences.length
            self.num_anchors = self.kept_rows // sequences.length + 2  # one is incomplete, and one is cut off
            samples = self.num_anchors * num_envs
            states = samples * (sequences.state_bytes + 8)
        tree = 0 if prioritized is None else 64 * samples // 7  # float64: 8 + 1 + 1/8 + … bytes for each leaf
        self.num_bytes = places * bytes_of_step + tree + states

    def check_memory(self) -> None:
        """Log the size of the buffer, and raise if it cannot fit into memory.

        Raises:
            MemoryError: If the buffer needs more than :func:`memory_limit`. The message names a capacity that fits.
        """
        size, steps, bytes_of_step = self.num_bytes, f"{self.capacity:,}", f"{self.num_bytes / self.capacity:,.0f}"
        level, text = logging.INFO, f"{size / 1e6:.1f} MB"
        if size >= LARGE:
            level, text = logging.WARNING, f"{size / 1e9:.1f} GB"
        logger.log(level, "Replay of %s steps: %s, %s bytes a step", steps, text, bytes_of_step)
        if size > (limit := memory_limit()):
            rows = limit * self.rows // size - self._spare_rows
            largest = max(0, rows) * self.num_envs
            raise MemoryError(
                f"a replay buffer of {steps} transitions: expected at most {limit:,} bytes, the "
                f"memory available, got {size:,} bytes, {bytes_of_step} for each transition. Set "
                f"replay_capacity to at most {largest:,}, or frame_stack_axis if observations "
                "stack frames."
            )


def memory_limit() -> int:
    """Return the maximum number of bytes this process can use: the machine's memory, or its control group's limit if
    that is lower."""
    limits = [psutil.virtual_memory().total]
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # the file is missing, or says "max"
            limits.append(int(file.read_text()))
    return min(limits)


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


def replay_bytes(
    observation_space: Space,
    action_space: Space,
    *,
    capacity: int,
    num_envs: int,
    prioritized: PrioritizedReplay | None = None,
    sequences: SequenceReplay | None = None,
    frame_stack_axis: StackAxes | None = None,
) -> int:
    """Return the bytes that a :class:`ReplayBuffer` with these arguments allocates when it is built.

    The buffer later allocates a little more, for the few rows at which an episode was truncated or a stack of frames
    begins. This function allocates nothing.

    Raises:
        ValueError, TypeError: If an argument is wrong.
    """
    layout = ReplayLayout(observation_space, action_space, capacity, num_envs, prioritized, sequences, frame_stack_axis)
    return layout.num_bytes


def checked_n_step(n_step: int | tuple[int, int], kept_rows: int) -> tuple[int, int]:
    """Return ``n_step`` as a pair: the least and the greatest number of steps in an n-step window. An int gives a pair
    of equal numbers.

    Args:
        n_step: The argument ``n_step`` of :class:`ReplayBuffer`.
        kept_rows: Number of transitions that the buffer holds for each env.

    Raises:
        ValueError, TypeError: If ``n_step`` is neither a positive int nor a pair ``(least, greatest)`` of them, or
            exceeds ``kept_rows``.
    """
    where, doc = "ReplayBuffer(n_step)", "Steps of a window; 3 is usual."
    fitted = check_value(where, n_step, int | tuple[int, int], Bounds(ge=1), doc)
    low, high = fitted if isinstance(fitted, tuple) else (fitted, fitted)
    if not low <= high <= kept_rows:
        raise ValueError(
            f"{where}: expected at most {kept_rows} steps, as many as the buffer holds of each env, and a pair in "
            f"ascending order, got {n_step!r}. Raise the capacity, or lower n_step or the number of envs."
        )
    return low, high
