"""Base classes: the config that describes and builds a net, and the encoder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import tree
from torch import Tensor, nn

from catalog.hooks import Hooks
from catalog.rules import RuleTable
from catalog_rl import remedy_for

Tree = Any
"""A tensor or array, or a nested dict or tuple of these with the structure of a space."""


def _item(output: Any, index: Any) -> Any:
    """Return ``output[index]``. For a str key, as in RLlib, raise a ``TypeError`` that names the attribute to use."""
    if isinstance(index, str):
        remedy = remedy_for("encoder", index) or f"Use one of {', '.join(output._fields)}."
        raise TypeError(f"{type(output).__name__}[{index!r}]: expected an attribute, got a key. {remedy}")
    return tuple.__getitem__(output, index)


class EncoderOutput(NamedTuple):
    """The output of an encoder.

    Attributes:
        latent: ``[..., *output_dims]`` with the leading dims of the observation.
        state: Recurrent state after the last step, ``[B, ...]``; None for stateless encoders.
    """

    latent: Tensor
    state: Tree | None = None

    if not TYPE_CHECKING:
        __getitem__ = _item


class ActorCriticOutput(NamedTuple):
    """The output of an actor-critic encoder.

    Attributes:
        actor: Latent for the policy head, ``[..., *output_dims]``.
        critic: Latent for the value head, ``[..., *output_dims]``: the same tensor as ``actor`` if the encoder is
            shared, None in an inference-only copy that has no critic encoder.
        state: Recurrent state after the last step, ``[B, ...]``; None for stateless encoders.
    """

    actor: Tensor
    critic: Tensor | None
    state: Tree | None = None

    if not TYPE_CHECKING:
        __getitem__ = _item


class ModelConfig(Hooks, ABC):
    """Base of configs that describe a net and build it. ``output_dims`` is known before the net is built."""

    @property
    @abstractmethod
    def output_dims(self) -> tuple[int, ...]:
        """Shape of one output, without leading dims such as the batch."""

    @abstractmethod
    def build(self) -> nn.Module:
        """Build a new net with fresh weights."""


def explain_input(encoder: nn.Module, obs: Tree, error: Exception) -> None:
    """Raise a clearer error for ``error``, which ``encoder(obs)`` raised, if ``obs`` shows the cause; else return.

    Raises:
        TypeError: If ``obs`` contains numpy arrays, or is a batch ``{"obs": ...}``; says how to call the encoder.
    """
    is_batch = isinstance(obs, Mapping) and obs.keys() <= {"obs", "state_in", "seq_lens"}
    is_numpy = any(isinstance(leaf, np.ndarray) for leaf in tree.flatten(obs))
    if (is_batch or is_numpy) and ": expected " not in str(error):  # an inner encoder explained it already
        got = f"a batch with {', '.join(obs)}" if is_batch else "arrays"
        raise TypeError(
            f"{type(encoder).__name__}(): expected tensors in the structure of the observation space, got {got}. "
            f"{remedy_for('encoder', 'obs' if is_batch else 'numpy')}"
        ) from error


class Encoder(nn.Module, ABC):
    """Base of encoders: nets from observations to latents.

    Stateless encoders take observations with any leading dims. Stateful encoders take observations ``[T, B, ...]``,
    the ``state`` ``[B, ...]`` before the first step, and ``starts``, bool ``[T, B]``: the steps that start an episode.
    They zero the state before each of these steps.
    """

    @abstractmethod
    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        """Return the latents of ``obs`` and the next state; the class docstring gives the shapes.

        If ``state`` is None, a stateful encoder starts from its initial state. If ``starts`` is None, no step starts an
        episode. Stateless encoders ignore both.
        """

    def get_initial_state(self) -> Tree | None:
        """Return the state of one sequence before its first step, without a batch dim; None if stateless."""
        return None

    if not TYPE_CHECKING:  # type checkers must see the signature of nn.Module

        def __call__(self, obs: Tree, *args: Any, **kwargs: Any) -> Any:
            try:
                return nn.Module.__call__(self, obs, *args, **kwargs)
            except (AttributeError, KeyError, TypeError) as error:
                explain_input(self, obs, error)
                raise

    def parts(self) -> Sequence[nn.Module]:
        """Return the inner encoders, in the order in which the decision tree chose them; none by default."""
        return ()


class ModuleEncoder(Encoder):
    """Stateless encoder around any module that maps batched observations to a latent tensor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(self.net(obs))


def as_encoder(net: nn.Module, where: str = "build_encoder()") -> Encoder:
    """Return ``net`` itself if it is an :class:`Encoder`; otherwise wrap it in one.

    Args:
        net: An encoder, or a module from batched observations to latents.
        where: The function that made ``net``, for error messages.

    Raises:
        TypeError: If ``net`` is not an ``nn.Module``.
    """
    if isinstance(net, Encoder):
        return net
    if isinstance(net, nn.Module):
        return ModuleEncoder(net)
    raise TypeError(
        f"{where}: expected an nn.Module from batched observations to latents, got {net!r}. "
        "Return a module, for example nn.Sequential(nn.Linear(4, 64), nn.ReLU())."
    )


N = TypeVar("N", bound=nn.Module)


def mark(net: N) -> N:
    """Mark ``net`` as an encoder that a catalog built, and return it. Copies keep the mark."""
    net.is_from_catalog = True  # type: ignore[assignment]
    return net


def is_marked(net: nn.Module) -> bool:
    """Return whether a catalog built ``net`` as an encoder."""
    return "is_from_catalog" in vars(net)


encoder_rules: RuleTable[ModelConfig] = RuleTable("encoder")
"""The rules that choose an encoder config for an observation space. Register another rule with
``@encoder_rules.register(SpaceClass, name=...)``."""
