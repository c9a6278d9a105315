"""Collective operations among learners that train together, and trivial versions for a single learner.

All learners run the same program. Where the program needs the data of all learners, each learner contributes its share
and receives the whole.
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
    """Raised in a learner that waits for another learner, if the other learner raises an error, exits or hangs."""


class Collective(ABC):
    """The connection between one learner and the learners that it trains with. All learners must call the same methods
    in the same order.

    Attributes:
        rank: Index of this learner among all learners, from 0.
        size: Number of learners, this one included.
    """

    rank: int
    size: int

    def __enter__(self) -> None:
        """Begin a block that all learners run. If the block raises an error, :meth:`close` is called on exit, so that
        the other learners raise, too."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close()

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` with its sum over all learners in place, and return it. The sum is bitwise equal on all
        learners.

        ``tensor`` must have the same shape and dtype on every learner.
        """

    @abstractmethod
    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """Return the ``rows`` ``[n, ...]`` of all learners as a list in order of rank. Only ``n`` may differ between
        learners."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Other learners that wait for this learner raise :class:`CollectiveError`."""

    def all_reduce_mean(self, value: Tensor, rows: int) -> Tensor:
        """Return the mean of a quantity over the rows of all learners.

        Args:
            value: The mean of the quantity over this learner's rows, of any shape.
            rows: Number of this learner's rows. If it is 0, ``value`` is ignored.
        """
        if self.size == 1:
            return value
        here = value.double() * rows if rows else torch.zeros_like(value, dtype=torch.float64)
        total, count = self.all_reduce(torch.stack([here, torch.full_like(here, rows)]))
        return (total / count).to(value.dtype)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the ``value`` of all learners as a list in order of rank.

        Args:
            value: A tensor, a value that JSON can represent, or a dict, list or tuple of such values. If there are
                several learners, the tensors returned are on the CPU, and lists have become tuples.
        """
        if self.size == 1:
            return [value]
        return [_unpacked(part) for part in self.all_gather(_packed(value))]


class SingleProcess(Collective):
    """The collective of a learner that trains alone, which exchanges no data."""

    rank, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        return [rows]

    def close(self) -> None:
        """Do nothing, because no other learner is connected."""


def _packed(value: Any) -> Tensor:
    """Serialise ``value`` as a safetensors file, and return its bytes as a uint8 tensor. Values other than tensors are
    stored as JSON in an additional tensor.

    The format is not pickle, because any program that can connect to the port could then run code in this process.
    """
    import safetensors.torch

    tensors = dict[str, Tensor]()
    plain = json.dumps(split_tensors(value, "value", tensors))
    # clones, since safetensors refuses tensors that share memory
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    data = safetensors.torch.save(tensors | {_PLAIN: torch.frombuffer(bytearray(plain, "utf-8"), dtype=torch.uint8)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    """Return the value that :func:`_packed` serialised as ``data``. Lists become tuples."""
    import safetensors.torch

    tensors = safetensors.torch.load(data.numpy().tobytes())
    value = join_tensors(json.loads(tensors.pop(_PLAIN).numpy().tobytes()), tensors)
    # JSON has only lists, and trees of this library have only tuples
    return tree.traverse(lambda part: tuple(part) if isinstance(part, list) else None, value, top_down=False)
