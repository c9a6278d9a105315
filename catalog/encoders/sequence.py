"""The encoder of a sequence of rows: a GRU over the rows of one observation.

An encoder is a config, the net that the config builds, and a rule that chooses the config for a space. This file is the
shortest example of all three. A new encoder is a file like this one, which ``catalog/__init__.py`` imports. Its
settings are fields of ``DefaultModelConfig``.
"""

import math
from dataclasses import dataclass, field

from gymnasium import spaces
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.encoders.memory import start_gates
from catalog.encoders.preprocessing import is_byte_box, vector_width
from catalog.encoders.recurrent import layer_weights, run_layer
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node, of_rank


@dataclass(frozen=True, kw_only=True)
class SequenceEncoderConfig(ModelConfig):
    """Config of a GRU over the rows of each observation, ``[..., L, F] → [..., hidden_dim]``.

    The latent is the output after the last row. The net has no memory between steps of the env.

    Attributes:
        input_dims: Number of rows and of numbers per row, (L, F).
        hidden_dim: Width of the GRU.
        init: Initialisers of the weights, applied to each gate separately.
        scale: Factor by which the numbers of an observation are multiplied.
    """

    input_dims: tuple[int, ...]
    hidden_dim: int = 64
    init: Init = field(default_factory=Init)
    scale: float = 1.0

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.hidden_dim,)

    def build(self) -> "SequenceEncoder":
        return SequenceEncoder(self)


class SequenceEncoder(Encoder):
    """The net of a :class:`SequenceEncoderConfig`."""

    def __init__(self, config: SequenceEncoderConfig) -> None:
        super().__init__()
        self.input_dims, self.hidden_dim, self.scale = tuple(config.input_dims), config.hidden_dim, config.scale
        self.gru = nn.GRU(config.input_dims[1], config.hidden_dim)
        start_gates(config.init, layer_weights(self.gru), config.hidden_dim)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        """Return latents ``[..., hidden_dim]`` of matrices ``[..., L, F]``. Ignore ``state`` and ``starts``."""
        leading = obs.shape[:-2]
        weights = layer_weights(self.gru)
        rows = obs.reshape(math.prod(leading), *self.input_dims).transpose(0, 1).to(weights[0].dtype)
        if self.scale != 1:
            rows = rows * self.scale
        _, (last,) = run_layer(rows, (rows.new_zeros(rows.shape[1], self.hidden_dim),), weights)
        return EncoderOutput(last.view(*leading, self.hidden_dim))


@encoder_rules.register(
    spaces.Box, name="Box of rank 2 as a sequence of rows → GRU", when=of_rank(2, matrix="sequence")
)
def _(space: spaces.Box, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> ModelConfig:
    vector_width(space, node.path)  # refuses a space without entries
    if not model_config.fcnet_hiddens:
        raise ValueError(
            "model_config.fcnet_hiddens: expected a last width for the GRU over the rows of "
            f"{node.path}, got (). Give at least one width, for example [64]."
        )
    return SequenceEncoderConfig(
        input_dims=space.shape,
        hidden_dim=model_config.fcnet_hiddens[-1],
        init=Init.of("lstm", model_config, gain=1.0),
        scale=1 / 255 if is_byte_box(space) else 1.0,
    )
