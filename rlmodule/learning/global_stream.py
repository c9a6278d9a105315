"""GlobalStream: a random stream of the run for operations that draw from torch's global generators."""

import torch
from torch import Tensor

from rlmodule.collective import Collective, SingleProcess
from rlmodule.seeding import int_seed


class GlobalStream:
    """A random stream of the run for operations that accept no generator, such as dropout. Within a ``with`` block on
    this object, it replaces the states of torch's global generators (CPU and GPU). Each block continues the stream
    where the previous block ended.

    Args:
        run_seed: Seed of the run.
        role: Name of the stream; see :func:`rlmodule.seeding.seed_sequence`.
        device: If it is a GPU, the state of its generator is replaced, too.

    Attributes:
        collective: The learners that train together. Within a block, each learner draws different numbers. Between
            blocks, the stream has the same state on all learners.
    """

    collective: Collective = SingleProcess()

    def __init__(self, run_seed: int, role: str, device: torch.device | str = "cpu") -> None:
        self._generators = [torch.default_generator]
        if (device := torch.device(device)).type == "cuda":
            torch.cuda.init()
            self._generators.append(torch.cuda.default_generators[device.index])
        seed = int_seed(run_seed, role)
        self._states = [torch.Generator(each.device).manual_seed(seed).get_state() for each in self._generators]

    def _swap(self) -> None:
        """Swap the states of the global generators with those stored here. This replaces ``torch.random.fork_rng``,
        which takes as long as an update."""
        states, self._states = self._states, [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def __enter__(self) -> None:
        self._swap()
        if self.collective.size > 1:
            *seeds, self._following = torch.randint(2**62, (self.collective.size + 1,)).tolist()
            torch.manual_seed(seeds[self.collective.rank])

    def __exit__(self, *exc_info: object) -> None:
        if self.collective.size > 1:
            torch.manual_seed(self._following)
        self._swap()

    def get_state(self) -> Tensor:
        """Return the state of the CPU generator, followed by the state of the GPU generator if this stream has one."""
        return torch.cat(self._states)

    def set_state(self, state: Tensor) -> None:
        """Restore a state that :meth:`get_state` of this or another stream returned. If only one of the two streams
        has a GPU generator, restore only the state of the CPU generator."""
        saved = state.cpu().tensor_split([len(self._states[0])])
        self._states = [new.clone() if len(new) else own for own, new in zip(self._states, saved, strict=False)]
