"""Advantage actor-critic."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.a2c.a2c import A2C, A2CConfig, A2CLearner, A2CTraining
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["A2C", "A2CConfig", "A2CLearner", "A2CTraining"]
