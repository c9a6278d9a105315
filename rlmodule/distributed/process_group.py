"""Peers: what learners that train together tell each other. An update is the same program on all of them; where it
needs something of all, each says its part and gets the whole."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from catalog.errors import explain_error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_SENT_TO_ALL = 2**20
"""Bytes, over all receivers, up to which learners on CPUs send a tensor to each other directly."""


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
    def sum(self, tensor: Tensor) -> Tensor:
        """``tensor``, of one shape and dtype everywhere, summed over all in place. The same bits everywhere."""

    @abstractmethod
    def gather(self, rows: Tensor) -> list[Tensor]:
        """The ``rows`` ``[n, ...]`` of each, by rank. The number of rows may differ."""

    @abstractmethod
    def close(self) -> None:
        """Leave the others, who then need not wait for this one any longer."""

    def all_rows(self, rows: Tensor) -> Tensor:
        """The ``rows`` ``[n, ...]`` of all, those of rank 0 first."""
        return rows if self.size == 1 else torch.cat(self.gather(rows))

    def mean(self, value: Tensor, rows: int) -> Tensor:
        """A mean over all rows, from ``value``, that over the ``rows`` here; of no rows it may be anything."""
        if self.size == 1:
            return value
        here = value.double() * rows if rows else torch.zeros_like(value, dtype=torch.float64)
        total, count = self.sum(torch.stack([here, torch.full_like(here, rows)]))
        return (total / count).to(value.dtype)

    def share(self, value: Any) -> list[Any]:
        """The ``value`` of each, by rank: tensors (they arrive on the CPU), what JSON has, and dicts, lists and tuples
        of these."""
        if self.size == 1:
            return [value]
        return [_decoded(part) for part in self.gather(_encoded(value))]


class SingleProcess(Collective):
    """No others."""

    rank, size = 0, 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, rows: Tensor) -> list[Tensor]:
        return [rows]

    def close(self) -> None:
        """Nothing: nobody waits."""


class Rendezvous:
    """Where learners find each other; open as long as this object is. One meeting needs one.

    Args:
        host: Address of this machine at which the others reach it. Nobody else does on ``"127.0.0.1"``.

    Attributes:
        host, port: For :class:`ProcessGroupCollective`.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        listener = socket.create_server((host, 0))  # our own, since the store's would listen on every address
        self.host, self.port = host, int(listener.getsockname()[1])
        self._store = TCPStore(
            host, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


class ProcessGroupCollective(Collective):
    """Peers in other processes, by gloo on the CPU or NCCL on GPUs. Comes back when all are there.

    A peer that ends, or gives up after an error, is noticed at once; one that is stuck, after ``timeout_s``. Either is
    a :class:`CollectiveError`, after which all must connect anew. By NCCL nobody is told: what a GPU waits for, Python does
    not, and after twice ``timeout_s`` NCCL ends the process. Who started the learners has to watch them.

    Args:
        rank, size: Number of this learner, of how many.
        host, port: Of the :class:`Rendezvous`.
        timeout_s: Seconds that the others are waited for.
        device: Where most of the tensors are.

    Raises:
        PeerLost: If the others do not come.
    """

    def __init__(
        self, rank: int, size: int, host: str, port: int, *, timeout_s: float = 60.0, device: torch.device | str = "cpu"
    ) -> None:
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self._timeout_s = timeout_s
        self._group: ProcessGroup | None = None
        self._group = self._attempt(lambda: self._meet(host, port))

    def sum(self, tensor: Tensor) -> Tensor:
        here = tensor.to(self.device)
        if self._exchanges(here):
            first, *others = self._exchanged(here)
            total = first.clone()
            for part in others:  # by rank, and so to the same bits everywhere
                total += part
            return tensor.copy_(total)
        self._attempt(lambda: self._members().allreduce([here]).wait())
        return tensor if here is tensor else tensor.copy_(here)

    def gather(self, rows: Tensor) -> list[Tensor]:
        counts = self._gather(torch.tensor([len(rows)], device=self.device))
        lengths = [int(count) for count in torch.cat(counts)]
        padded = rows.new_zeros(max(lengths), *rows.shape[1:], device=self.device)
        padded[: len(rows)] = rows
        parts = self._gather(padded) if max(lengths) else [padded] * self.size
        return [part[:length].to(rows.device) for part, length in zip(parts, lengths, strict=True)]

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and self.device.type == "cuda":
            group.abort()  # gloo's is closed with the last reference to it

    def _exchanges(self, here: Tensor) -> bool:
        """Whether all send it to all."""
        return self.device.type == "cpu" and here.nbytes * (self.size - 1) <= _SENT_TO_ALL

    def _exchanged(self, here: Tensor) -> list[Tensor]:
        """``here`` of each, by rank, each sent to each. Gloo's own ways take many turns, in which its threads wait for
        each other: of a small tensor they last several times as long."""
        parts = [here if rank == self.rank else torch.empty_like(here) for rank in range(self.size)]
        others = [rank for rank in range(self.size) if rank != self.rank]

        def exchange() -> None:
            works = [self._members().send([here], rank, 0) for rank in others]
            works += [self._members().recv([parts[rank]], rank, 0) for rank in others]
            try:
                while works:
                    works.pop(0).wait()
            finally:
                works.clear()  # an error would keep them, and they keep the connection open

        self._attempt(exchange)
        return parts

    def _gather(self, here: Tensor) -> list[Tensor]:
        if self._exchanges(here):
            return self._exchanged(here)
        parts = [torch.empty_like(here) for _ in range(self.size)]
        self._attempt(lambda: self._members().allgather([parts], [here]).wait())
        return parts

    def _members(self) -> ProcessGroup:
        if self._group is None:
            raise RuntimeError("the connection was given up after an earlier error")
        return self._group

    def _meet(self, host: str, port: int) -> ProcessGroup:
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        timeout = timedelta(seconds=self._timeout_s)
        store = TCPStore(host, port, is_master=False, timeout=timeout)
        store.set_timeout(timeout)
        # groups of our own, not torch's one global group, which may be somebody else's and cannot be made twice
        if self.device.type == "cuda":
            from torch.distributed import ProcessGroupNCCL

            options = ProcessGroupNCCL.Options()
            # then NCCL ends this process, which only waits: whoever watches shall have found the stuck one before
            options._timeout = 2 * timeout
            return cast("ProcessGroup", ProcessGroupNCCL(store, self.rank, self.size, options))
        from torch.distributed import ProcessGroupGloo

        options = ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = timeout
        options._devices = [ProcessGroupGloo.create_device(hostname=_address_towards(host, port))]
        return cast("ProcessGroup", ProcessGroupGloo(store, self.rank, self.size, options))

    def _attempt(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except RuntimeError as error:
            self.close()
            raise CollectiveError(
                explain_error(
                    f"learner {self.rank} of {self.size}",
                    expected=f"the others to take part within {self._timeout_s:g} s",
                    got=_told(error),
                    remedy="Look at what happened to the others. All must connect anew.",
                )
            ) from error


def _told(error: RuntimeError) -> str:
    """The first sentence of gloo's or NCCL's, without the place in their source."""
    first, *_ = str(error).splitlines() or [type(error).__name__]
    return first.rpartition("] ")[2].partition(". ")[0].rstrip(".")


def _address_towards(host: str, port: int) -> str:
    """The address of this machine as ``host`` sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        return probe.getsockname()[0]


# Not pickled: who reached the port could have anything run here.


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
