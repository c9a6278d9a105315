"""Set how many threads torch computes on, of which each thread of the process has its own count, and give it back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch

SMALL_NET = 1_000_000
"""Parameters below which one thread is faster than handing the work out to several."""


class Threads:
    """torch's threads, as one run sets them: where it is built, and in whichever thread it computes (:meth:`used`).

    Args:
        wanted: What the run wants, given how many there were before any run.
    """

    _last: ClassVar[tuple[int, int]] = (0, 0)  # found and set by the last run, which may never have been stopped

    def __init__(self, wanted: Callable[[int], int]) -> None:
        now, (found, by_a_run) = torch.get_num_threads(), Threads._last
        self._found = found if now == by_a_run else now
        self._set = wanted(self._found)
        Threads._last = self._found, self._set
        torch.set_num_threads(self._set)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute on the run's number of threads in the thread that calls."""
        found = torch.get_num_threads()
        if found == self._set:
            yield
            return
        torch.set_num_threads(self._set)
        try:
            yield
        finally:
            torch.set_num_threads(found)

    def give_back(self) -> None:
        """What there was before, unless somebody has changed it since."""
        if torch.get_num_threads() == self._set:
            torch.set_num_threads(self._found)


@contextmanager
def one_thread() -> Iterator[None]:
    """Orthogonal weights differ by the number of threads, which an earlier run in this process may have changed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
