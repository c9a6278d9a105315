"""Modules, sampling and learning: what stands between the catalog's nets and an algorithm's loss."""

from catalog_rl import check_siblings

check_siblings(__file__)

from rlmodule.acceleration import Coefficient
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
from rlmodule.batch_learner import BatchLearner
from rlmodule.columns import Columns
from rlmodule.env_guard import EnvError
from rlmodule.env_runner import EnvRunner
from rlmodule.env_runner_group import EnvRunnerGroup
from rlmodule.episode import Episode
from rlmodule.info_masks import ActionMaskFromInfo
from rlmodule.learner import EpisodeLearner, Learner
from rlmodule.learner_group import LearnerGroup
from rlmodule.module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.rollout import Rollout
from rlmodule.sharding import shard_episodes, shard_rollout
from rlmodule.specs import MultiRLModuleSpec, RLModuleSpec
from rlmodule.tensor_env_runner import TensorEnvRunner
from rlmodule.workers import WorkerFailed

__all__ = [
    "ActionMaskFromInfo",
    "BatchLearner",
    "Coefficient",
    "Columns",
    "DEFAULT_MODULE_ID",
    "DistributionalQNetAPI",
    "EnvError",
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
    "TensorEnvRunner",
    "ValueFunctionAPI",
    "WorkerFailed",
    "shard_episodes",
    "shard_rollout",
]
