"""MARWIL: learn from a data set, more from its better actions."""

from algorithms.marwil.learner import MARWILLearner
from algorithms.marwil.marwil import MARWIL, MARWILConfig

__all__ = ["MARWIL", "MARWILConfig", "MARWILLearner"]
