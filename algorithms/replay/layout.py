"""Shape of a replay buffer: how much of an observation a row holds, how many rows there are, what they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tree
from gymnasium import Space, spaces

from algorithms.replay.prioritized import PrioritizedReplay
from algorithms.replay.sequences import SequenceReplay
from catalog.errors import closest
from catalog.past import sampled_space
from rlmodule.data.rollout import allocate_observations


@dataclass(frozen=True)
class StoredLeaf:
    """One leaf of a tree as it is kept.

    Attributes:
        path: Keys and indices that lead to it, joined by dots; empty if the tree is a leaf.
        shape: Of one entry.
        dtype: As rollouts have it.
        axis: Axis of ``shape`` that stacks frames, oldest first; None if there is none.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int | None = None

    @property
    def num_frames(self) -> int:
        """Frames in a stack; 1 if there is none."""
        return 1 if self.axis is None else self.shape[self.axis]

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Of what a row of the ring holds."""
        return self.shape if self.axis is None else self.shape[: self.axis] + self.shape[self.axis + 1 :]

    def frames_of(self, array: np.ndarray) -> np.ndarray:
        """A view of entries ``[..., *shape]`` as ``[..., frames, *kept_shape]``."""
        assert self.axis is not None
        leading = array.ndim - len(self.shape)
        return np.moveaxis(array, leading + self.axis, leading)

    def newest_frame(self, array: np.ndarray) -> np.ndarray:
        """A view of the newest frames ``[..., *kept_shape]`` of entries ``[..., *shape]``."""
        assert self.axis is not None
        return array[(..., -1, *[slice(None)] * (len(self.shape) - 1 - self.axis))]


def stored_leaves(space: Space, frame_stack_axis: int | Mapping[str, int] | None = None) -> list[StoredLeaf]:
    """The leaves of ``space`` in the order of ``tree.flatten``.

    Args:
        space: Of what is kept.
        frame_stack_axis: The axis that stacks frames, or, by path, those of the leaves of a Dict or Tuple.

    Raises:
        ValueError: If there is no leaf at a path, it is no Box, or it has no such axis.
    """
    paths = tree.flatten_with_path(allocate_observations(space, 0))
    leaves = {".".join(map(str, keys)): (keys, array) for keys, array in paths}
    if frame_stack_axis is None:
        axes: Mapping[str, int] = {}
    else:
        axes = frame_stack_axis if isinstance(frame_stack_axis, Mapping) else {"": frame_stack_axis}
    for path, axis in axes.items():
        where = "frame_stack_axis" + (f"[{path!r}]" if path else "")
        if path not in leaves:
            raise ValueError(
                f"{where}: expected one of the paths {', '.join(map(repr, leaves))}, got {path!r}. "
                f"Give the axis by path: {{path: axis}}.{closest(path, leaves) if path else ''}"
            )
        _check_axis(where, _part(space, leaves[path][0]), axis)
    return [
        StoredLeaf(
            path,
            array.shape[1:],
            array.dtype,
            axes[path] % (array.ndim - 1) if path in axes else None,
        )
        for path, (_, array) in leaves.items()
    ]


def _part(space: Any, keys: Sequence[Any]) -> Space:
    for key in keys:
        space = space.spaces[key]
    return space


def _check_axis(where: str, space: Space, axis: object) -> None:
    remedy = "Name the axis of one observation, without a batch dim, along which its frames are stacked."
    if not isinstance(space, spaces.Box):
        raise ValueError(f"{where}: expected a Box that stacks frames, got {space}. {remedy}")
    dims = len(space.shape)
    if isinstance(axis, bool) or not isinstance(axis, int) or not -dims <= axis < dims:
        raise ValueError(f"{where}: expected an axis of the shape {space.shape}, got {axis!r}. {remedy}")


@dataclass(frozen=True)
class ReplayLayout:
    """Shape of a buffer.

    Attributes:
        capacity: Transitions in all.
        num_envs: Columns of the ring.
        rows: Rows of the ring.
        row_unit: What ``rows`` is a multiple of: the length of sequences, else 1.
        kept_rows: Rows that hold transitions.
        state_bytes: Of the recurrent state kept for each ``row_unit`` rows.
        obs: What a row holds of an observation.
        actions: What it holds of an action.
    """

    capacity: int
    num_envs: int
    rows: int
    row_unit: int
    kept_rows: int
    state_bytes: int
    obs: list[StoredLeaf]
    actions: list[StoredLeaf]

    @classmethod
    def of(
        cls,
        observation_space: Space,
        action_space: Space,
        capacity: int,
        num_envs: int,
        sequences: SequenceReplay | None,
        frame_stack_axis: int | Mapping[str, int] | None,
    ) -> ReplayLayout:
        for name, value in (("capacity", capacity), ("num_envs", num_envs)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise wrong_setting(name, "an int >= 1", value, "Give a positive number.")
        obs = stored_leaves(observation_space, frame_stack_axis)
        # beside the rows for transitions: one for the last observation, and those that older frames are taken from
        others = max(leaf.num_frames for leaf in obs)
        kept_rows = -(-capacity // num_envs)
        unit, state_bytes = (1, 0) if sequences is None else (sequences.length, sequences.state_bytes)
        rows = -(-(kept_rows + others) // unit) * unit
        actions = stored_leaves(sampled_space(action_space))
        return cls(capacity, num_envs, rows, unit, kept_rows, state_bytes, obs, actions)

    def num_bytes(self, prioritized: PrioritizedReplay | None) -> int:
        """Of all arrays that are allocated at once."""
        places = self.rows * self.num_envs
        each = sum(math.prod(leaf.kept_shape) * leaf.dtype.itemsize for leaf in (*self.obs, *self.actions))
        indices = 4 * (1 + any(leaf.axis is not None for leaf in self.obs))
        samples = places // self.row_unit
        tree = 0 if prioritized is None else 64 * samples // 7  # float64 leaves, an eighth of that above, and so on
        states = 0 if self.state_bytes == 0 else samples * (self.state_bytes + 1)
        return places * (each + indices + 8) + tree + states  # 8: a float32 reward and four flags

    def largest_capacity(self, num_bytes: int, prioritized: PrioritizedReplay | None) -> int:
        """Transitions that a buffer of ``num_bytes``, otherwise like this one, can hold."""
        rows = num_bytes * self.rows // self.num_bytes(prioritized)
        return max(0, rows - (self.rows - self.kept_rows)) * self.num_envs

    def describe(self) -> dict[str, Any]:
        """What two buffers must have in common to exchange their states."""
        return {
            "rows": self.rows,
            "num_envs": self.num_envs,
            "observations": ", ".join(map(str, self.obs)),
            "actions": ", ".join(map(str, self.actions)),
        }


def replay_bytes(
    observation_space: Space,
    action_space: Space,
    *,
    capacity: int,
    num_envs: int,
    prioritized: PrioritizedReplay | None = None,
    sequences: SequenceReplay | None = None,
    frame_stack_axis: int | Mapping[str, int] | None = None,
) -> int:
    """What a :class:`ReplayBuffer` with these arguments takes, in bytes, without what it keeps aside for the few rows
    at which episodes start or were truncated. Nothing is allocated.

    Raises:
        ValueError, TypeError: If an argument is wrong.
    """
    layout = ReplayLayout.of(observation_space, action_space, capacity, num_envs, sequences, frame_stack_axis)
    return layout.num_bytes(prioritized)


def checked_n_step(n_step: object, kept_rows: int) -> tuple[int, int]:
    """The least and the greatest number of steps of a window."""
    parts = [*n_step] if isinstance(n_step, tuple | list) else [n_step, n_step]
    bounds = [n for n in parts if isinstance(n, int) and not isinstance(n, bool)]
    if len(parts) != 2 or len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
        raise wrong_setting("n_step", "an int >= 1, or two in order", n_step, "3 is usual.")
    low, high = bounds
    if high > kept_rows:
        expected = f"at most {kept_rows} steps, as many as the buffer holds of each env"
        raise wrong_setting("n_step", expected, n_step, "Raise the capacity, or lower n_step or the number of envs.")
    return low, high


def wrong_setting(name: str, expected: str, got: object, remedy: str) -> ValueError:
    """An error about an argument of the buffer."""
    return ValueError(f"ReplayBuffer({name}): expected {expected}, got {got!r}. {remedy}")
