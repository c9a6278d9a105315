"""A2C: its settings, and its loss."""

from torch import Tensor

from algorithms.a2c.presets import PRESETS
from algorithms.actor_critic import ActorCriticLearner, ActorCriticTraining, OnPolicyAlgorithm
from algorithms.episode_config import EpisodeLearnerConfig
from algorithms.ppo.module import PPOCatalog, PPOModule
from catalog.settings import Section
from rlmodule.data.columns import Batch, Columns
from rlmodule.modules.spec import RLModuleSpec


class A2CTraining(ActorCriticTraining):
    """Settings of A2C's loss and advantages."""

    lr = 2e-3
    train_batch_size_per_learner = 256
    lambda_ = 1.0


class A2CConfig(A2CTraining, EpisodeLearnerConfig):
    """Settings of :class:`A2C`."""

    training = Section(A2CTraining)
    presets = PRESETS
    default_search = (
        "lr=log:1e-5..1e-2",
        "train_batch_size_per_learner=64|256|1024",
        "gamma=1-log:1e-4..0.03",
        "lambda_=1-log:1e-4..0.1",
        "entropy_coeff=log:1e-8..0.1",
        "grad_clip=0.3..2.0",
    )

    @property
    def algo_class(self) -> type["A2C"]:
        return A2C

    def default_learner_class(self) -> type["A2CLearner"]:
        return A2CLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=PPOModule, catalog_class=PPOCatalog)


class A2C(OnPolicyAlgorithm):
    """Advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016): one gradient step on each rollout."""

    config: A2CConfig


class A2CLearner(ActorCriticLearner):
    """Learns a policy and a value function from one rollout per iteration, with the policy gradient."""

    def policy_objective(self, logp: Tensor, log_ratio: Tensor, batch: Batch) -> Tensor:
        """Return ``A · log π(a)`` of each row ``[B]``, whose gradient is the policy gradient (Mnih et al. 2016, section
        4)."""
        return batch[Columns.ADVANTAGES] * logp
