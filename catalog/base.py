"""What every net of the catalog has in common: a config that builds it, and the encoder's contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from catalog.errors import explain_error
from catalog.rules import RuleTable

Tree = Any
"""A tensor (or array), or a nested dict/tuple of them shaped like the space it belongs to."""


class EncoderOutput(NamedTuple):
    """What an encoder returns.

    Attributes:
        latent: ``[..., *output_dims]`` with the leading dims of the observation.
        state: Next recurrent state ``[B, ...]``; None for stateless encoders.
    """

    latent: Tensor
    state: Tree | None = None


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


class ModelConfig(ABC):
    """Describes a net from its dimensions; ``output_dims`` is known before anything is built."""

    @property
    @abstractmethod
    def output_dims(self) -> tuple[int, ...]:
        """Shape of one output, without leading dims."""

    @abstractmethod
    def build(self) -> nn.Module:
        """A new net with fresh weights."""


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
    if not isinstance(net, nn.Module):
        raise TypeError(
            explain_error(
                "build_encoder()",
                expected="an nn.Module from batched observations to latents",
                got=repr(net),
                remedy="Return a module, for example nn.Sequential(nn.Linear(4, 64), nn.ReLU()).",
            )
        )
    return ModuleEncoder(net)


encoder_rules: RuleTable[ModelConfig] = RuleTable("encoder")
"""Observation space → encoder config. Register a branch with ``@encoder_rules.register(SpaceClass, name=...)``."""
