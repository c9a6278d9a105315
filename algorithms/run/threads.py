"""Choose and set the number of threads that torch computes on, and restore it. Each Python thread has its own such
number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import torch

from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.seeding import int_seed

if TYPE_CHECKING:
    from algorithms.config import AlgorithmConfig

# Number of parameters from which a net computes on all cores. It may have convolutions, each of whose weights does more
# work than WORK_PER_THREAD counts.
LARGE_NET = 1_000_000

# Work of a gradient step, in rows x parameters, that keeps one thread busy. For a step of SAC, two threads take 1.4
# times the time of one at 2 million, the same at 15 million, and 0.7 times from 28 million on. The bound for two
# threads, 40 million, has a margin for cores that other programs use.
WORK_PER_THREAD = 20_000_000


class Threads:
    """Sets torch's number of threads in the thread that builds a run. Other threads use :func:`computing_on`.

    Args:
        config: The settings of the run.
        modules: The modules of the run.

    Attributes:
        count: Number of threads of the run.
    """

    _last: ClassVar[tuple[int, int]] = (0, 0)  # before and after the last run set it, as that run may never be stopped

    def __init__(self, config: AlgorithmConfig, modules: MultiRLModule) -> None:
        now, (found, by_a_run) = torch.get_num_threads(), Threads._last
        self._found = found if now == by_a_run else now
        self.use(config.torch_num_threads or threads_for(config, modules, self._found))

    def use(self, count: int) -> None:
        """Set the number of threads to ``count``."""
        self.count = count
        Threads._last = self._found, count
        torch.set_num_threads(count)

    def close(self) -> None:
        """Restore the number of threads from before the run, unless it was changed during the run."""
        if torch.get_num_threads() == self.count:
            torch.set_num_threads(self._found)


def threads_for(config: AlgorithmConfig, modules: MultiRLModule, num_cores: int) -> int:
    """Return the number of threads that a run computes on: one for each :data:`WORK_PER_THREAD` of its largest gradient
    step, but at most ``num_cores``, and all of these for a net of :data:`LARGE_NET` parameters.

    A clock does not enter, since sums over another number of threads differ in their last bits.
    """
    work = 0
    for module_id in filter(config.is_trained, modules):
        module, rows = modules[module_id], config.for_module(module_id).rows_per_gradient_step
        if module.is_stateful():
            rows //= module.max_seq_len  # the steps of a sequence are computed one after another
        size = sum(parameter.numel() for parameter in module.parameters())
        if size >= LARGE_NET:
            return num_cores
        work = max(work, rows * size)
    if config.num_learners or config.num_gpus_per_learner:  # this process takes no gradient step
        return 1
    return max(1, min(num_cores, work // WORK_PER_THREAD))


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
