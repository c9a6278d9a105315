"""Derive every random stream of a run from the run's one seed, by role and index."""

import numpy as np
import torch

# The streams depend on the order of these names: append new ones at the end.
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
    "league",
    "data",
)


def seed_sequence(run_seed: int, role: str, *index: int) -> np.random.SeedSequence:
    """Return the seed sequence of one random stream.

    Args:
        run_seed: Seed of the run.
        role: Purpose of the stream, such as ``"env"``; one of the roles that this Python module lists.
        *index: Integers that identify the stream among the streams of its role, such as the index of an env in the run.
    """
    return np.random.SeedSequence(run_seed, spawn_key=(_ROLES.index(role), *index))


def numpy_stream(run_seed: int, role: str, *index: int) -> np.random.Generator:
    """Return a numpy generator seeded with :func:`seed_sequence` of the same arguments."""
    return np.random.default_rng(seed_sequence(run_seed, role, *index))


def int_seed(run_seed: int, role: str, *index: int) -> int:
    """Return a 31-bit seed derived from :func:`seed_sequence`, for libraries that take an integer."""
    return int(seed_sequence(run_seed, role, *index).generate_state(1)[0] >> 1)


def torch_stream(run_seed: int, role: str, *index: int) -> torch.Generator:
    """Return a torch generator on the CPU seeded with :func:`int_seed` of the same arguments."""
    return torch.Generator().manual_seed(int_seed(run_seed, role, *index))
