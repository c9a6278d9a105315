"""The feature matrix of TD3: every pair of observations, actions, memories, encoders and replays.

docs/feature_matrix.py writes its page from these tables, so that a tick there is a case that the tests run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from algorithms.td3 import TD3Config
from tests.algorithms.ppo import matrix
from tests.algorithms.ppo.matrix import is_sensible
from tests.algorithms.sac import matrix as sac

FACTORS: dict[str, tuple[str, ...]] = sac.FACTORS | {
    "action": ("Box, bounded", "Box, rank 0", "Box, rank 2, float64"),
    "mask": ("no mask",),
}


@dataclass(frozen=True)
class Case(sac.Case):
    """One level of each factor; see :data:`FACTORS`."""

    make = TD3Config


@cache
def cases() -> tuple[Case, ...]:
    """Cases that hold every pair of levels that go together."""
    return tuple(Case(**levels) for levels in matrix.covering(FACTORS, is_sensible))
