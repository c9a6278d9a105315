"""The distribution over actions of several parts, in which later parts depend on earlier ones."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn
from typing_extensions import Self

from catalog.base import Tree
from catalog.distributions.base import (
    Deterministic,
    Distribution,
    action_distribution_rules,
    bound,
    incomparable,
    subclass,
)
from catalog.distributions.categorical import Bernoulli, Categorical, MultiCategorical, choice_counts, part_starts
from catalog.distributions.nested import MultiDistribution, at, leaf_classes, noise_width, total
from catalog.model_config import DefaultModelConfig

if TYPE_CHECKING:
    from catalog.distributions.action_models import ActionModel

MOST_PREFIXES = 32
"""Largest number of combinations of values of the parts before the last one for which entropy and KL are computed
exactly, as sums over all combinations. Each combination costs as much as a log-probability."""


class Span(NamedTuple):
    """A range of neighbouring entries of a vector: the index of the first entry, and the number of entries."""

    start: int
    width: int

    def of(self, x: Tensor) -> Tensor:
        """Return this range of the last dim of ``x`` as a view, ``[..., W] → [..., width]``."""
        return x.narrow(-1, self.start, self.width)


class Part(NamedTuple):
    """One factor of the joint probability: a leaf of the action space, or one component (choice or bit) of a leaf.

    Attributes:
        leaf: Keys that lead to the leaf.
        shape: Shape of the leaf.
        component: Index of the component in the leaf; None for the whole leaf.
        name: Name of the part in error messages, such as ``grip`` or ``arm.0[2]``.
        dist_cls: Distribution of the part, given the earlier parts.
        inputs: Range of the part in the distribution inputs of all parts, concatenated.
        noise: Range of the part in the noise of all parts. It is used only if all parts sample from noise.
        code: Range of the part in the flat vector of an action (choices one-hot, numbers as they are) on which later
            parts are conditioned.
        nvec: Sizes of the choices in the part, which are coded one-hot; empty if the part consists of numbers.
        num_values: Number of values of the part; more than ``MOST_PREFIXES`` if they cannot be enumerated.
    """

    leaf: tuple[Any, ...]
    shape: tuple[int, ...]
    component: int | None
    name: str
    dist_cls: type[Distribution]
    inputs: Span
    noise: Span
    code: Span
    nvec: tuple[int, ...]
    num_values: int


class AutoregressiveDistribution(Distribution):
    """P(a₁) · P(a₂ | a₁) · P(a₃ | a₁, a₂) · …: each part of an action depends on the parts before it, in the order of
    the space. :meth:`bind` sets the space, and :meth:`for_module` sets the action model of a module.

    The parts are the leaves of a Dict or Tuple, nested ones included. Each number of a MultiDiscrete or integer Box and
    each bit of a MultiBinary is a part, unless the leaf has a custom distribution. A Box of floats is one part.

    The inputs of the distribution are the inputs of independent parts, followed by a context. From these and the code
    of the earlier parts, the action model of the module (:class:`ActionModel`) computes the inputs of each part.
    Sampling calls the model once per part. The log-probability of a given action takes one call, because all parts are
    known.

    Entropy and KL are exact, as sums over all combinations, if the parts before the last one are choices or bits with
    at most ``MOST_PREFIXES`` combinations. Otherwise they are estimates from one action, drawn from torch's global
    generator. The estimates and their gradients (by the score function) are unbiased, but have variance.

    :meth:`to_deterministic` takes the most likely value part by part, which is not always the most likely action.

    Attributes:
        independent: The distribution of independent parts.
        parts: The parts, in the order of the space.
        context_dim: Number of inputs in the context.
        width: Number of inputs of the independent parts.
        num_prefixes: Number of combinations of the parts before the last one; None if above ``MOST_PREFIXES``.
        code_dim: Width of the code of an action.
        model: The action model; None before :meth:`for_module`.
    """

    inputs_suffice = False
    independent: ClassVar[type[Distribution]]
    parts: ClassVar[tuple[Part, ...]] = ()
    context_dim: ClassVar[int] = 0
    width: ClassVar[int] = 0
    num_prefixes: ClassVar[int | None] = None
    code_dim: ClassVar[int] = 0
    model: ClassVar[ActionModel | None] = None

    def __init__(self, logits: Tensor) -> None:
        if self.model is None:
            raise TypeError(
                f"{type(self).__name__}: expected a class that knows the action model of a module, "
                "got one that is not bound to any. Use module.action_dist_cls, or the class's "
                "for_module(module)."
            )
        self._model = self.model
        self.inputs, self.context = logits.split((self.width, self.context_dim), dim=-1)

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        if cls.parts:
            cls.independent.check(space, path)

    @classmethod
    def bind(
        cls,
        space: Space,
        independent: type[Distribution] | None = None,
        context_dim: int = 16,
        *,
        path: str = "action_space",
    ) -> type[AutoregressiveDistribution]:
        """Return the subclass for actions of ``space``. If this class is bound already and ``independent`` is None,
        only check that it supports ``space``, and return it.

        Args:
            space: A space with at least two parts.
            independent: The distribution that the actions would have if their parts were independent. It gives each
                part its class. None asks ``action_distribution_rules``.
            context_dim: Number of outputs of the policy head, in addition to the inputs of ``independent``, that the
                action model reads to compute the inputs of a part.
            path: Name of ``space`` in error messages.

        Raises:
            ValueError: If ``space`` has only one part, or if no distribution supports it; names ``path``.
        """
        if cls.parts and independent is None:
            cls.check(space, path)
            return cls
        if independent is None:
            independent = action_distribution_rules.root(space, DefaultModelConfig(), path).run()
        parts = tuple(_parts(space, independent))
        if len(parts) < 2:
            expected = "a space of at least two parts, of which one can depend on the other"
            remedy = "Leave autoregressive_actions out: there is nothing to condition."
            raise cls._wrong_space(path, expected, space, remedy)
        count = math.prod(part.num_values for part in parts[:-1])
        return bound(
            cls,
            independent=independent,
            parts=parts,
            context_dim=context_dim,
            width=independent.required_input_dim(space),
            code_dim=sum(parts[-1].code),
            num_prefixes=count if count <= MOST_PREFIXES else None,
        )

    @classmethod
    def for_module(cls, module: nn.Module) -> type[AutoregressiveDistribution]:
        """Return a subclass that uses ``module.action_model``.

        Raises:
            TypeError: If ``module.action_model`` is not an :class:`ActionModel`.
        """
        from catalog.distributions.action_models import ActionModel  # a cycle: it needs this class

        model = module.action_model
        if not isinstance(model, ActionModel):
            raise TypeError(
                f"{type(module).__name__}.action_model: expected an ActionModel, which conditions "
                f"later parts of an action on earlier ones, got {type(model).__name__}. Return one "
                "from the catalog's build_action_model(), such as MADE.of(dist_cls, space)."
            )
        independent = cls.independent.for_module(module)
        classes = dict(leaf_classes(independent))
        parts = tuple(
            part._replace(dist_cls=classes[part.leaf]) if part.component is None else part for part in cls.parts
        )
        # not bound(): its cache would keep the module alive
        return subclass(cls, independent=independent, parts=parts, model=model)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        """Return the number of inputs of independent parts plus the width of the context."""
        return cls.independent.required_input_dim(space) + cls.context_dim

    @classmethod
    def log_std_indices(cls, space: Space) -> tuple[int, ...]:
        return cls.independent.log_std_indices(space)

    # --- sampling -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _draw(self, choose: Callable[[Distribution, Part], Tensor]) -> tuple[Tree, list[Tensor]]:
        """Choose the parts of an action one after another. Return the action and the list of the values of its parts.

        ``choose`` picks the value of a part from the distribution of that part given earlier parts.
        """
        leading = self.inputs.shape[:-1]
        code = self.inputs.new_zeros((*leading, self.code_dim))
        leaves: dict[tuple[Any, ...], list[Tensor]] = {part.leaf: [] for part in self.parts}
        values = []
        for part in self.parts:
            inputs = self._model(self.inputs, self.context, code)
            value = choose(part.dist_cls.from_logits(part.inputs.of(inputs)), part)
            _write(part, value, code)
            values.append(value)
            is_choice = part.nvec and part.component is not None
            leaves[part.leaf].append(value.unsqueeze(-1) if is_choice else value)
        for part in self.parts:
            if part.component == 0:  # the parts are the components of a leaf
                leaves[part.leaf] = [torch.cat(leaves[part.leaf], -1).reshape(*leading, *part.shape)]
        return _nested(self.independent, (leaf for [leaf] in leaves.values())), values

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        return self._draw(lambda dist, part: dist.sample(generator))[0]

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor | None:
        """Draw noise ``[steps, W]`` with the class ``independent``, the distribution of independent parts. Return None
        if that class cannot sample from noise.

        With the same noise, parts that do not depend on others get the same actions as from ``independent``.
        ``input_dim`` is ignored, because it includes the context, for which no noise is drawn.
        """
        return cls.independent.draw_noise(rng, steps, cls.width)

    def sample_from(self, noise: Tensor) -> Tree:
        return self._draw(lambda dist, part: dist.sample_from(part.noise.of(noise)))[0]

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._draw(lambda dist, part: dist.to_deterministic().sample())[0])

    # --- densities ----------------------------------------------------------------------------------------------------

    def _given(self, actions: Tree) -> Tensor:
        """Return the inputs ``[..., width]`` of all parts, without the context. The inputs of each part are computed
        from the parts before it in ``actions``."""
        return self._model(self.inputs, self.context, self._model.encode(actions).to(self.inputs.dtype))

    def logp(self, actions: Tree) -> Tensor:
        # given all earlier parts, the parts are independent
        return self.independent.from_logits(self._given(actions)).logp(actions)

    def entropy(self) -> Tensor:
        if self.num_prefixes is not None:
            prefixes, code = self._prefixes(self.num_prefixes)
            logp, last = self._along(prefixes, code)
            # H = Σ p(prefix) (H(last | prefix) - log p(prefix)); the clamp makes 0 · -inf a 0 instead of NaN
            terms = last.entropy() - logp.clamp_min(torch.finfo(logp.dtype).min)
            return (logp.exp() * terms).sum(0)
        drawn, values = self._draw(lambda dist, part: dist.sample())
        given = self._conditionals(self._given(drawn))
        return _mean_over_prefixes([dist.entropy() for dist in given], given, values)

    def kl(self, other: Self) -> Tensor:
        """Return KL(self ‖ other) in nats, ``[...]``. The class docstring says when it is exact.

        Raises:
            TypeError: If ``other`` is not an autoregressive distribution over the same parts. It may belong to a
                different module.
        """
        if not isinstance(other, AutoregressiveDistribution) or _layout(other) != _layout(self):
            raise incomparable(self, other)
        if self.num_prefixes is not None:
            prefixes, code = self._prefixes(self.num_prefixes)
            (p, p_last), (q, q_last) = self._along(prefixes, code), other._along(prefixes, code)
            probs = p.exp()
            return (probs * (p - q + p_last.kl(q_last)).masked_fill(probs == 0, 0.0)).sum(0)
        drawn, values = self._draw(lambda dist, part: dist.sample())
        given, theirs = self._conditionals(self._given(drawn)), other._conditionals(other._given(drawn))
        return _mean_over_prefixes([p.kl(q) for p, q in zip(given, theirs, strict=True)], given, values)

    def _conditionals(self, inputs: Tensor) -> list[Distribution]:
        """Return the distribution of each part, from the inputs that :meth:`_given` returns."""
        return [part.dist_cls.from_logits(part.inputs.of(inputs)) for part in self.parts]

    def _prefixes(self, count: int) -> tuple[list[Tensor], Tensor]:
        """Return all ``K = count`` combinations of values of the parts before the last: the values ``[K, ...]`` of each
        part, and the codes ``[K, ..., E]`` of the combinations: flat vectors as from :meth:`ActionModel.encode`."""
        leading = self.inputs.shape[:-1]
        code = self.inputs.new_zeros((count, *leading, self.code_dim))
        sizes = tuple(part.num_values for part in self.parts[:-1])
        choices = _combinations(sizes, self.inputs.device).reshape(count, *[1] * len(leading), len(sizes))
        values = []
        for part, choice in zip(self.parts, choices.expand(count, *leading, len(sizes)).unbind(-1), strict=False):
            values.append(choice if part.nvec else choice.unsqueeze(-1))
            _write(part, values[-1], code)
        return values, code

    def _along(self, prefixes: list[Tensor], code: Tensor) -> tuple[Tensor, Distribution]:
        """Return the log-probability ``[K, ...]`` of each of ``K`` combinations of values of the parts before the last,
        and the distribution of the last part given each. The arguments are the result of :meth:`_prefixes`."""
        inputs, context = (x.expand(len(code), *x.shape) for x in (self.inputs, self.context))
        *before, last = self._conditionals(self._model(inputs, context, code))
        return total(dist.logp(value) for dist, value in zip(before, prefixes, strict=True)), last


def _mean_over_prefixes(terms: list[Tensor], given: list[Distribution], values: list[Tensor]) -> Tensor:
    """Return an estimate of the expected sum of ``terms`` from one action; value and gradient are unbiased.

    Args:
        terms: For each part one number ``[...]``, such as its entropy, given the earlier parts of a sampled action.
        given: The distributions of the parts, given the same earlier parts.
        values: The sampled value of each part.
    """
    # Score function: a part shifts all later terms, so its log-probability is weighted with their sum. The score
    # minus itself detached is 0 in value and leaves only the gradient.
    later, score = torch.zeros_like(terms[-1]), torch.zeros_like(terms[-1])
    for i in range(len(terms) - 1, 0, -1):
        later = later + terms[i].detach()
        score = score + given[i - 1].logp(values[i - 1]) * later
    return total(terms) + (score - score.detach())


def _parts(space: Space, independent: type[Distribution]) -> Iterator[Part]:
    """Yield the parts of an action of ``space`` with the distribution ``independent``, with consecutive ranges of
    inputs, noise and code."""
    # where the next part starts in the inputs, the noise and the code
    starts = [0, 0, 0]
    for keys, dist_cls in leaf_classes(independent):
        leaf, name = at(space, keys), ".".join(map(str, keys))
        shape, nvec, width = tuple(leaf.shape or ()), choice_counts(leaf), dist_cls.required_input_dim(leaf)
        component_cls = _splits_into(dist_cls)
        if component_cls is None:
            widths = width, noise_width(dist_cls, width), sum(nvec) or math.prod(shape)
            num_values = nvec[0] if issubclass(dist_cls, Categorical) else MOST_PREFIXES + 1
            factors = [(None, name, dist_cls, widths, nvec, num_values)]
        else:  # one input, one number of noise and one of the code for each choice or bit
            factors = [
                (i, f"{name}[{i}]", component_cls, (size,) * 3, nvec[i : i + 1], size if nvec else 2)
                for i, size in enumerate(nvec or (1,) * width)
            ]
        for component, its_name, its_cls, widths, sizes, num_values in factors:
            inputs, noise, code = map(Span, starts, widths)
            yield Part(keys, shape, component, its_name, its_cls, inputs, noise, code, sizes, num_values)
            starts = [sum(inputs), sum(noise), sum(code)]


def _splits_into(dist_cls: type[Distribution]) -> type[Distribution] | None:
    """Return the distribution of one choice or bit of a leaf with ``dist_cls``; None if the leaf is not split."""
    # only these exact classes: a custom subclass need not be a product of its components
    unbound = dist_cls.__mro__[1] if "shape" in vars(dist_cls) else dist_cls
    return {MultiCategorical: Categorical, Bernoulli: Bernoulli}.get(unbound)


def _layout(dist: AutoregressiveDistribution) -> list[tuple[str, Span, Span]]:
    return [(part.name, part.inputs, part.code) for part in dist.parts]


def _write(part: Part, value: Tensor, code: Tensor) -> None:
    """Write ``value`` of ``part`` in place into the flat action ``code`` ``[..., E]``: choices one-hot, numbers as they
    are. All numbers in the range ``part.code`` must be 0 before."""
    flat = value.unsqueeze(-1) if value.dim() < code.dim() else value.flatten(code.dim() - 1)
    if part.nvec:
        if len(part.nvec) > 1:
            flat = flat + part_starts(part.nvec, flat.device)
        part.code.of(code).scatter_(-1, flat, 1.0)
    else:
        part.code.of(code).copy_(flat)


@functools.cache
@torch.inference_mode(False)  # the first call may be in inference mode, but training uses the cached tensor too
def _combinations(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return all ``K`` combinations of choices of these ``sizes``, ``[K, len(sizes)]``."""
    return torch.tensor([*itertools.product(*map(range, sizes))], device=device)


def _nested(dist_cls: type[Distribution], leaves: Iterator[Tensor]) -> Tree:
    """Take as many tensors from ``leaves`` as an action of ``dist_cls`` has, and return them nested like the action."""
    if not issubclass(dist_cls, MultiDistribution):
        return next(leaves)
    return dist_cls.tree([_nested(child, leaves) for child in dist_cls.children])
