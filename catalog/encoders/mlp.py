"""The MLP encoder, the dense heads, and the rules that choose the encoder."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from catalog.activations import Activation, Blocks, Init, Norm, check_blocks
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.encoders.dense import DenseStack
from catalog.encoders.preprocessing import Vectorize, vector_width, vectorizer
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node, of_rank


@dataclass(frozen=True, kw_only=True)
class MLPEncoderConfig(ModelConfig):
    """Config of an MLP from ``[..., *input_dims]`` to ``[..., hidden_layer_dims[-1]]``, with an activation after every
    layer. Without layers the latent is the input. With ``hidden_layer_blocks``, the widths after the first are those of
    residual blocks; see :class:`DenseStack`.

    With an ``input_space``, the MLP reads observations of that space, which :class:`Vectorize` turns into one vector,
    and ``input_dims`` follow from the space. With an ``embedding_dim``, the space must be Discrete, and an
    ``nn.Embedding`` turns each value into a learned vector instead.

    Attributes:
        input_dims: Width of the input, as a tuple of one.
        hidden_layer_dims: Widths of the layers.
        hidden_layer_activation, hidden_layer_dropout: Activation, and share of the activations that dropout sets to 0
            in training.
        hidden_layer_norm: Norm before each activation; None for none, unless ``hidden_layer_use_layernorm`` is set or
            there are residual blocks.
        hidden_layer_use_layernorm: Whether a LayerNorm precedes each activation.
        hidden_layer_blocks: Kind of the residual blocks; None stacks plain layers.
        init: Initialisers of the layers.
        input_space: Space of one observation; None for inputs that are vectors.
        embedding_dim: Width of the learned vector of each value; None for one-hot codes.

    Raises:
        ValueError: If ``input_dims`` is not one positive width, if the widths do not fit residual blocks, or if there
            are two norms.
    """

    input_dims: tuple[int, ...] = ()
    hidden_layer_dims: tuple[int, ...] = (64, 64)
    hidden_layer_activation: Activation = "tanh"
    hidden_layer_use_layernorm: bool = False
    hidden_layer_norm: Norm | None = None
    hidden_layer_blocks: Blocks | None = None
    hidden_layer_dropout: float = 0.0
    init: Init = field(default_factory=Init)
    input_space: Space | None = None
    embedding_dim: int | None = None

    def __post_init__(self) -> None:
        if self.input_space is not None:
            width = self.embedding_dim or vector_width(self.input_space, "MLPEncoderConfig.input_space")
            object.__setattr__(self, "input_dims", (width,))
        require_width(self)
        fields = ("hidden_layer_dims", "hidden_layer_norm", "hidden_layer_use_layernorm", "hidden_layer_blocks")
        check_blocks(type(self).__name__, vars(self), *fields)

    @property
    def output_dims(self) -> tuple[int, ...]:
        return ((*self.input_dims, *self.hidden_layer_dims)[-1],)

    def build(self) -> "MLPEncoder":
        return MLPEncoder(self)


class MLPEncoder(DenseStack, Encoder):
    """The net of an :class:`MLPEncoderConfig`."""

    def __init__(self, config: MLPEncoderConfig) -> None:
        super().__init__(**encoder_layers(config))
        space = config.input_space
        if config.embedding_dim is None:
            self.vectorize = None if space is None else vectorizer(space)
        else:
            assert isinstance(space, spaces.Discrete)
            self.vectorize = DiscreteEmbedding(space, config.embedding_dim)
        # without layers, the code is the latent
        self.is_wide = isinstance(self.vectorize, Vectorize) and self.vectorize.is_wide and bool(self.layers)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        vectorize = self.vectorize
        if self.is_wide:
            return EncoderOutput(self._run_wide(obs))
        return EncoderOutput(self.run(obs if vectorize is None else vectorize(obs)))

    def _run_wide(self, obs: Tree) -> Tensor:
        """Return the latents of observations whose one-hot codes would be wide, without making the codes."""
        assert isinstance(self.vectorize, Vectorize)
        first, *others = self.layers
        assert first.linear is not None
        product = self.vectorize.times(obs, first.linear["weight"]) + first.linear["bias"]
        return self.run(product, [first._replace(linear=None), *others])

    def take_members(self) -> None:
        super().take_members()
        self.is_wide = False  # stacked weights have other dims


class DiscreteEmbedding(nn.Embedding):
    """A learned vector for each value of a Discrete."""

    def __init__(self, space: spaces.Discrete, width: int) -> None:
        super().__init__(int(space.n), width)
        self.start = int(space.start)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.long() - self.start)


@dataclass(frozen=True, kw_only=True)
class MLPHeadConfig(ModelConfig):
    """Config of a head from ``[..., *input_dims]`` to ``[..., output_layer_dim]``. The output layer is linear.

    With ``clip_log_std``, the log standard deviations among the outputs are clamped to ``±log_std_clip_param``. These
    are the outputs at ``log_std_indices``, or the second half of the outputs if that is None.

    Attributes:
        input_dims: Width of the latent, as a tuple of one.
        output_layer_dim: Number of outputs.
        hidden_layer_dims: Widths of the hidden layers.
        hidden_layer_activation: Activation of the hidden layers.
        hidden_layer_use_layernorm: Whether a LayerNorm precedes each activation.
        init, output_init: Initialisers of the hidden layers, and of the output layer.
        clip_log_std: Whether to clamp the log standard deviations.
        log_std_clip_param: Bound on the magnitude of the log standard deviations.
        log_std_indices: Indices of the outputs that are log standard deviations.

    Raises:
        ValueError: If ``input_dims`` is not one positive width, or if there is no output. :meth:`build` also raises it
            if half of an odd number of outputs would be log standard deviations.
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
            "Give the number of outputs, or the indices of log-stds in log_std_indices."
        )

    @property
    def log_stds(self) -> tuple[int, ...]:
        """Indices of the outputs that are log standard deviations. Only heads that clip them or learn them as free
        parameters read this property.

        Raises:
            ValueError: If ``log_std_indices`` is None and the number of outputs is odd.
        """
        if self.log_std_indices is not None:
            return self.log_std_indices
        half, odd = divmod(self.output_layer_dim, 2)
        if odd:
            raise self._wrong_width("an even number (means and log-stds)")
        return tuple(range(half, 2 * half))

    def with_log_stds(self, indices: tuple[int, ...], model_config: DefaultModelConfig) -> "MLPHeadConfig":
        """Return the config of this head with log standard deviations at ``indices``.

        Args:
            indices: The result of ``Distribution.log_std_indices``; if it is empty, return this config.
            model_config: The settings. ``log_std_clip_param`` bounds the log standard deviations. With
                ``free_log_std`` they are learned parameters that do not depend on the state.
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

    def __init__(self, config: MLPHeadConfig) -> None:
        super().__init__(**head_layers(config, config.output_layer_dim))
        if config.clip_log_std:
            self.bound_outputs(config.log_stds, config.log_std_clip_param)

    def forward(self, latent: Tensor) -> Tensor:
        """Map ``[..., latent] → [..., output_layer_dim]``."""
        return self.bounded(self.run(latent))


@dataclass(frozen=True, kw_only=True)
class FreeLogStdMLPHeadConfig(MLPHeadConfig):
    """An :class:`MLPHeadConfig` with free log standard deviations: each is a learned parameter that does not depend on
    the state. The parameters start at 0. The head always clamps them to ``±log_std_clip_param`` and ignores
    ``clip_log_std``."""

    def build(self) -> "FreeLogStdMLPHead":
        return FreeLogStdMLPHead(self)


class FreeLogStdMLPHead(DenseStack):
    """A head whose log standard deviations are parameters, not outputs; see :class:`FreeLogStdMLPHeadConfig`."""

    order: Tensor

    def __init__(self, config: FreeLogStdMLPHeadConfig) -> None:
        log_stds, dim = config.log_stds, config.output_layer_dim
        super().__init__(**head_layers(config, dim - len(log_stds)))
        self.log_std = nn.Parameter(torch.zeros(len(log_stds)))
        self.log_std_bound = config.log_std_clip_param
        # Where to find each output among those of the net followed by the log-stds: the inverse of that order.
        order = torch.tensor([*(i for i in range(dim) if i not in log_stds), *log_stds]).argsort()
        self.moves = order.tolist() != [*range(dim)]
        self.register_buffer("order", order, persistent=False)

    def forward(self, latent: Tensor) -> Tensor:
        """Map ``[..., latent] → [..., output_layer_dim]``."""
        rest = self.run(latent)
        # clamps like torch.clamp, with a gradient in half the time
        log_std = functional.hardtanh(self.log_std, -self.log_std_bound, self.log_std_bound)
        out = torch.cat([rest, log_std.expand(*rest.shape[:-1], -1)], dim=-1)
        return out.index_select(-1, self.order) if self.moves else out


def encoder_layers(config: MLPEncoderConfig) -> dict[str, Any]:
    """Return, by name, the arguments of the :class:`DenseStack` of an encoder."""
    layers = hidden_layers(config) | {"input_dim": config.input_dims[0], "dropout": config.hidden_layer_dropout}
    return layers | {"norm": config.hidden_layer_norm or layers["norm"], "blocks": config.hidden_layer_blocks}


def head_layers(config: MLPHeadConfig, output_dim: int) -> dict[str, Any]:
    """Return, by name, the arguments of the :class:`DenseStack` of a head with ``output_dim`` outputs."""
    ends = {"input_dim": config.input_dims[0], "output_dim": output_dim, "output_init": config.output_init}
    return hidden_layers(config) | ends


def hidden_layers(config: MLPEncoderConfig | MLPHeadConfig) -> dict[str, Any]:
    """Return the arguments of a :class:`DenseStack` that encoder and head configs have in common, by name: the hidden
    widths, the activation, the norm and the initialisers."""
    return {
        "hidden_dims": config.hidden_layer_dims,
        "activation": config.hidden_layer_activation,
        "norm": "layer" if config.hidden_layer_use_layernorm else None,
        "init": config.init,
    }


def require_width(config: Any) -> None:
    """Raise ``ValueError`` unless ``config.input_dims`` is one positive width, such as ``(64,)``."""
    if len(config.input_dims) != 1 or config.input_dims[0] < 1:
        raise ValueError(
            f"{type(config).__name__}.input_dims: expected one positive width, such as (64,), got "
            f"{config.input_dims}. Flatten what comes before: a dense net reads vectors [..., D]."
        )


def fcnet_layers(model_config: DefaultModelConfig) -> dict[str, Any]:
    """Return, by name, the arguments of an :class:`MLPEncoderConfig` that follow from the ``fcnet_*`` settings."""
    return {
        "hidden_layer_dims": model_config.fcnet_hiddens,
        "hidden_layer_activation": model_config.fcnet_activation,
        "hidden_layer_use_layernorm": model_config.fcnet_use_layernorm,
        "hidden_layer_norm": model_config.fcnet_norm,
        "hidden_layer_blocks": model_config.fcnet_blocks,
        "hidden_layer_dropout": model_config.fcnet_dropout,
        "init": Init.of("fcnet", model_config),
    }


def _is_flattened(space: Space, model_config: DefaultModelConfig) -> bool:
    """Return whether the settings turn a Dict or Tuple into one vector."""
    return model_config.flatten_observations


def _is_embedded(space: Space, model_config: DefaultModelConfig) -> bool:
    return model_config.discrete_embedding_dim is not None


@encoder_rules.register(spaces.Discrete, name="Discrete → embedding → MLP", when=_is_embedded)
@encoder_rules.register(spaces.Tuple, name="Tuple → one vector → MLP", when=_is_flattened)
@encoder_rules.register(spaces.Dict, name="Dict → one vector → MLP", when=_is_flattened)
@encoder_rules.register(spaces.MultiBinary, name="MultiBinary → MLP")
@encoder_rules.register(spaces.MultiDiscrete, name="MultiDiscrete → one-hot per part → MLP")
@encoder_rules.register(spaces.Discrete, name="Discrete → one-hot → MLP")
@encoder_rules.register(spaces.Box, name="Box of rank 2 → one vector → MLP", when=of_rank(2, matrix="flatten"))
@encoder_rules.register(spaces.Box, name="Box of rank 0 or 1 → MLP", when=of_rank(0, 1))
def _(space: Space, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> MLPEncoderConfig:
    vector_width(space, node.path)  # raises an error that names the path
    return MLPEncoderConfig(
        input_space=space,
        embedding_dim=model_config.discrete_embedding_dim if isinstance(space, spaces.Discrete) else None,
        **fcnet_layers(model_config),
    )
