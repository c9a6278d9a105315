"""Soft actor-critic."""

from algorithms.sac.learner import SACLearner
from algorithms.sac.module import SACCatalog, SACModelConfig, SACModule
from algorithms.sac.sac import SAC, SACConfig, SACTraining

__all__ = ["SAC", "SACCatalog", "SACConfig", "SACLearner", "SACModelConfig", "SACModule", "SACTraining"]
