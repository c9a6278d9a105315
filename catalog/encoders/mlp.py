"""Dense nets: the MLP encoder and its kin, the heads, and the branches of the tree that choose them."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from catalog.activations import Activation, Init
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.encoders.dense import DenseStack
from catalog.encoders.preprocessing import Vectorize, vector_width, vectorizer
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node


@dataclass(frozen=True, kw_only=True)
class MLPEncoderConfig(ModelConfig):
    """An MLP from ``[..., *input_dims]`` to ``[..., hidden_layer_dims[-1]]``, activated after every layer.

    With ``input_space`` it takes observations of that space, which :class:`Vectorize` makes one vector of;
    ``input_dims`` is then known and may be left out.

    Raises:
        ValueError: If there are no layers, or no input of one positive width.
    """

    input_dims: tuple[int, ...] = ()
    hidden_layer_dims: tuple[int, ...] = (64, 64)
    hidden_layer_activation: Activation = "tanh"
    hidden_layer_use_layernorm: bool = False
    hidden_layer_dropout: float = 0.0
    init: Init = field(default_factory=Init)
    input_space: Space | None = None

    def __post_init__(self) -> None:
        if self.input_space is not None:
            width = (vector_width(self.input_space, "MLPEncoderConfig.input_space"),)
            if self.input_dims not in ((), width):
                raise ValueError(
                    f"MLPEncoderConfig.input_dims: expected {width}, which is what "
                    f"{self.input_space} gives, got {self.input_dims}. Leave it out where there is "
                    "an input_space."
                )
            object.__setattr__(self, "input_dims", width)
        _require_width("MLPEncoderConfig", self.input_dims)
        if not self.hidden_layer_dims:
            raise ValueError(
                "MLPEncoderConfig.hidden_layer_dims: expected at least one layer, got (). Give at "
                "least one width, for example (64,), or use VectorEncoderConfig(input_space=...)."
            )

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.hidden_layer_dims[-1],)

    def build(self) -> "MLPEncoder":
        return MLPEncoder(self)


class MLPEncoder(DenseStack, Encoder):
    """The net of an :class:`MLPEncoderConfig`."""

    def __init__(self, config: MLPEncoderConfig) -> None:
        super().__init__(
            config.input_dims[0],
            config.hidden_layer_dims,
            activation=config.hidden_layer_activation,
            layernorm=config.hidden_layer_use_layernorm,
            dropout=config.hidden_layer_dropout,
            init=config.init,
        )
        self.vectorize = None if config.input_space is None else vectorizer(config.input_space)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        vectorize = self.vectorize
        return EncoderOutput(self.run(obs if vectorize is None else vectorize(obs)))


@dataclass(frozen=True, kw_only=True)
class VectorEncoderConfig(ModelConfig):
    """Observations of ``input_space`` as one vector, without a net: what an MLP without layers is.

    Raises:
        ValueError: If ``input_space`` holds a part that has no array form or no entries.
    """

    input_space: Space

    def __post_init__(self) -> None:
        vector_width(self.input_space, "VectorEncoderConfig.input_space")

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (vector_width(self.input_space),)

    def build(self) -> "VectorEncoder":
        return VectorEncoder(self)


class VectorEncoder(Encoder):
    """The net of a :class:`VectorEncoderConfig`."""

    def __init__(self, config: VectorEncoderConfig) -> None:
        super().__init__()
        self.vectorize = Vectorize(config.input_space)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(self.vectorize(obs))


@dataclass(frozen=True, kw_only=True)
class EmbeddingEncoderConfig(ModelConfig):
    """A learned vector for each value of a Discrete (normal, as torch starts it), then an MLP; ``[...] → [..., D]``.

    Without ``hidden_layer_dims`` the embedding itself is the latent.
    """

    input_space: spaces.Discrete
    embedding_dim: int
    hidden_layer_dims: tuple[int, ...] = (64, 64)
    hidden_layer_activation: Activation = "tanh"
    hidden_layer_use_layernorm: bool = False
    hidden_layer_dropout: float = 0.0
    init: Init = field(default_factory=Init)

    @property
    def output_dims(self) -> tuple[int, ...]:
        return ((self.embedding_dim, *self.hidden_layer_dims)[-1],)

    def build(self) -> "EmbeddingEncoder":
        return EmbeddingEncoder(self)


class EmbeddingEncoder(DenseStack, Encoder):
    """The net of an :class:`EmbeddingEncoderConfig`."""

    def __init__(self, config: EmbeddingEncoderConfig) -> None:
        super().__init__(
            config.embedding_dim,
            config.hidden_layer_dims,
            activation=config.hidden_layer_activation,
            layernorm=config.hidden_layer_use_layernorm,
            dropout=config.hidden_layer_dropout,
            init=config.init,
        )
        self.start = int(config.input_space.start)
        self.embedding = nn.Embedding(int(config.input_space.n), config.embedding_dim)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(self.run(self.embedding(obs.long() - self.start)))


@dataclass(frozen=True, kw_only=True)
class MLPHeadConfig(ModelConfig):
    """A head from ``[..., *input_dims]`` to ``[..., output_layer_dim]``; the output layer is linear.

    With ``clip_log_std`` the outputs that are log standard deviations are clamped to ``±log_std_clip_param``:
    those at ``log_std_indices``, or the second half if it is None.

    Raises:
        ValueError: If ``input_dims`` is not one positive width, or an output that is split in half has an odd one.
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
        _require_width(type(self).__name__, self.input_dims)
        if self.output_layer_dim < 1:
            raise ValueError(
                f"{type(self).__name__}.output_layer_dim: expected an int > 0, got "
                f"{self.output_layer_dim}. Give the head at least one output."
            )
        if self.clip_log_std:
            self._require_log_stds()

    def _require_log_stds(self) -> None:
        dim, given = self.output_layer_dim, self.log_std_indices
        if dim % 2 if given is None else not set(given) <= set(range(dim)):
            where = "output_layer_dim" if given is None else "log_std_indices"
            expected = "an even number (means and log-stds)" if given is None else f"indices of {dim} outputs"
            got = dim if given is None else given
            raise ValueError(
                f"{type(self).__name__}.{where}: expected {expected}, got {got}. Use twice the "
                "number of action dimensions, or say in log_std_indices which are log-stds."
            )

    @property
    def log_stds(self) -> tuple[int, ...]:
        """Indices of the outputs that are log standard deviations, where the head treats them in a way of their own."""
        dim = self.output_layer_dim
        return tuple(range(dim // 2, dim)) if self.log_std_indices is None else self.log_std_indices

    def with_log_stds(self, indices: tuple[int, ...], model_config: DefaultModelConfig) -> "MLPHeadConfig":
        """This head, treating the outputs at ``indices`` as log standard deviations the way the settings say.

        Args:
            indices: As from ``Distribution.log_std_indices``; without any the head stays as it is.
            model_config: Says with ``free_log_std`` whether they depend on the state, and how they are bounded.
        """
        if not indices:
            return self
        given: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(MLPHeadConfig)}
        given |= {"log_std_indices": tuple(indices), "log_std_clip_param": model_config.log_std_clip_param}
        if model_config.free_log_std:
            return FreeLogStdMLPHeadConfig(**given)
        return MLPHeadConfig(**{**given, "clip_log_std": True})

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
            high = torch.full((config.output_layer_dim,), math.inf)
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_log_stds()

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
    return {
        "input_dim": config.input_dims[0],
        "hidden_dims": config.hidden_layer_dims,
        "activation": config.hidden_layer_activation,
        "layernorm": config.hidden_layer_use_layernorm,
        "init": config.init,
        "output_dim": output_dim,
        "output_init": config.output_init,
    }


def _require_width(where: str, dims: tuple[int, ...]) -> None:
    if len(dims) != 1 or dims[0] < 1:
        raise ValueError(
            f"{where}.input_dims: expected one positive width, such as (64,), got {dims}. Flatten "
            "what comes before: a dense net reads vectors [..., D]."
        )


def encoder_init(model_config: DefaultModelConfig) -> Init:
    """How the default encoders' dense layers start."""
    return Init.from_settings(
        model_config.fcnet_kernel_initializer,
        model_config.fcnet_kernel_initializer_kwargs,
        model_config.fcnet_bias_initializer,
        model_config.fcnet_bias_initializer_kwargs,
        "fcnet",
    )


def head_init(model_config: DefaultModelConfig) -> Init:
    """How the heads' hidden layers start."""
    return Init.from_settings(
        model_config.head_fcnet_kernel_initializer,
        model_config.head_fcnet_kernel_initializer_kwargs,
        model_config.head_fcnet_bias_initializer,
        model_config.head_fcnet_bias_initializer_kwargs,
        "head_fcnet",
    )


def mlp_encoder_config(space: Space, model_config: DefaultModelConfig, path: str = "observation_space") -> ModelConfig:
    """The MLP the model settings describe, over observations of ``space`` as one vector; the vector without layers.

    Raises:
        ValueError: If ``space`` holds a part that has no array form or no entries; names the path to it.
    """
    vector_width(space, path)  # refuses with the path
    if not model_config.fcnet_hiddens:
        return VectorEncoderConfig(input_space=space)
    return MLPEncoderConfig(input_space=space, **_hidden_layers(model_config))


def _hidden_layers(model_config: DefaultModelConfig) -> dict[str, Any]:
    """Arguments of the config of an encoder with hidden layers."""
    return {
        "hidden_layer_dims": model_config.fcnet_hiddens,
        "hidden_layer_activation": model_config.fcnet_activation,
        "hidden_layer_use_layernorm": model_config.fcnet_use_layernorm,
        "hidden_layer_dropout": model_config.fcnet_dropout,
        "init": encoder_init(model_config),
    }


INIT_SETTINGS = (
    "fcnet_kernel_initializer",
    "fcnet_kernel_initializer_kwargs",
    "fcnet_bias_initializer",
    "fcnet_bias_initializer_kwargs",
)
_SETTINGS = ("fcnet_hiddens", "fcnet_activation", "fcnet_use_layernorm", "fcnet_dropout", *INIT_SETTINGS)


def _is_vector(space: spaces.Box, model_config: DefaultModelConfig) -> bool:
    return len(space.shape) < 2


def _is_matrix(space: spaces.Box, model_config: DefaultModelConfig) -> bool:
    return len(space.shape) == 2 and model_config.matrix_observations == "flatten"


def _is_flattened(space: Space, model_config: DefaultModelConfig) -> bool:
    return model_config.flatten_observations


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
    spaces.Box, name="Box of rank 2 → one vector → MLP", when=_is_matrix, settings=("matrix_observations", *_SETTINGS)
)
@encoder_rules.register(spaces.Box, name="Box of rank 0 or 1 → MLP", when=_is_vector, settings=_SETTINGS)
def _(space: Space, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> ModelConfig:
    return mlp_encoder_config(space, model_config, node.path)


@encoder_rules.register(
    spaces.Discrete,
    name="Discrete → embedding → MLP",
    when=lambda space, model_config: model_config.discrete_embedding_dim is not None,
    settings=("discrete_embedding_dim", *_SETTINGS),
)
def _(space: spaces.Discrete, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> ModelConfig:
    return EmbeddingEncoderConfig(
        input_space=space,
        embedding_dim=model_config.discrete_embedding_dim,  # type: ignore[arg-type]  # no None gets here
        **_hidden_layers(model_config),
    )
