"""From what a distribution samples to what an env accepts: every action that leaves here lies inside its space."""

from abc import abstractmethod

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.base import Tree
from catalog.model_config import DefaultModelConfig
from catalog.rules import RuleTable


class ActionConverter(nn.Module):
    """Maps sampled actions ``[..., *shape]`` into the action space; keeps shape, runs on any device, has no state."""

    @abstractmethod
    def forward(self, actions: Tree) -> Tree:
        """The actions to send to the env."""


class Offset(ActionConverter):
    """Adds the ``start`` of a Discrete or MultiDiscrete to zero-based choices."""

    start: Tensor

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("start", torch.as_tensor(start, dtype=torch.int64), persistent=False)
        self.moves = bool(np.any(start))

    def forward(self, actions: Tree) -> Tree:
        return actions + self.start if self.moves else actions


class FitBox(ActionConverter):
    """Stretches [-1, 1] to the bounds where both are finite (if ``stretch``), then clips to the bounds there are.

    Computes in float64 for a float64 Box, whose bounds may lie between two float32 numbers, and in float32 otherwise.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    radius: Tensor

    def __init__(self, space: spaces.Box, stretch: bool) -> None:
        super().__init__()
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        both = np.isfinite(low) & np.isfinite(high) & stretch
        # halves, since the whole distance between two float64 may overflow
        half_low, half_high = np.where(both, low, 0) / 2, np.where(both, high, 0) / 2
        centre = half_high + half_low
        radius = np.where(both, half_high - half_low, 1)
        dtype = torch.float64 if space.dtype == np.float64 else torch.float32
        for name, value in {"low": low, "high": high, "centre": centre, "radius": radius}.items():
            self.register_buffer(name, torch.as_tensor(value, dtype=dtype), persistent=False)
        self.stretches = bool(np.any(centre != 0) or np.any(radius != 1))
        self.clips = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def forward(self, actions: Tree) -> Tree:
        actions = actions.to(self.low.dtype)  # buffers without dims would not promote it
        if self.stretches:
            actions = torch.addcmul(self.centre, actions, self.radius)
        return torch.clamp(actions, self.low, self.high) if self.clips else actions


action_converter_rules: RuleTable[ActionConverter] = RuleTable("action converter")
"""Action space → converter to the env."""


@action_converter_rules.register(spaces.Discrete, name="Discrete → add start")
def _(space: spaces.Discrete, model_config: DefaultModelConfig, path: str) -> ActionConverter:
    return Offset(np.asarray(space.start))


@action_converter_rules.register(spaces.MultiDiscrete, name="MultiDiscrete → add start")
def _(space: spaces.MultiDiscrete, model_config: DefaultModelConfig, path: str) -> ActionConverter:
    return Offset(space.start)


@action_converter_rules.register(
    spaces.Box, name="Box → stretch and clip to the bounds", settings=("normalize_actions",)
)
def _(space: spaces.Box, model_config: DefaultModelConfig, path: str) -> ActionConverter:
    return FitBox(space, model_config.normalize_actions)


def action_converter(space: Space, model_config: DefaultModelConfig) -> ActionConverter:
    """The converter for ``space``.

    Raises:
        ValueError: If no rule knows the space.
    """
    return action_converter_rules.resolve(space, model_config, "action_space")
