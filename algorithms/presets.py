"""Presets: settings that are known to solve an environment, from our own measurements or from a paper.

Each algorithm has its own dict of presets, such as the one in :mod:`algorithms.ppo.presets`; ``docs/learning.md`` says
how the presets were measured. ``PPOConfig.preset("CartPole-v1")`` starts a config from a preset; ``rlmodule train``
does so by default. A key of the dict may be a pattern: ``"ALE/*"`` matches all Atari games.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings and training length for one environment.

    Attributes:
        num_env_steps: Env steps to train for.
        reached: Text about the result: the score of the trained policy in greedy episodes, when it was reached, and
            over how many seeds. If not measured, the source of the settings.
        settings: Settings that differ from the algorithm's defaults, by name; JSON values.
        measured: Whether this project measured the preset.
    """

    num_env_steps: int
    reached: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    measured: bool = True


def find_preset(presets: Mapping[str, Preset], env: object) -> Preset | None:
    """Return the preset for the env id ``env``. A key that equals it wins over patterns such as ``ALE/*``, which ignore
    a ``module:`` prefix, and of which the first wins. Return None if no key matches, or if ``env`` is not an id."""
    if not isinstance(env, str):
        return None
    if env in presets:
        return presets[env]
    env_id = env.rpartition(":")[2]
    return next((preset for key, preset in presets.items() if "*" in key and fnmatchcase(env_id, key)), None)
