"""Move trees of tensors to a device."""

from __future__ import annotations

import torch
import tree
from torch import Tensor

from catalog.base import Tree


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
