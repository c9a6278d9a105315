"""Processes that stay for many cases, in which learners train together."""

import glob
import hashlib
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import tree

from rlmodule import Learner
from rlmodule.distributed.process_group import ProcessGroupCollective, Rendezvous
from tests.waiting import PATIENCE_S

ANSWER_S = 2 * PATIENCE_S
"""Seconds after which a process counts as hung: longer than what it runs may wait itself."""
PEER_TIMEOUT_S = 120.0
"""Seconds that one waits for the others, unless a case is about that."""


class Fleet:
    """Processes that run functions ``function(peers, *args)`` side by side."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        self.calls = 0
        for rank in range(size):
            self._answer(rank)

    def run(
        self,
        function: Callable[..., Any],
        *args_of_each: tuple[Any, ...],
        peer_timeout_s: float = PEER_TIMEOUT_S,
    ) -> list[Any]:
        """What ``function`` returned or raised in as many processes as there are arguments."""
        place, size = Rendezvous(), len(args_of_each)
        self.calls += 1
        for rank, args in enumerate(args_of_each):
            call = (self.calls, rank, size, place.host, place.port, peer_timeout_s, function, args)
            self.pipes[rank].send_bytes(pickle.dumps(call))
        return [self._answer(rank) for rank in range(size)]

    def _answer(self, rank: int) -> Any:
        call, answer, deadline = -1, None, time.monotonic() + ANSWER_S
        while call < self.calls:  # that of a call which was given up comes late
            left = max(0.0, deadline - time.monotonic())
            assert self.pipes[rank].poll(left), f"process {rank} has not answered for {ANSWER_S:g} s"
            try:
                call, answer = pickle.loads(self.pipes[rank].recv_bytes())
            except EOFError:
                return EOFError(f"process {rank} has ended")
        return answer

    def values(self, function: Callable[..., Any], *args_of_each: tuple[Any, ...], **options: Any) -> list[Any]:
        """What ``function`` returned; raises what it raised."""
        answers = self.run(function, *args_of_each, **options)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def close(self) -> None:
        for process in self.processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            process.join(10)


def listening(pid: int) -> set[str]:
    """The addresses, as the kernel writes them, on which a process of this machine listens for TCP connections."""
    links = [os.readlink(path) for path in glob.glob(f"/proc/{pid}/fd/*") if os.path.islink(path)]
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table]
    return {each[1].partition(":")[0] for each in sockets if each[3] == "0A" and f"socket:[{each[9]}]" in links}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as :func:`listening` has it."""


@contextmanager
def fleet_of(size: int) -> Iterator[Fleet]:
    """A fleet for a fixture; its processes end with the block."""
    fleet = Fleet(size)
    try:
        yield fleet
    finally:
        fleet.close()


def _serve(pipe: Any) -> None:
    torch.set_num_threads(1)
    pipe.send_bytes(pickle.dumps((0, "started")))
    while True:
        call, rank, size, host, port, timeout_s, function, args = pickle.loads(pipe.recv_bytes())
        try:
            collective = ProcessGroupCollective(rank, size, host, port, timeout_s=timeout_s)
            try:
                answer = function(collective, *args)
            finally:
                collective.close()
        except BaseException as error:
            traceback.print_exc()
            answer = error
        pipe.send_bytes(pickle.dumps((call, answer)))


def digest(value: Any) -> str:
    """sha256 of a tree of tensors and plain values, such as the state of a learner."""
    found = hashlib.sha256()
    for path, leaf in tree.flatten_with_path(value):
        found.update(repr(path).encode())
        found.update(
            leaf.detach().contiguous().numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf).encode()
        )
    return found.hexdigest()


def weights(learner: Learner) -> torch.Tensor:
    """All parameters of a learner's modules, in a row."""
    return torch.cat([flat.tensor.detach().clone() for flat in learner.parameters.values()])
