"""Dense nets: the MLP encoder, the heads, and the branches of the tree that choose them."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.errors import explain_error
from catalog.model_config import DefaultModelConfig
from catalog.nn import DenseStack, Init
from catalog.preprocessing import OneHot, one_hot_dim


@dataclass(frozen=True, kw_only=True)
class MLPEncoderConfig(ModelConfig):
    """An MLP from ``[..., *input_dims]`` to ``[..., hidden_layer_dims[-1]]``, activated after every layer.

    With ``one_hot`` (the sizes of the categorical parts) the input is integer ``[...]`` or ``[..., parts]`` instead.
    """

    input_dims: tuple[int, ...]
    hidden_layer_dims: tuple[int, ...] = (64, 64)
    hidden_layer_activation: str = "tanh"
    hidden_layer_use_layernorm: bool = False
    init: Init = field(default_factory=Init)
    one_hot: spaces.Discrete | spaces.MultiDiscrete | None = None

    def __post_init__(self) -> None:
        if not self.hidden_layer_dims:
            raise ValueError(
                explain_error(
                    "MLPEncoderConfig.hidden_layer_dims",
                    expected="at least one layer",
                    got="()",
                    remedy="Give at least one width, for example fcnet_hiddens=[64].",
                )
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
            init=config.init,
        )
        self.one_hot = None if config.one_hot is None else OneHot(config.one_hot)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(self.run(obs if self.one_hot is None else self.one_hot(obs)))


@dataclass(frozen=True, kw_only=True)
class MLPHeadConfig(ModelConfig):
    """A head from ``[..., *input_dims]`` to ``[..., output_layer_dim]``; the output layer is linear.

    With ``clip_log_std`` the second half of the outputs (log standard deviations) is clamped to
    ``±log_std_clip_param``.
    """

    input_dims: tuple[int, ...]
    output_layer_dim: int
    hidden_layer_dims: tuple[int, ...] = ()
    hidden_layer_activation: str = "tanh"
    init: Init = field(default_factory=Init)
    output_init: Init = field(default_factory=Init)
    clip_log_std: bool = False
    log_std_clip_param: float = 20.0

    def __post_init__(self) -> None:
        if self.clip_log_std:
            _require_even(type(self).__name__, self.output_layer_dim)

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.output_layer_dim,)

    def build(self) -> "MLPHead":
        return MLPHead(self)


class MLPHead(DenseStack):
    """The net of an :class:`MLPHeadConfig`."""

    def __init__(self, config: MLPHeadConfig) -> None:
        super().__init__(**_head_layers(config, config.output_layer_dim))
        self.log_std_bound = config.log_std_clip_param if config.clip_log_std else None

    def forward(self, latent: Tensor) -> Tensor:
        """``[..., latent] → [..., output_layer_dim]``."""
        out = self.run(latent)
        if self.log_std_bound is None:
            return out
        mean, log_std = out.chunk(2, dim=-1)
        return torch.cat([mean, log_std.clamp(-self.log_std_bound, self.log_std_bound)], dim=-1)


@dataclass(frozen=True, kw_only=True)
class FreeLogStdMLPHeadConfig(MLPHeadConfig):
    """Like :class:`MLPHeadConfig`, but the net gives the first half of the outputs (means) only; the second half is
    one learned log-std per dimension, the same in every state, starting at 0."""

    def __post_init__(self) -> None:
        _require_even(type(self).__name__, self.output_layer_dim)

    def build(self) -> "FreeLogStdMLPHead":  # type: ignore[override]  # both heads are nn.Modules from latents to outputs
        return FreeLogStdMLPHead(self)


class FreeLogStdMLPHead(DenseStack):
    """The net of a :class:`FreeLogStdMLPHeadConfig`."""

    def __init__(self, config: FreeLogStdMLPHeadConfig) -> None:
        super().__init__(**_head_layers(config, config.output_layer_dim // 2))
        self.log_std = nn.Parameter(torch.zeros(config.output_layer_dim // 2))

    def forward(self, latent: Tensor) -> Tensor:
        """``[..., latent] → [..., output_layer_dim]``."""
        mean = self.run(latent)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


def _head_layers(config: MLPHeadConfig, output_dim: int) -> dict[str, Any]:
    """Arguments of the :class:`DenseStack` of a head."""
    return {
        "input_dim": config.input_dims[0],
        "hidden_dims": config.hidden_layer_dims,
        "activation": config.hidden_layer_activation,
        "layernorm": False,
        "init": config.init,
        "output_dim": output_dim,
        "output_init": config.output_init,
    }


def _require_even(where: str, output_dim: int) -> None:
    if output_dim % 2:
        raise ValueError(
            explain_error(
                f"{where}.output_layer_dim",
                expected="an even number (means and log-stds)",
                got=output_dim,
                remedy="Use twice the number of action dimensions.",
            )
        )


_MLP_SETTINGS = (
    "fcnet_hiddens",
    "fcnet_activation",
    "fcnet_use_layernorm",
    "fcnet_kernel_initializer",
    "fcnet_bias_initializer",
)


def encoder_init(model_config: DefaultModelConfig) -> Init:
    """How the default encoders' dense layers start."""
    kernel, kernel_kwargs = model_config.fcnet_kernel_initializer, model_config.fcnet_kernel_initializer_kwargs
    if kernel_kwargs is None:
        kernel_kwargs = {"gain": math.sqrt(2)} if kernel == "orthogonal_" else {}
    bias_kwargs = model_config.fcnet_bias_initializer_kwargs or {}
    return Init(
        kernel=kernel, kernel_kwargs=kernel_kwargs, bias=model_config.fcnet_bias_initializer, bias_kwargs=bias_kwargs
    )


def mlp_encoder_config(
    input_dim: int, model_config: DefaultModelConfig, one_hot: spaces.Discrete | spaces.MultiDiscrete | None = None
) -> MLPEncoderConfig:
    """The MLP encoder the model settings describe, for inputs of width ``input_dim``."""
    return MLPEncoderConfig(
        input_dims=(input_dim,),
        hidden_layer_dims=model_config.fcnet_hiddens,
        hidden_layer_activation=model_config.fcnet_activation,
        hidden_layer_use_layernorm=model_config.fcnet_use_layernorm,
        init=encoder_init(model_config),
        one_hot=one_hot,
    )


def _is_float_vector(space: spaces.Box, model_config: DefaultModelConfig) -> bool:
    return len(space.shape) == 1 and space.dtype is not None and space.dtype.kind == "f"


@encoder_rules.register(spaces.Box, name="float Box of rank 1 → MLP", when=_is_float_vector, settings=_MLP_SETTINGS)
def _(space: spaces.Box, model_config: DefaultModelConfig, path: str) -> ModelConfig:
    return mlp_encoder_config(space.shape[0], model_config)


@encoder_rules.register(spaces.Discrete, name="Discrete → one-hot → MLP", settings=_MLP_SETTINGS)
def _(space: spaces.Discrete, model_config: DefaultModelConfig, path: str) -> ModelConfig:
    return mlp_encoder_config(one_hot_dim(space), model_config, space)


@encoder_rules.register(spaces.MultiDiscrete, name="MultiDiscrete → one-hot per part → MLP", settings=_MLP_SETTINGS)
def _(space: spaces.MultiDiscrete, model_config: DefaultModelConfig, path: str) -> ModelConfig:
    return mlp_encoder_config(one_hot_dim(space), model_config, space)
