"""Encoders of nested observations, with an encoder per part of a Dict or Tuple and dense layers that join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.activations import Activation, Init
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, as_encoder, encoder_rules
from catalog.encoders.dense import DenseStack
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node
from catalog.spaces import space_parts


@dataclass(frozen=True, kw_only=True)
class MultiStreamEncoderConfig(ModelConfig):
    """Config of an encoder per part of a dict or tuple, and an MLP over their concatenated latents.

    Attributes:
        encoders: Config of the encoder of each part, by key or index. Parts that it does not name are ignored.
        fusion_hidden_dims: Widths of the MLP, with an activation after each layer; () only concatenates the latents.
        fusion_activation, init: Activation and initialisers of the MLP.
        where: Path to the dict or tuple, for error messages.

    Raises:
        ValueError: If ``encoders`` is empty.
    """

    encoders: Mapping[str | int, ModelConfig]
    fusion_hidden_dims: tuple[int, ...] = (64,)
    fusion_activation: Activation = "tanh"
    init: Init = field(default_factory=Init)
    where: str = field(default="MultiStreamEncoderConfig.encoders", repr=False)

    def __post_init__(self) -> None:
        if not self.encoders:
            raise ValueError(
                f"{self.where}: expected at least one part, got none. Leave it out of the "
                "observation with an environment wrapper."
            )

    @property
    def concatenated_dim(self) -> int:
        """Width of the concatenated latents.

        Raises:
            ValueError: If the latents of a part are not vectors.
        """
        dims = {key: config.output_dims for key, config in self.encoders.items()}
        for key, of_part in dims.items():
            if np.shape(of_part) != (1,):
                raise ValueError(
                    f"{self.where}[{key!r}]: expected an encoder of vectors, with output_dims such as (64,), got "
                    f"{type(self.encoders[key]).__name__} with output_dims {of_part}. Flatten its output."
                )
        return sum(width for [width] in dims.values())

    @property
    def output_dims(self) -> tuple[int, ...]:
        return ((self.concatenated_dim, *self.fusion_hidden_dims)[-1],)

    def build(self) -> MultiStreamEncoder:
        return MultiStreamEncoder(self)


class MultiStreamEncoder(DenseStack, Encoder):
    """The net of a :class:`MultiStreamEncoderConfig`. It accepts any leading dims that the encoders of its parts do.

    Raises:
        ValueError: If a part's encoder has a state.
    """

    def __init__(self, config: MultiStreamEncoderConfig) -> None:
        super().__init__(
            config.concatenated_dim, config.fusion_hidden_dims, activation=config.fusion_activation, init=config.init
        )
        self.keys = tuple(config.encoders)
        # not a ModuleDict, which refuses keys with dots
        self.encoders = nn.ModuleList(as_encoder(part.build()) for part in config.encoders.values())
        for key, encoder in zip(self.keys, self.parts(), strict=True):
            if encoder.get_initial_state() is not None:
                raise ValueError(
                    f"{config.where}[{key!r}]: expected an encoder without a state, got "
                    f"{type(encoder).__name__}. Put the net with a memory behind all parts, with "
                    "use_lstm, use_gru or use_attention."
                )

    def parts(self) -> Sequence[Encoder]:
        return [*self.encoders]  # type: ignore[list-item]  # as_encoder made them

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        latents = [encoder(obs[key]).latent for key, encoder in zip(self.keys, self.encoders, strict=True)]
        return EncoderOutput(self.run(torch.cat(latents, -1) if len(latents) > 1 else latents[0]))


def _has_streams(space: Space, model_config: DefaultModelConfig) -> bool:
    return not model_config.flatten_observations


@encoder_rules.register(spaces.Tuple, name="Tuple → an encoder per part, fused", when=_has_streams)
@encoder_rules.register(spaces.Dict, name="Dict → an encoder per part, fused", when=_has_streams)
def _(
    space: spaces.Dict | spaces.Tuple, model_config: DefaultModelConfig, node: Node[ModelConfig]
) -> MultiStreamEncoderConfig:
    encoders = {key: node.child(key, part) for key, part in space_parts(space).items()}
    return MultiStreamEncoderConfig(
        encoders=encoders,
        fusion_hidden_dims=model_config.fusionnet_hiddens if len(encoders) > 1 else (),
        fusion_activation=model_config.fusionnet_activation,
        init=Init.of("fcnet", model_config),
        where=node.path,
    )
