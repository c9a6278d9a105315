"""Importance weighted actor-learner architecture."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.impala.impala import IMPALA, IMPALAConfig, IMPALALearner, IMPALATraining
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["IMPALA", "IMPALAConfig", "IMPALALearner", "IMPALATraining"]
