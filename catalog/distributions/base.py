"""What every action distribution can do, and the table that chooses one."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn
from typing_extensions import Self

from catalog.base import Tree
from catalog.hooks import Hooks
from catalog.rules import RuleTable, When

D = TypeVar("D", bound="Distribution")


class Distribution(Hooks, ABC):
    """A batch of action distributions over one action space.

    Override points: every abstract method. :meth:`draw_noise` and :meth:`sample_from` may be left alone; the runner
    then calls :meth:`sample`. :meth:`check` and :meth:`bind` are for classes that fit some spaces only, or that have to
    know theirs; :meth:`for_module` for those that need the module they act for; :meth:`from_logits` for those that do
    not keep the logits as they are.
    """

    inputs_suffice: ClassVar[bool] = True
    """Whether the inputs alone say what the distribution is. Where parameters of the module count too, inputs that were
    kept do not tell what it was once these have changed: an algorithm that compares with an older one refuses it."""

    bounded: ClassVar[bool] = False
    """Whether samples lie in (-1, 1) whatever the space. Of a Box with other bounds these reach all only if they are
    stretched to them: ``normalize_actions=False`` is refused."""

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        """Refuse a ``space`` the class is not for; by default it takes any.

        Raises:
            ValueError: If it is not; names ``path``.
        """

    @classmethod
    def _wrong_space(cls, path: str, expected: str, space: Space, remedy: str = "") -> ValueError:
        """Return the error for a ``space`` the class is not for."""
        remedy = remedy or "Leave the choice to the Catalog, or name a class that fits in custom_action_dist."
        return ValueError(f"{path}: expected {expected}, for {cls.__name__}, got {space}. {remedy}")

    @classmethod
    def bind(cls, space: Space, *, path: str = "action_space") -> type[Distribution]:
        """The class for actions of ``space``: itself, or a subclass that carries what must be known of the space. A
        class that is bound to ``space`` already stays as it is.

        Raises:
            ValueError: If the class is not for ``space``; names ``path``.
        """
        cls.check(space, path)
        return cls

    @classmethod
    def for_module(cls, module: nn.Module) -> type[Distribution]:
        """The class for actions of ``module``: itself, or a subclass that carries the module.

        Called when the module is constructed, and for every copy by ``copy.deepcopy``. Keep the module, not its
        tensors: these may be replaced later by those of another copy.
        """
        return cls

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @classmethod
    def from_logits(cls, logits: Tensor) -> Self:
        """Distributions parameterised by ``logits`` ``[..., D]``."""
        return cls(logits)

    @classmethod
    @abstractmethod
    def required_input_dim(cls, space: Space) -> int:
        """``D``: how many outputs a head must have for actions of ``space``.

        Raises:
            ValueError: If the class is not for ``space``.
        """

    @classmethod
    def log_std_indices(cls, space: Space) -> tuple[int, ...]:
        """Which of the ``D`` inputs are log standard deviations, in ascending order; none by default."""
        return ()

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """One action each ``[..., *action_shape]``, without gradient."""

    def rsample(self, generator: torch.Generator | None = None) -> Tree:
        """Like :meth:`sample`, with a gradient: reparameterised, or straight-through where actions are discrete.

        Pass what it returns, and no copy of it, to :meth:`logp` of the same object: a squashed sample has lost digits
        that only its distribution remembers.

        Raises:
            TypeError: If the class has no such sample.
        """
        raise TypeError(
            f"{type(self).__name__}.rsample: expected a class whose samples have a gradient, got one without. "
            "Use sample(), or implement rsample."
        )

    @abstractmethod
    def logp(self, actions: Tree) -> Tensor:
        """Log-probability (density) of ``actions``, summed over action dimensions: ``[...]``."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy in nats, summed over action dimensions: ``[...]``."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """KL(self ‖ other) in nats, for another one of the same class: ``[...]``."""

    @abstractmethod
    def to_deterministic(self) -> Deterministic:
        """The most likely action (mode or mean) of each."""

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor | None:
        """Noise for ``steps`` draws as ``[steps, W]``; None if the class cannot sample from given noise."""
        return None

    def sample_from(self, noise: Tensor) -> Tree:
        """The action that ``noise`` (one slice of :meth:`draw_noise` per batch entry) selects, without gradient.

        Raises:
            NotImplementedError: If :meth:`draw_noise` draws none.
        """
        raise NotImplementedError


class Deterministic:
    """A fixed action; what acting greedily samples from."""

    def __init__(self, actions: Tree) -> None:
        self.actions = actions

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """The action."""
        return self.actions


action_distribution_rules: RuleTable[type[Distribution]] = RuleTable("action distribution")
"""Action space → distribution class. Register a branch with ``@action_distribution_rules.register(SpaceClass, …)``."""


@functools.cache
def bound(cls: type[Any], **attributes: Any) -> type[Any]:
    """The one subclass of ``cls`` with these ``attributes``, so that equal spaces give comparable distributions."""
    return subclass(cls, **attributes)


def subclass(cls: type[Any], **attributes: Any) -> type[Any]:
    """A new subclass of ``cls`` that has its name."""
    return type(cls.__name__, (cls,), {**attributes, "__doc__": cls.__doc__})


def same_class(mine: D, other: Any) -> D:
    """Return ``other``, which must be of the class of ``mine``.

    Raises:
        TypeError: If it is not.
    """
    if type(other) is not type(mine):
        raise incomparable(mine, other, f"another {type(mine).__name__}")
    return other


def incomparable(mine: Distribution, other: Any, expected: str = "another one of the same parts") -> TypeError:
    """Return the error for the KL between distributions that cannot be compared."""
    return TypeError(
        f"{type(mine).__name__}.kl: expected {expected}, got {type(other).__name__}. "
        "Compare distributions of one class."
    )


class ArrayDistribution(Distribution):
    """Base of distributions over arrays of one shape; :meth:`bind` makes the class for a shape."""

    expected: ClassVar[str]
    """The spaces it is for, in messages."""
    space_type: ClassVar[type[Space]] = Space
    shape: ClassVar[tuple[int, ...] | None] = None
    """Shape of one action; None is for any vector."""
    inputs_per_entry: ClassVar[int] = 1

    @classmethod
    def fits(cls, space: Space) -> bool:
        """Return whether the class is for spaces such as ``space``."""
        return isinstance(space, cls.space_type)

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        shape = tuple(space.shape or ())
        if not cls.fits(space):
            raise cls._wrong_space(path, cls.expected, space)
        if 0 in shape:
            remedy = "Take the empty part out with an env wrapper."
            raise cls._wrong_space(path, f"{cls.expected} with at least one element", space, remedy)
        if cls.shape not in (None, shape):
            raise cls._wrong_space(path, f"actions of shape {cls.shape}", space, "Bind the class to this space.")

    @classmethod
    def bind(cls, space: Space, *, path: str = "action_space") -> type[Distribution]:
        """Return a subclass for actions of ``space``; rank 1 needs none."""
        cls.check(space, path)
        shape = tuple(space.shape or ())
        return cls if len(shape) == 1 or shape == cls.shape else bound(cls, shape=shape)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return cls.inputs_per_entry * math.prod(space.shape or ())

    def _shaped(self, flat: Tensor) -> Tensor:
        """``[..., prod(shape)]`` → ``[..., *shape]``."""
        if self.shape is None or len(self.shape) == 1:
            return flat
        return flat.reshape((*flat.shape[:-1], *self.shape))

    def _flat(self, actions: Tensor) -> Tensor:
        """``[..., *shape]`` → ``[..., prod(shape)]``."""
        if self.shape is None or len(self.shape) == 1:
            return actions
        return actions.reshape((*actions.shape[: actions.dim() - len(self.shape)], math.prod(self.shape)))


def choose(
    dist_cls: type[Distribution],
    space_type: type[Space],
    name: str,
    when: When | None = None,
    settings: tuple[str, ...] = (),
) -> None:
    """Register the rule ``name``, which binds ``dist_cls`` to spaces of ``space_type``."""
    rule = action_distribution_rules.register(space_type, name=name, when=when, settings=settings)
    rule(lambda space, model_config, node: dist_cls.bind(space, path=node.path))
