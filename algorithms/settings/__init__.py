"""Settings of algorithms: the base class of their configs, and the conversion of configs to JSON and back."""

from algorithms.settings.base import SettingsBase
from catalog.settings import Section, Settings, setting
from rlmodule.settings import EpisodeTraining, Training

__all__ = ["EpisodeTraining", "Section", "Settings", "SettingsBase", "Training", "setting"]
