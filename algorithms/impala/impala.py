"""IMPALA: its settings, and its learner."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from algorithms.actor_critic import ActorCriticLearner, ActorCriticTraining
from algorithms.impala.presets import PRESETS
from algorithms.ops.returns import vtrace
from algorithms.ppo.module import PPOCatalog, PPOModule
from algorithms.stream import StreamAlgorithm, StreamConfig
from catalog.settings import Section, setting
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout
from rlmodule.data.sequences import cut_into_sequences
from rlmodule.modules.recurrent import forward_sequences
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec


class IMPALATraining(ActorCriticTraining):
    """Settings of IMPALA's loss and advantages."""

    lr = 2e-3
    train_batch_size_per_learner = 256
    lambda_ = 1.0
    vtrace_clip_rho_threshold: float = setting(
        1.0, "Largest importance weight of a step's TD error in value targets (V-trace's rho bar).", gt=0
    )
    vtrace_clip_pg_rho_threshold: float = setting(1.0, "Largest importance weight of a step's advantage.", gt=0)


class IMPALAConfig(IMPALATraining, StreamConfig):
    """Settings of :class:`IMPALA`."""

    training = Section(IMPALATraining)
    presets = PRESETS
    default_search = (
        "lr=log:1e-5..1e-2",
        "train_batch_size_per_learner=128|256|512",
        "gamma=1-log:1e-4..0.03",
        "entropy_coeff=log:1e-8..0.1",
        "grad_clip=0.3..2.0",
    )

    @property
    def algo_class(self) -> type["IMPALA"]:
        return IMPALA

    def default_learner_class(self) -> type["IMPALALearner"]:
        return IMPALALearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=PPOModule, catalog_class=PPOCatalog)


class IMPALA(StreamAlgorithm):
    """Importance weighted actor-learner architecture (Espeholt et al. 2018): env runners never wait for the learners.

    The learners correct for the age of the policy that acted, with V-trace.
    """

    config: IMPALAConfig


class IMPALALearner(ActorCriticLearner):
    """Learns a policy and a value function from rollouts that older policies sampled, with V-trace."""

    def policy_objective(self, logp: Tensor, log_ratio: Tensor, batch: Batch) -> Tensor:
        """Return ``A · log π(a)`` of each row ``[B]`` (Espeholt et al. 2018, section 4.2); the advantages have the
        importance weights."""
        return batch[Columns.ADVANTAGES] * logp

    def compute_advantages(self, module_id: str, rollout: Rollout) -> dict[str, Tensor]:
        return self.vtrace(module_id, rollout, self.log_ratios(module_id, self.module[module_id], rollout))

    def vtrace(self, module_id: str, rollout: Rollout, log_ratios: Tensor) -> dict[str, Tensor]:
        """Return the columns of :meth:`compute_advantages` with V-trace, for the policy whose ``log_ratios`` ``[T, N]``
        are given."""
        values, following = self.known_values(module_id, rollout)
        targets, advantages = vtrace(
            log_ratios,
            rollout[Columns.REWARDS],
            values,
            following,
            terminated_t=rollout[Columns.TERMINATEDS],
            truncated_t=rollout[Columns.TRUNCATEDS],
            valid_t=rollout.valid,
            gamma=self.settings.gamma,
            lambda_=self.settings.lambda_,
            rho_clip=self.settings.vtrace_clip_rho_threshold,
            pg_rho_clip=self.settings.vtrace_clip_pg_rho_threshold,
        )
        return {Columns.ADVANTAGES: advantages, Columns.VALUE_TARGETS: targets, Columns.VALUES: values}

    def log_ratios(self, module_id: str, module: RLModule, rollout: Rollout) -> Tensor:
        """Return the log-probability of each action under the policy of ``module``, minus that under the policy that
        acted, ``[T, N]``; 0 in invalid rows."""
        rows_of_rollout = torch.arange(rollout.valid.numel(), device=self.device).view(rollout.shape)
        rollout = dataclasses.replace(rollout, columns={**rollout.columns, _ROW: rows_of_rollout})
        names = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, _ROW)
        if self.trained[module_id].is_stateful:
            sequences = cut_into_sequences(rollout, names, module.max_seq_len)
            rows, fwd_out = forward_sequences(module, sequences, type(self).__name__)
        else:
            rows: Any = rollout.valid_rows(names)
            fwd_out = module.forward_train(rows)
        dist = module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        of_rows = dist.logp(rows[Columns.ACTIONS]) - rows[Columns.ACTION_LOGP]
        log_ratios = of_rows.new_zeros(rollout.valid.numel())
        log_ratios[rows[_ROW]] = of_rows
        return log_ratios.view(rollout.shape)


_ROW = "row"
"""Column of the index of each row in the flattened rollout."""
