"""Deep Q-learning, with the parts of Rainbow."""

from algorithms.dqn.dqn import DQN, DQNConfig, DQNTraining
from algorithms.dqn.learner import DQNLearner
from algorithms.dqn.module import DQNCatalog, DQNModelConfig, DQNModule

__all__ = ["DQN", "DQNCatalog", "DQNConfig", "DQNLearner", "DQNModelConfig", "DQNModule", "DQNTraining"]
