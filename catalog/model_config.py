"""The settings of the default nets, and how a partial dict becomes a full config."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn
from typing_extensions import Self

from catalog.activations import Activation, Initializer
from catalog.errors import closest
from catalog.migration import remedy_for
from catalog.setting import (
    ENCODER,
    HEAD,
    MODULE,
    activation,
    count,
    initializer,
    is_class_or_name,
    is_dist,
    is_filters,
    is_int,
    is_key,
    is_number,
    is_overrides,
    keywords,
    model_flag,
    model_setting,
    one_of,
    open_flag,
    widths,
)

MEMORIES = ("use_lstm", "use_gru", "use_attention")
"""Settings that put a net with a memory behind the encoder, of which one at most is True."""

_BEHIND = ("lstm_", "attention_")
"""How the names of settings of nets begin that stand behind those of all parts,"""
_OF_ROWS = ("lstm_kernel_", "lstm_bias_")
"""and of those that a net of rows reads too."""

Filters = tuple[tuple[Any, ...], ...]
"""One convolution per entry: channels, kernel size, stride and, optionally, padding."""

_SQRT_2 = "gain=√2 for orthogonal_, else "


def about(item: dataclasses.Field[Any]) -> Mapping[str, Any]:
    """What :func:`~catalog.setting.model_setting` says of a field, also where a subclass only gives it another default;
    nothing for a plain field that a subclass adds."""
    general = DefaultModelConfig.__dataclass_fields__
    return {**general[item.name].metadata, **item.metadata} if item.name in general else item.metadata


def default_of(item: dataclasses.Field[Any]) -> Any:
    """The default of a field."""
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


@dataclass(frozen=True, kw_only=True)
class DefaultModelConfig:
    """Settings of the nets the Catalog builds by default. Immutable; change one with ``dataclasses.replace``.

    An instance means the same as a dict of the values it was made with: the rest is for the algorithm's own defaults.
    One made with all values, as ``replace`` does, counts as made with those that are not the default.

    Raises:
        ValueError, TypeError: If a value is of the wrong kind or out of range.
    """

    _given: ClassVar[Sequence[str]] = ()

    # dense nets
    fcnet_hiddens: tuple[int, ...] = widths(ENCODER, (64, 64), "Widths of the MLP encoder's layers.")
    fcnet_activation: Activation = activation(
        ENCODER, "tanh", "Activation of the MLP encoder: a torch.nn class name, relu, silu, linear …, or a class."
    )
    fcnet_use_layernorm: bool = model_flag(
        ENCODER, False, "Whether a LayerNorm stands before each activation of the MLP encoder."
    )
    fcnet_dropout: float = model_setting(
        ENCODER,
        0.0,
        "Share of the MLP encoder's activations that is dropped in training.",
        "a number in [0, 1)",
        lambda value: is_number(value) and 0 <= value < 1,
    )
    fcnet_kernel_initializer: Initializer = initializer(
        ENCODER, "orthogonal_", "In-place torch.nn.init function for weights; None keeps torch's own."
    )
    fcnet_kernel_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "fcnet_kernel_initializer", _SQRT_2)
    fcnet_bias_initializer: Initializer = initializer(
        ENCODER, "zeros_", "In-place torch.nn.init function for biases; None keeps torch's own."
    )
    fcnet_bias_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "fcnet_bias_initializer")

    # how spaces are read
    discrete_embedding_dim: int | None = count(
        ENCODER, None, "Width of a learned embedding for Discrete observations; None codes them one-hot."
    )
    matrix_observations: Literal["flatten", "image", "sequence"] = one_of(
        ENCODER,
        "flatten",
        "What a Box of rank 2 is: numbers for an MLP, a grey image for a CNN, or a sequence of rows for a GRU.",
        "flatten",
        "image",
        "sequence",
    )
    flatten_observations: bool = model_flag(
        ENCODER, False, "Whether a Dict or Tuple becomes one vector for one MLP; False gives each part its encoder."
    )
    leaf_overrides: Mapping[str, Mapping[str, Any]] = model_setting(
        ENCODER,
        {},
        "Encoder settings by path into a Dict or Tuple observation: {'camera.rgb': {'conv_filters': 'nature'}}.",
        "a dict from paths to dicts of settings",
        is_overrides,
    )

    # images
    conv_filters: Filters | Literal["nature", "impala"] | None = model_setting(
        ENCODER,
        None,
        "Convolutions [[channels, kernel, stride], …] with an optional fourth entry 'same' or 'valid'; 'nature' or "
        "'impala' for these nets; None goes by the size of the image.",
        "a list of [channels, kernel, stride] or [channels, kernel, stride, padding], 'nature', 'impala' or None",
        is_filters,
    )
    conv_padding: Literal["same", "valid"] = one_of(
        ENCODER, "same", "Padding of convolutions that name none: 'same' gives ceil(size / stride).", "same", "valid"
    )
    conv_channels: Literal["first", "last"] | None = one_of(
        ENCODER,
        None,
        "Where an image has its channels; None tells by the shape: where the rest is square, else the fewer.",
        None,
        "first",
        "last",
    )
    conv_activation: Activation = activation(ENCODER, "relu", "Activation of the CNN and of its dense layer.")
    conv_use_layernorm: bool = model_flag(
        ENCODER, False, "Whether a LayerNorm over channels, height and width stands before each activation of the CNN."
    )
    conv_dense_dim: int | None = model_setting(
        ENCODER,
        512,
        "Width of a dense layer after the convolutions; None adds none.",
        "an int > 0 or None",
        lambda value: value is None or is_int(value),
    )
    conv_kernel_initializer: Initializer = initializer(
        ENCODER, "orthogonal_", "In-place torch.nn.init function for the CNN's weights; None keeps torch's own."
    )
    conv_kernel_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "conv_kernel_initializer", _SQRT_2)
    conv_bias_initializer: Initializer = initializer(
        ENCODER, "zeros_", "In-place torch.nn.init function for the CNN's biases; None keeps torch's own."
    )
    conv_bias_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "conv_bias_initializer")

    # several streams
    fusionnet_hiddens: tuple[int, ...] = widths(
        ENCODER, (64,), "Widths of the dense layers that join the encoders of a Dict or Tuple; () only concatenates."
    )
    fusionnet_activation: Activation = activation(ENCODER, "tanh", "Activation of the joining layers.")

    # memory
    use_lstm: bool = model_flag(ENCODER, False, "Whether an LSTM follows the encoder.")
    use_gru: bool = model_flag(
        ENCODER, False, "Whether a GRU follows the encoder; the lstm_* settings are its own too."
    )
    use_attention: bool = model_flag(
        ENCODER, False, "Whether attention to the last steps follows the encoder, as a memory beside LSTM and GRU."
    )
    max_seq_len: int = count(MODULE, 20, "Length of the sequences a net with a memory is trained on.")
    lstm_cell_size: int = count(ENCODER, 64, "Width of the recurrent layers.")
    lstm_num_layers: int = count(ENCODER, 1, "Number of recurrent layers.")
    lstm_use_prev_action: bool = model_flag(
        MODULE,
        False,
        "Whether the nets also see the previous action, with a memory or without one.",
    )
    lstm_use_prev_reward: bool = model_flag(
        MODULE,
        False,
        "Whether the nets also see the previous reward, with a memory or without one.",
    )
    lstm_kernel_initializer: Initializer = initializer(
        ENCODER, "orthogonal_", "In-place torch.nn.init function for recurrent weights; None keeps torch's own."
    )
    lstm_kernel_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "lstm_kernel_initializer")
    lstm_bias_initializer: Initializer = initializer(
        ENCODER, "zeros_", "In-place torch.nn.init function for recurrent biases; None keeps torch's own."
    )
    lstm_bias_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "lstm_bias_initializer")
    attention_num_transformer_units: int = count(ENCODER, 1, "Number of attention layers.")
    attention_dim: int = count(ENCODER, 64, "Width of the attention layers, and of their output.")
    attention_num_heads: int = count(ENCODER, 2, "Heads of each attention layer.")
    attention_head_dim: int = count(ENCODER, 32, "Width of the queries, keys and values of a head.")
    attention_memory: int = count(
        ENCODER, 32, "How many steps before its own a step sees in each attention layer, in acting and training alike."
    )
    attention_position_wise_mlp_dim: int = count(
        ENCODER, 64, "Width of the hidden layer of the MLP in each attention layer."
    )
    attention_init_gru_gate_bias: float = model_setting(
        ENCODER,
        2.0,
        "Start of the bias that keeps the gates of attention layers closed: the greater, the nearer to the identity.",
        "a finite number",
        lambda value: is_number(value) and math.isfinite(value),
    )
    attention_kernel_initializer: Initializer = initializer(
        ENCODER, "orthogonal_", "In-place torch.nn.init function for attention weights; None keeps torch's own."
    )
    attention_kernel_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "attention_kernel_initializer")
    attention_bias_initializer: Initializer = initializer(
        ENCODER, None, "In-place torch.nn.init function for attention biases; None keeps torch's own."
    )
    attention_bias_initializer_kwargs: Mapping[str, Any] | None = keywords(ENCODER, "attention_bias_initializer")

    # heads
    head_fcnet_hiddens: tuple[int, ...] = widths(
        HEAD, (), "Widths of hidden layers between the encoder's latent and each head's output."
    )
    head_fcnet_activation: Activation = activation(HEAD, "tanh", "Activation of the heads' hidden layers.")
    head_fcnet_use_layernorm: bool = model_flag(
        HEAD, False, "Whether a LayerNorm stands before each activation of the heads' hidden layers."
    )
    head_fcnet_kernel_initializer: Initializer = initializer(
        HEAD, "orthogonal_", "In-place torch.nn.init function for the heads' hidden weights; None keeps torch's own."
    )
    head_fcnet_kernel_initializer_kwargs: Mapping[str, Any] | None = keywords(
        HEAD, "head_fcnet_kernel_initializer", _SQRT_2
    )
    head_fcnet_bias_initializer: Initializer = initializer(
        HEAD, "zeros_", "In-place torch.nn.init function for the heads' hidden biases; None keeps torch's own."
    )
    head_fcnet_bias_initializer_kwargs: Mapping[str, Any] | None = keywords(HEAD, "head_fcnet_bias_initializer")

    # functions: policy, value, Q, and outputs of one's own
    vf_share_layers: bool | None = open_flag(
        MODULE, "Whether policy and value function share one encoder; None lets the algorithm decide."
    )
    functions: Mapping[str, Mapping[str, Any]] = model_setting(
        MODULE,
        {},
        "Settings by function: {'value': {'fcnet_hiddens': [256]}} for another net, {'curiosity': {'output_dim': 10}} "
        "for a further output, on the policy's encoder or, with 'trunk', on that of another function or its 'own'.",
        "a dict from functions to dicts of settings",
        is_overrides,
    )

    # actions
    free_log_std: bool = model_flag(
        HEAD, True, "Gaussian policies: one learned log-std per action dimension (True), or one per state."
    )
    log_std_clip_param: float = model_setting(
        HEAD,
        20.0,
        "Bound on the magnitude of a state-dependent log-std.",
        "a finite number > 0",
        lambda value: is_number(value) and 0 < value < math.inf,
    )
    custom_action_dist: str | type | Mapping[str, Any] | None = model_setting(
        MODULE,
        None,
        "Distribution of the actions in place of the default: a class, an import path 'module:Class', the name of a "
        "registered or built-in one such as 'SquashedGaussian', or a dict of these by path into a nested action space.",
        "a class, a name, an import path, a dict of these or None",
        is_dist,
    )
    action_mask_key: str | None = model_setting(
        MODULE,
        "action_mask",
        "Field of a Dict observation that says which actions are allowed; None knows no such field.",
        "a name or None",
        is_key,
    )
    action_embeddings_key: str | None = model_setting(
        MODULE,
        "avail_actions",
        "Field of a Dict observation that has a vector for each action, of which its logit is made; None knows no such "
        "field. What action_mask_key names is the mask.",
        "a name or None",
        is_key,
    )
    autoregressive_actions: bool = model_flag(
        MODULE,
        False,
        "Whether each part of an action of several parts is drawn knowing those before it; False draws them "
        "independently.",
    )
    autoregressive_hiddens: tuple[int, ...] = model_setting(
        MODULE,
        (64,),
        "Widths of the hidden layers of the net that tells later parts of the earlier ones; activation and start are "
        "those of the heads.",
        "a list of one or more widths > 0, such as [64]",
        lambda value: isinstance(value, list | tuple) and len(value) > 0 and all(map(is_int, value)),
    )
    autoregressive_context_dim: int = count(
        MODULE, 16, "How many numbers the policy head gives that net besides the inputs of the distribution."
    )
    normalize_actions: bool = model_flag(
        MODULE,
        True,
        "Whether [-1, 1] of a policy over floats is stretched to a bounded Box; False only clips, and is refused for "
        "SquashedGaussian and Beta unless -1 and 1 are the bounds: their samples never go beyond.",
    )

    # running statistics
    normalize_observations: bool | None = open_flag(
        MODULE,
        "Whether a running mean/std inside the module standardises float Box observations; None lets the algorithm "
        "decide (never for a custom encoder).",
    )
    normalize_values: bool = model_flag(
        MODULE, True, "Whether the value head predicts standardised returns, so that their scale does not matter."
    )

    # nets of one's own
    custom_model: str | type[nn.Module] | Callable[..., Any] | None = model_setting(
        ENCODER,
        None,
        "Encoder in place of the default: a class or function called with the observation space and "
        "custom_model_config, an import path 'module:Class', or the name of a registered one.",
        "a class, a function, a name, an import path or None",
        is_class_or_name,
    )
    custom_model_config: Mapping[str, Any] = model_setting(
        ENCODER,
        {},
        "Keywords for custom_model; or options that a module_class of one's own reads from self.model_config.",
        "a dict of keywords",
        lambda value: isinstance(value, Mapping),
    )

    def __new__(cls, **given: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_given", tuple(given))
        return made

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, told = getattr(self, item.name), about(item)
            if told.get("good") is None:  # what a subclass adds is its own business
                continue
            if not told["good"](value):
                raise ValueError(_misfit(item.name, told["expected"], value))
            if told["find"] is not None:
                told["find"](value, f"model_config.{item.name}")
            if value and told["of"] is not None and getattr(self, told["of"]) is None:
                raise ValueError(_misfit(item.name, f"no keywords, since {told['of']} is None", value))
            object.__setattr__(self, item.name, _frozen(value))
        self._check_together()

    def _check_together(self) -> None:
        """What must hold between settings."""
        memories = [name for name in MEMORIES if getattr(self, name)]
        if len(memories) > 1:
            raise ValueError(_misfit(memories[1], f"False, since {memories[0]} is True", True))
        key = self.action_embeddings_key
        if key not in (None, type(self).action_embeddings_key) and key == self.action_mask_key:
            raise ValueError(_misfit("action_embeddings_key", "another field than action_mask_key, or None", key))
        for path, given in self.leaf_overrides.items():
            where = f"leaf_overrides[{path!r}]"
            self._check_names(where, given, (ENCODER,), excluded=self._never_at_a_leaf(given))
            self._check_values(where, given)
        for function, given in self.functions.items():
            where = f"functions[{function!r}]"
            own = {name: value for name, value in given.items() if name not in ("output_dim", "trunk")}
            alone = self._never_at_a_leaf(given)[:-1] if given.get("trunk") == "own" else ()
            self._check_names(where, own, (ENCODER, HEAD), excluded=alone, extra=("output_dim", "trunk"))
            self._check_values(where, own)
            if not is_int(given.get("output_dim", 1)):
                raise ValueError(_misfit(f"{where}['output_dim']", "an int > 0", given["output_dim"]))

    def _never_at_a_leaf(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Settings of encoders that stand behind those of all parts, and that one with ``given`` does not read too."""
        of_rows = given.get("matrix_observations", self.matrix_observations) == "sequence"
        names = [item.name for item in dataclasses.fields(self) if about(item).get("part") == ENCODER]
        behind = [name for name in names if name.startswith(_BEHIND) and not (of_rows and name.startswith(_OF_ROWS))]
        return *MEMORIES, *behind, "leaf_overrides"

    def _check_values(self, where: str, given: Mapping[str, Any]) -> None:
        """Whether ``given`` could be in force at ``where``."""
        try:
            dataclasses.replace(self, **{"leaf_overrides": {}, "functions": {}, **given})
        except (TypeError, ValueError) as error:
            raise type(error)(f"model_config.{where}, {str(error).removeprefix('model_config.')}") from error

    def _check_names(
        self,
        where: str,
        given: Mapping[str, Any],
        parts: tuple[str, ...],
        *,
        excluded: tuple[str, ...] = (),
        extra: tuple[str, ...] = (),
    ) -> None:
        known = [f.name for f in dataclasses.fields(self) if about(f).get("part") in parts and f.name not in excluded]
        everywhere = [f.name for f in dataclasses.fields(self)]
        for name in given:
            if name not in known:
                remedy = closest(name, [*extra, *known]).strip() or f"Use one of {', '.join([*extra, *known])}."
                if name in excluded and parts != (ENCODER,):
                    remedy = "A further output with a trunk of its own has no memory: leave it out."
                elif name in everywhere:
                    remedy = "It cannot differ by part or function: set it for the whole module."
                expected = f"settings of {' and '.join(f'{part}s' for part in parts)}"
                raise ValueError(f"model_config.{where}: expected {expected}, got {name!r}. {remedy}")

    @classmethod
    def from_any(cls, value: DefaultModelConfig | Mapping[str, Any] | None) -> Self:
        """Full config from a config, a partial dict (defaults fill the rest) or None.

        Of a config of another class the values it was given are taken over; the rest are the defaults of this class.

        Raises:
            ValueError: If there is an unknown key or field; names the closest known one.
            TypeError: If ``value`` is of another kind.
        """
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        if isinstance(value, DefaultModelConfig):
            value = value.given()
        if not isinstance(value, Mapping):
            raise TypeError(
                f"model_config: expected a DefaultModelConfig or a dict, got {value!r}. Pass "
                "DefaultModelConfig(fcnet_hiddens=[64, 64]) or {'fcnet_hiddens': [64, 64]}."
            )
        known = [f.name for f in dataclasses.fields(cls)]
        for key in value:
            if key not in known:
                remedy = (
                    remedy_for("model setting", key) or closest(key, known).strip() or f"Use one of {', '.join(known)}."
                )
                raise ValueError(
                    f"model_config[{key!r}]: expected a model setting, got the unknown name {key!r}. {remedy}"
                )
        return cls(**value)

    def given(self) -> dict[str, Any]:
        """The values the config was made with, by name; of one that was given all, those that are not the default."""
        items, names = dataclasses.fields(self), self._given
        if len(names) == len(items):
            names = [item.name for item in items if getattr(self, item.name) != default_of(item)]
        return {name: getattr(self, name) for name in names}

    @property
    def is_recurrent(self) -> bool:
        """Whether a net with a memory follows the encoder."""
        return self.use_lstm or self.use_gru or self.use_attention

    def without_memory(self) -> Self:
        """These settings for nets that remember nothing."""
        return (
            dataclasses.replace(self, **{**dict.fromkeys(MEMORIES, False), "functions": {}})
            if self.is_recurrent
            else self
        )

    def at_leaf(self, path: str) -> Self:
        """The settings for the part of the observation at ``path``, such as ``"camera.rgb"``."""
        given = self.leaf_overrides.get(path)
        return self if given is None else dataclasses.replace(self, **given)

    def for_function(self, function: str) -> Self:
        """The settings for the nets of ``function``, such as ``"value"``; its name may be unknown here."""
        given = self.functions.get(function, {})
        own = {name: value for name, value in given.items() if name not in ("output_dim", "trunk")}
        return dataclasses.replace(self, **{**own, "functions": {}}) if own else self

    @property
    def has_custom_model(self) -> bool:
        """Whether a ``custom_model`` reads the observation or a part of it."""
        parts = (overrides.get("custom_model") for overrides in self.leaf_overrides.values())
        return any(model is not None for model in (self.custom_model, *parts))

    def encoder_settings(self) -> dict[str, Any]:
        """The values of all settings that shape encoders."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if about(f).get("part") == ENCODER}


def _misfit(name: str, expected: str, value: object) -> str:
    return f"model_config.{name}: expected {expected}, got {value!r}. Set it to one of these values."


def _frozen(value: Any) -> Any:
    """A copy of ``value`` that nobody else holds: lists as tuples, dicts anew with their values as they are."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, Mapping):
        return {key: dict(item) if isinstance(item, Mapping) else item for key, item in value.items()}
    return value
