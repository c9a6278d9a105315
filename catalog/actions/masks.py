"""Masks of allowed actions: a field of the observation that keeps the distribution away from what is forbidden."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional as F

from catalog.base import Tree
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution, action_distribution_rules
from catalog.distributions.categorical import choice_counts
from catalog.distributions.nested import MultiDistribution
from catalog.errors import closest
from catalog.model_config import DefaultModelConfig
from catalog.spaces import Leaf, space_parts

MASKED = -1e9
"""Logit of a forbidden choice. Its probability is exactly 0, also in bfloat16, and no noise lifts it above an allowed
one; yet it is finite, so that no difference of two is NaN, and sums and squares of log-probabilities stay finite."""
_TO_ORDINARY = "or set action_mask_key=None to treat it as an ordinary observation."


class ActionMask(nn.Module):
    """Replaces the logits of forbidden choices, as the field ``key`` of the observation says; see
    :func:`find_action_mask`. Has no state; changes neither logits nor observations in place.

    Args:
        key: Field of the observation.
        leaves: The arrays in it.
        source: For each logit, which entry of the leaves side by side is about it; -1 for none.
        groups: For each logit, a number that all logits of its categorical part share, and no others.
    """

    masked: Tensor
    source: Tensor
    group: Tensor

    def __init__(self, key: str, leaves: Sequence[Leaf], source: Sequence[int], groups: Sequence[int]) -> None:
        super().__init__()
        self.key = key
        self.leaves = tuple(leaves)
        num_entries = sum(math.prod(leaf.shape) for leaf in leaves)
        self.is_in_order = list(source) == list(range(num_entries))
        self.num_groups = max(groups) + 1
        self.register_buffer("masked", torch.tensor(MASKED), persistent=False)
        index = torch.tensor([num_entries if i < 0 else i for i in source])
        self.register_buffer("source", index, persistent=False)
        self.register_buffer("group", torch.tensor(groups), persistent=False)

    def allowed(self, obs: Tree) -> Tensor:
        """Which of the ``D`` logits may be chosen, bool ``[..., D]``; those without a mask may."""
        leaves, field = self.leaves, obs[self.key]
        if len(leaves) == 1:
            allowed = leaves[0].of(field).bool()
        else:
            allowed = torch.cat([leaf.of(field).bool() for leaf in leaves], dim=-1)
        if self.is_in_order:
            return allowed
        return F.pad(allowed, (0, 1), value=True).index_select(-1, self.source)

    def forward(self, logits: Tensor, obs: Tree) -> Tensor:
        """``logits`` ``[..., D]`` with :data:`MASKED` in place of the forbidden ones, which get no gradient."""
        return torch.where(self.allowed(obs), logits, self.masked)

    def rows_without_choice(self, obs: Tree) -> Tensor:
        """Where some categorical part of the action has nothing allowed, bool ``[...]``."""
        allowed = self.allowed(obs)
        if self.num_groups == 1:
            return ~allowed.any(-1)
        counts = torch.zeros((*allowed.shape[:-1], self.num_groups), dtype=torch.int32, device=allowed.device)
        return (counts.index_add_(-1, self.group, allowed.int()) == 0).any(-1)


def find_action_mask(
    observation_space: Space, action_space: Space, key: str | None, dist_cls: type[Distribution] | None = None
) -> ActionMask | None:
    """What keeps forbidden choices out of the inputs of a distribution; None if the observation has no such field.

    The field may be one array of as many entries as the action has choices, in the order of their logits (of nested
    actions: those of all categorical parts, in the space's own order), or nested like the action: a Dict with masks
    for some keys of a Dict action, a Tuple with one mask per part of a Tuple action, of size 0 for parts without
    choices. Parts are categorical if their space is (Discrete, MultiDiscrete, integer Box) and their distribution takes
    one input per choice. What is not 0 is allowed.

    Args:
        observation_space: A mask is looked for in a Dict only.
        action_space: What is to be masked.
        key: Name of the field; None for no masks.
        dist_cls: Distribution of the actions; None is what the table says.

    Raises:
        ValueError: If the field does not fit the action space; names the path to it.
    """
    if key is None or not isinstance(observation_space, spaces.Dict) or key not in observation_space.spaces:
        return None
    if dist_cls is None:
        dist_cls = action_distribution_rules.root(action_space, DefaultModelConfig(), "action_space").run()
    layout, context_dim = _Layout(f"observation_space[{key!r}]"), 0
    if issubclass(dist_cls, AutoregressiveDistribution):
        dist_cls, context_dim = dist_cls.independent, dist_cls.context_dim
    if not any(counts for counts, _ in _parts(action_space, dist_cls)):
        raise ValueError(
            f"{layout.path}: expected an action space with choices to forbid (Discrete, "
            f"MultiDiscrete, integer Box), got {action_space} with {dist_cls.__name__}. Leave the "
            f"mask out of the observation, {_TO_ORDINARY}"
        )
    layout.add(observation_space[key], action_space, dist_cls, ())
    if not layout.leaves:
        raise layout.misfit((), "a mask for at least one part of the action", observation_space[key], "Add one")
    last = layout.groups[-1] + 1
    return ActionMask(key, layout.leaves, layout.source + [-1] * context_dim, layout.groups + [last] * context_dim)


def observation_space_without(space: Space, *keys: str) -> spaces.Dict:
    """The Dict ``space`` without its fields ``keys``, the others in their order.

    Raises:
        ValueError: If nothing is left to observe.
    """
    assert isinstance(space, spaces.Dict)
    rest = [(name, child) for name, child in space.spaces.items() if name not in keys]
    if not rest:
        raise ValueError(
            "observation_space: expected something to observe besides "
            f"{' and '.join(map(repr, keys))}, which nets do not read, got {space}. Add a field, "
            "or set action_mask_key=None or action_embeddings_key=None to treat one as an "
            "ordinary observation."
        )
    return spaces.Dict(rest)


class _Layout:
    """Collects which entry of a mask is about which logit."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.leaves: list[Leaf] = []
        self.source: list[int] = []
        self.groups: list[int] = []
        self.num_entries = 0

    def add(self, mask: Space | None, action: Space, dist_cls: type[Distribution], keys: tuple[Any, ...]) -> None:
        """Append the logits of ``action``, masked by ``mask`` if there is one."""
        if not isinstance(mask, spaces.Dict | spaces.Tuple):
            return self._add_array(mask, action, dist_cls, keys)
        kind = spaces.Dict if isinstance(mask, spaces.Dict) else spaces.Tuple
        if not isinstance(action, kind) or not issubclass(dist_cls, MultiDistribution):
            raise self.misfit(keys, f"one array, since it is for {action}", mask, "Change its space")
        parts, masks = dict(space_parts(action)), dict(space_parts(mask))
        for name in masks:
            if name not in parts:
                expected = f"masks for parts of the action ({', '.join(map(repr, parts))})"
                raise self.misfit(keys, expected, repr(name), "Leave it out", closest(name, map(str, parts)))
        if isinstance(mask, spaces.Tuple) and len(masks) < len(parts):
            expected = f"one mask for each of the {len(parts)} parts of the action"
            raise self.misfit(keys, expected, mask, "Add Box(0, 1, (0,)) for parts without choices")
        for child, (name, part) in zip(dist_cls.children, parts.items(), strict=True):
            self.add(masks.get(name), part, child, (*keys, name))
        return None

    def _add_array(
        self, mask: Space | None, action: Space, dist_cls: type[Distribution], keys: tuple[Any, ...]
    ) -> None:
        parts = _parts(action, dist_cls)
        num_choices = sum(sum(counts) for counts, _ in parts)
        if mask is not None:
            if not _is_mask_array(mask):
                expected = "an array of 0s and 1s (a Box or MultiBinary)"
                raise self.misfit(keys, expected, mask, "Change its space")
            shape = tuple(mask.shape or ())
            if math.prod(shape) != num_choices:
                expected = f"{num_choices} entries, one for each choice in {action}"
                raise self.misfit(keys, expected, mask, "Resize it")
            if num_choices:
                self.leaves.append(Leaf(keys, mask, shape))
        for counts, width in parts:
            if mask is not None and counts:
                self.source += range(self.num_entries, self.num_entries + width)
                self.num_entries += width
            else:
                self.source += [-1] * width
            for size in counts or (width,):
                self.groups += [self.groups[-1] + 1 if self.groups else 0] * size

    def misfit(self, keys: tuple[Any, ...], expected: str, got: object, remedy: str, hint: str = "") -> ValueError:
        """The error for a mask, or a part of it at ``keys``, that does not fit the action."""
        path = self.path + "".join(f"[{key!r}]" for key in keys)
        return ValueError(f"{path}: expected {expected}, got {got}. {remedy}, {_TO_ORDINARY}{hint}")


def _parts(action: Space, dist_cls: type[Distribution]) -> list[tuple[tuple[int, ...], int]]:
    """For each leaf of ``action`` the sizes of its categorical parts, if it has any, and its number of logits."""
    if issubclass(dist_cls, MultiDistribution) and isinstance(action, spaces.Dict | spaces.Tuple):
        parts = zip(dist_cls.children, space_parts(action), strict=True)
        return [leaf for child, (_, part) in parts for leaf in _parts(part, child)]
    counts, width = choice_counts(action), dist_cls.required_input_dim(action)
    return [(counts if sum(counts) == width else (), width)]


def _is_mask_array(space: Space) -> bool:
    if isinstance(space, spaces.MultiDiscrete):
        return bool(np.all(space.nvec == 2) and np.all(space.start == 0))
    return isinstance(space, spaces.Box | spaces.MultiBinary)
