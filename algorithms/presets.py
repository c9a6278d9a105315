"""Presets: settings with which an algorithm was measured to learn an environment.

Each algorithm has a table of its own beside it, such as :mod:`algorithms.ppo.presets`; how it was measured is in
``docs/learning.md``. A config begins with one by ``PPOConfig.preset("CartPole-v1")``, a run from the shell by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """How to train on one environment.

    Attributes:
        num_env_steps: Env steps after which it has learnt.
        reached: The mean return of 20 greedy episodes that this came to, and of which evaluation.
        settings: Those that are not the algorithm's defaults, by name; JSON values.
    """

    num_env_steps: int
    reached: str
    settings: Mapping[str, Any] = field(default_factory=dict)
