"""IMPALA's presets: for each env, the settings that differ from the defaults, the env steps to train for, and the
result."""

from algorithms.presets import Preset

PRESETS: dict[str, Preset] = {}
