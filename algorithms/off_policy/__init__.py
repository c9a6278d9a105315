"""The base of algorithms that learn from a replay buffer: settings, iteration, and learner with target nets."""

from algorithms.off_policy.action_critic import ActionCriticLearner
from algorithms.off_policy.algorithm import ReplayAlgorithm, ReplayConfig, ReplayTraining
from algorithms.off_policy.learner import ReplayLearner, following, valid_rows

__all__ = [
    "ActionCriticLearner",
    "ReplayAlgorithm",
    "ReplayConfig",
    "ReplayLearner",
    "ReplayTraining",
    "following",
    "valid_rows",
]
