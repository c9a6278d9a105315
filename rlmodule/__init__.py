"""Modules, sampling and learning: what stands between the catalog's nets and an algorithm's loss."""

from catalog_rl import check_siblings

check_siblings(__file__)

from rlmodule.apis import (
    DistributionalQNetAPI,
    EpsilonGreedyAPI,
    ExtraLoss,
    ExtraLossAPI,
    InferenceOnlyAPI,
    NoisyNetAPI,
    QNetAPI,
    ValueFunctionAPI,
)
from rlmodule.columns import Columns
from rlmodule.env_runner import EnvRunner
from rlmodule.episode import Episode
from rlmodule.groups import EnvRunnerGroup, LearnerGroup
from rlmodule.learner import BatchLearner, EpisodeLearner, Learner
from rlmodule.module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.rollout import Rollout
from rlmodule.specs import MultiRLModuleSpec, RLModuleSpec

__all__ = [
    "BatchLearner",
    "Columns",
    "DEFAULT_MODULE_ID",
    "DistributionalQNetAPI",
    "EnvRunner",
    "EnvRunnerGroup",
    "Episode",
    "EpisodeLearner",
    "EpsilonGreedyAPI",
    "ExtraLoss",
    "ExtraLossAPI",
    "InferenceOnlyAPI",
    "Learner",
    "LearnerGroup",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "NoisyNetAPI",
    "QNetAPI",
    "RLModule",
    "RLModuleSpec",
    "Rollout",
    "ValueFunctionAPI",
]
