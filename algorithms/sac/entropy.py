"""The entropy of uniform actions, from which the target entropy follows."""

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.base import Tree
from catalog.distributions.categorical import choice_counts
from catalog.distributions.nested import at, leaf_classes
from rlmodule.modules.rl_module import RLModule


class UniformEntropy(nn.Module):
    """Computes the entropy of choosing alike among all allowed choices of an action.

    Args:
        module: Knows the action space, the distribution and the mask.

    Attributes:
        num_numbers: How many numbers an action has, in its Boxes of floats.
        num_inputs: How many inputs the action distribution has.
        most: The entropy of uniform actions in nats, with all choices allowed and numbers in (-1, 1).
    """

    is_choice: Tensor

    def __init__(self, module: RLModule) -> None:
        super().__init__()
        dist_cls, space, mask = module.action_dist_cls, module.action_space, module.action_mask
        self.num_inputs, self.num_numbers, self._unmasked, self._mask = dist_cls.required_input_dim(space), 0, 0.0, mask
        self.most, is_choice = 0.0, list[bool]()
        for keys, leaf_cls in leaf_classes(dist_cls):
            leaf = at(space, keys)
            counts, size = choice_counts(leaf), math.prod(leaf.shape or ())
            masked = sum(counts) == leaf_cls.required_input_dim(leaf) and mask is not None
            is_choice += [True] * len(counts) if masked else [False]  # the groups of the mask
            bits = size * math.log(2)
            if counts and not masked:
                self._unmasked += sum(map(math.log, counts))
            elif isinstance(leaf, spaces.MultiBinary):
                self._unmasked += bits
            elif not counts:
                self.num_numbers += size
            self.most += sum(map(math.log, counts)) if counts else bits if leaf_cls.bounded else math.inf
        self.register_buffer("is_choice", torch.tensor(is_choice), persistent=False)

    def of_choices(self, obs: Tree) -> Tensor | float:
        """Return the entropy in nats for the env's observations ``obs``, ``[B]`` if there is a mask."""
        if (mask := self._mask) is None:
            return self._unmasked
        allowed = mask.allowed(obs)
        counts = allowed.new_zeros((*allowed.shape[:-1], mask.num_groups), dtype=torch.float32)
        counts.index_add_(-1, mask.group, allowed.float())
        return (counts.clamp_min(1).log() * self.is_choice).sum(-1) + self._unmasked
