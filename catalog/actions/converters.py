"""Modules that convert samples of a distribution to actions for the env, which always lie in the action space."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.base import Tree
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution
from catalog.distributions.categorical import is_integer_box
from catalog.distributions.gaussian import is_float_box
from catalog.distributions.nested import at, leaf_classes
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node, RuleTable
from catalog.spaces import space_parts


class ActionConverter(nn.Module):
    """Base of modules that map sampled actions ``[..., *shape]`` into the action space. Their
    buffers are not persistent, so checkpoints hold none of them, and ``to()`` moves them to a device.

    Attributes:
        is_identity: Whether the module returns actions unchanged.
    """

    is_identity = False

    @abstractmethod
    def forward(self, actions: Tree) -> Tree:
        """Convert samples to actions for the env, in the dtype of the space."""

    def inverse(self, actions: Tree) -> Tree:
        """Convert actions of the env to the samples that :meth:`forward` makes them of: int64 choices counted from 0,
        or float32 numbers. Learning from recorded actions needs it.

        Raises:
            NotImplementedError: If a custom converter has none.
        """
        name = type(self).__name__
        raise NotImplementedError(
            f"{name}.inverse(): expected the way from env actions back to samples, got none. Define it in {name}."
        )


class Offset(ActionConverter):
    """Adds the smallest number of the space to sampled choices, which count from 0, and casts to the dtype of the
    space.

    Args:
        start: The smallest number of each choice, in the shape of an action.
        dtype: The dtype of the space.
    """

    start: Tensor

    def __init__(self, start: np.ndarray, dtype: Any = np.int64) -> None:
        super().__init__()
        # a uint64 start beyond int64 wraps around; the cast of the sum wraps it back
        self.register_buffer("start", torch.as_tensor(start.astype(np.int64)), persistent=False)
        self.moves = bool(np.any(start))
        self.dtype = _torch_dtype(dtype)
        self.is_identity = not self.moves and self.dtype is torch.int64  # the dtype of samples

    def forward(self, actions: Tree) -> Tree:
        return ((actions + self.start) if self.moves else actions).to(self.dtype)

    def inverse(self, actions: Tree) -> Tree:
        return actions.to(torch.int64) - self.start


class FitBox(ActionConverter):
    """Fits sampled actions to the bounds of a Box of floats.

    If ``stretch``, the module first scales [-1, 1] to the bounds of each number that has two finite bounds. Then it
    clips to all finite bounds. It computes in float64 for a float64 Box, because its bounds may lie between two float32
    numbers, and otherwise in float32.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    radius: Tensor
    is_stretched: Tensor

    def __init__(self, space: spaces.Box, stretch: bool) -> None:
        super().__init__()
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        both = np.isfinite(low) & np.isfinite(high) & stretch
        # halve first: high - low may overflow float64
        half_low, half_high = np.where(both, low, 0) / 2, np.where(both, high, 0) / 2
        centre = half_high + half_low
        radius = np.where(both, half_high - half_low, 1)
        self.dtype = _torch_dtype(space.dtype)
        if self.dtype is torch.float16:  # clip to its range, beyond which the cast gives infinity
            most = float(np.finfo(np.float16).max)
            low, high = low.clip(-most, most), high.clip(-most, most)
        dtype = torch.float64 if self.dtype is torch.float64 else torch.float32
        for name, value in {"low": low, "high": high, "centre": centre, "radius": radius}.items():
            self.register_buffer(name, torch.as_tensor(value, dtype=dtype), persistent=False)
        self.register_buffer("is_stretched", torch.from_numpy(np.asarray(both)), persistent=False)
        self.stretches = bool(np.any(centre != 0) or np.any(radius != 1))
        self.clips = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def forward(self, actions: Tree) -> Tree:
        actions = actions.to(self.low.dtype)  # scalar buffers would not promote the dtype of actions
        if self.stretches:
            actions = torch.addcmul(self.centre, actions, self.radius)
        return (torch.clamp(actions, self.low, self.high) if self.clips else actions).to(self.dtype)

    def inverse(self, actions: Tree) -> Tree:
        actions = actions.to(self.low.dtype)
        radius = self.radius + (self.radius == 0)  # an action with one possible value is the centre, which gives 0
        samples = (actions - self.centre) / radius
        # 1 at the upper bound and -1 at the lower one, which the quotient may miss by a rounding error
        edges = (actions >= self.high).to(actions.dtype) - (actions <= self.low).to(actions.dtype)
        within = torch.where(edges == 0, samples.clamp(-1, 1), edges)
        return torch.where(self.is_stretched, within, samples).float()


class Nested(ActionConverter):
    """Converts each part of a Dict or Tuple action with the converter of that part.

    Args:
        children: Converter of each part, by key or index.
        as_tuple: Whether actions are tuples and not dicts.
    """

    def __init__(self, children: Mapping[Any, ActionConverter], as_tuple: bool) -> None:
        super().__init__()
        self.keys = tuple(children)
        self.parts = nn.ModuleList(children.values())  # a ModuleDict refuses some keys
        self.as_tuple = as_tuple

    def forward(self, actions: Tree) -> Tree:
        fitted = [part(actions[key]) for key, part in zip(self.keys, self.parts, strict=True)]
        return self._nested(fitted)

    def inverse(self, actions: Tree) -> Tree:
        parts: Any = zip(self.keys, self.parts, strict=True)
        return self._nested([part.inverse(actions[key]) for key, part in parts])

    def _nested(self, parts: list[Tree]) -> Tree:
        return tuple(parts) if self.as_tuple else dict(zip(self.keys, parts, strict=True))


def check_reach(dist_cls: type[Distribution], space: Space, model_config: DefaultModelConfig) -> None:
    """Check that converted samples of ``dist_cls`` can reach all of ``space``.

    Raises:
        ValueError: If samples lie in (-1, 1) and are not scaled (``normalize_actions=False``), but a Box has bounds
            other than -1 and 1; names the path to the Box.
    """
    if model_config.normalize_actions:
        return
    if issubclass(dist_cls, AutoregressiveDistribution) and dist_cls.parts:
        dist_cls = dist_cls.independent
    for keys, leaf_cls in leaf_classes(dist_cls):
        leaf = at(space, keys)
        if leaf_cls.bounded and isinstance(leaf, spaces.Box) and not ((leaf.low == -1) & (leaf.high == 1)).all():
            path = "action_space" + "".join(f"[{key!r}]" for key in keys)
            raise ValueError(
                f"model_config.normalize_actions: expected True, since samples of {leaf_cls.__name__} lie in (-1, 1), "
                f"got False for {path}, {leaf}, whose bounds they would not reach. Leave it out."
            )


def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, np.dtype(dtype).newbyteorder("="))).dtype


action_converter_rules: RuleTable[ActionConverter] = RuleTable("action converter")
"""The rules that choose an :class:`ActionConverter` for an action space."""


@action_converter_rules.register(spaces.Box, name="integer Box → add low", when=is_integer_box)
@action_converter_rules.register(spaces.MultiBinary, name="MultiBinary → as it is")
@action_converter_rules.register(spaces.MultiDiscrete, name="MultiDiscrete → add start")
@action_converter_rules.register(spaces.Discrete, name="Discrete → add start")
def _(space: Any, model_config: DefaultModelConfig, node: Node[ActionConverter]) -> ActionConverter:
    if isinstance(space, spaces.MultiBinary):
        return Offset(np.zeros(space.shape), space.dtype)
    return Offset(np.asarray(space.low if isinstance(space, spaces.Box) else space.start), space.dtype)


@action_converter_rules.register(spaces.Box, name="float Box → stretch and clip to the bounds", when=is_float_box)
def _(space: spaces.Box, model_config: DefaultModelConfig, node: Node[ActionConverter]) -> ActionConverter:
    return FitBox(space, model_config.normalize_actions)


@action_converter_rules.register(spaces.Dict, name="Dict → each part")
@action_converter_rules.register(spaces.Tuple, name="Tuple → each part")
def _(
    space: spaces.Dict | spaces.Tuple, model_config: DefaultModelConfig, node: Node[ActionConverter]
) -> ActionConverter:
    children = {key: node.child(key, part) for key, part in space_parts(space).items()}
    return Nested(children, as_tuple=isinstance(space, spaces.Tuple))
