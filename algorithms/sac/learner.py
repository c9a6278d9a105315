"""SAC's learner: targets, and the losses of critics, policy and temperature in one backward pass."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from algorithms.off_policy.action_critic import ActionCriticLearner
from algorithms.off_policy.learner import as_column, discounts_after, following, valid_rows
from algorithms.ops.distributional import half_squared_error, return_targets
from algorithms.sac.actions import Actions
from algorithms.sac.conservative import CQL_NOISE, NEXT_DIST_INPUTS, check_actions, conservative_loss
from algorithms.sac.entropy import TargetEntropy
from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.learning.flat_optimizer import Part
from rlmodule.learning.reports import Metrics
from rlmodule.modules.apis import ActionValueAPI, TemperatureAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.sac.sac import SACConfig

MOST_LOG_ALPHA = 20.0
"""Logarithm of the temperature above which learning counts as diverged and raises ``FloatingPointError``."""


class SACLearner(ActionCriticLearner):
    """Learns action values and a high-entropy policy from one batch of replayed steps at a time (Haarnoja et al. 2018,
    "Soft Actor-Critic Algorithms and Applications").

    Critics, policy and temperature learn in one backward pass. The policy's loss gives the critics no gradient.

    Override points: ``compute_loss_for_module``, ``compute_targets``, and those of :class:`ReplayLearner`.
    """

    required_apis = (ActionValueAPI, TemperatureAPI)
    target_parts = ("critic",)
    settings: "SACConfig"

    def __init__(self, settings: "SACConfig", spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self._target_entropy: dict[str, TargetEntropy] = {}
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        if not train:  # a module that is not trained has no temperature to adapt
            return
        module = self.module[module_id]
        if self.settings.cql_alpha:
            check_actions(module, self.settings.cql_num_actions)
        goal = None if isinstance(self.settings.target_entropy, str) else self.settings.target_entropy
        self._target_entropy[module_id] = entropy = TargetEntropy(module, goal).to(self.device)
        if goal is not None and goal >= entropy.most:
            raise self.settings._invalid(
                "target_entropy",
                f"less than {entropy.most:.3g}, the entropy of uniform actions",
                "Lower it, or choose 'auto': the temperature would grow without end.",
            )

    def _forget_module(self, module_id: str) -> None:
        super()._forget_module(module_id)
        self._target_entropy.pop(module_id, None)

    def further_parts(self, module: RLModule) -> dict[str, Part]:
        """Return ``alpha``, the temperature."""
        assert isinstance(module, TemperatureAPI)
        log_alpha = module.log_temperature()
        names = tuple(name for name, parameter in module.named_parameters() if parameter is log_alpha)
        return {"alpha": self.make_part(names, self.settings.alpha_lr)}

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the sum of the losses of critics (eq. 5), policy (eq. 9) and temperature (eq. 18). Each has a gradient
        for its own parameters only. With ``cql_alpha``, the critics' loss contains :func:`conservative_loss`.

        An override must report ``td_error`` ``[B]`` if replay is prioritized. It may report ``qf`` ``[B]``, the values
        of the actions taken, for the metrics ``qf_mean``, ``qf_min`` and ``qf_max``.
        """
        module, latents = self.module[module_id], fwd_out.get(Columns.EMBEDDINGS)
        assert isinstance(module, ActionValueAPI)
        assert isinstance(module, TemperatureAPI)
        outputs = module.compute_action_outputs(batch, batch[Columns.ACTIONS], latents)
        qf_loss, metrics = self.critic_loss(module.return_head(), outputs, batch, half_squared_error)

        actions = Actions.of(module, fwd_out[Columns.ACTION_DIST_INPUTS], batch.get(Columns.NOISE))
        values = module.compute_action_values(batch, actions.drawn, latents, frozen=True)
        values = values.mean(0) if self.settings.policy_reads_mean else values.amin(0)
        log_alpha = module.log_temperature()
        alpha = log_alpha.detach().exp()
        policy_loss = actions.mean(alpha * actions.logp - values).mean()

        entropy = -actions.mean(actions.logp.detach())
        goal = self._target_entropy[module_id].forward(self.module[module_id].env_part(batch[Columns.OBS]))
        # log α instead of α, as in the authors' code, so that α adapts at a rate that does not depend on its size
        alpha_loss = (log_alpha * (entropy - goal).detach()).mean()
        loss = qf_loss + policy_loss + alpha_loss
        metrics = {
            **metrics,
            "policy_loss": policy_loss,
            "alpha_loss": alpha_loss,
            "alpha_value": alpha,
            "entropy": entropy.mean(),
            "target_entropy": goal.mean(),
        }
        if self.settings.cql_alpha:
            taken = module.return_head().mean(outputs)  # with a gradient
            metrics["cql_loss"] = cql_loss = conservative_loss(module, batch, fwd_out, actions, taken)
            loss = loss + self.settings.cql_alpha * cql_loss
        return loss, metrics

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """Return ``batch`` with the critics' targets as ``value_targets``. Unless the critics value all joint actions,
        also add ``noise``, from which the loss draws actions, and ``next_noise``, from which the targets do. With
        ``cql_alpha``, also add what :func:`conservative_loss` draws actions from."""
        module, settings = self.module[module_id], self.settings
        assert isinstance(module, ActionValueAPI)
        if module.values_all_actions:
            return super().prepare_batch(module_id, batch)
        num_conservative = 3 * settings.cql_num_actions if settings.cql_alpha else 0
        noise = self.draw_noise(module_id, batch, num_actions=2 + num_conservative)
        batch = batch | {Columns.NOISE: noise[0], Columns.NEXT_NOISE: noise[1]}
        if num_conservative:
            after = following(self.target[module_id], batch)
            batch[CQL_NOISE] = noise[2:].movedim(0, -2)
            batch[NEXT_DIST_INPUTS] = as_column(after[Columns.ACTION_DIST_INPUTS], batch)
        return super().prepare_batch(module_id, batch)

    def compute_targets(self, module_id: str, batch: Batch) -> Tensor:
        """Return the target of each row's action value: its n-step reward plus the discounted soft value of the next
        observation (eq. 3 and 5). The soft value is the least of the target critics' values of the policy's action,
        minus α times the log-probability of that action. If the critics value all joint actions, the soft value is the
        policy's mean of these differences over all actions. For distributions of returns, see :func:`least_returns`.

        Args:
            module_id: The module that learns.
            batch: Columns of :meth:`ReplayBuffer.sample`, and the noise that :meth:`prepare_batch` adds.

        Returns:
            Targets ``[B, *target_shape]``. For sequences, ``B`` is the number of valid rows.
        """
        # The target net only copies the critics: its policy is the one in training. If policy and critics share an
        # encoder, the target's copy of it belongs to the critics, and this policy reads that copy.
        target, module = self.target[module_id], self.module[module_id]
        assert isinstance(target, ActionValueAPI)
        assert isinstance(module, TemperatureAPI)
        rows, seen = valid_rows(batch), following(target, batch)
        actions = Actions.of(target, seen[Columns.ACTION_DIST_INPUTS], rows.get(Columns.NEXT_NOISE))
        head = target.return_head()
        outputs = target.compute_action_outputs(seen, actions.drawn, seen.get(Columns.EMBEDDINGS))
        returns = self.least_returns(head, outputs)
        penalty = module.log_temperature().exp() * actions.logp
        rewards, discounts = rows[Columns.REWARDS], discounts_after(target, rows, seen)
        if actions.probs is not None:  # the returns are numbers for all joint actions
            return return_targets(head, actions.mean(returns - penalty), rewards, discounts)
        return return_targets(head, returns, rewards, discounts, penalty)

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        alpha = metrics.get("alpha_value")
        if alpha is not None and float(alpha.max()) > math.exp(MOST_LOG_ALPHA):
            raise FloatingPointError(
                f"temperature of module {module_id!r}: expected at most {math.exp(MOST_LOG_ALPHA):.0e}, got "
                f"{float(alpha.max()):.0e}: the policy does not reach the target entropy. Lower target_entropy or "
                "alpha_lr, or scale the rewards."
            )
        return super().summarize(module_id, metrics)
