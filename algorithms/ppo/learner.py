"""PPO's learner: train batches with advantages, and the loss in the order of the paper (Schulman et al. 2017)."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from algorithms.ops.returns import generalized_advantages
from algorithms.ops.surrogate import (
    clipped_surrogate,
    clipped_value_error,
    explained_variance,
    k3_divergence,
    linear_beyond,
)
from algorithms.ppo.module import PPOModule
from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout, map_leaves
from rlmodule.data.sequences import num_rows, replace_rows
from rlmodule.learning.compilation import learner_device
from rlmodule.learning.episode_learner import EpisodeLearner
from rlmodule.learning.reports import Metrics
from rlmodule.learning.schedules import Coefficient, value_at
from rlmodule.modules.apis import ValueFunctionAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.ppo.ppo import PPOConfig


MOST_RATIO = 2.0
"""Largest weight of a row whose action has become more likely since it was sampled, with ``sample_ahead``."""


class PPOLearner(EpisodeLearner):
    """Learns a policy and a value function from one rollout per iteration.

    Override points: ``compute_policy_objective``, ``compute_loss_for_module``, ``make_train_batch``, and those of
    :class:`EpisodeLearner`.
    """

    required_apis = (ValueFunctionAPI,)
    settings: "PPOConfig"

    def __init__(self, settings: "PPOConfig", spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        device = learner_device(settings)
        self.kl_coeff, self.entropy_coeff = Coefficient(device), Coefficient(device)
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        self.kl_coeff[module_id] = self.settings.kl_coeff
        self.entropy_coeff[module_id] = value_at(self.settings.entropy_coeff, self.env_steps)
        module = self.module[module_id]
        dist_cls = module.action_dist_cls
        if self.settings.use_kl_loss and train and not dist_cls.inputs_suffice:
            raise ValueError(
                f"PPOConfig.use_kl_loss: expected False with {dist_cls.__name__} (module "
                f"{module_id!r}), since KL to the old policy would need the module's old parameters, "
                "which a rollout does not hold, got True. Leave use_kl_loss out, or set target_kl, "
                "which only needs log-probabilities."
            )
        if self.settings.rnd_coeff and train and not isinstance(module, PPOModule):
            raise TypeError(
                f"PPOConfig.rnd_coeff: expected 0 with {type(module).__name__} (module {module_id!r}), since only a "
                f"PPOModule has nets for it, got {self.settings.rnd_coeff}. Derive it from PPOModule, or leave "
                "rnd_coeff out."
            )

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the loss (Schulman et al. 2017, eq. 7-9, plus an optional KL term), and its terms by row, ``[B]``.

        Modules that are updated together skip this method and average :meth:`compute_row_losses`: a term that is not
        in those needs a ``can_stack`` that returns False, as the KL term has.
        """
        module = self.module[module_id]
        row_losses, metrics = self.compute_row_losses(module_id, module, batch, fwd_out)
        loss = row_losses.mean()
        if self.settings.use_kl_loss:
            loss = loss + self.kl_coeff[module_id] * self._divergence(module, batch, fwd_out)
        if isinstance(module, PPOModule) and self.settings.rnd_coeff:
            metrics["rnd_loss"] = module.compute_novelty(batch[Columns.NEXT_OBS])
            loss = loss + metrics["rnd_loss"].mean()
        return loss, metrics

    def compute_row_losses(
        self, module_id: str, module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        dist = module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])

        log_ratio = dist.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]
        objective = self.compute_policy_objective(log_ratio.exp(), batch)
        vf_loss, entropy = self._value_error(module, batch, fwd_out), dist.entropy()

        losses = self.settings.vf_loss_coeff * vf_loss - objective - self.entropy_coeff[module_id] * entropy
        return losses, {"policy_loss": -objective, "vf_loss": vf_loss, "entropy": entropy, "log_ratio": log_ratio}

    def can_stack(self, module_id: str) -> bool:
        # a loss that a subclass changed may depend on more than the rows
        own = type(self).compute_loss_for_module, type(self).compute_policy_objective
        inherited = PPOLearner.compute_loss_for_module, PPOLearner.compute_policy_objective
        return own == inherited and not (self.settings.use_kl_loss or self.settings.rnd_coeff)

    def compute_policy_objective(self, ratio: Tensor, batch: Batch) -> Tensor:
        """Return the objective that the policy maximises in each row ``[B]``: the clipped surrogate. ``ratio`` ``[B]``
        is the action's probability under the current policy, divided by that under the acting policy."""
        return clipped_surrogate(ratio, batch[Columns.ADVANTAGES], self.settings.clip_param)

    def _value_error(self, module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]) -> Tensor:
        """Return each row's squared value error ``[B]`` in units of ``module.value_scale()``. It is clipped if
        ``vf_clip_param`` is set. If ``vf_huber_delta`` is set, return twice the Huber loss of the error instead."""
        assert isinstance(module, ValueFunctionAPI)
        values, targets = module.compute_values(batch, fwd_out.get(Columns.EMBEDDINGS)), batch[Columns.VALUE_TARGETS]
        scale, clip, delta = module.value_scale(), self.settings.vf_clip_param, self.settings.vf_huber_delta
        if clip is None:
            error = ((values - targets) / scale).square()
        else:
            error = clipped_value_error(values / scale, batch[Columns.VALUES] / scale, targets / scale, clip)
        return error if delta is None else linear_beyond(delta, error)

    @staticmethod
    def _divergence(module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]) -> Tensor:
        """Return the mean KL(acting policy ‖ current policy) over the rows, a scalar in nats."""
        old = module.action_dist_cls.from_logits(batch[Columns.ACTION_DIST_INPUTS])
        return old.kl(module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])).mean()

    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Return the rollout as a batch with standardised GAE advantages and value targets, and metrics by name."""
        config, module = self.settings, self.module[module_id]
        assert isinstance(module, ValueFunctionAPI)
        rollout, computed, reported = self._rewarded(module_id, rollout) if config.rnd_coeff else (rollout, {}, {})
        values, following = (x * module.has_value_statistics() for x in self.value_pass(module_id, rollout))
        advantages = generalized_advantages(
            rollout[Columns.REWARDS],
            values,
            following,
            terminated_t=rollout[Columns.TERMINATEDS],
            truncated_t=rollout[Columns.TRUNCATEDS],
            valid_t=rollout.valid,
            gamma=config.gamma,
            lambda_=config.lambda_,
        )
        targets = values + advantages
        rows = torch.stack([advantages[rollout.valid], targets[rollout.valid]])
        if self.collective.size > 1:
            rows = torch.cat(self.collective.all_gather(rows.T)).T.contiguous()
        reported["vf_explained_var"] = float(explained_variance(rows[1] - rows[0], rows[1]))
        computed |= {
            Columns.ADVANTAGES: (advantages - rows[0].mean()) / (rows[0].std(unbiased=False) + 1e-8),
            Columns.VALUE_TARGETS: targets,
        }
        module.update_value_statistics(targets[rollout.valid])
        if config.vf_clip_param is not None:
            # A second value pass: the new statistics changed what the same weights predict in units of reward.
            computed[Columns.VALUES], _ = self.value_pass(module_id, rollout)
        rollout = dataclasses.replace(rollout, columns=rollout.columns | computed)
        names = [Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, *computed]
        if config.use_kl_loss:
            names.append(Columns.ACTION_DIST_INPUTS)
            reported["kl_coeff"] = self.kl_coeff.number(module_id)
        if not isinstance(config.entropy_coeff, float):
            reported["entropy_coeff"] = self.entropy_coeff[module_id] = value_at(config.entropy_coeff, self.env_steps)
        batch = self.pack(module_id, rollout, names)
        if config.sample_ahead and num_rows(batch):
            batch = self._decoupled(module_id, batch)
        return batch, reported

    def _decoupled(self, module_id: str, batch: Batch) -> Batch:
        """Return ``batch`` as if the policy from before this update had acted, which is one update newer than the
        policy that did: the loss compares with the newer policy, and the advantages are weighted by its probability of
        the action, divided by that under the acting policy (the decoupled objective of Hilton et al. 2022, "Batch
        size-invariance for policy optimization")."""
        module = self.module[module_id]
        rows, fwd_out = self.forward_rows(module_id, batch)
        inputs = fwd_out[Columns.ACTION_DIST_INPUTS]
        logp = module.action_dist_cls.from_logits(inputs).logp(rows[Columns.ACTIONS])
        ratio = (logp - rows[Columns.ACTION_LOGP]).exp().clamp(max=MOST_RATIO)
        newer = {Columns.ACTION_LOGP: logp, Columns.ADVANTAGES: rows[Columns.ADVANTAGES] * ratio}
        if self.settings.use_kl_loss:
            newer[Columns.ACTION_DIST_INPUTS] = inputs
        return replace_rows(batch, newer)

    def _rewarded(self, module_id: str, rollout: Rollout) -> tuple[Rollout, Batch, dict[str, float]]:
        """Return the rollout with rewards for what is new added to its rewards, the column ``next_obs``, and the mean
        of the rewards over the rows of all learners to report.

        A step's reward is ``rnd_coeff`` times how new the observation after it is, in units of the root mean square of
        all observations so far.
        """
        module = self.module[module_id]
        assert isinstance(module, PPOModule)
        moments = module.novelty_moments
        assert moments is not None
        # the last observation of an episode, from which no step starts, must get old, too
        next_obs = rollout.following_observations()
        novelty = module.compute_novelty(map_leaves(lambda x: x.flatten(0, 1), next_obs)).view(rollout.shape)
        moments.update(novelty[rollout.valid])
        # not the standard deviation, which is 0 where nothing is newer than the rest
        unit = torch.hypot(moments.mean, moments.std).to(novelty.dtype)
        intrinsic = self.settings.rnd_coeff * novelty / unit
        rows = intrinsic[rollout.valid]
        mean = float(self.collective.all_reduce_mean(rows.mean(), len(rows)))
        rewards = {Columns.REWARDS: rollout[Columns.REWARDS] + intrinsic}
        rewarded = dataclasses.replace(rollout, columns=rollout.columns | rewards)
        return rewarded, {Columns.NEXT_OBS: next_obs}, {"intrinsic_reward_mean": mean}

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        rest = dict(metrics)
        log_ratio = rest.pop("log_ratio")
        rest["clip_fraction"] = (log_ratio.expm1().abs() > self.settings.clip_param).float()
        rest["approx_kl"] = k3_divergence(log_ratio)
        return super().summarize(module_id, rest)

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        target = self.settings.target_kl
        return target is not None and float(k3_divergence(metrics["log_ratio"]).mean()) > target

    def may_stop(self) -> bool:
        return type(self).should_stop is not PPOLearner.should_stop or self.settings.target_kl is not None

    @torch.no_grad()
    def after_update(self, module_id: str, batch: Batch) -> None:
        """With ``use_kl_loss``, double the KL penalty's coefficient if KL > 1.5 · ``kl_target``, and halve it if KL <
        ``kl_target`` / 1.5. KL(acting policy ‖ updated policy) is the mean over the rows of all learners."""
        if not self.settings.use_kl_loss:
            return
        rows, divergence = num_rows(batch), torch.zeros((), device=self.device)
        if rows:
            divergence = self._divergence(self.module[module_id], *self.forward_rows(module_id, batch))
        divergence = float(self.collective.all_reduce_mean(divergence, rows))
        if divergence > 1.5 * self.settings.kl_target:
            self.kl_coeff[module_id] = self.kl_coeff.number(module_id) * 2.0
        elif divergence < self.settings.kl_target / 1.5:
            self.kl_coeff[module_id] = self.kl_coeff.number(module_id) * 0.5

    def get_state(self) -> dict[str, Any]:
        kl_coeff = {module_id: self.kl_coeff.number(module_id) for module_id in self.module}
        return super().get_state() | {"kl_coeff": kl_coeff}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for module_id, coefficient in state["kl_coeff"].items():
            self.kl_coeff[module_id] = coefficient
