"""Collective operations over a process group of torch.distributed, and the rendezvous at which its processes
connect."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from rlmodule.collective import Collective, CollectiveError

_SENT_TO_ALL = 2**20
"""Largest total size, in bytes over all receivers, of a tensor that learners on the CPU send to each other directly.
For such tensors, gloo's own collectives take 1.6 times as long with two processes, and 2.6 times as long with three."""


class Rendezvous:
    """A server at which learners meet to connect to each other. It runs as long as this object exists. Each new
    connection needs a new rendezvous.

    Args:
        host: Address of this machine to listen on; other machines cannot reach ``"127.0.0.1"``.

    Attributes:
        host, port: Address and port of the server, for :class:`ProcessGroupCollective`.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        listener = socket.create_server((host, 0))  # the store by itself would listen on every address
        self.host, self.port = host, int(listener.getsockname()[1])
        self._store = TCPStore(
            host, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


class ProcessGroupCollective(Collective):
    """Connects learners in several processes, with gloo on the CPU or NCCL on GPUs. The constructor waits until all
    learners have connected.

    With gloo, a learner that ends, or closes its connection after an error, is noticed at once, and a learner that
    hangs is noticed after ``timeout_s``. The waiting learners raise :class:`CollectiveError`, and all learners must
    then connect again. NCCL cannot raise, because no Python code runs while a GPU waits. Instead it ends the waiting
    process after twice ``timeout_s``. The process that started the learners watches them.

    Args:
        rank, size: Number of this learner, from 0, and number of all learners.
        host, port: Address and port of the :class:`Rendezvous`.
        timeout_s: Seconds to wait for the other learners.
        device: Device on which tensors are exchanged. Tensors on other devices are copied to it and back.

    Raises:
        CollectiveError: If the other learners do not connect.
    """

    def __init__(
        self, rank: int, size: int, host: str, port: int, *, timeout_s: float = 60.0, device: torch.device | str = "cpu"
    ) -> None:
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self._timeout_s = timeout_s
        self._group: Any = None  # a ProcessGroup, until it is closed
        self._group = self._attempt(lambda: self._meet(host, port))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        here = tensor.to(self.device)
        if self._is_exchanged(here):
            first, *others = self._gather(here)
            total = first.clone()
            for part in others:  # every learner adds in the same order, for the same bits
                total += part
            return tensor.copy_(total)
        self._attempt(lambda: self._members().allreduce([here]).wait())
        return tensor if here is tensor else tensor.copy_(here)

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        counts = self._gather(torch.tensor([len(rows)], device=self.device))
        lengths = [int(count) for count in torch.cat(counts)]
        padded = rows.new_zeros(max(lengths), *rows.shape[1:], device=self.device)
        padded[: len(rows)] = rows
        parts = self._gather(padded) if max(lengths) else [padded] * self.size
        return [part[:length].to(rows.device) for part, length in zip(parts, lengths, strict=True)]

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and self.device.type == "cuda":
            group.abort()  # a gloo group closes with the last reference to it

    def _is_exchanged(self, here: Tensor) -> bool:
        """Return whether the learners send a tensor of this size to each other directly, without gloo's collectives."""
        return self.device.type == "cpu" and here.nbytes * (self.size - 1) <= _SENT_TO_ALL

    def _gather(self, here: Tensor) -> list[Tensor]:
        """Return the tensors ``here`` of all learners, by rank. All must have the same shape."""
        parts = [torch.empty_like(here) for _ in range(self.size)]
        if not self._is_exchanged(here):
            self._attempt(lambda: self._members().allgather([parts], [here]).wait())
            return parts
        parts[self.rank] = here
        others = [rank for rank in range(self.size) if rank != self.rank]

        def exchange() -> None:
            works = [self._members().send([here], rank, 0) for rank in others]
            works += [self._members().recv([parts[rank]], rank, 0) for rank in others]
            try:
                while works:
                    works.pop(0).wait()
            finally:
                works.clear()  # the traceback of an error refers to them, and they keep the connection open

        self._attempt(exchange)
        return parts

    def _members(self) -> Any:
        """Return the process group.

        Raises:
            RuntimeError: If the connection was closed.
        """
        if self._group is None:
            raise RuntimeError("the connection was closed after an earlier error")
        return self._group

    def _meet(self, host: str, port: int) -> Any:
        """Connect to the other learners at the rendezvous, and return the process group."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        timeout = timedelta(seconds=self._timeout_s)
        store = TCPStore(host, port, is_master=False, timeout=timeout)
        store.set_timeout(timeout)
        # torch's global group may belong to the user, and exists once per process; these groups are independent of it
        if self.device.type == "cuda":
            from torch.distributed import ProcessGroupNCCL

            if host == "127.0.0.1":  # all learners are on this machine, so NCCL need not listen on the network
                os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            options = ProcessGroupNCCL.Options()
            # After its timeout, NCCL ends this process. Twice the time lets the driver find the stuck learner first.
            options._timeout = 2 * timeout
            return ProcessGroupNCCL(store, self.rank, self.size, options)
        from torch.distributed import ProcessGroupGloo

        options = ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = timeout
        options._devices = [ProcessGroupGloo.create_device(hostname=_address_towards(host, port))]
        return ProcessGroupGloo(store, self.rank, self.size, options)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Return the result of ``action()``.

        Raises:
            CollectiveError: If ``action`` raises a ``RuntimeError``, as torch does when a learner has ended or is late.
                The connection is then closed.
        """
        try:
            return action()
        except RuntimeError as error:
            self.close()
            raise CollectiveError(
                f"learner {self.rank} of {self.size}: expected the others to join within "
                f"{self._timeout_s:g} s, got {_first_sentence(error)}. Find the error of the learner "
                "that failed first, then let all connect again."
            ) from error


def _first_sentence(error: RuntimeError) -> str:
    """Return the first sentence of an error of gloo or NCCL, without the location in their source code."""
    first, *_ = str(error).splitlines() or [type(error).__name__]
    return first.rpartition("] ")[2].partition(". ")[0].rstrip(".")


def _address_towards(host: str, port: int) -> str:
    """Return this machine's address on the network through which it reaches ``host``. Nothing is sent to ``port``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        return probe.getsockname()[0]
