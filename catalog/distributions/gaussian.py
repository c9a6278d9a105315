"""Gaussian distributions over Boxes of floats, plain and squashed."""

import functools
import math

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Self

from catalog.base import Tree
from catalog.distributions.base import ArrayDistribution, Deterministic, choose, same_class
from catalog.model_config import DefaultModelConfig
from catalog.registry import register_distribution

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class BoxDistribution(ArrayDistribution):
    """Base of distributions over a Box of floats that have two inputs for each number of the Box."""

    noise = "normal"
    expected = "a Box of floats"
    inputs_per_entry = 2

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, spaces.Box) and is_float_box(space)

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        super().check(space, path)
        assert isinstance(space, spaces.Box)
        if cls.bounded and not space.is_bounded():
            remedy = "Give it finite bounds by an env wrapper; SAC and PPO can use DiagGaussian instead."
            raise cls._wrong_space(path, f"{cls.expected} with finite bounds on all sides", space, remedy)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.rsample(generator).detach()


@register_distribution("DiagGaussian")
class DiagGaussian(BoxDistribution):
    """Independent Gaussians over a Box, from means followed by log standard deviations, ``[..., 2 · prod(shape)]``.

    Samples are unbounded. The :class:`ActionConverter` scales and clips them to the Box.
    """

    def __init__(self, logits: Tensor) -> None:
        self.mean, self.log_std = logits.chunk(2, dim=-1)

    @classmethod
    def log_std_indices(cls, space: Space) -> tuple[int, ...]:
        width = cls.required_input_dim(space)
        return tuple(range(width // cls.inputs_per_entry, width))  # all inputs after the means

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions with the gradient of mean and standard deviation."""
        noise = torch.randn(self.mean.shape, generator=generator, device=self.mean.device)
        return self._shaped(self.mean + self.log_std.exp() * noise)

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((steps, input_dim // cls.inputs_per_entry), dtype=np.float32))

    def sample_from(self, noise: Tensor) -> Tensor:
        return self._shaped(torch.addcmul(self.mean, self.log_std.exp(), noise).detach())

    def rsample_with_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        actions = torch.addcmul(self.mean, self.log_std.exp(), noise)
        return self._shaped(actions), self._logp_of(noise)

    def _logp_of(self, noise: Tensor) -> Tensor:
        """Return the log-density of ``mean + std · noise``, which depends on the noise and the log-stds but not on the
        means."""
        return (-0.5 * noise.square() - self.log_std).sum(-1) - _LOG_SQRT_2PI * self.mean.shape[-1]

    def logp(self, actions: Tree) -> Tensor:
        return self._logp_of((self._flat(actions) - self.mean) * (-self.log_std).exp())

    def entropy(self) -> Tensor:
        return self.log_std.sum(-1) + (0.5 + _LOG_SQRT_2PI) * self.mean.shape[-1]

    def kl(self, other: Self) -> Tensor:
        other = same_class(self, other)
        log_ratio = 2 * (self.log_std - other.log_std)
        shift = (self.mean - other.mean) * (-other.log_std).exp()
        return 0.5 * (log_ratio.exp() + shift.square() - 1 - log_ratio).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._shaped(self.mean))


@register_distribution("SquashedGaussian")
class SquashedGaussian(DiagGaussian):
    """A :class:`DiagGaussian` squashed by tanh into (-1, 1) (Haarnoja et al. 2018, appendix C), for Boxes with finite
    bounds.

    The KL is exactly that of the Gaussians before squashing, because an invertible map does not change it. The entropy
    has no closed form. It is the entropy of the Gaussian plus the expected log-slope of tanh, by Gauss-Hermite
    quadrature with 32 points. The error of the entropy is at most 1e-4 nats per dimension for standard deviations up to
    1.6, 0.002 up to 2.7 and 0.1 up to 7.

    An action at ±1 has the log-density of the last float before the bound. For the tensor that :meth:`rsample`
    returned, log-density and gradient are exact, because the object keeps the numbers before squashing.
    """

    bounded = True

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits)
        self._drawn: tuple[Tensor, Tensor] | None = None  # the last rsample(), after and before tanh

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        before = super().rsample(generator)
        actions = before.tanh()
        self._drawn = actions, before
        return actions

    def sample_from(self, noise: Tensor) -> Tensor:
        return super().sample_from(noise).tanh()

    def rsample_with_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        before = torch.addcmul(self.mean, self.log_std.exp(), noise)
        return self._shaped(before.tanh()), self._logp_of(noise) - _log_slope_of_tanh(before).sum(-1)

    def logp(self, actions: Tree) -> Tensor:
        if self._drawn is not None and actions is self._drawn[0]:
            return self._logp_before(self._flat(self._drawn[1]))
        # tanh of |x| > 9 is ±1 in float32, where atanh is infinite
        eps = torch.finfo(actions.dtype).eps
        return self._logp_before(self._flat(actions).clamp(-1 + eps, 1 - eps).atanh())

    def _logp_before(self, x: Tensor) -> Tensor:
        """Return the log-density of ``tanh(x)``: the log-density of ``x`` minus the log-slope of tanh at ``x``."""
        z = (x - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - _LOG_SQRT_2PI - _log_slope_of_tanh(x)).sum(-1)

    def entropy(self) -> Tensor:
        nodes, weights = _hermite(self.mean.dtype, self.mean.device)
        x = self.mean.unsqueeze(-1) + math.sqrt(2) * self.log_std.exp().unsqueeze(-1) * nodes
        return super().entropy() + (_log_slope_of_tanh(x) * weights).sum((-2, -1)) / math.sqrt(math.pi)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._shaped(self.mean.tanh()))


def is_float_box(space: spaces.Box, model_config: DefaultModelConfig | None = None) -> bool:
    """Return whether the numbers of ``space`` are floats of at most 64 bits, the longest that torch has. This is a
    condition for rules, which ignores ``model_config``."""
    return space.dtype is not None and space.dtype.kind == "f" and space.dtype.itemsize <= 8


@functools.cache
@torch.inference_mode(False)  # the first call may be in inference mode, but training uses the cached tensor too
def _hermite(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return nodes and weights ``[2, 32]`` of the Gauss-Hermite quadrature of ``f(x) exp(-x²)``."""
    both = np.stack(np.polynomial.hermite.hermgauss(32))
    return torch.as_tensor(both, dtype=dtype, device=device)


def _log_slope_of_tanh(x: Tensor) -> Tensor:
    """Compute ``log(1 - tanh²x)`` without cancellation."""
    return 2 * (math.log(2) - x - F.softplus(-2 * x))


choose(DiagGaussian, spaces.Box, "float Box → DiagGaussian", is_float_box, ("free_log_std",))
