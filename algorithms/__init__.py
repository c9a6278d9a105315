"""Algorithms: a config to build one, and what all of them share."""

from catalog_rl import check_siblings

check_siblings(__file__)

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig

__all__ = ["Algorithm", "AlgorithmConfig"]
