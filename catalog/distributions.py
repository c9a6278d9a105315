"""Action distributions: classes made per forward pass from a head's outputs, and the table that chooses one.

A class draws its samples from standard noise that does not depend on its parameters (:meth:`Distribution.draw_noise`,
:meth:`Distribution.sample_from`), so that a runner can draw the noise of a whole fragment at once, one stream per env.
Shapes: ``[..., D]`` distribution inputs with ``D = required_input_dim(space)``; ``[...]`` log-probs and entropies.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.nn import functional as F

from catalog.base import Tree
from catalog.errors import explain_error
from catalog.model_config import DefaultModelConfig
from catalog.rules import RuleTable

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_HERMITE = np.polynomial.hermite.hermgauss(32)
"""Nodes and weights of the integral of ``f(x) exp(-x²)``."""
_TINY = float(np.finfo(np.float32).tiny)
"""What a drawn 0 becomes before its log is taken: infinite noise would meet a logit of -inf as NaN."""
D = TypeVar("D", bound="Distribution")


class Distribution(ABC):
    """A batch of action distributions over one action space.

    Override points: every abstract method. :meth:`draw_noise` and :meth:`sample_from` may be left alone; the runner
    then calls :meth:`sample`.
    """

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: Tensor) -> Distribution:
        """Distributions parameterised by ``logits`` ``[..., D]``."""

    @staticmethod
    @abstractmethod
    def required_input_dim(space: Space) -> int:
        """``D``: how many outputs a head must have for actions of ``space``."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """One action each ``[..., *action_shape]``, without gradient."""

    @abstractmethod
    def logp(self, actions: Tree) -> Tensor:
        """Log-probability (density) of ``actions``, summed over action dimensions: ``[...]``."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy in nats, summed over action dimensions: ``[...]``."""

    @abstractmethod
    def kl(self, other: Distribution) -> Tensor:
        """KL(self ‖ other) in nats: ``[...]``."""

    @abstractmethod
    def to_deterministic(self) -> Deterministic:
        """The most likely action (mode or mean) of each."""

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor | None:
        """Noise for ``steps`` draws as ``[steps, ...]``; None if the class cannot sample from given noise."""
        return None

    def sample_from(self, noise: Tensor) -> Tree:
        """The action that ``noise`` (one slice of :meth:`draw_noise` per batch entry) selects, without gradient.

        Raises:
            TypeError: If the class draws no noise of its own.
        """
        raise TypeError(
            explain_error(
                f"{type(self).__name__}.sample_from",
                expected="a class whose draw_noise returns noise",
                got="one that draws inside sample()",
                remedy="Call sample(generator), or implement draw_noise and sample_from together.",
            )
        )


class Deterministic:
    """A fixed action; what acting greedily samples from."""

    def __init__(self, actions: Tree) -> None:
        self.actions = actions

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """The action."""
        return self.actions


class Categorical(Distribution):
    """Over ``{0 … n-1}``, from unnormalised log-probabilities ``[..., n]``. A Discrete's ``start`` is added on the way
    to the env, not here."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self._log_probs: Tensor | None = None

    @classmethod
    def from_logits(cls, logits: Tensor) -> Categorical:
        return cls(logits)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        return int(_expect(space, spaces.Discrete, "Categorical").n)

    @property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities ``[..., n]``."""
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.sample_from(_gumbel(self.logits, generator))

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        # -log of an exponential is Gumbel noise; its argmax with the logits samples the softmax
        exponential = rng.standard_exponential((steps, input_dim), dtype=np.float32)
        return torch.from_numpy(-np.log(np.maximum(exponential, _TINY)))

    def sample_from(self, noise: Tensor) -> Tensor:
        return (self.logits + noise).argmax(-1)

    def logp(self, actions: Tree) -> Tensor:
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Distribution) -> Tensor:
        q = _same_class(self, other)
        return (self.log_probs.exp() * (self.log_probs - q.log_probs)).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.logits.argmax(-1))


class MultiCategorical(Distribution):
    """Independent categoricals, one per part of a MultiDiscrete; bound to its sizes with :meth:`bind`."""

    nvec: ClassVar[tuple[int, ...]] = ()
    shape: ClassVar[tuple[int, ...]] = ()

    def __init__(self, logits: Tensor) -> None:
        if not self.nvec:
            raise TypeError(
                explain_error(
                    "MultiCategorical",
                    expected="a class bound to the sizes of its parts",
                    got="the bare class",
                    remedy="Use MultiCategorical.bind(space), as Catalog.get_action_dist_cls() does.",
                )
            )
        self.logits = logits
        self.parts = [Categorical(part) for part in logits.split(self.nvec, dim=-1)]

    @classmethod
    def bind(cls, space: spaces.MultiDiscrete) -> type[MultiCategorical]:
        """A subclass for actions of ``space``."""
        nvec = tuple(int(n) for n in space.nvec.reshape(-1))
        return _bound(cls, nvec=nvec, shape=tuple(space.shape))

    @classmethod
    def from_logits(cls, logits: Tensor) -> MultiCategorical:
        return cls(logits)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        return int(np.sum(_expect(space, spaces.MultiDiscrete, "MultiCategorical").nvec))

    def _join(self, actions: list[Tensor]) -> Tensor:
        return torch.stack(actions, dim=-1).unflatten(-1, self.shape)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self._join([part.sample(generator) for part in self.parts])

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        return Categorical.draw_noise(rng, steps, input_dim)

    def sample_from(self, noise: Tensor) -> Tensor:
        noises = noise.split(self.nvec, dim=-1)
        return self._join([part.sample_from(n) for part, n in zip(self.parts, noises, strict=True)])

    def logp(self, actions: Tree) -> Tensor:
        columns = actions.flatten(-len(self.shape)).unbind(-1)
        return sum_(part.logp(a) for part, a in zip(self.parts, columns, strict=True))

    def entropy(self) -> Tensor:
        return sum_(part.entropy() for part in self.parts)

    def kl(self, other: Distribution) -> Tensor:
        parts = zip(self.parts, _same_class(self, other).parts, strict=True)
        return sum_(p.kl(q) for p, q in parts)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._join([part.logits.argmax(-1) for part in self.parts]))


class DiagGaussian(Distribution):
    """Independent normals over a Box, from means and log standard deviations ``[..., 2 · prod(shape)]``.

    Samples are unbounded; stretching or clipping them to the Box happens on the way to the env.
    """

    shape: ClassVar[tuple[int, ...]] = ()

    def __init__(self, logits: Tensor) -> None:
        self.mean, self.log_std = logits.chunk(2, dim=-1)

    @classmethod
    def from_logits(cls, logits: Tensor) -> DiagGaussian:
        return cls(logits)

    @classmethod
    def bind(cls, space: spaces.Box) -> type[DiagGaussian]:
        """A subclass for actions of ``space``; rank 1 needs none."""
        if len(space.shape) == 1:
            return cls
        return _bound(cls, shape=tuple(space.shape), bound=True)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        return 2 * math.prod(_expect(space, spaces.Box, "DiagGaussian").shape)

    bound: ClassVar[bool] = False

    def _shaped(self, actions: Tensor) -> Tensor:
        return actions.reshape((*actions.shape[:-1], *self.shape)) if self.bound else actions

    def _flat(self, actions: Tensor) -> Tensor:
        return actions.reshape(*actions.shape[: actions.dim() - len(self.shape)], -1) if self.bound else actions

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.rsample(generator).detach()

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Like :meth:`sample`, with the gradient through mean and deviation."""
        noise = torch.randn(self.mean.shape, generator=generator, device=self.mean.device)
        return self._shaped(self.mean + self.log_std.exp() * noise)

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((steps, input_dim // 2), dtype=np.float32))

    def sample_from(self, noise: Tensor) -> Tensor:
        return self._shaped(torch.addcmul(self.mean, self.log_std.exp(), noise).detach())

    def logp(self, actions: Tree) -> Tensor:
        z = (self._flat(actions) - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std).sum(-1) - _LOG_SQRT_2PI * self.mean.shape[-1]

    def entropy(self) -> Tensor:
        return self.log_std.sum(-1) + (0.5 + _LOG_SQRT_2PI) * self.mean.shape[-1]

    def kl(self, other: Distribution) -> Tensor:
        q = _same_class(self, other)
        log_ratio = 2 * (self.log_std - q.log_std)
        shift = (self.mean - q.mean) * (-q.log_std).exp()
        return 0.5 * (log_ratio.exp() + shift.square() - 1 - log_ratio).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._shaped(self.mean))


class SquashedGaussian(DiagGaussian):
    """A :class:`DiagGaussian` squashed by tanh into (-1, 1) (Haarnoja et al. 2018, appendix C).

    KL is that of the Gaussians before the squashing, exact because KL does not change under an invertible map. Entropy
    has no closed form: it is the Gaussian's plus the mean log-slope of tanh, by Gauss-Hermite quadrature of 32 points.
    """

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        return super().rsample(generator).tanh()

    def sample_from(self, noise: Tensor) -> Tensor:
        return super().sample_from(noise).tanh()

    def logp(self, actions: Tree) -> Tensor:
        # atanh explodes at ±1, where float32 tanh lands for |x| > 9
        eps = torch.finfo(actions.dtype).eps
        return self._logp_before(self._flat(actions).clamp(-1 + eps, 1 - eps).atanh())

    def _logp_before(self, x: Tensor) -> Tensor:
        z = (x - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - _LOG_SQRT_2PI - _log_slope_of_tanh(x)).sum(-1)

    def entropy(self) -> Tensor:
        nodes, weights = (torch.as_tensor(x, dtype=self.mean.dtype, device=self.mean.device) for x in _HERMITE)
        x = self.mean.unsqueeze(-1) + math.sqrt(2) * self.log_std.exp().unsqueeze(-1) * nodes
        return super().entropy() + (_log_slope_of_tanh(x) @ weights).sum(-1) / math.sqrt(math.pi)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._shaped(self.mean.tanh()))


def _log_slope_of_tanh(x: Tensor) -> Tensor:
    """``log(1 - tanh²x)`` without cancellation."""
    return 2 * (math.log(2) - x - F.softplus(-2 * x))


@functools.cache
def _bound(cls: type[Any], **attributes: Any) -> type[Any]:
    """The one subclass of ``cls`` with these ``attributes``, so that equal spaces give comparable distributions."""
    return type(cls.__name__, (cls,), {**attributes, "__doc__": cls.__doc__})


def sum_(terms: Any) -> Tensor:
    """Sum of tensors, without starting from the integer 0."""
    return torch.stack(list(terms)).sum(0)


def _gumbel(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return -torch.empty_like(like).exponential_(generator=generator).clamp_min_(_TINY).log()


def _expect(space: Space, kind: type[Any], where: str) -> Any:
    if not isinstance(space, kind):
        raise ValueError(
            explain_error(
                f"{where}.required_input_dim",
                expected=f"a {kind.__name__} action space",
                got=str(space),
                remedy="Ask Catalog.get_action_dist_cls() for the class that fits the space.",
            )
        )
    return space


def _same_class(mine: D, other: Distribution) -> D:
    if not isinstance(other, type(mine)):
        raise TypeError(
            explain_error(
                f"{type(mine).__name__}.kl",
                expected=f"another {type(mine).__name__}",
                got=type(other).__name__,
                remedy="Compare distributions of one class.",
            )
        )
    return other


action_distribution_rules: RuleTable[type[Distribution]] = RuleTable("action distribution")
"""Action space → distribution class. Register a branch with ``@action_distribution_rules.register(SpaceClass, …)``."""


@action_distribution_rules.register(spaces.Discrete, name="Discrete → Categorical")
def _(space: spaces.Discrete, model_config: DefaultModelConfig, path: str) -> type[Distribution]:
    return Categorical


@action_distribution_rules.register(spaces.MultiDiscrete, name="MultiDiscrete → MultiCategorical")
def _(space: spaces.MultiDiscrete, model_config: DefaultModelConfig, path: str) -> type[Distribution]:
    return MultiCategorical.bind(space)


def _is_float_box(space: spaces.Box, model_config: DefaultModelConfig) -> bool:
    return space.dtype is not None and space.dtype.kind == "f"


@action_distribution_rules.register(
    spaces.Box, name="float Box → DiagGaussian", when=_is_float_box, settings=("free_log_std",)
)
def _(space: spaces.Box, model_config: DefaultModelConfig, path: str) -> type[Distribution]:
    return DiagGaussian.bind(space)
