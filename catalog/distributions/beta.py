"""The Beta distribution, for actions with bounds on both sides."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Self

from catalog.base import Tree
from catalog.distributions.base import Deterministic, same_class
from catalog.distributions.gaussian import BoxDistribution
from catalog.registry import register_distribution

# Number of candidates per gamma variate. Each is accepted with a probability of at least 0.95, so that all of them fail
# about once in 80 million draws.
_TRIES = 6
_LOG_2 = math.log(2)


@register_distribution("Beta")
class Beta(BoxDistribution):
    """Independent Beta distributions over a float Box with finite bounds (Chou et al. 2017, "Improving stochastic
    policy gradients in continuous control with deep reinforcement learning using the Beta distribution").

    Samples are scaled from (0, 1) to (-1, 1), the range of all bounded actions. The inputs ``[..., 2 · prod(shape)]``
    give ``α = 1 + softplus(first half)`` and ``β = 1 + softplus(second half)``, so that each distribution has a single
    peak. Inputs of 0 give ``α = β = 1.69``, which is nearly uniform.
    """

    bounded = True

    def __init__(self, logits: Tensor) -> None:
        self._over_one = F.softplus(logits)
        self.alpha, self.beta = (1 + self._over_one).chunk(2, dim=-1)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions, computed from two gamma variates each, with the gradient through both variates (implicit
        reparameterisation, Figurnov et al. 2018)."""
        # torch.distributions.Beta takes no generator, so compute the variate from two gamma variates
        shapes = torch.stack([self.alpha, self.beta])
        gammas = torch._standard_gamma(shapes, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
        return self._shaped(_stretched(gammas))

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((steps, 2 * _TRIES * input_dim), dtype=np.float32))

    def sample_from(self, noise: Tensor) -> Tensor:
        normal, uniform = noise.unflatten(-1, (2, _TRIES, -1)).unbind(-3)
        gammas = _gammas(torch.cat([self.alpha, self.beta], -1).detach(), normal, torch.special.ndtr(uniform))
        return self._shaped(_stretched(torch.stack(gammas.chunk(2, dim=-1))))

    def _doubles(self) -> tuple[Tensor, ...]:
        """Return ``α - 1`` and ``β - 1`` in float64, because log-densities are small differences of terms that may be
        large."""
        return self._over_one.double().chunk(2, dim=-1)

    def logp(self, actions: Tree) -> Tensor:
        # samples may round to the bounds in float32, where the logarithms are infinite
        actions = self._flat(actions)
        eps = torch.finfo(actions.dtype).eps
        actions = actions.clamp(-1 + eps, 1 - eps).double()
        # below = log(u), above = log(1 - u) for the action 2u - 1; the slope of that map adds the last term, -log(2)
        below, above = (actions.log1p() - _LOG_2), ((-actions).log1p() - _LOG_2)
        less_a, less_b = self._doubles()
        logps = less_a * below + less_b * above - _log_beta(1 + less_a, 1 + less_b) - _LOG_2
        return logps.sum(-1).to(self.alpha.dtype)

    def entropy(self) -> Tensor:
        less_a, less_b = self._doubles()
        a, b = 1 + less_a, 1 + less_b
        excess = less_a * a.digamma() + less_b * b.digamma() - (less_a + less_b) * (a + b).digamma()
        return (_log_beta(a, b) - excess + _LOG_2).sum(-1).to(self.alpha.dtype)

    def kl(self, other: Self) -> Tensor:
        (less_a, less_b), (theirs_a, theirs_b) = self._doubles(), same_class(self, other)._doubles()
        a, b, more_a, more_b = 1 + less_a, 1 + less_b, less_a - theirs_a, less_b - theirs_b
        shift = more_a * a.digamma() + more_b * b.digamma() - (more_a + more_b) * (a + b).digamma()
        return (_log_beta(1 + theirs_a, 1 + theirs_b) - _log_beta(a, b) + shift).sum(-1).to(self.alpha.dtype)

    def to_deterministic(self) -> Deterministic:
        # the mode, (α - 1) / (α + β - 2); if both round to 1, all actions are equally likely: take the middle
        a, b = self._over_one.clamp_min(torch.finfo(self._over_one.dtype).tiny).chunk(2, dim=-1)
        return Deterministic(self._shaped((a - b) / (a + b)))


def _stretched(gammas: Tensor) -> Tensor:
    """Compute a Beta variate ``[..., D]``, scaled to (-1, 1), from two gamma variates ``[2, ..., D]``."""
    first, second = gammas
    return (first - second) / (first + second)


def _gammas(shape: Tensor, normal: Tensor, uniform: Tensor) -> Tensor:
    """Return gamma variates ``[..., D]`` with the shape parameters ``shape`` ``[..., D]``, which must be at least 1.

    Each variate is the first accepted one of several candidates, which are computed from ``normal`` and ``uniform``
    noise ``[..., tries, D]`` (Marsaglia and Tsang 2000, "A simple method for generating gamma variables", section 2).
    """
    d = shape.unsqueeze(-2) - 1 / 3
    v = (1 + normal / (9 * d).sqrt()) ** 3
    taken = (v > 0) & (uniform.log() < 0.5 * normal.square() + d * (1 - v + v.clamp_min(1e-30).log()))
    first = taken.to(torch.uint8).argmax(-2, keepdim=True)
    return (d * v.clamp_min(1e-30)).gather(-2, first).squeeze(-2)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``log B(a, b)`` for float64 tensors, because float32 would lose the difference of large terms."""
    return a.lgamma() + b.lgamma() - (a + b).lgamma()
