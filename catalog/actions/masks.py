"""Action masks: fields of the observation that say which choices a distribution may make."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional as F

from catalog.base import Tree
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution
from catalog.distributions.categorical import choice_counts
from catalog.distributions.nested import MultiDistribution, at, leaf_classes
from catalog.spaces import Leaf, space_parts
from catalog_rl import closest

MASKED = -1e9
"""Logit of a forbidden choice. It gives the choice a probability of exactly 0, also in bfloat16, and no noise lifts it
above the logit of an allowed choice. It is finite, so that differences, sums and squares of log-probabilities are
finite, too. Action values may be below it, so it does not forbid them: see ``FORBIDDEN`` of DQN."""


class ActionMask(nn.Module):
    """Replaces the logits of forbidden choices by :data:`MASKED`.

    :func:`find_action_mask` describes the field of the observation. The module has no state, and changes neither logits
    nor observations in place.

    Args:
        key: Field of the observation with the mask.
        leaves: The arrays in that field.
        source: For each logit, the index of its entry in the concatenated leaves; -1 for logits without a mask.
        groups: For each logit, the index of its categorical part. All logits of an action leaf without choices count
            as one part, and so does the context of autoregressive actions.
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
        """Return which of the ``D`` logits are allowed, bool ``[..., D]``. Logits without a mask are always allowed."""
        allowed = [leaf.of(obs[self.key]).bool() for leaf in self.leaves]
        allowed = allowed[0] if len(allowed) == 1 else torch.cat(allowed, dim=-1)
        if self.is_in_order:
            return allowed
        # the appended True is the entry of logits without a mask
        return F.pad(allowed, (0, 1), value=True).index_select(-1, self.source)

    def forward(self, logits: Tensor, obs: Tree) -> Tensor:
        """Return ``logits`` ``[..., D]`` with :data:`MASKED`, which has no gradient, in place of the forbidden ones."""
        return torch.where(self.allowed(obs), logits, self.masked)

    def rows_without_choice(self, obs: Tree) -> Tensor:
        """Return which of the observations forbid all choices of some categorical part, bool ``[...]``."""
        if self.num_groups == 1:
            return ~self.allowed(obs).any(-1)
        return (self.num_allowed(obs) == 0).any(-1)

    def num_allowed(self, obs: Tree) -> Tensor:
        """Return the number of allowed logits of each part, int32 ``[..., num_groups]``."""
        allowed = self.allowed(obs).int()
        counts = allowed.new_zeros((*allowed.shape[:-1], self.num_groups))
        return counts.index_add_(-1, self.group, allowed)


def find_action_mask(key: str, field: Space, action_space: Space, dist_cls: type[Distribution]) -> ActionMask:
    """Return the module that forbids actions as a field of the observation says.

    An entry of the field allows a choice unless it is 0. The field has one of two forms:

    - One array with an entry for each choice, in the order of the logits: the choices of all categorical parts, in the
      order of the space.
    - Nested like the action: a Dict with masks for some keys of a Dict action, or a Tuple with one mask per part of a
      Tuple action, of size 0 for parts without choices.

    A part is categorical if its space is Discrete, MultiDiscrete or an integer Box, and its distribution has one input
    per choice.

    Args:
        key: Name of the field of the observation.
        field: Space of the field.
        action_space: Space of the actions to mask.
        dist_cls: Distribution of the actions.

    Raises:
        ValueError: If the field does not fit the action space or the distribution; names the path to the field.
    """
    path, context_dim = f"observation_space[{key!r}]", 0
    if issubclass(dist_cls, AutoregressiveDistribution):
        dist_cls, context_dim = dist_cls.independent, dist_cls.context_dim
    if not any(counts for counts, _ in _parts(action_space, dist_cls)):
        expected = "an action space with choices to forbid (Discrete, MultiDiscrete, integer Box)"
        got = f"{action_space} with {dist_cls.__name__}"
        raise misfit(path, "action_mask_key", expected, got, "Leave the mask out of the observation")
    leaves: list[Leaf] = []
    source: list[int] = []
    groups: list[int] = []
    entry, group = itertools.count(), itertools.count()
    # Walk over the logits in order: each masked one takes the next entry of the mask, and all logits of one choice
    # share a group. A part without choices is one group; so is the context of autoregressive actions.
    for leaf, counts, width in _pieces(field, action_space, dist_cls, (), path):
        if leaf is not None and leaf not in leaves:
            leaves.append(leaf)
        source += [-1 if leaf is None else next(entry) for _ in range(width)]
        for size in counts or (width,):
            groups += [next(group)] * size
    if not leaves:
        raise misfit(path, "action_mask_key", "a mask for at least one part of the action", field, "Add one")
    return ActionMask(key, leaves, source + [-1] * context_dim, groups + [next(group)] * context_dim)


def _pieces(
    mask: Space | None, action: Any, dist_cls: type[Distribution], keys: tuple[Any, ...], path: str
) -> Iterator[tuple[Leaf | None, tuple[int, ...], int]]:
    """Yield, for each leaf of the space ``action``: the array that masks it (None if it has no choices or no mask), the
    sizes of its categorical parts, and its number of logits. One array may mask several leaves.

    ``mask`` is the space of the mask for ``action``, None for no mask. ``keys`` lead from the whole mask to ``mask``;
    ``path`` names ``mask`` in error messages.
    """

    def wrong(expected: str, remedy: str, hint: str = "") -> ValueError:
        return misfit(path, "action_mask_key", expected, mask, remedy, hint)

    if not isinstance(mask, spaces.Dict | spaces.Tuple):
        parts, leaf = _parts(action, dist_cls), None
        if mask is not None:
            is_binary = isinstance(mask, spaces.MultiDiscrete) and np.all(mask.nvec == 2) and np.all(mask.start == 0)
            if not (is_binary or isinstance(mask, spaces.Box | spaces.MultiBinary)):
                raise wrong("an array of 0s and 1s (a Box or MultiBinary)", "Change its space")
            leaf, num_choices = Leaf(keys, mask, tuple(mask.shape or ())), sum(sum(counts) for counts, _ in parts)
            if math.prod(leaf.shape) != num_choices:
                raise wrong(f"{num_choices} entries, one for each choice in {action}", "Resize it")
        for counts, width in parts:
            yield leaf if counts else None, counts, width
        return
    if not issubclass(dist_cls, MultiDistribution) or dist_cls.as_tuple is not isinstance(mask, spaces.Tuple):
        num_choices = sum(sum(counts) for counts, _ in _parts(action, dist_cls))
        expected = f"one array of {num_choices} entries, one for each choice in {action}"
        raise wrong(expected, f"Make it MultiBinary({num_choices})")
    masks = space_parts(mask)
    # a Dict may leave parts without a mask; a Tuple cannot, since its masks are matched by position
    unknown = [name for name in masks if name not in dist_cls.keys]
    if unknown or (dist_cls.as_tuple and len(masks) < len(dist_cls.keys)):
        known = ", ".join(map(repr, dist_cls.keys))
        remedy = "Give a Tuple one for each, Box(0, 1, (0,)) for parts without choices"
        hint = closest(str(unknown[0]), map(str, dist_cls.keys)) if unknown else ""
        raise wrong(f"masks for parts of the action ({known})", remedy, hint)
    for name, child in zip(dist_cls.keys, dist_cls.children, strict=True):
        yield from _pieces(masks.get(name), action[name], child, (*keys, name), f"{path}[{name!r}]")


def misfit(where: str, setting: str, expected: str, got: object, remedy: str, hint: str = "") -> ValueError:
    """Return the error for a field of the observation, or its part ``where``, that does not fit the action. ``setting``
    is the model setting that names the field. The other arguments are texts of the error."""
    ordinary = f"or set {setting}=None to treat it as an ordinary observation."
    return ValueError(f"{where}: expected {expected}, got {got}. {remedy}, {ordinary}{hint}")


def _parts(action: Space, dist_cls: type[Distribution]) -> list[tuple[tuple[int, ...], int]]:
    """Return, for each leaf of the space ``action``, the sizes of its categorical parts (empty if it has none) and its
    number of logits."""
    parts = []
    for keys, leaf_cls in leaf_classes(dist_cls):
        leaf = at(action, keys)
        counts, width = choice_counts(leaf), leaf_cls.required_input_dim(leaf)
        parts.append((counts if sum(counts) == width else (), width))
    return parts


def observation_space_without(space: Space, *keys: str) -> spaces.Dict:
    """Return the Dict ``space`` without the fields ``keys``.

    Raises:
        ValueError: If this leaves no field.
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
