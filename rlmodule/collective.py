"""Collective operations of learners that train together, and the trivial ones of a single learner.

All learners run the same program. Where the program needs the data of all learners, each one contributes its part and
receives the whole.
"""

import json
from abc import ABC, abstractmethod
from typing import Any

import torch
import tree
from torch import Tensor

from rlmodule.checkpoint import join_tensors, split_tensors

_PLAIN = "plain"


class CollectiveError(RuntimeError):
    """Raised by a learner that waits for another learner which raised, ended or hangs."""


class Collective(ABC):
    """The connection of one learner to the learners that it trains with. All call the same methods in the same order.

    Attributes:
        rank: Number of this learner, from 0.
        size: Number of learners.
    """

    rank: int
    size: int

    def __enter__(self) -> None:
        """Begin a block that all learners run. If it raises, the connection closes, so that the others raise too."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close()

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum ``tensor`` over all learners in place, and return it; all get the same bits.

        ``tensor`` must have the same shape and dtype on every learner.
        """

    @abstractmethod
    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """Return the ``rows`` ``[n, ...]`` of every learner, by rank. The number ``n`` may differ."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; other learners that wait for this one raise :class:`CollectiveError`."""

    def all_reduce_mean(self, value: Tensor, rows: int) -> Tensor:
        """Return the mean over the rows of all learners.

        Args:
            value: The mean over the rows of this learner.
            rows: Number of these rows; if 0, ``value`` is ignored.
        """
        if self.size == 1:
            return value
        here = value.double() * rows if rows else torch.zeros_like(value, dtype=torch.float64)
        total, count = self.all_reduce(torch.stack([here, torch.full_like(here, rows)]))
        return (total / count).to(value.dtype)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the ``value`` of every learner, by rank.

        Args:
            value: A tensor, a value that JSON can hold, or a dict, list or tuple of these. Tensors arrive on the CPU,
                and lists as tuples.
        """
        if self.size == 1:
            return [value]
        return [_unpacked(part) for part in self.all_gather(_packed(value))]


class SingleProcess(Collective):
    """The collective of a learner that trains alone."""

    rank, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        return [rows]

    def close(self) -> None:
        """Do nothing."""


def _packed(value: Any) -> Tensor:
    """Return ``value`` as the bytes of a safetensors file; the plain values are JSON in one more tensor.

    A pickle would let any program that reaches the port run code in this process.
    """
    import safetensors.torch

    tensors = dict[str, Tensor]()
    plain = json.dumps(split_tensors(value, "value", tensors))
    # clones, since safetensors refuses tensors that share memory
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    data = safetensors.torch.save(tensors | {_PLAIN: torch.frombuffer(bytearray(plain, "utf-8"), dtype=torch.uint8)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    """Return the value that :func:`_packed` turned into ``data``."""
    import safetensors.torch

    tensors = safetensors.torch.load(data.numpy().tobytes())
    value = join_tensors(json.loads(tensors.pop(_PLAIN).numpy().tobytes()), tensors)
    # JSON has only lists, and trees of this library have only tuples
    return tree.traverse(lambda part: tuple(part) if isinstance(part, list) else None, value, top_down=False)
