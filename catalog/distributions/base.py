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

from catalog.base import Tree
from catalog.hooks import Hooks
from catalog.rules import RuleTable

D = TypeVar("D", bound="Distribution")


class Distribution(Hooks, ABC):
    """A batch of action distributions over one action space.

    Override points: every abstract method. :meth:`draw_noise` and :meth:`sample_from` may be left alone; the runner
    then calls :meth:`sample`. :meth:`check` and :meth:`bind` are for classes that fit some spaces only, or that have to
    know theirs; :meth:`for_module` for those that need the module they act for.
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

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: Tensor) -> Distribution:
        """Distributions parameterised by ``logits`` ``[..., D]``."""

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
            f"{type(self).__name__}.rsample: expected a class whose samples have a gradient, got "
            "one without. Use sample(), or implement rsample."
        )

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
        """Noise for ``steps`` draws as ``[steps, W]``; None if the class cannot sample from given noise."""
        return None

    def sample_from(self, noise: Tensor) -> Tree:
        """The action that ``noise`` (one slice of :meth:`draw_noise` per batch entry) selects, without gradient.

        Raises:
            TypeError: If the class draws no noise of its own.
        """
        raise TypeError(
            f"{type(self).__name__}.sample_from: expected a class whose draw_noise returns noise, "
            "got one that draws inside sample(). Call sample(generator), or implement draw_noise "
            "and sample_from together."
        )


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


def wrong_space(cls: type[Distribution], path: str, expected: str, space: Space, remedy: str = "") -> ValueError:
    """The error for a distribution class that is not for ``space``."""
    remedy = remedy or "Leave the choice to the Catalog, or name a class that fits in custom_action_dist."
    return ValueError(f"{path}: expected {expected}, for {cls.__name__}, got {space}. {remedy}")


def check_array_space(
    cls: type[Distribution], space: Space, kinds: type[Space] | tuple[type[Space], ...], expected: str, path: str
) -> None:
    """Refuse what is none of ``kinds`` or has no elements.

    Raises:
        ValueError: If it is refused; names ``path``.
    """
    if not isinstance(space, kinds):
        raise wrong_space(cls, path, expected, space)
    if math.prod(space.shape or ()) == 0:
        raise wrong_space(
            cls, path, f"{expected} with at least one element", space, "Take the empty part out with an env wrapper."
        )


def check_shape(cls: type[Distribution], space: Space, shape: tuple[int, ...] | None, path: str) -> None:
    """Refuse a ``space`` of another shape than the one the class is bound to, if it is bound.

    Raises:
        ValueError: If it is refused; names ``path``.
    """
    if shape is not None and tuple(space.shape or ()) != shape:
        raise wrong_space(cls, path, f"actions of shape {shape}", space, "Bind the class to this space.")


def same_class(mine: D, other: Distribution) -> D:
    """``other``, which must be of the class of ``mine``.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(other, type(mine)):
        raise TypeError(
            f"{type(mine).__name__}.kl: expected another {type(mine).__name__}, got "
            f"{type(other).__name__}. Compare distributions of one class."
        )
    return other


def shaped(flat: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """``[..., prod(shape)]`` → ``[..., *shape]``; None is for any vector."""
    return flat if shape is None or len(shape) == 1 else flat.reshape((*flat.shape[:-1], *shape))


def flattened(actions: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """``[..., *shape]`` → ``[..., prod(shape)]``; None is for any vector."""
    if shape is None or len(shape) == 1:
        return actions
    return actions.reshape((*actions.shape[: actions.dim() - len(shape)], math.prod(shape)))
