"""Proximal policy optimisation."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.ppo.learner import PPOLearner
    from algorithms.ppo.module import PPOCatalog, PPOModule
    from algorithms.ppo.ppo import PPO, PPOConfig, PPOTraining
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["PPO", "PPOCatalog", "PPOConfig", "PPOLearner", "PPOModule", "PPOTraining"]
