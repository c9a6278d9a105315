"""IQL: learn values and a policy from a data set without asking for values of actions that it lacks."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.iql.iql import IQL, IQLConfig, IQLTraining
    from algorithms.iql.learner import IQLLearner
    from algorithms.iql.module import IQLCatalog, IQLModule
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["IQL", "IQLCatalog", "IQLConfig", "IQLLearner", "IQLModule", "IQLTraining"]
