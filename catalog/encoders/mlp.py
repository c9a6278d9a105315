"""Dense nets: the MLP encoder, the heads, and the branches of the tree that choose the encoder."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from catalog.activations import Activation, Init
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.encoders.dense import DenseStack
from catalog.encoders.preprocessing import vector_width, vectorizer
from catalog.model_config import DefaultModelConfig, settings_about
from catalog.rules import Node


@dataclass(frozen=True, kw_only=True)
class MLPEncoderConfig(ModelConfig):
    """An MLP from ``[..., *input_dims]`` to ``[..., hidden_layer_dims[-1]]``, activated after every layer. Without
    layers the latent is the input.

    With ``input_space`` it takes observations of that space, which :class:`Vectorize` makes one vector of. Of a
    Discrete an ``embedding_dim`` learns a vector for each value instead (normal, as torch starts it). ``input_dims``
    follow from it.

    Raises:
        ValueError: If there is no input of one positive width.
    """

    input_dims: tuple[int, ...] = ()
    hidden_layer_dims: tuple[int, ...] = (64, 64)
    hidden_layer_activation: Activation = "tanh"
    hidden_layer_use_layernorm: bool = False
    hidden_layer_dropout: float = 0.0
    init: Init = field(default_factory=Init)
    input_space: Space | None = None
    embedding_dim: int | None = None

    def __post_init__(self) -> None:
        if self.input_space is not None:
            width = self.embedding_dim or vector_width(self.input_space, "MLPEncoderConfig.input_space")
            object.__setattr__(self, "input_dims", (width,))
        require_width(self)

    @property
    def output_dims(self) -> tuple[int, ...]:
        return ((*self.input_dims, *self.hidden_layer_dims)[-1],)

    def build(self) -> "MLPEncoder":
        return MLPEncoder(self)


class MLPEncoder(DenseStack, Encoder):
    """The net of an :class:`MLPEncoderConfig`."""

    def __init__(self, config: MLPEncoderConfig) -> None:
        super().__init__(config.input_dims[0], **hidden_layers(config), dropout=config.hidden_layer_dropout)
        space = config.input_space
        if config.embedding_dim is None:
            self.vectorize = None if space is None else vectorizer(space)
        else:
            assert isinstance(space, spaces.Discrete)
            self.vectorize = DiscreteEmbedding(space, config.embedding_dim)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        vectorize = self.vectorize
        return EncoderOutput(self.run(obs if vectorize is None else vectorize(obs)))


class DiscreteEmbedding(nn.Embedding):
    """A learned vector for each value of a Discrete."""

    def __init__(self, space: spaces.Discrete, width: int) -> None:
        super().__init__(int(space.n), width)
        self.start = int(space.start)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.long() - self.start)


@dataclass(frozen=True, kw_only=True)
class MLPHeadConfig(ModelConfig):
    """A head from ``[..., *input_dims]`` to ``[..., output_layer_dim]``; the output layer is linear.

    With ``clip_log_std`` the outputs that are log standard deviations are clamped to ``±log_std_clip_param``:
    those at ``log_std_indices``, or the second half if it is None.

    Raises:
        ValueError: If ``input_dims`` is not one positive width, or there are no outputs, or an odd number of which half
            are to be log standard deviations.
    """

    input_dims: tuple[int, ...]
    output_layer_dim: int
    hidden_layer_dims: tuple[int, ...] = ()
    hidden_layer_activation: Activation = "tanh"
    hidden_layer_use_layernorm: bool = False
    init: Init = field(default_factory=Init)
    output_init: Init = field(default_factory=Init)
    clip_log_std: bool = False
    log_std_clip_param: float = 20.0
    log_std_indices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_width(self)
        if self.output_layer_dim < 1:
            raise self._wrong_width("an int > 0")

    def _wrong_width(self, expected: str) -> ValueError:
        return ValueError(
            f"{type(self).__name__}.output_layer_dim: expected {expected}, got {self.output_layer_dim}. "
            "Count the outputs, or say in log_std_indices which are log-stds."
        )

    @property
    def log_stds(self) -> tuple[int, ...]:
        """Indices of the outputs that are log standard deviations, where the head treats them in a way of their own."""
        if self.log_std_indices is not None:
            return self.log_std_indices
        half, odd = divmod(self.output_layer_dim, 2)
        if odd:
            raise self._wrong_width("an even number (means and log-stds)")
        return tuple(range(half, 2 * half))

    def with_log_stds(self, indices: tuple[int, ...], model_config: DefaultModelConfig) -> "MLPHeadConfig":
        """This head, treating the outputs at ``indices`` as log standard deviations the way the settings say.

        Args:
            indices: As from ``Distribution.log_std_indices``; without any the head stays as it is.
            model_config: Says with ``free_log_std`` whether they depend on the state, and how they are bounded.
        """
        if not indices:
            return self
        clip = model_config.log_std_clip_param
        if model_config.free_log_std:
            return FreeLogStdMLPHeadConfig(**vars(self) | {"log_std_indices": indices, "log_std_clip_param": clip})
        return dataclasses.replace(self, clip_log_std=True, log_std_indices=indices, log_std_clip_param=clip)

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.output_layer_dim,)

    def build(self) -> DenseStack:
        return MLPHead(self)


class MLPHead(DenseStack):
    """The net of an :class:`MLPHeadConfig`."""

    low: Tensor
    high: Tensor

    def __init__(self, config: MLPHeadConfig) -> None:
        super().__init__(**head_layers(config, config.output_layer_dim))
        self.clips = config.clip_log_std
        if self.clips:
            high = torch.full((config.output_layer_dim,), torch.inf)
            high[list(config.log_stds)] = config.log_std_clip_param
            self.register_buffer("low", -high, persistent=False)
            self.register_buffer("high", high, persistent=False)

    def forward(self, latent: Tensor) -> Tensor:
        """``[..., latent] → [..., output_layer_dim]``."""
        out = self.run(latent)
        return torch.clamp(out, self.low, self.high) if self.clips else out


@dataclass(frozen=True, kw_only=True)
class FreeLogStdMLPHeadConfig(MLPHeadConfig):
    """Like :class:`MLPHeadConfig`, but the outputs that are log standard deviations do not come from the net: each is
    one learned number, the same in every state. It starts at 0 and is used within ``±log_std_clip_param``."""

    def build(self) -> "FreeLogStdMLPHead":
        return FreeLogStdMLPHead(self)


class FreeLogStdMLPHead(DenseStack):
    """The net of a :class:`FreeLogStdMLPHeadConfig`."""

    order: Tensor

    def __init__(self, config: FreeLogStdMLPHeadConfig) -> None:
        log_stds, dim = config.log_stds, config.output_layer_dim
        super().__init__(**head_layers(config, dim - len(log_stds)))
        self.log_std = nn.Parameter(torch.zeros(len(log_stds)))
        self.log_std_bound = config.log_std_clip_param
        order = torch.tensor([*(i for i in range(dim) if i not in log_stds), *log_stds]).argsort()
        self.moves = order.tolist() != [*range(dim)]
        self.register_buffer("order", order, persistent=False)

    def forward(self, latent: Tensor) -> Tensor:
        """``[..., latent] → [..., output_layer_dim]``."""
        rest = self.run(latent)
        # a clamp whose gradient takes half the time
        log_std = functional.hardtanh(self.log_std, -self.log_std_bound, self.log_std_bound)
        out = torch.cat([rest, log_std.expand(*rest.shape[:-1], -1)], dim=-1)
        return out.index_select(-1, self.order) if self.moves else out


def head_layers(config: MLPHeadConfig, output_dim: int) -> dict[str, Any]:
    """Arguments of the :class:`DenseStack` of a head."""
    ends = {"input_dim": config.input_dims[0], "output_dim": output_dim, "output_init": config.output_init}
    return hidden_layers(config) | ends


def hidden_layers(config: MLPEncoderConfig | MLPHeadConfig) -> dict[str, Any]:
    """Arguments of the :class:`DenseStack` of an encoder or head, but for its ends."""
    return {
        "hidden_dims": config.hidden_layer_dims,
        "activation": config.hidden_layer_activation,
        "layernorm": config.hidden_layer_use_layernorm,
        "init": config.init,
    }


def require_width(config: Any) -> None:
    """Make sure that the ``input_dims`` of ``config`` are one positive width.

    Raises:
        ValueError: If they are not.
    """
    if len(config.input_dims) != 1 or config.input_dims[0] < 1:
        raise ValueError(
            f"{type(config).__name__}.input_dims: expected one positive width, such as (64,), got "
            f"{config.input_dims}. Flatten what comes before: a dense net reads vectors [..., D]."
        )


_SETTINGS = settings_about("fcnet_")


def _is_flattened(space: Space, model_config: DefaultModelConfig) -> bool:
    """Return whether a Dict or Tuple becomes one vector."""
    return model_config.flatten_observations


@encoder_rules.register(
    spaces.Discrete,
    name="Discrete → embedding → MLP",
    when=lambda space, model_config: model_config.discrete_embedding_dim is not None,
    settings=("discrete_embedding_dim", *_SETTINGS),
)
@encoder_rules.register(
    spaces.Tuple, name="Tuple → one vector → MLP", when=_is_flattened, settings=("flatten_observations", *_SETTINGS)
)
@encoder_rules.register(
    spaces.Dict, name="Dict → one vector → MLP", when=_is_flattened, settings=("flatten_observations", *_SETTINGS)
)
@encoder_rules.register(spaces.MultiBinary, name="MultiBinary → MLP", settings=_SETTINGS)
@encoder_rules.register(spaces.MultiDiscrete, name="MultiDiscrete → one-hot per part → MLP", settings=_SETTINGS)
@encoder_rules.register(
    spaces.Discrete, name="Discrete → one-hot → MLP", settings=("discrete_embedding_dim", *_SETTINGS)
)
@encoder_rules.register(
    spaces.Box,
    name="Box of rank 2 → one vector → MLP",
    when=lambda space, model_config: len(space.shape) == 2 and model_config.matrix_observations == "flatten",
    settings=("matrix_observations", *_SETTINGS),
)
@encoder_rules.register(
    spaces.Box,
    name="Box of rank 0 or 1 → MLP",
    when=lambda space, model_config: len(space.shape) < 2,
    settings=_SETTINGS,
)
def _(space: Space, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> MLPEncoderConfig:
    vector_width(space, node.path)  # refuses with the path
    return MLPEncoderConfig(
        input_space=space,
        embedding_dim=model_config.discrete_embedding_dim if isinstance(space, spaces.Discrete) else None,
        hidden_layer_dims=model_config.fcnet_hiddens,
        hidden_layer_activation=model_config.fcnet_activation,
        hidden_layer_use_layernorm=model_config.fcnet_use_layernorm,
        hidden_layer_dropout=model_config.fcnet_dropout,
        init=Init.of("fcnet", model_config),
    )
