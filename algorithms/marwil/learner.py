"""MARWIL's learner: clones the actions of a data set, weighted by estimates of how good they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from algorithms.off_policy.learner import BootstrappingLearner, following, valid_rows
from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.learning.reports import Metrics
from rlmodule.modules.actor_critic import ActorCriticModule
from rlmodule.modules.apis import ExtraLossAPI, ValueFunctionAPI
from rlmodule.modules.recurrent import burn_in
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.marwil.marwil import MARWILConfig

MOST_WEIGHT = 20.0
"""Largest weight of a row, so that a single surprise does not decide the policy (Peng et al. 2019, section 5.2)."""


class MARWILLearner(BootstrappingLearner):
    """Learns a policy and a value function from one batch of data at a time (Wang et al. 2018, "Exponentially Weighted
    Imitation Learning for Batched Historical Data").

    Attributes:
        squared_advantage: Module id → moving average of the squared advantages; 0 before the first gradient step.
        valuing: Copies of the modules, in eval mode, that share their tensors. Their values are in the targets.

    Override points: ``compute_loss_for_module``, and those of :class:`BootstrappingLearner`.
    """

    required_apis = (ValueFunctionAPI,)
    settings: MARWILConfig

    def __init__(self, settings: MARWILConfig, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.squared_advantage: dict[str, Tensor] = {}
        self.valuing = MultiRLModule({}).eval()
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        if train:
            self.squared_advantage[module_id] = torch.zeros((), device=self.device)
            self.valuing.add(module_id, spec.build().to(self.device))
            self.valuing[module_id].share_tensors_of(self.module[module_id])

    def _forget_module(self, module_id: str) -> None:
        super()._forget_module(module_id)
        self.squared_advantage.pop(module_id, None)
        if module_id in self.valuing:
            self.valuing.remove(module_id)

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the loss: the mean over rows of ``-w · log π(a|s)`` (eq. 3) plus ``vf_loss_coeff`` times the squared
        error of the value, in units of ``module.value_scale()``. With ``beta=0``, it is ``-log π(a|s)`` alone.

        The weight ``w`` is ``exp(beta · A / c)`` of the advantage ``A``, where ``c²`` is a moving average of ``A²``.
        """
        module = self.module[module_id]
        logp = module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS]).logp(batch[Columns.ACTIONS])
        if not self.settings.beta:
            return -logp.mean(), {"policy_loss": -logp}

        assert isinstance(module, ValueFunctionAPI)
        values = module.compute_values(batch, fwd_out.get(Columns.EMBEDDINGS))
        advantages = batch[Columns.VALUE_TARGETS] - values
        scale = self.squared_advantage[module_id].sqrt()
        # before the first step, no advantage is known to be large: all rows weigh the same
        scaled = torch.where(scale > 0, advantages.detach() / scale, 0.0)
        weights = (self.settings.beta * scaled).exp().clamp(max=MOST_WEIGHT)

        policy_loss = -weights * logp
        vf_loss = (advantages / module.value_scale()).square()
        loss = (policy_loss + self.settings.vf_loss_coeff * vf_loss).mean()
        return loss, {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "weight": weights,
            "advantage": advantages.detach(),
            "value_target": batch[Columns.VALUE_TARGETS],
        }

    def forward_rows(self, module_id: str, batch: Batch) -> tuple[Batch, Mapping[str, Tree]]:
        """Return ``batch``, flattened to rows if it has sequences, and the outputs of ``forward_train``, or with
        ``beta=0`` those of the policy alone. Never leave out the critic's pass if the module is recurrent, has extra
        losses or passes of its own, or if the loss is overridden."""
        module, passes = self.module[module_id], (ActorCriticModule._forward, ActorCriticModule._forward_train)
        is_overridden = type(self).compute_loss_for_module is not MARWILLearner.compute_loss_for_module
        has_own_passes = (type(module)._forward, type(module)._forward_train) != passes
        is_stateful = self.trained[module_id].is_stateful
        if self.settings.beta or is_overridden or has_own_passes or is_stateful or isinstance(module, ExtraLossAPI):
            return super().forward_rows(module_id, batch)
        return batch, module._forward(batch)

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        if self.settings.beta:
            return super().prepare_batch(module_id, batch)
        return burn_in(self.module[module_id], batch)  # cloning reads no values

    def compute_targets(self, module_id: str, batch: Batch) -> Tensor:
        """Return the targets of values ``[B]``: each row's n-step reward plus the discounted value of the observation
        after it."""
        module, rows = self.valuing[module_id], valid_rows(batch)
        assert isinstance(module, ValueFunctionAPI)
        after = following(module, batch)
        values = module.compute_values(after, after.get(Columns.EMBEDDINGS)) * module.has_value_statistics()
        return rows[Columns.REWARDS] + rows[Columns.DISCOUNTS] * values

    def step_on_batch(
        self, batch: Batch | None, *, env_steps: int, module_id: str = DEFAULT_MODULE_ID
    ) -> dict[str, Metrics]:
        with self._update():
            stepped = super().step_on_batch(batch, env_steps=env_steps, module_id=module_id)
            settings = self.settings_of(module_id)
            if settings.beta:
                self._update_scales(module_id, stepped[module_id], settings.norm_rate)
        return stepped

    @torch.no_grad()
    def _update_scales(self, module_id: str, metrics: Metrics, rate: float) -> None:
        """Update the scales of values and advantages with the rows of all learners."""
        module, empty = self.module[module_id], torch.zeros(0, device=self.device)
        assert isinstance(module, ValueFunctionAPI)
        module.update_value_statistics(metrics.get("value_target", empty))
        squares = metrics.get("advantage", empty).square()
        total = torch.stack([squares.sum(), squares.new_full((), len(squares))])
        if self.collective.size > 1:
            total = self.collective.all_reduce(total)
        before = self.squared_advantage[module_id]
        mean = (total[0] / total[1]).to(before.dtype)
        after = torch.where(before > 0, torch.lerp(before, mean, rate), mean)
        # squares of huge advantages are infinite, and so would all later averages be
        self.squared_advantage[module_id] = torch.where(after.isfinite(), after, before)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"squared_advantage": dict(self.squared_advantage)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for module_id, square in state["squared_advantage"].items():
            if module_id in self.squared_advantage:
                self.squared_advantage[module_id] = square.to(self.device)
