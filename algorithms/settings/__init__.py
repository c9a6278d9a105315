"""Settings of algorithms: what configs are made of, and how they are written to files."""

from algorithms.settings.base import SettingsBase
from catalog.settings import Section, Settings, setting
from rlmodule.settings import EpisodeTraining, Training

__all__ = ["EpisodeTraining", "Section", "Settings", "SettingsBase", "Training", "setting"]
