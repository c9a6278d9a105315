"""Deep Q-learning, with the parts of Rainbow."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.dqn.dqn import DQN, DQNConfig, DQNTraining
    from algorithms.dqn.learner import DQNLearner
    from algorithms.dqn.module import DQNCatalog, DQNModelConfig, DQNModule
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["DQN", "DQNCatalog", "DQNConfig", "DQNLearner", "DQNModelConfig", "DQNModule", "DQNTraining"]
