"""Presets of TD3 and DDPG: for each env they were measured on, the settings that differ from the defaults, env steps
and result."""

from algorithms.presets import Preset

PRESETS: dict[str, Preset] = {}
DDPG_PRESETS: dict[str, Preset] = {}
