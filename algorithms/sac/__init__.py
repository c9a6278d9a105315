"""Soft actor-critic."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.sac.learner import SACLearner
    from algorithms.sac.module import SACCatalog, SACModelConfig, SACModule
    from algorithms.sac.sac import SAC, SACConfig, SACTraining
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["SAC", "SACCatalog", "SACConfig", "SACLearner", "SACModelConfig", "SACModule", "SACTraining"]
