"""Asynchronous proximal policy optimisation."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.appo.appo import APPO, APPOConfig, APPOLearner, APPOTraining
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["APPO", "APPOConfig", "APPOLearner", "APPOTraining"]
