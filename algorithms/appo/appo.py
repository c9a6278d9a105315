"""APPO: its settings, and its learner."""

import math

import torch
from torch import Tensor

from algorithms.appo.presets import PRESETS
from algorithms.impala.impala import IMPALALearner, IMPALATraining
from algorithms.ops.surrogate import clipped_surrogate
from algorithms.ppo.module import PPOCatalog, PPOModule
from algorithms.stream import StreamAlgorithm, StreamConfig
from catalog.settings import Section, setting
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout
from rlmodule.learning.target_nets import TargetedLearner
from rlmodule.modules.spec import RLModuleSpec

MOST_RATIO = 2.0
"""Largest probability of an action under the acting policy, divided by that under the target policy, that counts."""


class APPOTraining(IMPALATraining):
    """Settings of APPO's loss and advantages."""

    lr = 5e-4
    train_batch_size_per_learner = 512
    minibatch_size = 128
    num_epochs = 2
    lambda_ = 0.95
    clip_param: float = setting(
        0.4, "The surrogate objective stops growing once the probability ratio leaves 1 ± clip_param.", gt=0
    )
    target_network_update_freq: int = setting(
        2048, "Environment steps between updates of the target network; 0 updates it after every batch.", ge=0
    )
    tau: float = setting(1.0, "Fraction by which updates move the target network towards the online one.", gt=0, le=1)


class APPOConfig(APPOTraining, StreamConfig):
    """Settings of :class:`APPO`."""

    training = Section(APPOTraining)
    presets = PRESETS
    default_search = (
        "lr=log:1e-5..2e-3",
        "minibatch_size=64|128|256",
        "num_epochs=1..8",
        "clip_param=0.1|0.2|0.4",
        "gamma=1-log:1e-4..0.03",
        "entropy_coeff=log:1e-8..0.1",
        "grad_clip=0.3..2.0",
    )

    @property
    def algo_class(self) -> type["APPO"]:
        return APPO

    def default_learner_class(self) -> type["APPOLearner"]:
        return APPOLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=PPOModule, catalog_class=PPOCatalog)


class APPO(StreamAlgorithm):
    """Asynchronous PPO (Luo et al. 2020: IMPACT, without its circular buffer): env runners never wait for the learners.

    The learners take PPO's clipped steps away from a target net that moves now and then.
    """

    config: APPOConfig


class APPOLearner(TargetedLearner, IMPALALearner):
    """Learns as :class:`IMPALALearner` does, with PPO's clipped surrogate objective in several epochs."""

    standardizes_advantages = True

    def policy_objective(self, logp: Tensor, log_ratio: Tensor, batch: Batch) -> Tensor:
        """Return the clipped surrogate of each row ``[B]``, with the probability of the action under the target policy
        in place of that under the acting one (Luo et al. 2020, eq. 6)."""
        return clipped_surrogate(log_ratio.exp(), batch[Columns.ADVANTAGES], self.settings.clip_param)

    def compute_advantages(self, module_id: str, rollout: Rollout) -> dict[str, Tensor]:
        """Return V-trace advantages of the target policy, and the log-probabilities ``action_logp`` that the objective
        compares with: those of the target policy, but at least half the acting one's probability."""
        log_ratios = self.log_ratios(module_id, self.target[module_id], rollout)
        least = torch.full_like(log_ratios, -math.log(MOST_RATIO))
        logp = rollout[Columns.ACTION_LOGP] + torch.maximum(log_ratios, least)
        return self.vtrace(module_id, rollout, log_ratios) | {Columns.ACTION_LOGP: logp}

    def after_update(self, module_id: str, batch: Batch) -> None:
        self.move_target(module_id)
