"""Set the number of threads that torch computes on, and restore it. Each Python thread has its own such number."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import nn

from rlmodule.seeding import int_seed

# Number of parameters below which a net computes faster on one thread than on several.
SMALL_NET = 1_000_000


class Threads:
    """Sets torch's number of threads in the thread that builds a run. Other threads use :func:`computing_on`.

    Args:
        asked: The number of threads; None chooses it by the size of ``module``.
        module: The module that the run trains.

    Attributes:
        count: Number of threads of the run.
    """

    _last: ClassVar[tuple[int, int]] = (0, 0)  # before and after the last run set it, as that run may never be stopped

    def __init__(self, asked: int | None, module: nn.Module) -> None:
        now, (found, by_a_run) = torch.get_num_threads(), Threads._last
        self._found = found if now == by_a_run else now
        size = sum(parameter.numel() for parameter in module.parameters())
        self.count = asked or (1 if size < SMALL_NET else self._found)
        Threads._last = self._found, self.count
        torch.set_num_threads(self.count)

    def close(self) -> None:
        """Restore the number of threads from before the run, unless it was changed during the run."""
        if torch.get_num_threads() == self.count:
            torch.set_num_threads(self._found)


@contextmanager
def computing_on(count: int) -> Iterator[None]:
    """Let torch compute on ``count`` threads within the block."""
    found = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(found)


@contextmanager
def building(run_seed: int) -> Iterator[None]:
    """Within the block, draw the weights of new modules from the run's seed. Restore torch's generator and number of
    threads afterwards.

    Use one thread, because orthogonal weights depend on the number of threads, which another run may have changed.
    """
    with computing_on(1), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int_seed(run_seed, "module"))
        yield
