"""Functions that find the leaves of nested spaces and convert observations to tensors."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree


class Leaf(NamedTuple):
    """One array of a nested space: the Dict keys and Tuple indices that lead to it, its space and its shape."""

    keys: tuple[Any, ...]
    space: Space
    shape: tuple[int, ...]

    def part_of(self, obs: Tree) -> Tensor:
        """Return this leaf of ``obs``, which may have any leading dims."""
        for key in self.keys:
            obs = obs[key]
        return obs

    def of(self, obs: Tree) -> Tensor:
        """Return this leaf of ``obs``, flattened to ``[..., prod(shape)]``."""
        part = self.part_of(obs)
        if len(self.shape) == 1:
            return part
        return part.flatten(-len(self.shape)) if self.shape else part.unsqueeze(-1)


_LARGEST_KEPT = np.iinfo(np.int64).max

ArraySpace: TypeAlias = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
"""A space whose members are arrays of numbers."""


def array_leaves(space: Space, path: str = "observation_space") -> Iterator[Leaf]:
    """Yield the leaves of ``space``, in the order of the space. A space that is not nested is its only leaf.

    Raises:
        ValueError: If a part of ``space`` has no array form or no entries; names the path to it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not space.spaces:
            raise _empty(space, path)
        for key, child in space_parts(space).items():
            for leaf in array_leaves(child, f"{path}[{key!r}]"):
                yield leaf._replace(keys=(key, *leaf.keys))
    elif not isinstance(space, ArraySpace):
        raise _no_array(space, path)
    elif 0 in (shape := space.shape or ()):
        raise _empty(space, path)
    else:
        yield Leaf((), space, shape)


def check_storable(space: Space, path: str = "observation_space") -> None:
    """Raise ValueError if a part of ``space`` allows integers that int64, in which uint64 is stored, cannot hold. The
    text names the path to it."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in space_parts(space).items():
            check_storable(child, f"{path}[{key!r}]")
    elif isinstance(space, spaces.Box) and space.dtype == np.uint64 and (space.high > _LARGEST_KEPT).any():
        raise ValueError(
            f"{path}: expected uint64 below 2**63, since it is stored as int64, got {space}. Give the Box that upper "
            "bound, or return such numbers as float64 or as two of uint32."
        )


def space_parts(space: spaces.Dict | spaces.Tuple) -> dict[Any, Space]:
    """Return the parts of a Dict or Tuple by key or index, in the order of the space."""
    return {**space.spaces} if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))


def map_spaces(function: Callable[[Any], Any], space: Space) -> Tree:
    """Return a tree with the structure of ``space``, in which each leaf is the result of ``function`` for its space."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return function(space)
    parts = {key: map_spaces(function, part) for key, part in space_parts(space).items()}
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def kept_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which observations of ``dtype`` are stored, in native byte order.

    Floats of more than 32 bits become float32. uint16 becomes int32, and longer unsigned integers become int64, because
    torch has hardly any operations for them. All other dtypes stay the same.
    """
    dtype = np.dtype(dtype).newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize > 4:
        return np.dtype(np.float32)
    if dtype.kind == "u" and dtype.itemsize > 1:
        return np.dtype(np.int32 if dtype.itemsize == 2 else np.int64)
    return dtype


@np.errstate(over="ignore")  # a float64 beyond the range of float32 becomes infinite
def to_tensor(array: np.ndarray) -> Tensor:
    """Return ``array`` as a tensor of its :func:`kept_dtype`. If the array is contiguous and the dtype does not change,
    the tensor shares its memory."""
    array = np.asarray(array, order="C")
    return torch.from_numpy(array.astype(kept_dtype(array.dtype), copy=False))


def zero_batch(space: Space, leading: tuple[int, ...] = (1,), path: str = "observation_space") -> Tree:
    """Return a batch of equal, valid observations of ``space``, in which every number is the valid one closest to 0.

    Args:
        space: Space of one observation.
        leading: Leading dims of the batch.
        path: Name of ``space`` in error messages.

    Raises:
        ValueError: If a leaf of ``space`` has no array form; names the path to it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {key: zero_batch(child, leading, f"{path}[{key!r}]") for key, child in space_parts(space).items()}
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        value = np.asarray(space.start)
    elif isinstance(space, spaces.Box):
        value = np.maximum(np.minimum(np.zeros(space.shape, space.dtype), space.high), space.low)
    elif isinstance(space, spaces.MultiBinary):
        value = np.zeros(space.shape)
    else:
        raise _no_array(space, path)
    return to_tensor(np.broadcast_to(value.astype(space.dtype), (*leading, *value.shape)).copy())


def _no_array(space: Space, path: str) -> ValueError:
    return ValueError(
        f"{path}: expected a space of arrays (Box, Discrete, MultiDiscrete, MultiBinary, Dict, "
        f"Tuple), got {space}. Turn it into arrays with an environment wrapper."
    )


def _empty(space: Space, path: str) -> ValueError:
    return ValueError(
        f"{path}: expected a space with at least one entry, got {space}. Leave it out of the "
        "observation with an environment wrapper."
    )
