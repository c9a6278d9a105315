"""What every net of the catalog has in common: a config that builds it, and the encoder's contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import tree
from torch import Tensor, nn

from catalog.hooks import Hooks
from catalog.migration import remedy_for
from catalog.rules import RuleTable

Tree = Any
"""A tensor (or array), or a nested dict/tuple of them shaped like the space it belongs to."""


def _item(output: Any, index: Any) -> Any:
    """``output[index]``, which takes no names of other libraries."""
    if isinstance(index, str):
        remedy = remedy_for("encoder", index) or f"Use one of {', '.join(output._fields)}."
        raise TypeError(f"{type(output).__name__}[{index!r}]: expected an attribute, got a key. {remedy}")
    return tuple.__getitem__(output, index)


class EncoderOutput(NamedTuple):
    """What an encoder returns.

    Attributes:
        latent: ``[..., *output_dims]`` with the leading dims of the observation.
        state: Next recurrent state ``[B, ...]``; None for stateless encoders.
    """

    latent: Tensor
    state: Tree | None = None

    if not TYPE_CHECKING:
        __getitem__ = _item


class ActorCriticOutput(NamedTuple):
    """What an actor-critic encoder returns.

    Attributes:
        actor: Latent for the policy head.
        critic: Latent for the value head (the same tensor if shared); None in inference-only copies.
        state: Next recurrent state; None for stateless encoders.
    """

    actor: Tensor
    critic: Tensor | None
    state: Tree | None = None

    if not TYPE_CHECKING:
        __getitem__ = _item


class ModelConfig(Hooks, ABC):
    """Describes a net from its dimensions; ``output_dims`` is known before anything is built."""

    @property
    @abstractmethod
    def output_dims(self) -> tuple[int, ...]:
        """Shape of one output, without leading dims."""

    @abstractmethod
    def build(self) -> nn.Module:
        """A new net with fresh weights."""


def explain_input(encoder: nn.Module, obs: Tree, error: Exception) -> None:
    """Raise a ``TypeError`` that says how to call ``encoder``, if ``error`` came of a whole batch or of arrays."""
    is_batch = isinstance(obs, Mapping) and obs.keys() <= {"obs", "state_in", "seq_lens"}
    is_numpy = any(isinstance(leaf, np.ndarray) for leaf in tree.flatten(obs))
    if (is_batch or is_numpy) and ": expected " not in str(error):  # else explained by an encoder within
        got = f"a batch with {', '.join(obs)}" if is_batch else "arrays"
        raise TypeError(
            f"{type(encoder).__name__}(): expected tensors in the structure of the observation space, got {got}. "
            f"{remedy_for('encoder', 'obs' if is_batch else 'numpy')}"
        ) from error


class Encoder(nn.Module, ABC):
    """A net from observations to latents.

    Stateless encoders take observations with any leading dims. Stateful ones take ``[T, B, ...]`` with ``starts``
    ``[T, B]`` (the state is zeroed before a step that starts an episode) and ``state`` ``[B, ...]``.
    """

    @abstractmethod
    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        """Encode ``obs``; see the class for shapes."""

    def get_initial_state(self) -> Tree | None:
        """State of one sequence before its first step, without a batch dim; None for stateless encoders."""
        return None

    def parts(self) -> Sequence[nn.Module]:
        """The encoders this one is made of, in the order of the tree's nodes; none by default."""
        return ()

    if not TYPE_CHECKING:  # checkers must keep on seeing nn.Module's

        def __call__(self, obs: Tree, *args: Any, **kwargs: Any) -> Any:
            try:
                return nn.Module.__call__(self, obs, *args, **kwargs)
            except (AttributeError, KeyError, TypeError) as error:
                explain_input(self, obs, error)
                raise


class ModuleEncoder(Encoder):
    """Makes an encoder of any module that maps a batched observation to a latent tensor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(self.net(obs))


def as_encoder(net: nn.Module) -> Encoder:
    """``net`` itself if it is an :class:`Encoder`, else wrapped into one.

    Raises:
        TypeError: If ``net`` is no ``nn.Module``.
    """
    if isinstance(net, Encoder):
        return net
    if isinstance(net, nn.Module):
        return ModuleEncoder(net)
    raise TypeError(
        "build_encoder(): expected an nn.Module from batched observations to latents, got "
        f"{net!r}. Return a module, for example nn.Sequential(nn.Linear(4, 64), nn.ReLU())."
    )


N = TypeVar("N", bound=nn.Module)


def mark(net: N) -> N:
    """``net`` itself, remembered as an encoder that a catalog built, also in copies."""
    net.is_from_catalog = True  # type: ignore[assignment]
    return net


def is_marked(net: nn.Module) -> bool:
    """Whether a catalog built ``net`` as an encoder."""
    return "is_from_catalog" in vars(net)


encoder_rules: RuleTable[ModelConfig] = RuleTable("encoder")
"""Observation space → encoder config. Register a branch with ``@encoder_rules.register(SpaceClass, name=...)``."""
