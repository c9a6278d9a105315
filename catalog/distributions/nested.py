"""The distribution over Dict and Tuple actions."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space, spaces
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
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node
from catalog.spaces import space_parts

Children = Mapping[Any, type[Distribution]] | Sequence[type[Distribution]]


class MultiDistribution(Distribution):
    """Independent distributions, one per part of a Dict or Tuple, from their inputs one after the other in the space's
    own order; bound to the space and the classes of its parts with :meth:`bind`.

    Actions are dicts or tuples. Log-probabilities, entropies and KL are the sums of those of the parts.
    """

    keys: ClassVar[tuple[Any, ...]] = ()
    """Of a Dict, or indices of a Tuple."""
    as_tuple: ClassVar[bool] = False
    children: ClassVar[tuple[type[Distribution], ...]] = ()
    widths: ClassVar[tuple[int, ...]] = ()
    """How many inputs each part takes."""
    noise_widths: ClassVar[tuple[int, ...]] = ()
    """How wide the noise of each part is; 0 where it draws none."""

    def __init__(self, logits: Tensor) -> None:
        inputs = logits.split(self.widths, dim=-1)
        self.parts = [child.from_logits(x) for child, x in zip(self.children, inputs, strict=True)]

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            raise cls._wrong_space(path, "a Dict or Tuple", space)
        if not space.spaces:
            remedy = "Take the empty part out with an env wrapper."
            raise cls._wrong_space(path, "a Dict or Tuple with at least one part", space, remedy)
        if not cls.children:
            return
        parts = _parts(space)
        if isinstance(space, spaces.Tuple) is not cls.as_tuple or tuple(parts) != cls.keys:
            raise cls._wrong_space(path, f"the parts {list(cls.keys)}", space, "Bind the class to this space.")
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
            children = {
                key: action_distribution_rules.root(part, DefaultModelConfig(), f"{path}[{key!r}]").run()
                for key, part in parts.items()
            }
        chosen = tuple(children[key] for key in parts)
        widths = tuple(child.required_input_dim(part) for child, part in zip(chosen, parts.values(), strict=True))
        return bound(
            cls,
            keys=tuple(parts),
            as_tuple=isinstance(space, spaces.Tuple),
            widths=widths,
            **_of_children(chosen, widths),
        )

    @classmethod
    def for_module(cls, module: nn.Module) -> type[MultiDistribution]:
        """A subclass of what the parts' classes become, or the class itself if all stay as they are."""
        children = tuple(child.for_module(module) for child in cls.children)
        if children == cls.children:
            return cls
        # kept out of the cache of bound classes, which would keep the module alive
        return subclass(cls, **_of_children(children, cls.widths))

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return sum(cls.widths)

    @classmethod
    def log_std_indices(cls, space: Space) -> tuple[int, ...]:
        starts = itertools.accumulate(cls.widths, initial=0)
        parts = zip(starts, cls.children, _parts(space).values(), strict=False)  # one start more, after the last
        return tuple(start + index for start, child, part in parts for index in child.log_std_indices(part))

    @classmethod
    def tree(cls, values: Sequence[Tree]) -> Tree:
        """Return ``values`` of the parts, structured like an action."""
        return tuple(values) if cls.as_tuple else dict(zip(cls.keys, values, strict=True))

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        return self.tree([part.sample(generator) for part in self.parts])

    def rsample(self, generator: torch.Generator | None = None) -> Tree:
        return self.tree([part.rsample(generator) for part in self.parts])

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor | None:
        """Noise of the parts side by side, ``[steps, W]``, drawn part by part."""
        drawn = [child.draw_noise(rng, steps, width) for child, width in zip(cls.children, cls.widths, strict=True)]
        noises = [noise for noise in drawn if noise is not None]
        return torch.cat(noises, dim=-1) if len(noises) == len(drawn) else None

    def sample_from(self, noise: Tensor) -> Tree:
        pieces = noise.split(self.noise_widths, dim=-1)
        return self.tree([part.sample_from(piece) for part, piece in zip(self.parts, pieces, strict=True)])

    def logp(self, actions: Tree) -> Tensor:
        return total(part.logp(actions[key]) for key, part in zip(self.keys, self.parts, strict=True))

    def entropy(self) -> Tensor:
        return total(part.entropy() for part in self.parts)

    def kl(self, other: Self) -> Tensor:
        # a class made for another module is as good, if its parts are
        if not isinstance(other, MultiDistribution) or (other.keys, other.widths) != (self.keys, self.widths):
            raise incomparable(self, other)
        return total(p.kl(q) for p, q in zip(self.parts, other.parts, strict=True))

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.tree([part.to_deterministic().sample() for part in self.parts]))


def _parts(space: Any) -> dict[Any, Space]:
    """The parts of a Dict or Tuple by key or index, in the space's own order."""
    return dict(space_parts(space))


def _of_children(children: tuple[type[Distribution], ...], widths: Sequence[int]) -> dict[str, Any]:
    """Attributes of the class over parts of the classes ``children``."""
    return {
        "children": children,
        "noise_widths": tuple(noise_width(child, width) for child, width in zip(children, widths, strict=True)),
        "inputs_suffice": all(child.inputs_suffice for child in children),
    }


def noise_width(dist_cls: type[Distribution], input_dim: int) -> int:
    """Return how wide the noise of ``dist_cls`` is; 0 if it draws none."""
    noise = dist_cls.draw_noise(np.random.default_rng(0), 1, input_dim)
    return 0 if noise is None else noise.shape[-1]


def total(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of ``terms``, of which there is one at least."""
    return functools.reduce(operator.add, terms)


def leaf_classes(
    dist_cls: type[Distribution], keys: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], type[Distribution]]]:
    """Yield the keys that lead to each leaf of the action, and its distribution."""
    if issubclass(dist_cls, MultiDistribution):
        for key, child in zip(dist_cls.keys, dist_cls.children, strict=True):
            yield from leaf_classes(child, (*keys, key))
    else:
        yield keys, dist_cls


def at(nested: Any, keys: tuple[Any, ...]) -> Any:
    """Return the part of an action or of its space that ``keys`` lead to."""
    return functools.reduce(operator.getitem, keys, nested)


def _multi(space: Space, model_config: DefaultModelConfig, node: Node[type[Distribution]]) -> type[Distribution]:
    MultiDistribution.check(space, node.path)
    children = {key: node.child(key, part) for key, part in _parts(space).items()}
    return MultiDistribution.bind(space, children, path=node.path)


action_distribution_rules.register(spaces.Dict, name="Dict → MultiDistribution, one per key")(_multi)
action_distribution_rules.register(spaces.Tuple, name="Tuple → MultiDistribution, one per part")(_multi)
