"""Deterministic actions, with noise for exploration."""

import functools
from typing import ClassVar

import torch
from gymnasium import Space
from torch import Tensor, nn

from catalog.base import Tree
from catalog.distributions.base import subclass
from catalog.distributions.gaussian import DiagGaussian
from catalog.registry import register_distribution

SCALE = 0.1
"""Default standard deviation of the exploration noise, as published for TD3."""


class ExplorationNoise(nn.Module):
    """The standard deviation of a module's exploration noise, as the scalar buffer ``scale``, in units of half the
    action range."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((), SCALE))


@register_distribution("DeterministicAction")
class DeterministicAction(DiagGaussian):
    """The action ``tanh(inputs)`` for Boxes of floats with finite bounds, from inputs ``[..., prod(shape)]`` (Lillicrap
    et al. 2016, "Continuous control with deep reinforcement learning", section 7).

    Samples add independent Gaussian noise and are clipped to [-1, 1], the range of all bounded actions. The standard
    deviation of the noise is that of ``module.exploration_noise``, an :class:`ExplorationNoise`, or 0.1 if the module
    has none. Densities, entropy and KL are those of the Gaussian before clipping.
    """

    inputs_suffice = False
    bounded = True
    inputs_per_entry = 1
    module: ClassVar[nn.Module] = nn.Module()

    def __init__(self, logits: Tensor) -> None:
        self.mean = logits.tanh()

    @functools.cached_property
    def log_std(self) -> Tensor:
        """Logarithm of the standard deviation of the noise, ``[..., prod(shape)]``."""
        noise = self.module._modules.get("exploration_noise")
        scale = noise.scale if isinstance(noise, ExplorationNoise) else self.mean.new_full((), SCALE)
        return scale.log().expand_as(self.mean)

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        if not cls.fits(space):
            remedy = "Leave custom_action_dist out, or choose SAC or PPO for such actions."
            raise cls._wrong_space(path, f"{cls.expected} with finite bounds on all sides", space, remedy)
        super().check(space, path)

    @classmethod
    def for_module(cls, module: nn.Module) -> type["DeterministicAction"]:
        """Return a subclass that uses the exploration noise of ``module``."""
        return subclass(cls, module=module)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions with the gradient of the mean. Numbers that are clipped have no gradient."""
        return super().rsample(generator).clamp(-1, 1)

    def sample_from(self, noise: Tensor) -> Tensor:
        return super().sample_from(noise).clamp(-1, 1)

    def rsample_with_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        actions, logp = super().rsample_with_logp(noise)
        return actions.clamp(-1, 1), logp
