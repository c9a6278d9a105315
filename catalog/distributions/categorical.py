"""Distributions over one choice, several choices, or bits.

Logits may be ``-inf``. Choices of probability 0 add 0 to entropy and KL.
"""

import functools
import itertools
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Self

from catalog.base import Tree
from catalog.distributions.base import ArrayDistribution, Deterministic, Distribution, bound, choose, same_class
from catalog.model_config import DefaultModelConfig
from catalog.registry import register_distribution

MOST_CHOICES = 10_000
"""Largest number of choices of an integer Box that is an action space, summed over its numbers."""
# lower bound of exponential noise before its log: the log of 0, added to a logit of -inf, would be NaN
_TINY = float(np.finfo(np.float32).tiny)


class Scored(ArrayDistribution):
    """Base of distributions that choose the actions with the largest scores. Logits plus noise as scores give a sample,
    and logits alone give the mode."""

    @abstractmethod
    def _best(self, scores: Tensor) -> Tensor:
        """Return the actions ``[..., *shape]`` with the largest ``scores`` ``[..., D]``."""

    def sample_from(self, noise: Tensor) -> Tensor:
        return self._best(self.logits + noise)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._best(self.logits))


class Choices(Scored):
    """Base of distributions over one or more choices. The logits ``[..., D]`` are the unnormalised log-probabilities
    of the options, choice after choice."""

    noise = "gumbel"

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self._log_probs: Tensor | None = None

    @classmethod
    def from_logits(cls, logits: Tensor) -> Self:  # repeats the base class, which keeps acting in this file
        return cls(logits)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return sum(choice_counts(space))

    @property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities, shaped like the logits."""
        if self._log_probs is None:  # no cached_property: torch.compile refuses its lock
            self._log_probs = self._log_softmax()
        return self._log_probs

    def _log_softmax(self) -> Tensor:
        """Return the normalised log-probabilities of one choice. Subclasses with several choices override it."""
        return self.logits.log_softmax(-1)

    @abstractmethod
    def _positions(self, actions: Tensor) -> Tensor:
        """Return the index among all logits of each choice in ``actions``, ``[..., choices]``."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.sample_from(_gumbel(self.logits, generator))

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples as one-hot codes, shaped like the logits, with the gradient of the probabilities (the
        straight-through estimator of Bengio et al. 2013, section 4)."""
        return self._code(self.sample(generator))

    def rsample_with_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        code = self._code(self.sample_from(noise))
        # the derivative of Σ code · log p, with that of the code alone, is the derivative of Σ p · log p
        return code, (code * _finite(self.log_probs.detach())).sum(-1)

    def _code(self, actions: Tensor) -> Tensor:
        """Return the one-hot codes ``[..., D]`` of ``actions``, with the gradient of the probabilities."""
        probs = self.log_probs.exp()
        return torch.zeros_like(probs).scatter_(-1, self._positions(actions), 1.0) + (probs - probs.detach())

    def joint_log_probs(self) -> Tensor:
        """Return the log-probability of every joint action, ``[..., number of joint actions]``; the last choice varies
        fastest."""
        return self.log_probs

    # -log of an exponential is Gumbel noise, and argmax(logits + Gumbel) samples the softmax
    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        exponential = rng.standard_exponential((steps, input_dim), dtype=np.float32)
        return torch.from_numpy(-np.log(np.maximum(exponential, _TINY)))

    def entropy(self) -> Tensor:
        return _entropy(self.log_probs)

    def kl(self, other: Self) -> Tensor:
        return _kl(self.log_probs, same_class(self, other).log_probs)


@register_distribution("Categorical")
class Categorical(Choices):
    """Categorical over ``{0 … n-1}``, from unnormalised log-probabilities ``[..., n]``. The :class:`ActionConverter`
    adds the ``start`` of a Discrete."""

    expected, space_type = "a Discrete", spaces.Discrete
    shape = ()

    def _best(self, scores: Tensor) -> Tensor:
        return scores.argmax(-1)

    def _positions(self, actions: Tensor) -> Tensor:
        return actions.unsqueeze(-1)

    def logp(self, actions: Tree) -> Tensor:
        choices = actions if actions.is_floating_point() else actions.long()  # gather refuses floats
        return self.log_probs.gather(-1, choices.unsqueeze(-1)).squeeze(-1)


@register_distribution("MultiCategorical")
class MultiCategorical(Choices):
    """Independent categoricals, one per part of a MultiDiscrete or per number of an integer Box, from their
    concatenated logits ``[..., sum(nvec)]``. :meth:`bind` sets ``nvec``, the sizes of the choices. Choices count
    from 0."""

    expected = "a MultiDiscrete or a bounded Box of integers"
    nvec: ClassVar[tuple[int, ...]] = ()
    runs: ClassVar[tuple[tuple[int, int], ...]] = ()
    """(count, size) of each run of neighbouring parts of equal size, which are computed together."""

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, spaces.MultiDiscrete) or (isinstance(space, spaces.Box) and is_integer_box(space))

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        super().check(space, path)
        if isinstance(space, spaces.Box):
            remedy = "Narrow the bounds with an env wrapper, or make it a Box of floats and round them in the env."
            if not space.is_bounded():
                raise cls._wrong_space(path, cls.expected, space, remedy)
            if sum(choice_counts(space)) > MOST_CHOICES:
                raise cls._wrong_space(path, f"at most {MOST_CHOICES} choices in all", space, remedy)
        if cls.nvec and choice_counts(space) != cls.nvec:
            raise cls._wrong_space(path, f"parts of {cls.nvec} choices", space, "Bind the class to this space.")

    @classmethod
    def bind(cls, space: Space, *, path: str = "action_space") -> type[Distribution]:
        """Return the subclass with the numbers of choices and the shape of ``space``.

        Raises:
            ValueError: If the class does not support ``space``; names ``path``.
        """
        cls.check(space, path)
        if cls.nvec:
            return cls
        nvec = choice_counts(space)
        runs = tuple((len(list(run)), size) for size, run in itertools.groupby(nvec))
        return bound(cls, nvec=nvec, shape=tuple(space.shape or ()), runs=runs)

    def _split(self, x: Tensor) -> list[Tensor]:
        """Split ``x`` ``[..., D]`` into views ``[..., count, size]`` of ``count`` adjacent parts of equal size."""
        if len(self.runs) == 1:
            return [x.unflatten(-1, self.runs[0])]
        pieces = x.split([count * size for count, size in self.runs], dim=-1)
        return [piece.unflatten(-1, run) for piece, run in zip(pieces, self.runs, strict=True)]

    def _log_softmax(self) -> Tensor:
        return _cat([run.log_softmax(-1).flatten(-2) for run in self._split(self.logits)])

    def _best(self, scores: Tensor) -> Tensor:
        return self._shaped(_cat([run.argmax(-1) for run in self._split(scores)]))

    def _positions(self, actions: Tensor) -> Tensor:
        return self._flat(actions) + part_starts(self.nvec, actions.device)

    def logp(self, actions: Tree) -> Tensor:
        return self.log_probs.gather(-1, self._positions(actions)).sum(-1)

    def joint_log_probs(self) -> Tensor:
        joint, *others = [part for run in self._split(self.log_probs) for part in run.unbind(-2)]
        for part in others:
            joint = (joint.unsqueeze(-1) + part.unsqueeze(-2)).flatten(-2)
        return joint


@register_distribution("Bernoulli")
class Bernoulli(Scored):
    """Independent bits of a MultiBinary, from the log-odds ``[..., prod(shape)]`` of a 1. Actions are int8."""

    noise = "logistic"
    expected, space_type = "a MultiBinary", spaces.MultiBinary

    def _best(self, scores: Tensor) -> Tensor:
        return self._shaped((scores > 0).to(torch.int8))

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities of 0 and 1 ``[..., prod(shape), 2]``."""
        return F.logsigmoid(torch.stack([-self.logits, self.logits], dim=-1))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # the difference of two Gumbels is logistic
        return self._best(self.logits + _gumbel(self.logits, generator) - _gumbel(self.logits, generator))

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw bits as floats ``[..., *shape]`` with a straight-through gradient, like :meth:`Choices.rsample`."""
        probs = self._shaped(self.logits.sigmoid())
        return self.sample(generator) + (probs - probs.detach())

    def rsample_with_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        probs = self.logits.sigmoid()
        bits = self._flat(self.sample_from(noise)) + (probs - probs.detach())
        no, yes = self.log_probs.detach().unbind(-1)
        return self._shaped(bits), torch.lerp(no, yes, bits).sum(-1)

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        # P(logit + logistic noise > 0) is the sigmoid of the logit
        return torch.from_numpy(rng.logistic(size=(steps, input_dim)).astype(np.float32))

    def logp(self, actions: Tree) -> Tensor:
        bits = self._flat(actions).bool()
        return F.logsigmoid(torch.where(bits, self.logits, -self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        return _entropy(self.log_probs).sum(-1)

    def kl(self, other: Self) -> Tensor:
        return _kl(self.log_probs, same_class(self, other).log_probs).sum(-1)


def choice_counts(space: Space) -> tuple[int, ...]:
    """Return the number of choices of each part of ``space``, in the order of their logits; empty if ``space`` is not
    Discrete, MultiDiscrete or an integer Box."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.flat)
    if isinstance(space, spaces.Box) and is_integer_box(space):
        # in Python ints: the size of the whole range of a dtype overflows that dtype
        return tuple(int(high) - int(low) + 1 for low, high in zip(space.low.flat, space.high.flat, strict=True))
    return ()


def is_integer_box(space: spaces.Box, model_config: DefaultModelConfig | None = None) -> bool:
    """Return whether the numbers of ``space`` are integers of any kind, or bools. This is a condition for rules, which
    ignores ``model_config``."""
    return space.dtype is not None and space.dtype.kind in "iub"


def _finite(log_probs: Tensor) -> Tensor:
    """Replace ``-inf`` with the lowest finite float, whose product with 0 is 0 and not NaN."""
    return log_probs.clamp_min(torch.finfo(log_probs.dtype).min)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * _finite(log_probs)).sum(-1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    probs = p.exp()
    return (probs * (p - q).masked_fill(probs == 0, 0.0)).sum(-1)


@functools.cache
@torch.inference_mode(False)  # the first call may be in inference mode, but training uses the cached tensor too
def part_starts(nvec: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the index of the first logit of each part, for parts with ``nvec`` choices."""
    return torch.tensor([0, *itertools.accumulate(nvec[:-1])], device=device)


def _gumbel(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return -torch.empty_like(like).exponential_(generator=generator).clamp_min_(_TINY).log()


def _cat(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


choose(Categorical, spaces.Discrete, "Discrete → Categorical")
choose(MultiCategorical, spaces.MultiDiscrete, "MultiDiscrete → MultiCategorical")
choose(MultiCategorical, spaces.Box, "integer Box → MultiCategorical over its numbers", is_integer_box)
choose(Bernoulli, spaces.MultiBinary, "MultiBinary → Bernoulli")
