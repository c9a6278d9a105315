"""Presets: settings with which an algorithm was measured to learn an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """How to train on one environment.

    Attributes:
        num_env_steps: Env steps after which it has learnt.
        reached: What that came to, in a few words.
        settings: Those that are not the algorithm's defaults, by name.
    """

    num_env_steps: int
    reached: str
    settings: Mapping[str, Any] = field(default_factory=dict)
