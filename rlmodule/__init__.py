"""Neural modules, env runners and learners: everything between the catalog's nets and an algorithm's loss."""

from typing import TYPE_CHECKING

from catalog_rl import check_siblings, lazily

check_siblings(__file__)

# whole, and before any module of this package: two threads that begin with different modules of it could not finish
import catalog  # noqa: F401

if TYPE_CHECKING:
    from rlmodule.data.columns import Batch, Columns
    from rlmodule.data.dataset import Dataset
    from rlmodule.data.episode import Episode
    from rlmodule.data.rollout import Rollout
    from rlmodule.distributed.failures import WorkerFailed
    from rlmodule.envs.atari import AtariGame
    from rlmodule.envs.checks import EnvError
    from rlmodule.envs.mask_wrapper import ActionMaskFromInfo
    from rlmodule.groups.env_runner_group import EnvRunnerGroup
    from rlmodule.groups.learner_group import LearnerGroup
    from rlmodule.learning.batch_learner import BatchLearner
    from rlmodule.learning.episode_learner import EpisodeLearner
    from rlmodule.learning.flat_optimizer import Part
    from rlmodule.learning.learner import Learner
    from rlmodule.learning.reports import Metrics
    from rlmodule.learning.schedules import Coefficient, value_at
    from rlmodule.learning.sharding import shard_episodes, shard_rollout
    from rlmodule.learning.target_nets import TargetNets
    from rlmodule.modules.action_critic import ActionCriticModule
    from rlmodule.modules.apis import (
        ActionValueAPI,
        ExplorationAPI,
        ExtraLoss,
        ExtraLossAPI,
        InferenceOnlyAPI,
        NoisyNetAPI,
        QNetAPI,
        StateValueAPI,
        TemperatureAPI,
        ValueFunctionAPI,
    )
    from rlmodule.modules.policy import Policy
    from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
    from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
    from rlmodule.sampling.env_runner import EnvRunner
    from rlmodule.seeding import seed_sequence
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = [
    "ActionCriticModule",
    "ActionMaskFromInfo",
    "ActionValueAPI",
    "AtariGame",
    "Batch",
    "BatchLearner",
    "Coefficient",
    "Columns",
    "DEFAULT_MODULE_ID",
    "Dataset",
    "EnvError",
    "EnvRunner",
    "EnvRunnerGroup",
    "Episode",
    "EpisodeLearner",
    "ExplorationAPI",
    "ExtraLoss",
    "ExtraLossAPI",
    "InferenceOnlyAPI",
    "Learner",
    "LearnerGroup",
    "Metrics",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "NoisyNetAPI",
    "Part",
    "Policy",
    "QNetAPI",
    "RLModule",
    "RLModuleSpec",
    "Rollout",
    "StateValueAPI",
    "TargetNets",
    "TemperatureAPI",
    "ValueFunctionAPI",
    "WorkerFailed",
    "seed_sequence",
    "shard_episodes",
    "shard_rollout",
    "value_at",
]
