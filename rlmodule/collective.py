"""Collective operations of learners that train together, and the case of a single one.

An update runs the same program on every learner; where it needs the data of all, each contributes its part and receives
the whole.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

import torch
import tree
from torch import Tensor

from rlmodule.checkpoint import join_tensors, split_tensors

_PLAIN = "plain"


class CollectiveError(RuntimeError):
    """A learner waited for the others in vain, since one of them raised, ended or hangs."""


class Collective(ABC):
    """The learners that train together, as one of them sees it. All call the same methods in the same order.

    Attributes:
        rank: Number of this learner, from 0.
        size: How many there are.
    """

    rank: int
    size: int

    def __enter__(self) -> None:
        """Begin a part that all run together. If it raises on this learner, the others are released."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close()

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> Tensor:
        """``tensor``, of one shape and dtype everywhere, summed over all in place. The same bits everywhere."""

    @abstractmethod
    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """The ``rows`` ``[n, ...]`` of each, by rank. The number of rows may differ."""

    @abstractmethod
    def close(self) -> None:
        """Leave the others, so that they do not wait for this one any longer."""

    def all_reduce_mean(self, value: Tensor, rows: int) -> Tensor:
        """The mean over the rows of all learners, from the mean ``value`` over ``rows`` rows here; ignored if 0."""
        if self.size == 1:
            return value
        here = value.double() * rows if rows else torch.zeros_like(value, dtype=torch.float64)
        total, count = self.all_reduce(torch.stack([here, torch.full_like(here, rows)]))
        return (total / count).to(value.dtype)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The ``value`` of each, by rank: tensors (which arrive on the CPU), what JSON has, and dicts, lists and tuples
        of these; lists arrive as tuples."""
        if self.size == 1:
            return [value]
        return [_unpacked(part) for part in self.all_gather(_packed(value))]


class SingleProcess(Collective):
    """A single learner."""

    rank, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        return [rows]

    def close(self) -> None:
        """Do nothing."""


def _packed(value: Any) -> Tensor:
    """``value`` as the bytes of a safetensors file, with all but its tensors as JSON in one more tensor. Not a pickle,
    with which anyone who reaches the port could run code here."""
    import safetensors.torch

    tensors = dict[str, Tensor]()
    plain = json.dumps(split_tensors(value, "value", tensors))
    data = safetensors.torch.save(tensors | {_PLAIN: torch.frombuffer(bytearray(plain, "utf-8"), dtype=torch.uint8)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    import safetensors.torch

    tensors = safetensors.torch.load(data.numpy().tobytes())
    value = join_tensors(json.loads(tensors.pop(_PLAIN).numpy().tobytes()), tensors)
    # only trees have sequences here, and those of their dicts and tuples alone
    return tree.traverse(lambda part: tuple(part) if isinstance(part, list) else None, value, top_down=False)
