"""Set how many threads torch computes on, of which each thread of the process has its own count, and give it back."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import torch
from torch import nn

from rlmodule.seeding import int_seed

SMALL_NET = 1_000_000
"""Parameters below which one thread is faster than handing the work out to several."""


class Threads:
    """torch's threads, as one run sets them: where it is built, and in whichever thread it computes (:meth:`used`).

    Args:
        asked: How many; None chooses by the size of ``module``, which the run trains.

    Attributes:
        count: How many the run computes on.
    """

    _last: ClassVar[tuple[int, int]] = (0, 0)  # found and set by the last run, which may never have been stopped

    def __init__(self, asked: int | None, module: nn.Module) -> None:
        now, (found, by_a_run) = torch.get_num_threads(), Threads._last
        self._found = found if now == by_a_run else now
        size = sum(parameter.numel() for parameter in module.parameters())
        self.count = asked or (1 if size < SMALL_NET else self._found)
        Threads._last = self._found, self.count
        torch.set_num_threads(self.count)

    def used(self) -> AbstractContextManager[None]:
        """Compute on the run's number of threads in the thread that calls."""
        return _computing_on(self.count)

    def close(self) -> None:
        """What there was before, unless somebody has changed it since."""
        if torch.get_num_threads() == self.count:
            torch.set_num_threads(self._found)


@contextmanager
def _computing_on(count: int) -> Iterator[None]:
    found = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(found)


@contextmanager
def building(run_seed: int) -> Iterator[None]:
    """Draw the weights of new modules from the run's seed, and leave torch's generator and threads as they were.

    One thread, as orthogonal weights differ by their number, which another run in this process may have changed.
    """
    with _computing_on(1), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int_seed(run_seed, "module"))
        yield
