"""The leaves of spaces, and samples of spaces as batched tensors."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree


class Leaf(NamedTuple):
    """An array in a nested space, and the keys of Dicts and indices of Tuples that lead to it."""

    keys: tuple[Any, ...]
    space: Space
    shape: tuple[int, ...]

    def of(self, obs: Tree) -> Tensor:
        """This leaf of an observation with any leading dims, flattened: ``[..., entries]``."""
        for key in self.keys:
            obs = obs[key]
        if len(self.shape) == 1:
            return obs
        return obs.flatten(-len(self.shape)) if self.shape else obs.unsqueeze(-1)


def array_leaves(space: Space, path: str = "observation_space") -> Iterator[Leaf]:
    """The leaves of a space of arrays in the space's own order; a space that is no Dict or Tuple is its only leaf.

    Raises:
        ValueError: If ``space`` holds a part that has no array form or no entries; names the path to it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not space.spaces:
            raise ValueError(_empty(space, path))
        for key, child in space_parts(space):
            for leaf in array_leaves(child, f"{path}[{key!r}]"):
                yield leaf._replace(keys=(key, *leaf.keys))
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ValueError(_no_array(space, path))
    elif 0 in (shape := space.shape or ()):
        raise ValueError(_empty(space, path))
    else:
        yield Leaf((), space, shape)


def space_parts(space: spaces.Dict | spaces.Tuple) -> Iterator[tuple[Any, Space]]:
    """Keys or indices and the spaces of the parts, in the space's own order."""
    return iter(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def kept_dtype(dtype: Any) -> np.dtype[Any]:
    """What observations of ``dtype`` are kept as: longer floats as float32; unsigned integers of 16 bits as int32, of
    more as int64, since torch can hold but hardly index them; all else as it is, in native byte order."""
    dtype = np.dtype(dtype).newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize > 4:
        return np.dtype(np.float32)
    if dtype.kind == "u" and dtype.itemsize > 1:
        return np.dtype(np.int32 if dtype.itemsize == 2 else np.int64)
    return dtype


@np.errstate(over="ignore")  # a float too large becomes infinite
def to_tensor(array: np.ndarray) -> Tensor:
    """``array`` as a tensor of the dtype it is kept as (:func:`kept_dtype`), sharing its memory where it can."""
    array = np.asarray(array, order="C")
    return torch.from_numpy(array.astype(kept_dtype(array.dtype), copy=False))


def zero_batch(space: Space, leading: tuple[int, ...] = (1,), path: str = "observation_space") -> Tree:
    """Valid observations of ``space`` with the dims ``leading``, all alike: each number is the one next to 0.

    Raises:
        ValueError: If ``space`` holds a leaf that has no array form; names the path to it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {key: zero_batch(child, leading, f"{path}[{key!r}]") for key, child in space_parts(space)}
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        value = np.asarray(space.start)
    elif isinstance(space, spaces.Box):
        value = np.maximum(np.minimum(np.zeros(space.shape, space.dtype), space.high), space.low)
    elif isinstance(space, spaces.MultiBinary):
        value = np.zeros(space.shape)
    else:
        raise ValueError(_no_array(space, path))
    return to_tensor(np.broadcast_to(value.astype(space.dtype), (*leading, *value.shape)).copy())


def _no_array(space: Space, path: str) -> str:
    return (
        f"{path}: expected a space of arrays (Box, Discrete, MultiDiscrete, MultiBinary, Dict, "
        f"Tuple), got {space}. Turn it into arrays with an environment wrapper."
    )


def _empty(space: Space, path: str) -> str:
    return (
        f"{path}: expected a space with at least one entry, got {space}. Leave it out of the "
        "observation with an environment wrapper."
    )
