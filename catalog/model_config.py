"""The settings of the default nets."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn
from typing_extensions import Self

from catalog.activations import (
    Activation,
    Blocks,
    Initializer,
    Norm,
    activation_by_name,
    check_blocks,
    initializer_by_name,
)
from catalog.checks import Bounds, Filters, check_value
from catalog.settings import Settings, setting, settings_of
from catalog_rl import closest, remedy_for

ENCODER, HEAD = "encoder", "head"
"""What a setting shapes: encoders (the value may differ by part of the observation and by function), or heads (it may
differ by function). All other settings shape the whole module."""

MEMORIES = ("use_lstm", "use_gru", "use_attention")
"""Settings that add a net with a memory after the encoder; at most one is True."""

# Prefixes of the settings of nets with a memory, which follow the encoders of all parts.
_OF_MEMORY = ("lstm_", "attention_")
# Prefixes of the memory settings that also shape the GRU over the rows of a matrix.
_OF_ROWS = ("lstm_kernel_", "lstm_bias_")

_encoder = functools.partial(setting, part=ENCODER)
_head = functools.partial(setting, part=HEAD)

Keywords = Mapping[str, Any] | None
# Keys of an entry of `functions` that are not model settings.
_FUNCTION_KEYS = ("output_dim", "trunk")


def _start(of: str, default: Initializer = "orthogonal_", part: str = ENCODER) -> Any:
    """Declare a setting that shapes ``part``: the initialiser of ``of``, a phrase such as "the CNN's weights"."""
    doc = f"In-place torch.nn.init function for {of}; None keeps torch's default."
    return setting(default, doc, part=part, for_new_runs=True)


def _keywords(of: str, unset: str = "none", part: str = ENCODER) -> Any:
    """Declare the keyword arguments of the setting ``{of}_initializer``, with ``of`` a prefix such as "conv_kernel".
    ``unset`` is a phrase for its documentation: the arguments that the function gets if the setting is None."""
    doc = f"Keyword arguments for {of}_initializer; None passes {unset}."
    return setting(None, doc, part=part, for_new_runs=True)


_GAIN = "gain=√2 to orthogonal_ and none to other functions"


class DefaultModelConfig(Settings):
    """Settings of the nets the Catalog builds by default. Immutable; change one with ``dataclasses.replace``.

    Only the values passed to the constructor override an algorithm's own defaults, as if they were in a dict. If all
    values were passed, as ``replace`` does, only those that differ from the defaults of this class override.

    Raises:
        TypeError: If a value is of the wrong type.
        ValueError: For an unknown name, or a value that is out of range or names nothing known.
    """

    _where: ClassVar[str] = "model_config"
    _given: ClassVar[Sequence[str]] = ()
    _reads: ClassVar[list[str] | None] = None  # set on the copies that recording() returns

    # dense nets
    fcnet_hiddens: tuple[int, ...] = _encoder((64, 64), "Widths of the MLP encoder's layers.", ge=1)
    fcnet_activation: Activation = _encoder(
        "tanh", "Activation of the MLP encoder: a torch.nn class name, relu, silu, linear …, or a class."
    )
    fcnet_use_layernorm: bool = _encoder(False, "Whether a LayerNorm precedes each activation of the MLP encoder.")
    fcnet_norm: Norm | None = _encoder(
        None,
        "Norm before each activation of the MLP encoder, 'layer' (LayerNorm), 'rms' (RMSNorm) or 'batch' (batch norm, "
        "whose running statistics act); None means LayerNorm if fcnet_use_layernorm is True or if there are residual "
        "blocks, and no norm otherwise.",
    )
    fcnet_blocks: Blocks | None = _encoder(
        None,
        "Residual blocks of the MLP encoder, 'simba' or 'bro', for which fcnet_hiddens gives the width of the input "
        "layer and of each block, all equal; None stacks plain layers.",
    )
    fcnet_dropout: float = _encoder(
        0.0, "Share of the MLP encoder's activations that dropout sets to 0 in training.", ge=0, lt=1
    )
    fcnet_kernel_initializer: Initializer = _start("the weights of the MLP encoder and of fusionnet_hiddens")
    fcnet_kernel_initializer_kwargs: Keywords = _keywords("fcnet_kernel", _GAIN)
    fcnet_bias_initializer: Initializer = _start("the biases of the MLP encoder and of fusionnet_hiddens", "zeros_")
    fcnet_bias_initializer_kwargs: Keywords = _keywords("fcnet_bias")

    # how spaces are read
    discrete_embedding_dim: int | None = _encoder(
        None, "Width of a learned embedding for Discrete observations; None codes them one-hot.", ge=1
    )
    matrix_observations: Literal["flatten", "image", "sequence"] = _encoder(
        "flatten",
        "How a Box of rank 2 is read: as numbers by an MLP, as a grey image by a CNN, or as a sequence by a GRU.",
    )
    flatten_observations: bool = _encoder(
        False, "Whether a Dict or Tuple becomes one vector for one MLP; False gives each part its own encoder."
    )
    leaf_overrides: Mapping[str, Mapping[str, Any]] = _encoder(
        {}, "Encoder settings by path into a Dict or Tuple observation: {'camera.rgb': {'conv_filters': 'nature'}}."
    )

    # images
    conv_filters: Filters | Literal["nature", "impala"] | None = _encoder(
        None,
        "Convolutions [[channels, kernel, stride], …] with an optional fourth entry 'same' or 'valid'; "
        "'nature' or 'impala' names a published net; None depends on the size of the image.",
    )
    conv_padding: Literal["same", "valid"] = _encoder(
        "same",
        "Padding of convolutions that name none: 'same' makes the size ceil(size / stride), 'valid' adds no zeros.",
    )
    conv_channels: Literal["first", "last"] | None = _encoder(
        None,
        "Which axis of an image has the channels; None takes the one that leaves a square image, else the one with "
        "fewer entries.",
    )
    conv_activation: Activation = _encoder("relu", "Activation of the CNN and of its dense layer.")
    conv_use_layernorm: bool = _encoder(
        False, "Whether a LayerNorm over channels, height and width precedes each activation of the CNN."
    )
    conv_dense_dim: int | None = _encoder(512, "Width of a dense layer after the convolutions; None adds none.", ge=1)
    conv_kernel_initializer: Initializer = _start("the CNN's weights")
    conv_kernel_initializer_kwargs: Keywords = _keywords("conv_kernel", _GAIN)
    conv_bias_initializer: Initializer = _start("the CNN's biases", "zeros_")
    conv_bias_initializer_kwargs: Keywords = _keywords("conv_bias")

    # several streams
    fusionnet_hiddens: tuple[int, ...] = _encoder(
        (64,), "Widths of the dense layers that join the encoders of a Dict or Tuple; () only concatenates.", ge=1
    )
    fusionnet_activation: Activation = _encoder("tanh", "Activation of the layers of fusionnet_hiddens.")

    # memory
    use_lstm: bool = _encoder(False, "Whether an LSTM follows the encoder.")
    use_gru: bool = _encoder(False, "Whether a GRU follows the encoder; the lstm_* settings shape it too.")
    use_attention: bool = _encoder(
        False, "Whether attention to the last steps follows the encoder, as a memory in place of an LSTM or GRU."
    )
    max_seq_len: int = setting(20, "Length, in env steps, of the sequences a net with a memory is trained on.", ge=1)
    lstm_cell_size: int = _encoder(64, "Width of the recurrent layers.", ge=1)
    lstm_num_layers: int = _encoder(1, "Number of recurrent layers.", ge=1)
    lstm_use_prev_action: bool = setting(
        False, "Whether the nets also see the previous action, with a memory or without one."
    )
    lstm_use_prev_reward: bool = setting(
        False, "Whether the nets also see the previous reward, with a memory or without one."
    )
    lstm_kernel_initializer: Initializer = _start("recurrent weights")
    lstm_kernel_initializer_kwargs: Keywords = _keywords("lstm_kernel")
    lstm_bias_initializer: Initializer = _start("recurrent biases", "zeros_")
    lstm_bias_initializer_kwargs: Keywords = _keywords("lstm_bias")
    attention_num_transformer_units: int = _encoder(1, "Number of attention layers.", ge=1)
    attention_dim: int = _encoder(64, "Width of the attention layers, and of their output.", ge=1)
    attention_num_heads: int = _encoder(2, "Heads of each attention layer.", ge=1)
    attention_head_dim: int = _encoder(32, "Width of the queries, keys and values of a head.", ge=1)
    attention_memory: int = _encoder(
        32, "Number of earlier steps that each step sees in each attention layer, in acting and in training.", ge=1
    )
    attention_position_wise_mlp_dim: int = _encoder(
        64, "Width of the hidden layer of the MLP in each attention layer.", ge=1
    )
    attention_init_gru_gate_bias: float = _encoder(
        2.0,
        "Initial bias that keeps gates of attention layers closed: the larger, the closer a layer is to the identity.",
    )
    attention_kernel_initializer: Initializer = _start("attention weights")
    attention_kernel_initializer_kwargs: Keywords = _keywords("attention_kernel")
    attention_bias_initializer: Initializer = _start("attention biases", None)
    attention_bias_initializer_kwargs: Keywords = _keywords("attention_bias")

    # heads
    head_fcnet_hiddens: tuple[int, ...] = _head(
        (), "Widths of hidden layers between the encoder's latent and each head's output.", ge=1
    )
    head_fcnet_activation: Activation = _head("tanh", "Activation of the heads' hidden layers.")
    head_fcnet_use_layernorm: bool = _head(
        False, "Whether a LayerNorm precedes each activation of the heads' hidden layers."
    )
    head_fcnet_kernel_initializer: Initializer = _start("the heads' hidden weights", part=HEAD)
    head_fcnet_kernel_initializer_kwargs: Keywords = _keywords("head_fcnet_kernel", _GAIN, HEAD)
    head_fcnet_bias_initializer: Initializer = _start("the heads' hidden biases", "zeros_", HEAD)
    head_fcnet_bias_initializer_kwargs: Keywords = _keywords("head_fcnet_bias", part=HEAD)

    # functions: policy, value, Q, and further outputs
    vf_share_layers: bool | None = setting(
        None, "Whether policy and value function share one encoder; None lets the algorithm decide."
    )
    critic_only_keys: tuple[str, ...] = setting(
        (),
        "Fields of a Dict observation that only the value function's encoder reads, such as the state of the whole "
        "env. A policy acts without them.",
    )
    functions: Mapping[str, Mapping[str, Any]] = setting(
        {},
        "Settings by function: {'value': {'fcnet_hiddens': [256]}} gives the value function a different net, and "
        "{'curiosity': {'output_dim': 10}} adds an output on the policy's encoder, or on the encoder of the function "
        "that its 'trunk' names, or with 'trunk': 'own' on its own encoder.",
    )

    # actions
    free_log_std: bool = _head(
        True,
        "Whether a Gaussian policy learns one log-std per action dimension for all states; False lets the head compute "
        "the log-std from the state.",
    )
    log_std_clip_param: float = _head(20.0, "Bound on the magnitude of each log-std.", gt=0)
    custom_action_dist: str | type | Mapping[str, Any] | None = setting(
        None,
        "Distribution of the actions in place of the default: a class, an import path 'module:Class', the "
        "name of a registered or built-in class such as 'SquashedGaussian', or a dict of these by path into a"
        " nested action space.",
    )
    action_mask_key: str | None = setting(
        "action_mask",
        "Field of a Dict observation with the mask of allowed actions; None means that no field is a mask.",
    )
    action_embeddings_key: str | None = setting(
        "avail_actions",
        "Field of a Dict observation with a vector for each action, from which its logit is computed; None means "
        "that no field has vectors. If action_mask_key names the same field, the field is the mask.",
    )
    autoregressive_actions: bool = setting(
        False,
        "Whether each part of an action of several parts depends on the parts before it; False draws the parts "
        "independently.",
    )
    autoregressive_hiddens: tuple[int, ...] = setting(
        (64,),
        "Widths of the hidden layers of the net that conditions later parts of an action on earlier ones; its "
        "activation and initialisers are those of the heads.",
        ge=1,
    )
    autoregressive_context_dim: int = setting(
        16,
        "Number of outputs of the policy head for the net that conditions later parts of an action on earlier ones, in "
        "addition to the inputs of the distribution.",
        ge=1,
    )
    normalize_actions: bool = setting(
        True,
        "Whether float actions are scaled from [-1, 1] to the bounds of a bounded Box; False only clips, which is an "
        "error for SquashedGaussian and Beta unless the bounds are -1 and 1, since their samples never leave [-1, 1].",
    )

    # running statistics
    normalize_observations: bool | None = setting(
        None,
        "Whether the module standardises float Box observations by their running mean and std; None lets the "
        "algorithm decide (never for a custom encoder).",
    )
    normalize_values: bool = setting(
        True, "Whether the value head predicts standardised returns, so that their scale does not matter."
    )

    # custom nets
    custom_model: str | type[nn.Module] | Callable[..., Any] | None = _encoder(
        None,
        "Encoder in place of the default: a class or function called with the observation space and "
        "custom_model_config, an import path 'module:Class', or the name of a registered one.",
    )
    custom_model_config: Mapping[str, Any] = _encoder(
        {}, "Keyword arguments for custom_model, or options that a custom module_class reads from self.model_config."
    )

    def __new__(cls, **given: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_given", tuple(given))
        return made

    if not TYPE_CHECKING:  # type checkers must report unknown attributes

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            reads = super().__getattribute__("_reads")
            if reads is not None and name in settings_of(type(self)) and name not in reads:
                reads.append(name)
            return value

    def recording(self, reads: list[str]) -> Self:
        """Return a copy of this config that appends the names of the settings that are read from it to ``reads``, each
        once."""
        copied = copy.copy(self)
        object.__setattr__(copied, "_reads", reads)
        return copied

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(
            f"model_config.{name}: expected no change, got {value!r}. Write dataclasses.replace(config, {name}=...)."
        )

    def __post_init__(self) -> None:
        for name, item in settings_of(type(self)).items():
            value, where = getattr(self, name), f"model_config.{name}"
            if item.hint == Activation:
                activation_by_name(value, where)
            elif item.hint == Initializer:
                initializer_by_name(value, where)
            of = name.removesuffix("_kwargs")
            if value and of != name and getattr(self, of) is None:
                raise ValueError(_misfit(name, f"no keywords, since {of} is None", value))
        self._check_together()

    def _check_together(self) -> None:
        """Raise ``ValueError`` if settings contradict each other, or if an entry of ``leaf_overrides`` or ``functions``
        is wrong."""
        for name in ("conv_filters", "autoregressive_hiddens"):
            if getattr(self, name) == ():
                raise ValueError(_misfit(name, "at least one layer", ()))
        memories = [name for name in MEMORIES if getattr(self, name)]
        if len(memories) > 1:
            raise ValueError(_misfit(memories[1], f"False, since {memories[0]} is True", True))
        names = ("fcnet_hiddens", "fcnet_norm", "fcnet_use_layernorm", "fcnet_blocks")
        check_blocks("model_config", vars(self), *names)
        key = self.action_embeddings_key
        if key not in (None, type(self).action_embeddings_key) and key == self.action_mask_key:
            raise ValueError(_misfit("action_embeddings_key", "a field other than action_mask_key, or None", key))
        for path, given in self.leaf_overrides.items():
            never = [*self._of_memory(given), "leaf_overrides"]
            self._check_given(f"leaf_overrides[{path!r}]", given, (ENCODER,), never)
        for function, given in self.functions.items():
            where, has_own_trunk = f"functions[{function!r}]", given.get("trunk") == "own"
            never = self._of_memory(given) if has_own_trunk else []
            self._check_given(where, given, (ENCODER, HEAD), never, _FUNCTION_KEYS)
            check_value(f"model_config.{where}['output_dim']", given.get("output_dim", 1), int, Bounds(ge=1), "")

    def _of_memory(self, given: Mapping[str, Any]) -> list[str]:
        """Return the names of the memory settings that have no effect in ``given``, an entry of ``leaf_overrides`` or
        ``functions``: all, except those that also shape the GRU over the rows of a matrix if the entry uses it."""
        of_rows = given.get("matrix_observations", self.matrix_observations) == "sequence"
        behind = [name for name in self._names(ENCODER) if name in MEMORIES or name.startswith(_OF_MEMORY)]
        return [name for name in behind if not (of_rows and name.startswith(_OF_ROWS))]

    def _check_given(
        self,
        where: str,
        given: Mapping[str, Any],
        parts: tuple[str, ...],
        never: Sequence[str],
        extra: tuple[str, ...] = (),
    ) -> None:
        """Check the settings ``given`` in an entry of ``leaf_overrides`` or ``functions``.

        Args:
            where: The entry, for error messages.
            given: The settings in the entry, by name.
            parts: Parts of the net that these settings may shape.
            never: Names that ``given`` must not have although they shape these parts.
            extra: Keys that ``given`` may also have. They are not settings, and their values are not checked.

        Raises:
            ValueError: For a name that ``given`` must not have, or a value that is out of range.
            TypeError: If a value is of the wrong type.
        """
        known = [*extra, *(name for name in self._names(*parts) if name not in never)]
        for name in given:
            if name not in known:
                remedy = closest(name, known).strip() or f"Use one of {', '.join(known)}."
                if name in never and HEAD in parts:
                    remedy = "An output with its own trunk has no memory: leave it out."
                elif name in settings_of(type(self)):
                    remedy = "It cannot differ by part or function: set it for the whole module."
                expected = f"settings of {' and '.join(f'{part}s' for part in parts)}"
                raise ValueError(f"model_config.{where}: expected {expected}, got {name!r}. {remedy}")
        settings = {name: value for name, value in given.items() if name not in extra}
        try:
            dataclasses.replace(self, **{"leaf_overrides": {}, "functions": {}, **settings})
        except (TypeError, ValueError) as error:
            raise type(error)(f"model_config.{where}, {str(error).removeprefix('model_config.')}") from error

    @classmethod
    def _names(cls, *parts: str) -> list[str]:
        """Return the names of the settings that shape one of ``parts``."""
        return [name for name, item in settings_of(cls).items() if item.part in parts]

    @classmethod
    def _refuse_unknown(cls, names: Iterable[str], where: str, section: str | None = None) -> None:
        known = settings_of(cls)
        for name in names:
            if name not in known:
                hint = closest(name, known).strip() or f"help({cls.__name__}) lists them."
                option = f"Put an option of your own net or module into custom_model_config={{{name!r}: ...}}."
                remedy = remedy_for("model setting", name) or f"{hint} {option}"
                raise ValueError(
                    f"{where}[{name!r}]: expected a model setting, got the unknown name {name!r}. {remedy}"
                )

    @classmethod
    def from_any(cls, value: DefaultModelConfig | Mapping[str, Any] | None) -> Self:
        """Return a config of this class from a config, a dict of some settings, or None; defaults fill the rest.

        From a config of a different class, take the values that :meth:`given` returns. A config of this class is
        returned as it is.

        Raises:
            ValueError: For an unknown name (the message has the closest known one), or a value out of range.
            TypeError: If ``value`` is something else, or if a setting is of the wrong type.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, DefaultModelConfig):
            value = value.given()
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(
                f"model_config: expected a DefaultModelConfig or a dict, got {value!r}. Pass "
                "DefaultModelConfig(fcnet_hiddens=[64, 64]) or {'fcnet_hiddens': [64, 64]}."
            )
        return cls(**(value or {}))

    def __repr__(self) -> str:
        """Show the settings of :meth:`given`: an algorithm may have other defaults than this class."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def given(self) -> dict[str, Any]:
        """Return, by name, the values passed to the constructor. If all were passed, return those that differ from the
        defaults of this class."""
        names, known = self._given, settings_of(type(self))
        if len(names) == len(known):
            names = [name for name, item in known.items() if getattr(self, name) != item.default]
        return {name: getattr(self, name) for name in names}

    @property
    def is_recurrent(self) -> bool:
        """Whether a net with a memory (LSTM, GRU or attention) follows the encoder."""
        return self.use_lstm or self.use_gru or self.use_attention

    def without_memory(self) -> Self:
        """Return these settings with ``use_lstm``, ``use_gru`` and ``use_attention`` off, and with no ``functions``,
        the settings of single functions. If all three are off already, return these settings unchanged."""
        if not self.is_recurrent:
            return self
        return dataclasses.replace(self, **{**dict.fromkeys(MEMORIES, False), "functions": {}})

    def at_leaf(self, path: str) -> Self:
        """Return the settings with the ``leaf_overrides`` of the part of the observation at ``path``, such as
        ``"camera.rgb"``."""
        given = self.leaf_overrides.get(path)
        return self if given is None else dataclasses.replace(self, **given)

    def for_function(self, function: str) -> Self:
        """Return the settings for the nets of ``function``, such as ``"value"``: these settings, unless ``functions``
        has others for it."""
        given = self.functions.get(function, {})
        settings = {name: value for name, value in given.items() if name not in _FUNCTION_KEYS}
        return dataclasses.replace(self, **{**settings, "functions": {}}) if settings else self

    @property
    def has_custom_model(self) -> bool:
        """Whether a ``custom_model`` encodes the observation or a part of it."""
        parts = (overrides.get("custom_model") for overrides in self.leaf_overrides.values())
        return any(model is not None for model in (self.custom_model, *parts))

    def encoder_settings(self) -> dict[str, Any]:
        """Return the values of all settings that shape encoders, by name."""
        return {name: getattr(self, name) for name in self._names(ENCODER)}


class ActionValueModelConfig(DefaultModelConfig):
    """Settings of the nets of algorithms that predict action values.

    Weights start with torch's defaults, which are smaller than orthogonal weights, because action values bootstrap from
    themselves, and so diverge from large initial weights more easily than a policy does.
    """

    fcnet_hiddens = (256, 256)
    fcnet_activation = "relu"
    fcnet_kernel_initializer = None
    fcnet_bias_initializer = None
    conv_kernel_initializer = None
    conv_bias_initializer = None
    head_fcnet_activation = "relu"
    head_fcnet_kernel_initializer = None
    head_fcnet_bias_initializer = None


def settings_about(*starts: str) -> tuple[str, ...]:
    """Return the names of the model settings that begin with one of ``starts``, in the order of the fields."""
    return tuple(item.name for item in dataclasses.fields(DefaultModelConfig) if item.name.startswith(starts))


def _misfit(name: str, expected: str, value: object) -> str:
    return f"model_config.{name}: expected {expected}, got {value!r}. Set it to one of these values."
