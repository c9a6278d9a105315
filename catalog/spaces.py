"""Samples of spaces as batched tensors."""

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree
from catalog.errors import explain_error


def to_tensor(array: np.ndarray) -> Tensor:
    """``array`` as a tensor sharing its memory where it can; float64 becomes float32."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def zero_batch(space: Space, path: str = "observation_space") -> Tree:
    """One smallest valid observation of ``space`` (zeros; the start of a Discrete) with a batch dim of 1.

    Raises:
        ValueError: If ``space`` holds a leaf that has no array form; names the path to it.
    """
    if isinstance(space, spaces.Dict):
        return {key: zero_batch(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zero_batch(child, f"{path}[{i}]") for i, child in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return torch.full((1,), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return torch.as_tensor(space.start, dtype=torch.int64)[None]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return to_tensor(np.zeros((1, *space.shape), space.dtype))
    raise ValueError(
        explain_error(
            path,
            expected="a space of arrays (Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple)",
            got=str(space),
            remedy="Turn it into arrays with an environment wrapper.",
        )
    )
