"""The distribution over Dict and Tuple actions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.base import Tree
from catalog.distributions.base import (
    Deterministic,
    Distribution,
    action_distribution_rules,
    bound,
    subclass,
    wrong_space,
)
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node
from catalog.spaces import space_parts

Children = Mapping[Any, type[Distribution]] | Sequence[type[Distribution]]


class MultiDistribution(Distribution):
    """Independent distributions, one per part of a Dict or Tuple, from their inputs one after the other in the space's
    own order; bound to the space and the classes of its parts with :meth:`bind`.

    Actions are dicts or tuples. Log-probabilities, entropies and KL are the sums of those of the parts.
    """

    keys: ClassVar[tuple[Any, ...] | None] = None
    """Of a Dict; None for a Tuple."""
    children: ClassVar[tuple[type[Distribution], ...]] = ()
    widths: ClassVar[tuple[int, ...]] = ()
    """How many inputs each part takes."""
    noise_widths: ClassVar[tuple[int, ...] | None] = None
    """How wide the noise of each part is; None if one draws none."""

    def __init__(self, logits: Tensor) -> None:
        children = self._bound_children()
        inputs = logits.split(self.widths, dim=-1)
        self.parts = [child.from_logits(x) for child, x in zip(children, inputs, strict=True)]

    @classmethod
    def _bound_children(cls) -> tuple[type[Distribution], ...]:
        if not cls.children:
            raise TypeError(
                f"{cls.__name__}: expected a class bound to its parts, got the bare class. Use "
                f"{cls.__name__}.bind(space, children), as Catalog.get_action_dist_cls() does."
            )
        return cls.children

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            raise wrong_space(cls, path, "a Dict or Tuple", space)
        if not space.spaces:
            remedy = "Take the empty part out with an env wrapper."
            raise wrong_space(cls, path, "a Dict or Tuple with at least one part", space, remedy)
        if not cls.children:
            return
        parts = _parts(space)
        keys = range(len(cls.children)) if cls.keys is None else cls.keys
        if isinstance(space, spaces.Tuple) is not (cls.keys is None) or tuple(parts) != tuple(keys):
            raise wrong_space(cls, path, f"the parts {list(keys)}", space, "Bind the class to this space.")
        for child, (key, part) in zip(cls.children, parts.items(), strict=True):
            child.check(part, f"{path}[{key!r}]")

    @classmethod
    def bind(
        cls, space: Space, children: Children | None = None, *, path: str = "action_space"
    ) -> type[MultiDistribution]:
        """A subclass for actions of ``space``.

        Args:
            space: A Dict or Tuple.
            children: The class for each part, by key or index; None takes those of the table.
            path: What ``space`` is called in messages.
        """
        cls.check(space, path)
        if cls.children and children is None:
            return cls
        parts = _parts(space)
        if children is None:
            chosen = [
                action_distribution_rules.root(part, DefaultModelConfig(), f"{path}[{key!r}]").run()
                for key, part in parts.items()
            ]
        else:
            chosen = [children[key] for key in parts]
        widths = tuple(child.required_input_dim(part) for child, part in zip(chosen, parts.values(), strict=True))
        return bound(
            cls,
            keys=tuple(parts) if isinstance(space, spaces.Dict) else None,
            children=tuple(chosen),
            widths=widths,
            noise_widths=_noise_widths(chosen, widths),
            inputs_suffice=all(child.inputs_suffice for child in chosen),
        )

    @classmethod
    def for_module(cls, module: nn.Module) -> type[MultiDistribution]:
        """A subclass of what the parts' classes become, or the class itself if all stay as they are."""
        children = tuple(child.for_module(module) for child in cls.children)
        if children == cls.children:
            return cls
        # kept out of the cache of bound classes, which would keep the module alive
        suffice = all(child.inputs_suffice for child in children)
        return subclass(
            cls, children=children, noise_widths=_noise_widths(children, cls.widths), inputs_suffice=suffice
        )

    @classmethod
    def from_logits(cls, logits: Tensor) -> MultiDistribution:
        return cls(logits)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        parts = zip(cls._bound_children(), _parts(space).values(), strict=True)
        return sum(child.required_input_dim(part) for child, part in parts)

    @classmethod
    def log_std_indices(cls, space: Space) -> tuple[int, ...]:
        indices: list[int] = []
        start = 0
        for child, part in zip(cls._bound_children(), _parts(space).values(), strict=True):
            indices += [start + index for index in child.log_std_indices(part)]
            start += child.required_input_dim(part)
        return tuple(indices)

    def _tree(self, values: Sequence[Tree]) -> Tree:
        """``values`` of the parts, structured like an action."""
        return tuple(values) if self.keys is None else dict(zip(self.keys, values, strict=True))

    def _values(self, actions: Tree) -> Sequence[Tree]:
        """The parts of ``actions`` in the order of the distributions."""
        return actions if self.keys is None else [actions[key] for key in self.keys]

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        return self._tree([part.sample(generator) for part in self.parts])

    def rsample(self, generator: torch.Generator | None = None) -> Tree:
        return self._tree([part.rsample(generator) for part in self.parts])

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor | None:
        """Noise of the parts side by side, ``[steps, W]``, drawn part by part."""
        drawn = [child.draw_noise(rng, steps, width) for child, width in zip(cls.children, cls.widths, strict=True)]
        noises = [noise for noise in drawn if noise is not None]
        return torch.cat(noises, dim=-1) if len(noises) == len(drawn) else None

    def sample_from(self, noise: Tensor) -> Tree:
        if self.noise_widths is None:
            return super().sample_from(noise)
        pieces = noise.split(self.noise_widths, dim=-1)
        return self._tree([part.sample_from(piece) for part, piece in zip(self.parts, pieces, strict=True)])

    def logp(self, actions: Tree) -> Tensor:
        return _sum(part.logp(value) for part, value in zip(self.parts, self._values(actions), strict=True))

    def entropy(self) -> Tensor:
        return _sum(part.entropy() for part in self.parts)

    def kl(self, other: Distribution) -> Tensor:
        # a class made for another module is as good, if its parts are
        if not isinstance(other, MultiDistribution) or (other.keys, other.widths) != (self.keys, self.widths):
            raise TypeError(
                f"{type(self).__name__}.kl: expected another one of the same parts, got "
                f"{type(other).__name__}. Compare distributions of one class."
            )
        return _sum(p.kl(q) for p, q in zip(self.parts, other.parts, strict=True))

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._tree([part.to_deterministic().sample() for part in self.parts]))


def _parts(space: Any) -> dict[Any, Space]:
    """The parts of a Dict or Tuple by key or index, in the space's own order."""
    return dict(space_parts(space))


def _noise_widths(children: Sequence[type[Distribution]], widths: Sequence[int]) -> tuple[int, ...] | None:
    noises = [
        child.draw_noise(np.random.default_rng(0), 1, width) for child, width in zip(children, widths, strict=True)
    ]
    drawn = [noise.shape[-1] for noise in noises if noise is not None]
    return tuple(drawn) if len(drawn) == len(noises) else None


def _sum(terms: Iterator[Tensor]) -> Tensor:
    return functools.reduce(operator.add, terms)


def _multi(space: Space, model_config: DefaultModelConfig, node: Node[type[Distribution]]) -> type[Distribution]:
    MultiDistribution.check(space, node.path)
    children = {key: node.child(key, part) for key, part in _parts(space).items()}
    return MultiDistribution.bind(space, children, path=node.path)


action_distribution_rules.register(spaces.Dict, name="Dict → MultiDistribution, one per key")(_multi)
action_distribution_rules.register(spaces.Tuple, name="Tuple → MultiDistribution, one per part")(_multi)
