"""Contracts to test your own modules and learners against, and random data for them."""

from rlmodule.testing.data import random_observations, random_rollout
from rlmodule.testing.learner_contract import LearnerContract
from rlmodule.testing.module_contract import RLModuleContract

__all__ = ["LearnerContract", "RLModuleContract", "random_observations", "random_rollout"]
