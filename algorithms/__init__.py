"""Algorithms: a config to build one, and what all of them share."""

from catalog_rl import check_siblings

check_siblings(__file__)

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig, EpisodeLearnerConfig
from algorithms.registry import register_algorithm

__all__ = ["Algorithm", "AlgorithmConfig", "EpisodeLearnerConfig", "register_algorithm"]
