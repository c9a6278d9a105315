"""What PPO, A2C, IMPALA and APPO share: settings, the iteration, and the learner of a policy and a value function."""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.algorithm import Algorithm
from algorithms.ops.returns import generalized_advantages
from algorithms.ops.surrogate import explained_variance, k3_divergence, linear_beyond
from catalog.base import Tree
from catalog.checks import Schedule
from catalog.settings import setting
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout
from rlmodule.learning.compilation import learner_device
from rlmodule.learning.episode_learner import EpisodeLearner
from rlmodule.learning.reports import Metrics
from rlmodule.learning.schedules import Coefficient, value_at
from rlmodule.modules.apis import ValueFunctionAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.settings import EpisodeTraining

_COMPUTED = (Columns.ADVANTAGES, Columns.VALUE_TARGETS, Columns.VALUES)


class ActorCriticTraining(EpisodeTraining):
    """Settings of the loss of a policy and a value function."""

    lambda_: float = setting(0.95, "Lambda of GAE or V-trace: 0 relies on values, 1 on rewards alone.", ge=0, le=1)
    vf_loss_coeff: float = setting(0.5, "Weight of the value loss.", ge=0)
    vf_huber_delta: float | None = setting(
        None,
        "Value errors larger than this count linearly instead of squared, in standard deviations of the returns; None "
        "squares all.",
        gt=0,
    )
    entropy_coeff: Schedule = setting(
        0.0, "Weight of the entropy bonus: a number, or points [[0, value], [env_step, value], ...].", ge=0
    )


class OnPolicyAlgorithm(Algorithm):
    """Samples a rollout with the current policy, and learns from it."""

    def training_step(self) -> dict[str, dict[str, Any]]:
        before = self.clock  # the last update of an annealed run would have a learning rate of 0 at the count after
        while not (rollout := self.sample()).num_env_steps:
            pass  # all rows are the reset steps of next-step autoreset envs
        learned = self.learner_group.update_from_episodes(rollout, env_steps=before)
        return {"timers": learned.pop("timers"), "learners": learned}


class ActorCriticLearner(EpisodeLearner):
    """Learns a policy and a value function from rollouts.

    Override points, in addition to those of :class:`EpisodeLearner`:
        ``policy_objective`` (required): returns the objective that the policy maximises.
        ``compute_advantages``: returns the advantages and the value targets of a rollout; default: those of GAE.
        ``further_columns``: returns further columns that the loss reads; default: none.
        ``compute_loss_for_module``, ``value_error``: the loss, and its value term.
    """

    required_apis = (ValueFunctionAPI,)
    standardizes_advantages: ClassVar[bool] = False
    """Whether the advantages of each update are moved and scaled to a mean of 0 and a standard deviation of 1."""
    settings: Any

    def __init__(self, settings: Any, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.entropy_coeff = Coefficient(learner_device(settings))
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        self.entropy_coeff[module_id] = value_at(self.settings.entropy_coeff, self.env_steps)

    # --- the loss -----------------------------------------------------------------------------------------------------

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the loss, and its terms by row, ``[B]``.

        Modules that are updated together skip this method and average :meth:`compute_row_losses`: a term that is not
        in those needs a ``can_stack`` that returns False.
        """
        row_losses, metrics = self.compute_row_losses(module_id, self.module[module_id], batch, fwd_out)
        return row_losses.mean(), metrics

    def compute_row_losses(
        self, module_id: str, module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        dist = module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])

        logp = dist.logp(batch[Columns.ACTIONS])
        log_ratio = logp - batch[Columns.ACTION_LOGP]
        objective = self.policy_objective(logp, log_ratio, batch)
        vf_loss, entropy = self.value_error(module, batch, fwd_out), dist.entropy()

        losses = self.settings.vf_loss_coeff * vf_loss - objective - self.entropy_coeff[module_id] * entropy
        return losses, {"policy_loss": -objective, "vf_loss": vf_loss, "entropy": entropy, "log_ratio": log_ratio}

    @abstractmethod
    def policy_objective(self, logp: Tensor, log_ratio: Tensor, batch: Batch) -> Tensor:
        """Return the objective that the policy maximises in each row ``[B]``.

        Args:
            logp: Log-probability of the action under the current policy ``[B]``.
            log_ratio: The same, minus the column ``action_logp`` ``[B]``.
            batch: Columns ``[B, ...]`` of a minibatch.
        """

    def value_error(self, module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]) -> Tensor:
        """Return each row's squared value error ``[B]`` in units of ``module.value_scale()``. If ``vf_huber_delta`` is
        set, return twice the Huber loss of the error instead."""
        assert isinstance(module, ValueFunctionAPI)
        values = module.compute_values(batch, fwd_out.get(Columns.EMBEDDINGS))
        error = ((values - batch[Columns.VALUE_TARGETS]) / module.value_scale()).square()
        delta = self.settings.vf_huber_delta
        return error if delta is None else linear_beyond(delta, error)

    # --- what the loss reads ------------------------------------------------------------------------------------------

    def compute_advantages(self, module_id: str, rollout: Rollout) -> dict[str, Tensor]:
        """Return the columns ``advantages``, ``value_targets`` and ``values``, the predictions, ``[T, N]`` each. By
        default, the advantages are generalised advantage estimates."""
        values, following = self.known_values(module_id, rollout)
        advantages = generalized_advantages(
            rollout[Columns.REWARDS],
            values,
            following,
            terminated_t=rollout[Columns.TERMINATEDS],
            truncated_t=rollout[Columns.TRUNCATEDS],
            valid_t=rollout.valid,
            gamma=self.settings.gamma,
            lambda_=self.settings.lambda_,
        )
        return {Columns.ADVANTAGES: advantages, Columns.VALUE_TARGETS: values + advantages, Columns.VALUES: values}

    def known_values(self, module_id: str, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return what :meth:`value_pass` returns, or zeros before the first update, when values have no unit yet."""
        module = self.module[module_id]
        assert isinstance(module, ValueFunctionAPI)
        values, following = self.value_pass(module_id, rollout)
        return values * module.has_value_statistics(), following * module.has_value_statistics()

    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Return the rollout as a batch with advantages and value targets, and metrics by name."""
        module, valid = self.module[module_id], rollout.valid
        assert isinstance(module, ValueFunctionAPI)
        computed = self.compute_advantages(module_id, rollout)
        advantages, targets, values = (computed[name] for name in _COMPUTED)
        rows = torch.stack([advantages[valid], targets[valid], values[valid]])
        # the statistics below are those of all learners' rows, so that several learn what one would
        if self.collective.size > 1:
            rows = torch.cat(self.collective.all_gather(rows.T)).T.contiguous()
        reported = {"vf_explained_var": float(explained_variance(rows[2], rows[1]))}
        module.update_value_statistics(targets[valid])
        if self.standardizes_advantages:
            computed[Columns.ADVANTAGES] = (advantages - rows[0].mean()) / (rows[0].std(unbiased=False) + 1e-8)
        further = self.further_columns(module_id, rollout)
        schedule = self.settings.entropy_coeff
        if not isinstance(schedule, float):
            reported["entropy_coeff"] = self.entropy_coeff[module_id] = value_at(schedule, self.env_steps)
        rollout = dataclasses.replace(rollout, columns=rollout.columns | computed | further)
        names = [Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS]
        return self.pack(module_id, rollout, [*names, *further]), reported

    def further_columns(self, module_id: str, rollout: Rollout) -> dict[str, Tree]:
        """Return further columns ``[T, N, ...]`` that the loss reads. Called once the statistics of values have been
        updated with the value targets."""
        return {}

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        rest = dict(metrics)
        rest.setdefault("approx_kl", k3_divergence(rest.pop("log_ratio")))
        return super().summarize(module_id, rest)
