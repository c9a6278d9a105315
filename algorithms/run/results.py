"""Read what a run has reached from its last checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rlmodule.checkpoint import KIND, TENSORS
from rlmodule.sealed_folder import read_manifest


@dataclass(frozen=True)
class RunResult:
    """What a run has reached.

    Attributes:
        final_return: Mean return of the last evaluation; NaN without one.
        env_steps, updates: Env steps sampled, and updates taken from data.
        digest: SHA-256 of all tensors: weights, optimizers and random streams.
    """

    final_return: float
    env_steps: int
    updates: int
    digest: str

    @property
    def clock(self) -> int:
        """See :attr:`algorithms.Algorithm.clock`."""
        return self.env_steps + self.updates


def read_result(run: Path) -> RunResult:
    """Return what the run in the folder ``run`` has reached.

    Raises:
        ValueError: If it has no checkpoint.
    """
    manifest = read_manifest(run / "checkpoint", KIND)
    about = manifest["about"]
    final = about["last_evaluation"]
    digest = manifest["files"][TENSORS]["sha256"]
    return RunResult(math.nan if final is None else final, about["env_steps"], about["updates"], digest)
