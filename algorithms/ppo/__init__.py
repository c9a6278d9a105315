"""Proximal policy optimisation."""

from algorithms.ppo.learner import PPOLearner
from algorithms.ppo.module import PPOCatalog, PPOModule
from algorithms.ppo.ppo import PPO, PPOConfig, PPOTraining

__all__ = ["PPO", "PPOCatalog", "PPOConfig", "PPOLearner", "PPOModule", "PPOTraining"]
