"""Modules, sampling and learning: what stands between the catalog's nets and an algorithm's loss."""

from catalog_rl import check_siblings

check_siblings(__file__)

from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.distributed.workers import WorkerFailed
from rlmodule.envs.checks import EnvError
from rlmodule.envs.mask_wrapper import ActionMaskFromInfo
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.groups.learner_group import LearnerGroup
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.compilation import Coefficient
from rlmodule.learning.learner import EpisodeLearner, Learner
from rlmodule.learning.sharding import shard_episodes, shard_rollout
from rlmodule.modules.apis import (
    DistributionalQNetAPI,
    EpsilonGreedyAPI,
    ExtraLoss,
    ExtraLossAPI,
    InferenceOnlyAPI,
    NoisyNetAPI,
    QNetAPI,
    ValueFunctionAPI,
)
from rlmodule.modules.columns import Columns
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.sampling.tensor_env_runner import TensorEnvRunner

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
