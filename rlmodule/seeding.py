"""Every random stream of a run, derived from its one seed by role and index."""

import numpy as np
import torch

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
