"""SAC's presets: for each env it was measured on, the settings that differ from the defaults, env steps and result."""

from algorithms.presets import Preset

PRESETS: dict[str, Preset] = {}
