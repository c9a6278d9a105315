"""Distributions over choices: one, several, or bits.

Logits of ``-inf`` are allowed: what has probability 0 contributes 0 to entropy and KL.
"""

from __future__ import annotations

import functools
import itertools
from typing import ClassVar

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.nn import functional as F

from catalog.base import Tree
from catalog.distributions.base import (
    Deterministic,
    Distribution,
    action_distribution_rules,
    bound,
    check_array_space,
    check_shape,
    flattened,
    same_class,
    shaped,
    wrong_space,
)
from catalog.model_config import DefaultModelConfig
from catalog.registry import register_distribution
from catalog.rules import Node

MOST_CHOICES = 10_000
"""How many numbers an integer Box may hold in all."""
_TINY = float(np.finfo(np.float32).tiny)
"""What a drawn 0 becomes before its log is taken: infinite noise would meet a logit of -inf as NaN."""


@register_distribution("Categorical")
class Categorical(Distribution):
    """Over ``{0 … n-1}``, from unnormalised log-probabilities ``[..., n]``. A Discrete's ``start`` is added on the way
    to the env, not here."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self._log_probs: Tensor | None = None

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        check_array_space(cls, space, spaces.Discrete, "a Discrete", path)

    @classmethod
    def from_logits(cls, logits: Tensor) -> Categorical:
        return cls(logits)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return choice_counts(space)[0]

    @property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities ``[..., n]``."""
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.sample_from(_gumbel(self.logits, generator))

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A sample as a one-hot code ``[..., n]`` whose gradient is that of the probabilities (the straight-through
        estimator of Bengio et al. 2013, section 4)."""
        return _straight_through(self.log_probs.exp(), self.sample(generator).unsqueeze(-1))

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        # -log of an exponential is Gumbel noise; its argmax with the logits samples the softmax
        exponential = rng.standard_exponential((steps, input_dim), dtype=np.float32)
        return torch.from_numpy(-np.log(np.maximum(exponential, _TINY)))

    def sample_from(self, noise: Tensor) -> Tensor:
        return (self.logits + noise).argmax(-1)

    def logp(self, actions: Tree) -> Tensor:
        choices = actions if actions.is_floating_point() else actions.long()  # floats are refused below
        return self.log_probs.gather(-1, choices.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return _entropy(self.log_probs)

    def kl(self, other: Distribution) -> Tensor:
        return _kl(self.log_probs, same_class(self, other).log_probs)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.logits.argmax(-1))


@register_distribution("MultiCategorical")
class MultiCategorical(Distribution):
    """Independent categoricals, one per part of a MultiDiscrete or per number of an integer Box, from their logits one
    after the other ``[..., sum(nvec)]``; bound to the sizes with :meth:`bind`. Choices count from 0."""

    nvec: ClassVar[tuple[int, ...]] = ()
    shape: ClassVar[tuple[int, ...] | None] = None
    runs: ClassVar[tuple[tuple[int, int], ...]] = ()
    """(count, size) of neighbouring parts of equal size, which are computed together."""

    def __init__(self, logits: Tensor) -> None:
        if not self.nvec:
            raise TypeError(
                "MultiCategorical: expected a class bound to the sizes of its parts, got the bare "
                "class. Use MultiCategorical.bind(space), as Catalog.get_action_dist_cls() does."
            )
        self.logits = logits
        self._log_probs: Tensor | None = None

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        kinds = "a MultiDiscrete or a bounded Box of integers"
        check_array_space(cls, space, (spaces.MultiDiscrete, spaces.Box), kinds, path)
        if isinstance(space, spaces.Box):
            if not is_integer_box(space):
                raise wrong_space(cls, path, kinds, space)
            remedy = "Narrow the bounds with an env wrapper, or make it a Box of floats and round them in the env."
            if not space.is_bounded():
                raise wrong_space(cls, path, kinds, space, remedy)
            if sum(choice_counts(space)) > MOST_CHOICES:
                raise wrong_space(cls, path, f"at most {MOST_CHOICES} choices in all", space, remedy)
        check_shape(cls, space, cls.shape, path)
        if cls.nvec and choice_counts(space) != cls.nvec:
            raise wrong_space(cls, path, f"parts of {cls.nvec} choices", space, "Bind the class to this space.")

    @classmethod
    def bind(cls, space: Space, *, path: str = "action_space") -> type[MultiCategorical]:
        """A subclass for actions of ``space``."""
        cls.check(space, path)
        if cls.nvec:
            return cls
        nvec = choice_counts(space)
        runs = tuple((len(list(run)), size) for size, run in itertools.groupby(nvec))
        return bound(cls, nvec=nvec, shape=tuple(space.shape or ()), runs=runs)

    @classmethod
    def from_logits(cls, logits: Tensor) -> MultiCategorical:
        return cls(logits)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return sum(choice_counts(space))

    def _split(self, x: Tensor) -> list[Tensor]:
        """``[..., sum(nvec)]`` as one ``[..., count, size]`` per run."""
        if len(self.runs) == 1:
            return [x.unflatten(-1, self.runs[0])]
        pieces = x.split([count * size for count, size in self.runs], dim=-1)
        return [piece.unflatten(-1, run) for piece, run in zip(pieces, self.runs, strict=True)]

    def _most(self, scores: Tensor) -> Tensor:
        """Where each part has its largest score, as actions."""
        return shaped(_cat([run.argmax(-1) for run in self._split(scores)]), self.shape)

    @property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities of the parts, one after the other ``[..., sum(nvec)]``."""
        if self._log_probs is None:
            self._log_probs = _cat([run.log_softmax(-1).flatten(-2) for run in self._split(self.logits)])
        return self._log_probs

    def _positions(self, actions: Tensor) -> Tensor:
        """Where each choice stands among the logits ``[..., len(nvec)]``."""
        return flattened(actions, self.shape) + _part_starts(self.nvec, actions.device)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.sample_from(_gumbel(self.logits, generator))

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Samples as one-hot codes, one after the other ``[..., sum(nvec)]``; see :meth:`Categorical.rsample`."""
        return _straight_through(self.log_probs.exp(), self._positions(self.sample(generator)))

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        return Categorical.draw_noise(rng, steps, input_dim)

    def sample_from(self, noise: Tensor) -> Tensor:
        return self._most(self.logits + noise)

    def logp(self, actions: Tree) -> Tensor:
        return self.log_probs.gather(-1, self._positions(actions)).sum(-1)

    def entropy(self) -> Tensor:
        return _entropy(self.log_probs)

    def kl(self, other: Distribution) -> Tensor:
        return _kl(self.log_probs, same_class(self, other).log_probs)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._most(self.logits))


@register_distribution("Bernoulli")
class Bernoulli(Distribution):
    """Independent bits of a MultiBinary, from the log-odds of a 1 ``[..., prod(shape)]``. Actions are int8."""

    shape: ClassVar[tuple[int, ...] | None] = None

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        check_array_space(cls, space, spaces.MultiBinary, "a MultiBinary", path)
        check_shape(cls, space, cls.shape, path)

    @classmethod
    def bind(cls, space: Space, *, path: str = "action_space") -> type[Bernoulli]:
        """A subclass for actions of ``space``."""
        cls.check(space, path)
        return cls if cls.shape is not None else bound(cls, shape=tuple(space.shape or ()))

    @classmethod
    def from_logits(cls, logits: Tensor) -> Bernoulli:
        return cls(logits)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return int(np.prod(space.shape or ()))

    def _bits(self, scores: Tensor) -> Tensor:
        return shaped((scores > 0).to(torch.int8), self.shape)

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities of 0 and 1 ``[..., prod(shape), 2]``."""
        return F.logsigmoid(torch.stack([-self.logits, self.logits], dim=-1))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # the difference of two Gumbels is logistic
        return self._bits(self.logits + _gumbel(self.logits, generator) - _gumbel(self.logits, generator))

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A sample as floats ``[..., *shape]``, straight-through; see :meth:`Categorical.rsample`."""
        probs = shaped(self.logits.sigmoid(), self.shape)
        return self.sample(generator) + (probs - probs.detach())

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        # P(logit + logistic noise > 0) is the sigmoid of the logit
        return torch.from_numpy(rng.logistic(size=(steps, input_dim)).astype(np.float32))

    def sample_from(self, noise: Tensor) -> Tensor:
        return self._bits(self.logits + noise)

    def logp(self, actions: Tree) -> Tensor:
        bits = flattened(actions, self.shape).bool()
        return F.logsigmoid(torch.where(bits, self.logits, -self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        return _entropy(self.log_probs).sum(-1)

    def kl(self, other: Distribution) -> Tensor:
        return _kl(self.log_probs, same_class(self, other).log_probs).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._bits(self.logits))


def choice_counts(space: Space) -> tuple[int, ...]:
    """How many choices each part of ``space`` has, in the order of their logits; none where it is no choice."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.flat)
    if isinstance(space, spaces.Box) and is_integer_box(space):
        # as Python's integers: the whole range of a dtype does not fit into it
        return tuple(int(high) - int(low) + 1 for low, high in zip(space.low.flat, space.high.flat, strict=True))
    return ()


def is_integer_box(space: spaces.Box, model_config: DefaultModelConfig | None = None) -> bool:
    """Whether the numbers of ``space`` can be counted: integers of any kind, or bool."""
    return space.dtype is not None and space.dtype.kind in "iub"


def _entropy(log_probs: Tensor) -> Tensor:
    # 0 · -inf would be NaN
    return -(log_probs.exp() * log_probs.clamp_min(torch.finfo(log_probs.dtype).min)).sum(-1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    probs = p.exp()
    return (probs * (p - q).masked_fill(probs == 0, 0.0)).sum(-1)


def _straight_through(probs: Tensor, positions: Tensor) -> Tensor:
    """1 at ``positions``, 0 elsewhere, with the gradient of ``probs``."""
    return torch.zeros_like(probs).scatter_(-1, positions, 1.0) + (probs - probs.detach())


@functools.cache
def _part_starts(nvec: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each part begins among the logits."""
    with torch.inference_mode(False):  # else, once acting made it, no gradient could use it
        return torch.tensor([0, *itertools.accumulate(nvec[:-1])], device=device)


def _gumbel(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return -torch.empty_like(like).exponential_(generator=generator).clamp_min_(_TINY).log()


def _cat(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


@action_distribution_rules.register(spaces.Discrete, name="Discrete → Categorical")
def _(space: spaces.Discrete, model_config: DefaultModelConfig, node: Node[type[Distribution]]) -> type[Distribution]:
    return Categorical.bind(space, path=node.path)


@action_distribution_rules.register(spaces.MultiDiscrete, name="MultiDiscrete → MultiCategorical")
def _(
    space: spaces.MultiDiscrete, model_config: DefaultModelConfig, node: Node[type[Distribution]]
) -> type[Distribution]:
    return MultiCategorical.bind(space, path=node.path)


@action_distribution_rules.register(
    spaces.Box, name="integer Box → MultiCategorical over its numbers", when=is_integer_box
)
def _(space: spaces.Box, model_config: DefaultModelConfig, node: Node[type[Distribution]]) -> type[Distribution]:
    return MultiCategorical.bind(space, path=node.path)


@action_distribution_rules.register(spaces.MultiBinary, name="MultiBinary → Bernoulli")
def _(
    space: spaces.MultiBinary, model_config: DefaultModelConfig, node: Node[type[Distribution]]
) -> type[Distribution]:
    return Bernoulli.bind(space, path=node.path)
