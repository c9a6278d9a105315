"""The distribution over Dict and Tuple actions with independent parts."""

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
    """Independent distributions, one per part of a Dict or Tuple, from their concatenated inputs in the order of the
    space. :meth:`bind` sets the space and the distribution classes of the parts.

    Actions are dicts or tuples. Log-probabilities, entropies and KL are sums over the parts.

    Attributes:
        keys: Keys of a Dict, or indices of a Tuple.
        as_tuple: Whether actions are tuples and not dicts.
        children: The distribution class of each part.
        widths: Number of inputs of each part.
        noise_widths: Width of the noise of each part; 0 for a part that cannot sample from noise.
    """

    keys: ClassVar[tuple[Any, ...]] = ()
    as_tuple: ClassVar[bool] = False
    children: ClassVar[tuple[type[Distribution], ...]] = ()
    widths: ClassVar[tuple[int, ...]] = ()
    noise_widths: ClassVar[tuple[int, ...]] = ()

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
        parts = space_parts(space)
        if isinstance(space, spaces.Tuple) is not cls.as_tuple or tuple(parts) != cls.keys:
            raise cls._wrong_space(path, f"the parts {list(cls.keys)}", space, "Bind the class to this space.")
        for child, (key, part) in zip(cls.children, parts.items(), strict=True):
            child.check(part, f"{path}[{key!r}]")

    @classmethod
    def bind(
        cls, space: Space, children: Children | None = None, *, path: str = "action_space"
    ) -> type[MultiDistribution]:
        """Return the subclass for actions of ``space``.

        Args:
            space: A Dict or Tuple.
            children: Distribution class of each part, by key or index; None asks ``action_distribution_rules``.
            path: Name of ``space`` in error messages.

        Raises:
            ValueError: If ``space`` is not a Dict or Tuple with at least one part, or if a distribution does not
                support its part; names the path.
        """
        cls.check(space, path)
        if cls.children and children is None:
            return cls
        assert isinstance(space, spaces.Dict | spaces.Tuple)
        parts = space_parts(space)
        if children is None:
            children = {
                key: action_distribution_rules.root(part, DefaultModelConfig(), f"{path}[{key!r}]").run()
                for key, part in parts.items()
            }
        chosen = tuple(children[key] for key in parts)
        widths = tuple(child.required_input_dim(part) for child, part in zip(chosen, parts.values(), strict=True))
        layout = {"keys": tuple(parts), "as_tuple": isinstance(space, spaces.Tuple), "widths": widths}
        return bound(cls, **layout, **_of_children(chosen, widths))

    @classmethod
    def for_module(cls, module: nn.Module) -> type[MultiDistribution]:
        """Return a subclass with the results of each part's :meth:`for_module`, or this class if none differs."""
        children = tuple(child.for_module(module) for child in cls.children)
        if children == cls.children:
            return cls
        # not bound(): its cache would keep the module alive
        return subclass(cls, **_of_children(children, cls.widths))

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return sum(cls.widths)

    @classmethod
    def log_std_indices(cls, space: Space) -> tuple[int, ...]:
        assert isinstance(space, spaces.Dict | spaces.Tuple)
        starts = itertools.accumulate(cls.widths, initial=0)
        # not strict: one start too many, the end of the last part
        parts = zip(starts, cls.children, space_parts(space).values(), strict=False)
        return tuple(start + index for start, child, part in parts for index in child.log_std_indices(part))

    @classmethod
    def tree(cls, values: Sequence[Tree]) -> Tree:
        """Return the ``values`` of the parts as an action, which is a dict or a tuple."""
        return tuple(values) if cls.as_tuple else dict(zip(cls.keys, values, strict=True))

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        return self.tree([part.sample(generator) for part in self.parts])

    def rsample(self, generator: torch.Generator | None = None) -> Tree:
        return self.tree([part.rsample(generator) for part in self.parts])

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor | None:
        """Draw the noise of each part, and return all of it as ``[steps, W]``; return None if a part cannot sample from
        noise."""
        drawn = [child.draw_noise(rng, steps, width) for child, width in zip(cls.children, cls.widths, strict=True)]
        noises = [noise for noise in drawn if noise is not None]
        return torch.cat(noises, dim=-1) if len(noises) == len(drawn) else None

    def sample_from(self, noise: Tensor) -> Tree:
        pieces = noise.split(self.noise_widths, dim=-1)
        return self.tree([part.sample_from(piece) for part, piece in zip(self.parts, pieces, strict=True)])

    def rsample_with_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        pieces = noise.split(self.noise_widths, dim=-1)
        drawn = [part.rsample_with_logp(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return self.tree([actions for actions, _ in drawn]), total(logp for _, logp in drawn)

    def logp(self, actions: Tree) -> Tensor:
        return total(part.logp(actions[key]) for key, part in zip(self.keys, self.parts, strict=True))

    def entropy(self) -> Tensor:
        return total(part.entropy() for part in self.parts)

    def kl(self, other: Self) -> Tensor:
        # compare the layout, not the class: for_module() makes a class for each module
        if not isinstance(other, MultiDistribution) or (other.keys, other.widths) != (self.keys, self.widths):
            raise incomparable(self, other)
        return total(p.kl(q) for p, q in zip(self.parts, other.parts, strict=True))

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.tree([part.to_deterministic().sample() for part in self.parts]))


def _of_children(children: tuple[type[Distribution], ...], widths: Sequence[int]) -> dict[str, Any]:
    """Return, by name, the class attributes of a :class:`MultiDistribution` that depend on the classes of its parts."""
    return {
        "children": children,
        "noise_widths": tuple(noise_width(child, width) for child, width in zip(children, widths, strict=True)),
        "inputs_suffice": all(child.inputs_suffice for child in children),
    }


def noise_width(dist_cls: type[Distribution], input_dim: int) -> int:
    """Return the width of the noise that ``dist_cls`` draws for ``input_dim`` inputs; 0 if the class cannot sample from
    noise."""
    noise = dist_cls.draw_noise(np.random.default_rng(0), 1, input_dim)
    return 0 if noise is None else noise.shape[-1]


def total(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of ``terms``, which must not be empty."""
    return functools.reduce(operator.add, terms)


def leaf_classes(
    dist_cls: type[Distribution], keys: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], type[Distribution]]]:
    """Yield, for each leaf of an action of ``dist_cls``, the keys that lead to it and its distribution class. Each path
    begins with ``keys``."""
    if issubclass(dist_cls, MultiDistribution):
        for key, child in zip(dist_cls.keys, dist_cls.children, strict=True):
            yield from leaf_classes(child, (*keys, key))
    else:
        yield keys, dist_cls


def at(nested: Any, keys: tuple[Any, ...]) -> Any:
    """Return the part of an action, or of its space, at the path ``keys``."""
    return functools.reduce(operator.getitem, keys, nested)


@action_distribution_rules.register(spaces.Tuple, name="Tuple → MultiDistribution, one per part")
@action_distribution_rules.register(spaces.Dict, name="Dict → MultiDistribution, one per key")
def _(
    space: spaces.Dict | spaces.Tuple, model_config: DefaultModelConfig, node: Node[type[Distribution]]
) -> type[Distribution]:
    children = {key: node.child(key, part) for key, part in space_parts(space).items()}
    return MultiDistribution.bind(space, children, path=node.path)
