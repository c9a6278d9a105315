"""The loss of conservative Q-learning (CQL), by which critics do not overestimate actions that a data set lacks."""

import math
from collections.abc import Mapping

import torch
from gymnasium.spaces import Box
from torch import Tensor

from algorithms.sac.actions import Actions
from catalog.actions.masks import MASKED
from catalog.base import Tree
from catalog.distributions.gaussian import SquashedGaussian
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import map_leaves
from rlmodule.modules.apis import ActionValueAPI
from rlmodule.modules.rl_module import RLModule

CQL_NOISE = "cql_noise"
"""Column: noise from which to draw actions, ``[B, actions, W]``."""
NEXT_DIST_INPUTS = "next_action_dist_inputs"
"""Column: inputs of the policy's distribution for the observations after the rows, ``[B, W]``."""

NUM_ACTIONS = 10
"""The published number of actions of each kind that are drawn per row."""


def check_actions(module: RLModule, num_actions: int) -> None:
    """Check that there are actions whose values a conservative loss can lower, ``num_actions`` of a Box.

    Raises:
        ValueError: If the module's actions are neither choices that its critics value all at once nor one bounded Box,
            or if ``num_actions`` has no effect.
    """
    assert isinstance(module, ActionValueAPI)
    if module.values_all_actions and num_actions != NUM_ACTIONS:
        raise ValueError(
            f"cql_num_actions: expected {NUM_ACTIONS}, its default, since the sum over all choices is exact, got "
            f"{num_actions}. Leave it out."
        )
    if not (module.values_all_actions or issubclass(module.action_dist_cls, SquashedGaussian)):
        raise ValueError(
            "cql_alpha: expected a bounded Box of actions, or at most 256 joint choices without num_atoms and "
            "num_quantiles, whose values can be lowered without asking for a density of random actions, got "
            f"{module.action_space}. Leave num_atoms and num_quantiles out, or use IQL for such actions."
        )


def conservative_loss(
    module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree], actions: Actions, taken: Tensor
) -> Tensor:
    """Return by how much the values of all actions exceed those of the actions in the data (Kumar et al. 2020,
    "Conservative Q-Learning for Offline Reinforcement Learning", eq. 4): the logarithm of the sum of ``exp(Q)`` over
    all actions, minus ``Q`` of the action taken, as a mean over rows and a sum over critics.

    The sum is exact over choices. In a Box, it is estimated from actions drawn uniformly, from the policy, and from the
    policy at the next observation, each weighted by its density (appendix F).

    Args:
        module: The module that learns.
        batch: Rows ``[B, ...]``, in a Box with the columns that :meth:`SACLearner.prepare_batch` adds.
        fwd_out: The outputs of ``forward_train`` for the rows.
        actions: The policy's actions; read for choices.
        taken: The critics' values of the actions in the batch, ``[critics, B]``.
    """
    assert isinstance(module, ActionValueAPI)
    latents = fwd_out.get(Columns.EMBEDDINGS)
    if actions.probs is not None:
        values = module.compute_action_values(batch, None, latents)
        values = values.masked_fill(actions.logp < MASKED / 2, -torch.inf)
    else:
        # kind by kind: the layers' outputs of all actions at once would not fit into a CPU's cache
        kinds = _drawn_actions(module, batch, fwd_out[Columns.ACTION_DIST_INPUTS].detach())
        values = torch.cat([_values_of_many(module, batch, latents, *kind) for kind in kinds], -1)
    return (values.logsumexp(-1) - taken).sum(0).mean()


def _values_of_many(
    module: RLModule, batch: Batch, latents: Tensor | None, actions: Tensor, log_density: Tensor
) -> Tensor:
    """Return the values of several actions per row, ``[B, n, W]``, minus the logarithms of their densities ``[B, n]``,
    ``[critics, B, n]``."""
    assert isinstance(module, ActionValueAPI)
    num_actions = log_density.shape[1]

    def repeated(column: Tensor) -> Tensor:
        return column.repeat_interleave(num_actions, 0)

    if latents is None:
        rows = {Columns.OBS: map_leaves(repeated, batch[Columns.OBS])}
    else:
        rows, latents = {}, repeated(latents)
    values = module.compute_action_values(rows, actions.flatten(0, 1), latents)
    return values.unflatten(-1, log_density.shape) - log_density


@torch.no_grad()
def _drawn_actions(module: RLModule, batch: Batch, dist_inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return actions ``[B, n, W]`` and the logarithms of their densities ``[B, n]`` of three kinds: uniform ones, those
    of the distributions with the inputs ``dist_inputs`` ``[B, ...]``, and those of the distributions after the rows."""
    uniform, here, after = batch[CQL_NOISE].chunk(3, 1)
    assert isinstance(module.action_space, Box)
    log_density = uniform.new_full(uniform.shape[:2], -math.log(2) * uniform.shape[2])
    # the distribution function of normal noise makes it uniform
    actions = 2 * torch.special.ndtr(uniform) - 1
    kinds = [(actions.view(*log_density.shape, *module.action_space.shape), log_density)]
    for inputs, noise in ((dist_inputs, here), (batch[NEXT_DIST_INPUTS], after)):
        num_actions = noise.shape[1]
        dist = module.action_dist_cls.from_logits(inputs.repeat_interleave(num_actions, 0))
        drawn, logp = dist.rsample_with_logp(noise.flatten(0, 1))
        kinds.append((drawn.unflatten(0, (-1, num_actions)), logp.unflatten(0, (-1, num_actions))))
    return kinds
