"""Collective operations of learners that train together, and the case of a single one.

An update runs the same program on every learner; where it needs the data of all, each contributes its part and gets the
whole.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class CollectiveError(RuntimeError):
    """A learner waited for the others in vain. The cause lies with another one: with its own error, or its end."""


class Collective(ABC):
    """The learners that train together, as one of them sees it. All call the same methods in the same order.

    Attributes:
        rank: Number of this learner, from 0.
        size: How many there are.
    """

    rank: int
    size: int

    def __enter__(self) -> None:
        """Begin what all do together. If it raises here, the others are left, and need not wait."""

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
        """Leave the others, who then need not wait for this one any longer."""

    def all_reduce_mean(self, value: Tensor, rows: int) -> Tensor:
        """A mean over all rows, from ``value``, that over the ``rows`` here; of no rows it may be anything."""
        if self.size == 1:
            return value
        here = value.double() * rows if rows else torch.zeros_like(value, dtype=torch.float64)
        total, count = self.all_reduce(torch.stack([here, torch.full_like(here, rows)]))
        return (total / count).to(value.dtype)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The ``value`` of each, by rank: tensors (they arrive on the CPU), what JSON has, and dicts, lists and tuples
        of these."""
        if self.size == 1:
            return [value]
        return [_decoded(part) for part in self.all_gather(_encoded(value))]


class SingleProcess(Collective):
    """The only learner there is."""

    rank, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        return [rows]

    def close(self) -> None:
        """Do nothing: no other learner waits."""


def _encoded(value: Any) -> Tensor:
    """``value`` as bytes: the length of its structure, the structure as JSON, and the tensors."""
    tensors: list[Tensor] = []
    structure = torch.frombuffer(bytearray(json.dumps(_structure(value, tensors)), "utf-8"), dtype=torch.uint8)
    length = torch.tensor([len(structure)]).view(torch.uint8)
    return torch.cat([length, structure, *(x.reshape(-1).view(torch.uint8) for x in tensors)])


def _structure(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value.detach().cpu().contiguous())
        return {"tensor": [str(value.dtype).removeprefix("torch."), *value.shape]}
    if isinstance(value, Mapping):
        return {"dict": [[key, _structure(child, tensors)] for key, child in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_structure(child, tensors) for child in value]}
    return value


def _decoded(data: Tensor) -> Any:
    start = 8 + int(data[:8].view(torch.int64))
    return _Reader(data, start).read(json.loads(data[8:start].numpy().tobytes()))


class _Reader:
    """Puts a structure and the tensors that follow it at ``start`` together."""

    def __init__(self, data: Tensor, start: int) -> None:
        self._data, self._start = data, start

    def read(self, structure: Any) -> Any:
        if not isinstance(structure, dict):
            return structure
        ((kind, content),) = structure.items()
        if kind == "tensor":
            return self._tensor(getattr(torch, content[0]), content[1:])
        if kind == "dict":
            return {key: self.read(child) for key, child in content}
        parts = [self.read(child) for child in content]
        return tuple(parts) if kind == "tuple" else parts

    def _tensor(self, dtype: torch.dtype, shape: list[int]) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        stop = self._start + tensor.nbytes
        tensor.view(-1).view(torch.uint8).copy_(self._data[self._start : stop])
        self._start = stop
        return tensor
