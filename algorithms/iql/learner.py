"""IQL's learner: the losses of state values, critics and policy, which only read actions of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from algorithms.off_policy.action_critic import ActionCriticLearner
from algorithms.off_policy.learner import as_column, valid_rows
from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.sequences import flatten_sequences
from rlmodule.learning.flat_optimizer import Part
from rlmodule.learning.reports import Metrics
from rlmodule.modules.apis import ActionValueAPI, StateValueAPI
from rlmodule.modules.recurrent import burn_in
from rlmodule.modules.rl_module import RLModule

if TYPE_CHECKING:
    from algorithms.iql.iql import IQLConfig

NEXT_STATE_VALUES = "next_state_values"
"""Column of a batch: the state values of the observations that :func:`seen_by_critics` finds after its rows."""


class IQLLearner(ActionCriticLearner):
    """Learns state values, critics and a policy from one batch of stored steps at a time (Kostrikov et al. 2022,
    "Offline Reinforcement Learning with Implicit Q-Learning", Algorithm 1).

    All three learn in one backward pass. No loss asks for the value of an action that the data lack.

    Override points: ``compute_loss_for_module``, ``compute_targets``, and those of :class:`ReplayLearner`.
    """

    required_apis = (ActionValueAPI, StateValueAPI)
    target_parts = ("critic",)
    settings: IQLConfig

    def further_parts(self, module: RLModule) -> dict[str, Part]:
        """Return ``value``, the net of state values."""
        assert isinstance(module, StateValueAPI)
        return {"value": self.make_part(module.value_names(), self.settings.critic_lr)}

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the sum of the losses of state values (eq. 5), critics (eq. 6) and policy (eq. 7).

        With the advantage ``A = Q(s, a) - V(s)`` of the target critics, the loss of state values is the expectile loss
        of ``A``, and the policy makes the actions of the data likely with the weights ``exp(beta · A)``.

        An override must report ``td_error`` ``[B]`` if replay is prioritized. It may report ``qf`` ``[B]``, the values
        of the actions taken, for the metrics ``qf_mean``, ``qf_min`` and ``qf_max``.
        """
        module, settings, latents = self.module[module_id], self.settings, fwd_out.get(Columns.EMBEDDINGS)
        assert isinstance(module, ActionValueAPI)
        assert isinstance(module, StateValueAPI)
        advantages = batch[Columns.ACTION_VALUES] - module.compute_values(batch, latents)
        vf_loss = expectile_loss(advantages, settings.expectile)

        values = module.compute_action_values(batch, batch[Columns.ACTIONS], latents)
        errors = values - batch[Columns.VALUE_TARGETS]
        qf_loss = errors.square().sum(0)

        # The policy is drawn to the actions of the data alone, so no critic is asked about others.
        weights = (settings.beta * advantages.detach()).exp().clamp(max=settings.max_weight)
        dist = module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        policy_loss = -weights * dist.logp(batch[Columns.ACTIONS])

        losses = vf_loss + qf_loss + policy_loss
        if Columns.WEIGHTS in batch:
            losses = losses * batch[Columns.WEIGHTS]
        return losses.mean(), {
            "vf_loss": vf_loss,
            "qf_loss": qf_loss,
            "policy_loss": policy_loss,
            "weight": weights,
            "advantage": advantages.detach(),
            "td_error": errors.detach().abs().mean(0),
            "qf": values.detach().mean(0),
        }

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """Return ``batch`` with the critics' targets as ``value_targets``, with the least of the target critics' values
        of the actions in it as ``action_values``, and with the state values from which the targets are computed."""
        target, rows = self.target[module_id], valid_rows(batch)
        assert isinstance(target, ActionValueAPI)
        assert isinstance(target, StateValueAPI)
        seen, after = seen_by_critics(target, batch)
        values = target.compute_action_outputs(seen, rows[Columns.ACTIONS], seen.get(Columns.EMBEDDINGS))
        next_values = target.compute_values(after, after.get(Columns.EMBEDDINGS))
        batch = batch | {
            Columns.ACTION_VALUES: as_column(self.least_returns(target.return_head(), values), batch),
            NEXT_STATE_VALUES: as_column(next_values, batch),
        }
        return super().prepare_batch(module_id, batch)

    def compute_targets(self, module_id: str, batch: Batch) -> Tensor:
        """Return the target of each row's action value: its n-step reward plus the discounted state value of the next
        observation (eq. 6). The net of state values is the one in training. If it reads the latent of an encoder with
        weights, that is the encoder of the target critics.

        Args:
            module_id: The module that learns.
            batch: Columns of :meth:`ReplayBuffer.sample`, and the state values that :meth:`prepare_batch` adds.

        Returns:
            Targets ``[B]``. For sequences, ``B`` is the number of valid rows.
        """
        rows = valid_rows(batch)
        return torch.addcmul(rows[Columns.REWARDS], rows[Columns.DISCOUNTS], rows[NEXT_STATE_VALUES])


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Return the square of each error, times ``expectile`` where it is positive and ``1 - expectile`` where it is not
    (Kostrikov et al. 2022, eq. 3). The shape is that of ``errors``, which are targets minus predictions."""
    return torch.where(errors > 0, expectile, 1 - expectile) * errors.square()


def seen_by_critics(net: RLModule, batch: Batch) -> tuple[Batch, Batch]:
    """Return what the critics of ``net`` read: of the rows of ``batch``, and of the observations after them. The two
    dicts have the column ``obs`` ``[B, ...]``, and of sequences ``embeddings``, which depend on the recurrent state."""
    if Columns.NEXT_ROWS not in batch:
        return {Columns.OBS: batch[Columns.OBS]}, {Columns.OBS: batch[Columns.NEXT_OBS]}
    sequences = burn_in(net, batch)
    columns = {Columns.OBS: sequences[Columns.OBS]} | net.forward_train(sequences)
    return (
        flatten_sequences(columns, batch[Columns.VALID_ROWS]),
        flatten_sequences(columns, batch[Columns.NEXT_ROWS]),
    )
