"""Move trees of tensors to a device, and keep the CPU's memory for the next ones."""

from __future__ import annotations

import ctypes

import torch
import tree
from torch import Tensor

from catalog.base import Tree

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # in malloc.h


def moved(tensors: Tree, device: torch.device) -> Tree:
    """Return the tree ``tensors`` with every tensor on ``device``. Copies from the CPU to a GPU use pinned memory and
    are asynchronous."""

    def move(x: Tensor | None) -> Tensor | None:
        if x is None or x.device == device:
            return x
        if device.type == "cuda" and x.device.type == "cpu":
            return x.pin_memory().to(device, non_blocking=True)
        return x.to(device)

    return move(tensors) if isinstance(tensors, Tensor) else tree.map_structure(move, tensors)


def keep_freed_memory() -> None:
    """Let this process keep the memory of tensors that it frees, up to 64 MB each, for the tensors that follow. Do
    nothing where the C library is not glibc.

    By default, glibc returns the memory of a large minibatch's activations to the system after each gradient step, and
    the system clears it page by page for the next step. With 25,000 rows in a net of 3 x 128 units, that takes an
    eighth of an update.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # TypeError on Windows, where a library must have a name
        return
    mallopt(_M_MMAP_THRESHOLD, 64 * 2**20)
    mallopt(_M_TRIM_THRESHOLD, 2**30)
