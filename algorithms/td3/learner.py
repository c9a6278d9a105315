"""TD3's learner: targets, the losses of critics and policy, and delayed policy updates."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
import tree
from torch import Tensor

from algorithms.off_policy.action_critic import ActionCriticLearner
from algorithms.off_policy.learner import following, valid_rows
from algorithms.ops.distributional import return_targets, squared_error
from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.learning.flat_optimizer import Part
from rlmodule.learning.reports import Metrics
from rlmodule.modules.apis import ActionValueAPI, ExplorationAPI, ExtraLossAPI
from rlmodule.modules.rl_module import RLModule

if TYPE_CHECKING:
    from algorithms.td3.td3 import TD3Config


class TD3Learner(ActionCriticLearner):
    """Learns critics, and a deterministic policy that they guide, from one batch of replayed steps at a time (Fujimoto
    et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", Algorithm 1).

    Every ``policy_delay``-th gradient step also updates the policy, in one backward pass with the critics, and moves
    the target nets. The policy's loss gives the critics no gradient.

    Override points: ``compute_loss_for_module``, ``compute_targets``, and those of :class:`ReplayLearner`.
    """

    required_apis = (ActionValueAPI, ExplorationAPI)
    settings: "TD3Config"

    def parts_of(self, module_id: str) -> Mapping[str, Part]:
        parts = super().parts_of(module_id)
        return {name: parts[name] for name in ("critic", "actor")}  # critics first, as weights lie in memory

    def parts_to_step(self, module_id: str) -> Collection[str]:
        """Return the names of the parts to update in this gradient step: both in every ``policy_delay``-th step, else
        only ``critic``."""
        is_due = (self.trained[module_id].num_gradient_steps + 1) % self.settings.policy_delay == 0
        return ("critic", "actor") if is_due else ("critic",)

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the loss and its metrics. The loss is the critics' squared error. In gradient steps that update the
        policy, it is that error minus the first critic's value of the policy's actions (Fujimoto et al. 2018,
        Algorithm 1; Lillicrap et al. 2016, eq. 4 and 6). With ``bc_coeff``, the policy is also drawn to the actions of
        the batch (Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", eq. 3).

        An override must report ``td_error`` ``[B]`` if replay is prioritized. It may report ``qf`` ``[B]``, the values
        of the actions taken, for the metrics ``qf_mean``, ``qf_min`` and ``qf_max``.
        """
        module, latents = self.module[module_id], fwd_out.get(Columns.EMBEDDINGS)
        assert isinstance(module, ActionValueAPI)
        outputs = module.compute_action_outputs(batch, batch[Columns.ACTIONS], latents)
        loss, metrics = self.critic_loss(module.return_head(), outputs, batch, squared_error)
        if "actor" in self.trained[module_id].stepping:
            actions = policy_actions(module, fwd_out)
            values = module.compute_action_values(batch, actions, latents, frozen=True, num_critics=1)
            policy_loss = -values.mean()
            if self.settings.bc_coeff is not None:
                # The mean size of the values makes bc_coeff the same for rewards of any scale.
                if self.settings.normalize_q:
                    policy_loss = policy_loss / values.detach().abs().mean()
                metrics["bc_loss"] = bc_loss = squared_distances(actions, batch[Columns.ACTIONS]).mean()
                policy_loss = policy_loss + self.settings.bc_coeff * bc_loss
            loss, metrics["policy_loss"] = loss + policy_loss, policy_loss
        return loss, metrics

    def forward_rows(self, module_id: str, batch: Batch) -> tuple[Batch, Mapping[str, Tree]]:
        """Return ``batch``, flattened to rows if it has sequences, and the outputs of ``forward_train``. In gradient
        steps that update only the critics, skip that pass and return no outputs, because the loss does not read them.
        Never skip it if the module is recurrent or has extra losses, or if the loss is overridden."""
        trained, module = self.trained[module_id], self.module[module_id]
        is_overridden = type(self).compute_loss_for_module is not TD3Learner.compute_loss_for_module
        if "actor" in trained.stepping or trained.is_stateful or is_overridden or isinstance(module, ExtraLossAPI):
            return super().forward_rows(module_id, batch)
        return batch, {}

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """Return ``batch`` with the critics' targets as ``value_targets``. Unless ``target_noise`` is 0, also add
        ``next_noise``, the clipped noise for the target policy's actions."""
        scale, most = self.settings.target_noise, self.settings.target_noise_clip
        if scale:
            noise = self.draw_noise(module_id, batch, num_actions=1)[0]
            batch = batch | {Columns.NEXT_NOISE: noise.mul_(scale).clamp_(-most, most)}
        return super().prepare_batch(module_id, batch)

    def compute_targets(self, module_id: str, batch: Batch) -> Tensor:
        """Return the target of each row's action value: its n-step reward plus the discounted value of ``next_obs``.
        The value is the smaller of the target critics' values of the target policy's action with noise (Fujimoto et al.
        2018, eq. 10 and 14). With ``critic_bc_coeff``, it falls with the distance of that action from the next one of
        the data (Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning", eq. 5).

        Args:
            module_id: The module that learns.
            batch: Columns of :meth:`ReplayBuffer.sample`, and the noise that :meth:`prepare_batch` adds.

        Returns:
            Targets ``[B, *target_shape]``. For sequences, ``B`` is the number of valid rows.
        """
        target, rows = self.target[module_id], valid_rows(batch)
        assert isinstance(target, ActionValueAPI)
        seen = following(target, batch)
        actions = policy_actions(target, seen)
        if Columns.NEXT_NOISE in rows:
            actions = with_noise(actions, rows[Columns.NEXT_NOISE])
        head = target.return_head()
        returns = self.least_returns(head, target.compute_action_outputs(seen, actions, seen.get(Columns.EMBEDDINGS)))
        penalty = None
        if self.settings.critic_bc_coeff:
            distances = squared_distances(actions, rows[Columns.NEXT_ACTIONS])
            penalty = self.settings.critic_bc_coeff * distances * rows[Columns.HAS_NEXT_ACTION]
        return return_targets(head, returns, rows[Columns.REWARDS], rows[Columns.DISCOUNTS], penalty)

    def after_gradient_step(self, module_id: str) -> None:
        """In gradient steps that update the policy, move the target net as :class:`ReplayLearner` does."""
        if "actor" in self.trained[module_id].stepping:
            super().after_gradient_step(module_id)


def policy_actions(module: RLModule, fwd_out: Mapping[str, Tree]) -> Tree:
    """Return the actions ``[B, ...]`` of the policy without noise, from the outputs of ``forward_train``."""
    return module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS]).to_deterministic().sample()


def squared_distances(actions: Tree, others: Tree) -> Tensor:
    """Return the mean squared difference ``[B]`` of all numbers of two trees of actions ``[B, ...]``."""
    squares = tree.map_structure(lambda x, y: (x - y).square().unsqueeze(-1).flatten(1), actions, others)
    return torch.cat(tree.flatten(squares), 1).mean(1)


def with_noise(actions: Tree, noise: Tensor) -> Tree:
    """Return the tree ``actions`` plus ``noise`` ``[B, W]``, split among its leaves in order, clipped to [-1, 1]."""
    leaves = tree.flatten(actions)
    parts = noise.split([leaf.shape[1:].numel() for leaf in leaves], -1)
    noisy = [(leaf + part.view_as(leaf)).clamp_(-1, 1) for leaf, part in zip(leaves, parts, strict=True)]
    return tree.unflatten_as(actions, noisy)
