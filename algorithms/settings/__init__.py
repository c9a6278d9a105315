"""Settings: fields of configs, their checks and how they are written to files."""

from algorithms.settings.fields import SettingsBase, setting, settings

__all__ = ["SettingsBase", "setting", "settings"]
