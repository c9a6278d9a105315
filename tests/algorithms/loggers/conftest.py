"""What all tests of loggers use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from algorithms.loggers import LoggedRun

Begin = Callable[..., LoggedRun]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """A run in a folder, from its start or gone on with."""

    def run(env_steps: int = 0, folder: Path | None = tmp_path) -> LoggedRun:
        config = {"lr": 0.5, "env": "CartPole-v1", "model_config": {"fcnet_hiddens": [8, 8]}, "seed": None}
        return LoggedRun("PPO on CartPole-v1", folder, env_steps, 7, config)

    return run
