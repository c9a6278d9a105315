"""PPO's learner: train batches with advantages, and the loss in the order of the paper (Schulman et al. 2017)."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from algorithms.actor_critic import ActorCriticLearner
from algorithms.ops.surrogate import clipped_surrogate, clipped_value_error, k3_divergence, linear_beyond
from algorithms.ppo.module import PPOModule
from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout, map_leaves
from rlmodule.data.sequences import num_rows, replace_rows
from rlmodule.learning.compilation import learner_device
from rlmodule.learning.reports import Metrics
from rlmodule.learning.schedules import Coefficient
from rlmodule.modules.apis import ValueFunctionAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.ppo.ppo import PPOConfig


LEAST_LR, MOST_LR = 1e-5, 1e-2
"""Bounds of a learning rate that is adapted."""
MOST_RATIO = 2.0
"""Largest weight of a row whose action has become more likely since it was sampled, with ``sample_ahead``."""
_OF_A_STEP = (
    "gradient_step",
    "forward_rows",
    "compute_total_loss",
    "compute_loss_for_module",
    "compute_row_losses",
    "policy_objective",
    "compute_policy_objective",
    "value_error",
)
"""Methods that a gradient step calls. A subclass that overrides one may depend on more than the rows."""


class PPOLearner(ActorCriticLearner):
    """Learns a policy and a value function from one rollout per iteration.

    Override points: ``compute_policy_objective``, ``compute_loss_for_module``, ``make_train_batch``, and those of
    :class:`EpisodeLearner`.
    """

    standardizes_advantages = True
    settings: "PPOConfig"

    def __init__(self, settings: "PPOConfig", spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.kl_coeff = Coefficient(learner_device(settings))
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        self.kl_coeff[module_id] = self.settings.kl_coeff
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

    # --- the loss (Schulman et al. 2017, eq. 7-9, plus an optional KL term) -------------------------------------------

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        if self.settings.use_kl_loss:
            loss = loss + self.kl_coeff[module_id] * self._divergence(self.module[module_id], batch, fwd_out)
        if self.settings.rnd_coeff:
            module = self.module[module_id]
            assert isinstance(module, PPOModule)
            metrics["rnd_loss"] = module.compute_novelty(batch[Columns.NEXT_OBS])
            loss = loss + metrics["rnd_loss"].mean()
        return loss, metrics

    def can_stack(self, module_id: str) -> bool:
        settings = self.settings
        if settings.use_kl_loss or settings.rnd_coeff or settings.adaptive_lr_kl is not None:
            return False
        return all(getattr(type(self), name) is getattr(PPOLearner, name) for name in _OF_A_STEP)

    def policy_objective(self, logp: Tensor, log_ratio: Tensor, batch: Batch) -> Tensor:
        return self.compute_policy_objective(log_ratio.exp(), batch)

    def compute_policy_objective(self, ratio: Tensor, batch: Batch) -> Tensor:
        """Return the objective that the policy maximises in each row ``[B]``: the clipped surrogate. ``ratio`` ``[B]``
        is the action's probability under the current policy, divided by that under the acting policy."""
        return clipped_surrogate(ratio, batch[Columns.ADVANTAGES], self.settings.clip_param)

    def value_error(self, module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]) -> Tensor:
        """Return what :meth:`ActorCriticLearner.value_error` documents, of errors that are clipped if ``vf_clip_param``
        is set."""
        clip, delta = self.settings.vf_clip_param, self.settings.vf_huber_delta
        if clip is None:
            return super().value_error(module, batch, fwd_out)
        assert isinstance(module, ValueFunctionAPI)
        values, scale = module.compute_values(batch, fwd_out.get(Columns.EMBEDDINGS)), module.value_scale()
        old_values, targets = batch[Columns.VALUES] / scale, batch[Columns.VALUE_TARGETS] / scale
        error = clipped_value_error(values / scale, old_values, targets, clip)
        return error if delta is None else linear_beyond(delta, error)

    @staticmethod
    def _divergence(module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]) -> Tensor:
        """Return the mean KL(acting policy ‖ current policy) over the rows, a scalar in nats."""
        old = module.action_dist_cls.from_logits(batch[Columns.ACTION_DIST_INPUTS])
        return old.kl(module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])).mean()

    # --- what the loss reads ------------------------------------------------------------------------------------------

    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Return the rollout as a batch with standardised GAE advantages and value targets, and metrics by name."""
        settings, reported = self.settings, dict[str, float]()
        if settings.rnd_coeff:
            rollout, reported = self._rewarded(module_id, rollout)
        if settings.use_kl_loss:
            reported["kl_coeff"] = self.kl_coeff.number(module_id)
        batch, of_batch = super().make_train_batch(module_id, rollout)
        if settings.sample_ahead and num_rows(batch):
            batch = self._decoupled(module_id, batch)
        return batch, reported | of_batch

    def further_columns(self, module_id: str, rollout: Rollout) -> dict[str, Tree]:
        further = dict[str, Tree]()
        if self.settings.vf_clip_param is not None:
            # A second value pass: the new statistics changed what the same weights predict in units of reward.
            further[Columns.VALUES], _ = self.value_pass(module_id, rollout)
        if self.settings.use_kl_loss:
            further[Columns.ACTION_DIST_INPUTS] = rollout[Columns.ACTION_DIST_INPUTS]
        if self.settings.rnd_coeff:
            further[Columns.NEXT_OBS] = rollout[Columns.NEXT_OBS]
        return further

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

    def _rewarded(self, module_id: str, rollout: Rollout) -> tuple[Rollout, dict[str, float]]:
        """Return the rollout with rewards for what is new added to its rewards and with the column ``next_obs``, and
        the mean of the rewards over the rows of all learners to report.

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
        rewarded = {Columns.REWARDS: rollout[Columns.REWARDS] + intrinsic, Columns.NEXT_OBS: next_obs}
        rollout = dataclasses.replace(rollout, columns=rollout.columns | rewarded)
        return rollout, {"intrinsic_reward_mean": mean}

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        beyond = self._log_ratio(metrics).expm1().abs() > self.settings.clip_param
        return super().summarize(module_id, {**metrics, "clip_fraction": beyond.float(), **metrics})

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        target = self.settings.target_kl
        return target is not None and float(k3_divergence(self._log_ratio(metrics)).mean()) > target

    def _log_ratio(self, metrics: Mapping[str, Tensor]) -> Tensor:
        """Return the metric ``log_ratio``. Raise ValueError if a loss that replaces PPO's does not report it."""
        if "log_ratio" not in metrics:
            raise ValueError(
                f"{type(self).__name__}.compute_loss_for_module(): expected the metric 'log_ratio', which counts "
                f"clipped rows, got {', '.join(metrics) or 'none'}. Add to the metrics of super(), or report the new "
                "minus the old log-probability of each row's action."
            )
        return metrics["log_ratio"]

    def may_stop(self) -> bool:
        return type(self).should_stop is not PPOLearner.should_stop or self.settings.target_kl is not None

    def after_update(self, module_id: str, batch: Batch) -> None:
        if self.settings.use_kl_loss or self.settings.adaptive_lr_kl:
            self._adapt_to_kl(module_id, batch)

    @torch.no_grad()
    def _adapt_to_kl(self, module_id: str, batch: Batch) -> None:
        """Adapt the KL penalty's coefficient and the learning rate to KL(acting policy ‖ updated policy), each if the
        settings ask for it. The KL is the mean over the rows of all learners."""
        settings, rows = self.settings, num_rows(batch)
        exact = estimated = torch.zeros((), device=self.device)
        if rows:
            batch, fwd_out = self.forward_rows(module_id, batch)
            if settings.use_kl_loss:
                exact = self._divergence(self.module[module_id], batch, fwd_out)
            if settings.adaptive_lr_kl:
                dist = self.module[module_id].action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
                estimated = k3_divergence(dist.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]).mean()
        if settings.use_kl_loss:
            self._adapt_kl_coeff(module_id, float(self.collective.all_reduce_mean(exact, rows)))
        if settings.adaptive_lr_kl:
            self._adapt_lr(module_id, float(self.collective.all_reduce_mean(estimated, rows)), settings.adaptive_lr_kl)

    def _adapt_kl_coeff(self, module_id: str, divergence: float) -> None:
        """Double the KL penalty's coefficient if KL > 1.5 · ``kl_target``, and halve it if KL < ``kl_target`` / 1.5."""
        if divergence > 1.5 * self.settings.kl_target:
            self.kl_coeff[module_id] = self.kl_coeff.number(module_id) * 2.0
        elif divergence < self.settings.kl_target / 1.5:
            self.kl_coeff[module_id] = self.kl_coeff.number(module_id) * 0.5

    def _adapt_lr(self, module_id: str, divergence: float, target: float) -> None:
        """Divide the learning rate by 1.5 if KL > 2 · ``target``, and multiply it by 1.5 if KL < ``target`` / 2, as
        rsl_rl does for each minibatch."""
        if target / 2 <= divergence <= 2 * target:
            return
        factor = 1 / 1.5 if divergence > target else 1.5
        for part in self.trained[module_id].parts.values():
            for group in part.optimizer.param_groups:
                if group["lr"]:  # 0 freezes a part
                    group["lr"] = min(max(group["lr"] * factor, LEAST_LR), MOST_LR)

    def get_state(self) -> dict[str, Any]:
        kl_coeff = {module_id: self.kl_coeff.number(module_id) for module_id in self.module}
        return super().get_state() | {"kl_coeff": kl_coeff}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for module_id, coefficient in state["kl_coeff"].items():
            self.kl_coeff[module_id] = coefficient
