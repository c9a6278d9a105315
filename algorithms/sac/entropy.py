"""The entropy that SAC's temperature aims at."""

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.base import Tree
from catalog.distributions.categorical import choice_counts
from catalog.distributions.nested import at, leaf_classes
from rlmodule.modules.rl_module import RLModule

CHOICE_SHARE = 0.98
"""Target entropy of choices, as a share of the entropy of uniform choices (Christodoulou 2019, section 3.2)."""


class TargetEntropy(nn.Module):
    """Computes the target entropy for observations.

    Args:
        module: The module, whose action space, distribution and mask determine the entropy.
        goal: The target entropy in nats; None takes -1 for each number in an action (Haarnoja et al. 2018, section 5),
            plus :data:`CHOICE_SHARE` of the entropy of uniform choices among the allowed choices.

    Attributes:
        most: The largest possible entropy in nats: that of uniform actions, with all choices allowed and numbers in
            (-1, 1). Infinite if a number is not bounded.
        constant: The part of the target entropy that does not depend on the mask, a scalar buffer in nats.
        is_masked: bool ``[parts]``: for each part of an action, in the order of :class:`ActionMask`, whether it is a
            choice. Only the entropy of choices depends on the mask.
    """

    constant: Tensor
    is_masked: Tensor

    def __init__(self, module: RLModule, goal: float | None) -> None:
        super().__init__()
        dist_cls, space, mask = module.action_dist_cls, module.action_space, module.action_mask
        self.mask = mask if goal is None else None
        self.most, constant, is_masked = 0.0, 0.0, list[bool]()
        for keys, leaf_cls in leaf_classes(dist_cls):
            leaf = at(space, keys)
            counts, size = choice_counts(leaf), math.prod(leaf.shape or ())
            masked = sum(counts) == leaf_cls.required_input_dim(leaf)
            is_masked += [True] * len(counts) if masked else [False]  # the groups of a mask
            is_number = not counts and not isinstance(leaf, spaces.MultiBinary)
            uniform = sum(map(math.log, counts)) if counts else size * math.log(2)
            self.most += math.inf if is_number and not leaf_cls.bounded else uniform
            if is_number:
                constant -= size
            elif self.mask is None or not masked:
                constant += CHOICE_SHARE * uniform
        self.register_buffer("constant", torch.tensor(constant if goal is None else goal), persistent=False)
        self.register_buffer("is_masked", torch.tensor(is_masked), persistent=False)

    def forward(self, obs: Tree) -> Tensor:
        """Return the target entropy in nats for the env's observations ``obs``: ``[B]`` if the module masks actions and
        ``goal`` is None, else a scalar."""
        if (mask := self.mask) is None:
            return self.constant
        return CHOICE_SHARE * (mask.num_allowed(obs).clamp_min(1).log() * self.is_masked).sum(-1) + self.constant
