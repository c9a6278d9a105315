"""The base classes of action distributions, and the table that chooses a distribution for an action space."""

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
    """Base of action distributions. An instance is a batch of distributions over one action space.

    Override points:
        Every abstract method: always.
        ``draw_noise``, ``sample_from``: to sample from noise drawn ahead; without them the runner calls :meth:`sample`.
        ``rsample_with_logp``: to train through samples, as SAC does.
        ``check``: in classes that fit some spaces only.
        ``bind``: in classes that need to know their space.
        ``for_module``: in classes that need the module that acts.
        ``from_logits``: in classes that do not store the logits as they are.

    Attributes:
        inputs_suffice: Whether the inputs alone determine the distribution. If it also depends on parameters of a
            module, stored inputs do not restore it after an update. Algorithms that compare with an older policy
            therefore raise an error for such a class.
        bounded: Whether samples lie in (-1, 1) for every space. They must be scaled to reach the bounds of a Box, so
            the catalog raises an error for ``normalize_actions=False`` unless the bounds are -1 and 1.
        noise: The standard distribution of the numbers that :meth:`draw_noise` returns: "gumbel", "logistic" or
            "normal"; empty if they follow a different distribution, or if none are drawn.
    """

    inputs_suffice: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    noise: ClassVar[str] = ""

    @classmethod
    def check(cls, space: Space, path: str = "action_space") -> None:
        """Check that the class supports ``space``. By default a class supports all spaces.

        Raises:
            ValueError: If the class does not support ``space``; names ``path``.
        """

    @classmethod
    def _wrong_space(cls, path: str, expected: str, space: Space, remedy: str = "") -> ValueError:
        """Return the error for a ``space`` that the class does not support."""
        remedy = remedy or "Leave the choice to the Catalog, or name a class that fits in custom_action_dist."
        return ValueError(f"{path}: expected {expected}, for {cls.__name__}, got {space}. {remedy}")

    @classmethod
    def bind(cls, space: Space, *, path: str = "action_space") -> type[Distribution]:
        """Return the class for actions of ``space``: this class, or a subclass that knows the space. Binding a bound
        class to the same space again returns it unchanged.

        Raises:
            ValueError: If the class does not support ``space``; names ``path``.
        """
        cls.check(space, path)
        return cls

    @classmethod
    def for_module(cls, module: nn.Module) -> type[Distribution]:
        """Return the class for actions of ``module``: by default this class. An override may return a subclass for it.

        A module's constructor calls this method, and so does ``copy.deepcopy`` for the copy. The subclass must refer to
        the module and not to its tensors, because a copy may replace its tensors later, to share those of another.
        """
        return cls

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @classmethod
    def from_logits(cls, logits: Tensor) -> Self:
        """Return the batch ``[...]`` of distributions with the inputs ``logits`` ``[..., D]``."""
        return cls(logits)

    @classmethod
    @abstractmethod
    def required_input_dim(cls, space: Space) -> int:
        """Return ``D``, the number of outputs that a head must have for actions of ``space``.

        Raises:
            ValueError: If the class does not support ``space``.
        """

    @classmethod
    def log_std_indices(cls, space: Space) -> tuple[int, ...]:
        """Return the indices of the inputs that are log standard deviations, in ascending order; none by default."""
        return ()

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """Draw one action from each distribution, ``[..., *action_shape]``, without gradient."""

    def rsample(self, generator: torch.Generator | None = None) -> Tree:
        """Draw actions with a gradient: reparameterised, or straight-through for discrete actions.

        Pass the returned tensor itself, not a copy, to :meth:`logp` of the same object, because squashing loses digits
        and the object keeps the exact numbers before squashing for that tensor only.

        Raises:
            TypeError: If samples of the class have no gradient.
        """
        raise TypeError(
            f"{type(self).__name__}.rsample: expected a class whose samples have a gradient, got one without. "
            "Use sample(), or implement rsample."
        )

    @abstractmethod
    def logp(self, actions: Tree) -> Tensor:
        """Return the log-probability or log-density of ``actions``, summed over action dims: ``[...]``."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, summed over action dims: ``[...]``."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """Return KL(self ‖ other) in nats, for an ``other`` of the same class: ``[...]``.

        Raises:
            TypeError: If ``other`` has a different class.
        """

    @abstractmethod
    def to_deterministic(self) -> Deterministic:
        """Return the mode (or mean) of each distribution, as a distribution without randomness."""

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor | None:
        """Draw noise ``[steps, W]`` for ``steps`` samples; return None if the class cannot sample from noise.

        Args:
            rng: The generator to draw from.
            steps: Number of samples.
            input_dim: ``D``, the number of inputs.
        """
        return None

    def sample_from(self, noise: Tensor) -> Tree:
        """Return the actions that ``noise`` ``[..., W]`` gives, without gradient. Each distribution of the batch uses
        one sample of :meth:`draw_noise`.

        Raises:
            NotImplementedError: If the class cannot sample from noise.
        """
        raise NotImplementedError

    def rsample_with_logp(self, noise: Tensor) -> tuple[Tree, Tensor]:
        """Return the actions that ``sample_from(noise)`` returns, but with a gradient, and their log-probabilities.

        Choices are returned as one-hot codes, and bits as floats, with a straight-through gradient as in
        :meth:`rsample`. The log-probability of choices and bits has the gradient of the negative entropy, because the
        gradient of :meth:`logp` for a drawn action would average to 0.

        Args:
            noise: Noise ``[..., W]``, one sample of :meth:`draw_noise` for each distribution of the batch.

        Returns:
            Actions ``[..., *action_shape]``, where a leaf of choices is a vector of its one-hot codes, as long as its
            inputs; and log-probabilities ``[...]``.

        Raises:
            TypeError: If samples of the class have no gradient for given noise.
        """
        raise TypeError(
            f"{type(self).__name__}.rsample_with_logp: expected a class whose samples from given noise have a "
            "gradient, got one without. Choose SquashedGaussian for a Box, or implement rsample_with_logp."
        )


class Deterministic:
    """Fixed actions with the ``sample`` method of a distribution, for greedy acting."""

    def __init__(self, actions: Tree) -> None:
        self.actions = actions

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """Return the fixed actions; ``generator`` is ignored."""
        return self.actions


action_distribution_rules: RuleTable[type[Distribution]] = RuleTable("action distribution")
"""The rules that choose a distribution class for an action space. Register another rule with
``@action_distribution_rules.register(SpaceClass, name=...)``."""


@functools.cache
def bound(cls: type[Any], **attributes: Any) -> type[Any]:
    """Return the subclass of ``cls`` with these class ``attributes``. Equal attributes give the same class, so that the
    distributions of equal spaces have one class and their KL is defined."""
    return subclass(cls, **attributes)


def subclass(cls: type[Any], **attributes: Any) -> type[Any]:
    """Return a new subclass of ``cls`` with these class ``attributes``, and with the name and docstring of ``cls``."""
    return type(cls.__name__, (cls,), {**attributes, "__doc__": cls.__doc__})


def same_class(mine: D, other: Distribution) -> D:
    """Return ``other``, which must have the class of ``mine``.

    Raises:
        TypeError: If ``other`` has a different class.
    """
    if type(other) is not type(mine):
        raise incomparable(mine, other, f"another {type(mine).__name__}")
    return other


def incomparable(mine: Distribution, other: Distribution, expected: str = "another one of the same parts") -> TypeError:
    """Return the error to raise if ``mine.kl(other)`` is not defined. ``expected`` says in words what ``other`` should
    have been."""
    return TypeError(
        f"{type(mine).__name__}.kl: expected {expected}, got {type(other).__name__}. "
        "Compare distributions of one class."
    )


class ArrayDistribution(Distribution):
    """Base of distributions over arrays of one shape. :meth:`bind` returns the subclass for a shape.

    Attributes:
        expected: The supported spaces in words, for error messages.
        space_type: Class of the supported spaces.
        shape: Shape of one action; None stands for a vector of any width.
        inputs_per_entry: Number of inputs for each number in an action.
    """

    expected: ClassVar[str]
    space_type: ClassVar[type[Space]] = Space
    shape: ClassVar[tuple[int, ...] | None] = None
    inputs_per_entry: ClassVar[int] = 1

    @classmethod
    def fits(cls, space: Space) -> bool:
        """Return whether the class supports the type and dtype of ``space``; its shape and bounds do not matter."""
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
        """Return the subclass for the shape of ``space``. Return this class itself if actions are vectors, or if the
        class already has that shape.

        Raises:
            ValueError: If the class does not support ``space``; names ``path``.
        """
        cls.check(space, path)
        shape = tuple(space.shape or ())
        return cls if len(shape) == 1 or shape == cls.shape else bound(cls, shape=shape)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        cls.check(space)
        return cls.inputs_per_entry * math.prod(space.shape or ())

    def _shaped(self, flat: Tensor) -> Tensor:
        """Reshape ``[..., prod(shape)] → [..., *shape]``."""
        if self.shape is None or len(self.shape) == 1:
            return flat
        return flat.reshape((*flat.shape[:-1], *self.shape))

    def _flat(self, actions: Tensor) -> Tensor:
        """Reshape ``[..., *shape] → [..., prod(shape)]``."""
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
    """Register the rule ``name``, which binds ``dist_cls`` to spaces of ``space_type``.

    ``when`` is an additional condition on ``(space, model_config)``. ``settings`` are the names of the model settings
    that shape the inputs of the distribution.
    """
    rule = action_distribution_rules.register(space_type, name=name, when=when, settings=settings)
    rule(lambda space, model_config, node: dist_cls.bind(space, path=node.path))


def checked_class(found: Any, space: Space, where: str, path: str) -> type[Distribution]:
    """Check ``found``, and return it or its subclass for actions of ``space``; see :meth:`Distribution.bind`.

    Args:
        found: The class that a hook or a setting chose.
        space: Space of the actions.
        where: The hook or setting, for error messages.
        path: Name of ``space`` in error messages.

    Raises:
        TypeError: If ``found`` is not a subclass of :class:`Distribution`, or leaves methods of it abstract.
        ValueError: If the class does not support ``space``.
    """
    if not (isinstance(found, type) and issubclass(found, Distribution)):
        raise TypeError(
            f"{where}: expected a subclass of catalog.Distribution, got {found!r}. Derive yours "
            "from Distribution, or from one of its subclasses."
        )
    if missing := sorted(found.__abstractmethods__):
        expected, got = "a class with every method of catalog.Distribution", f"{found.__name__} without some"
        remedy = f"Write {', '.join(f'{name}()' for name in missing)}."
        raise TypeError(f"{where}: expected {expected}, got {got}. {remedy}")
    dist_cls = found.bind(space, path=path)
    dist_cls.required_input_dim(space)  # a custom class may refuse the space only here
    return dist_cls
