"""Every random stream of a run, derived from its one seed by role and index."""

import numpy as np
import torch
from torch import Tensor

_ROLES = (
    "module",
    "learner",
    "env",
    "action",
    "evaluation_env",
    "evaluation_action",
    "replay",
    "policy",
    "module_noise",
    "video",
    "mended_env",
)


_CPU = torch.device("cpu")


def seed_sequence(run_seed: int, role: str, *index: int) -> np.random.SeedSequence:
    """The stream of ``role`` number ``index`` (such as a global env index) in the run with ``run_seed``."""
    return np.random.SeedSequence(run_seed, spawn_key=(_ROLES.index(role), *index))


def numpy_stream(run_seed: int, role: str, *index: int) -> np.random.Generator:
    """A numpy generator on that stream."""
    return np.random.default_rng(seed_sequence(run_seed, role, *index))


def int_seed(run_seed: int, role: str, *index: int) -> int:
    """A 31-bit seed from that stream, for libraries that take an integer."""
    return int(seed_sequence(run_seed, role, *index).generate_state(1)[0] >> 1)


def torch_stream(run_seed: int, role: str, *index: int) -> torch.Generator:
    """A torch generator on that stream."""
    return torch.Generator().manual_seed(int_seed(run_seed, role, *index))


class GlobalStream:
    """torch's global generators (the CPU's, and that of a GPU) on a stream of the run within ``with`` blocks, for what
    draws from nothing else, such as dropout. A block goes on where the last one ended."""

    def __init__(self, run_seed: int, role: str, device: torch.device = _CPU) -> None:
        self._state = torch_stream(run_seed, role).get_state()
        self._gpu = device if device.type == "cuda" else None
        if self._gpu is not None:
            self._gpu_state = torch.Generator(device).manual_seed(int_seed(run_seed, role)).get_state()

    def __enter__(self) -> None:
        # the states are swapped whole: torch.random.fork_rng takes as long as a small update
        self._outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        if self._gpu is not None:
            self._gpu_outside = torch.cuda.get_rng_state(self._gpu)
            torch.cuda.set_rng_state(self._gpu_state, self._gpu)

    def __exit__(self, *exc_info: object) -> None:
        self._state = torch.get_rng_state()
        torch.set_rng_state(self._outside)
        del self._outside
        if self._gpu is not None:
            self._gpu_state = torch.cuda.get_rng_state(self._gpu)
            torch.cuda.set_rng_state(self._gpu_outside, self._gpu)
            del self._gpu_outside

    def get_state(self) -> Tensor:
        """Where the stream stands: the CPU's generator, and after it that of the GPU."""
        return self._state if self._gpu is None else torch.cat([self._state, self._gpu_state])

    def set_state(self, state: Tensor) -> None:
        """Restore what :meth:`get_state` gave; also of a stream with a GPU, or without, where this one is not so."""
        size = len(self._state)
        self._state = state[:size].cpu().clone()
        if self._gpu is not None and len(state) > size:
            self._gpu_state = state[size:].cpu().clone()
