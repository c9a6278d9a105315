"""Presets: settings with which an algorithm was measured to learn an environment, or was published to.

Each algorithm has a table of its own beside it, such as :mod:`algorithms.ppo.presets`; how it was measured is in
``docs/learning.md``. A config begins with one by ``PPOConfig.preset("CartPole-v1")``, a run from the shell by itself.
A key of the table may be a pattern: ``"ALE/*"`` is for all of Atari's games.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Preset:
    """How to train on one environment.

    Attributes:
        num_env_steps: Env steps after which it has learnt.
        reached: The mean return of 20 greedy episodes that this came to, and of which evaluation; where the settings
            were not measured here, whose they are.
        settings: Those that are not the algorithm's defaults, by name; JSON values.
        measured: Whether it was measured here.
    """

    num_env_steps: int
    reached: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    measured: bool = True


def find_preset(presets: Mapping[str, Preset], env: object) -> Preset | None:
    """The preset of an env id, with or without the module that registers it: of itself or of a pattern it fits."""
    if not isinstance(env, str):
        return None
    if env in presets:
        return presets[env]
    env_id = env.rpartition(":")[2]
    return next((preset for key, preset in presets.items() if "*" in key and fnmatchcase(env_id, key)), None)
