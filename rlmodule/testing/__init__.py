"""Contracts, which are test classes for your own neural modules and learners, and random data for tests."""

from rlmodule.data.rollout import random_observations
from rlmodule.testing.data import random_rollout
from rlmodule.testing.learner_contract import LearnerContract
from rlmodule.testing.module_contract import RLModuleContract

__all__ = ["LearnerContract", "RLModuleContract", "random_observations", "random_rollout"]
