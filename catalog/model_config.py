"""The settings of the default nets, and how a partial dict becomes a full config."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from catalog.errors import closest, explain_error
from catalog.nn import Initializer, activation_by_name, initializer_by_name


@dataclass(frozen=True, kw_only=True)
class DefaultModelConfig:
    """Settings of the nets the Catalog builds by default. Immutable; change one with ``dataclasses.replace``.

    Raises:
        ValueError, TypeError: If a value is of the wrong kind or out of range.
    """

    fcnet_hiddens: tuple[int, ...] = field(default=(64, 64), metadata={"doc": "Widths of the MLP encoder's layers."})
    fcnet_activation: str = field(
        default="tanh",
        metadata={"doc": "Activation of the MLP encoder: a torch.nn class name, or relu, silu, linear …"},
    )
    fcnet_use_layernorm: bool = field(
        default=False, metadata={"doc": "Whether a LayerNorm stands before each activation of the MLP encoder."}
    )
    fcnet_kernel_initializer: Initializer = field(
        default="orthogonal_", metadata={"doc": "In-place torch.nn.init function for weights; None keeps torch's own."}
    )
    fcnet_kernel_initializer_kwargs: Mapping[str, Any] | None = field(
        default=None,
        metadata={"doc": "Keywords for fcnet_kernel_initializer; None means gain=√2 for orthogonal_, else none."},
    )
    fcnet_bias_initializer: Initializer = field(
        default="zeros_", metadata={"doc": "In-place torch.nn.init function for biases; None keeps torch's own."}
    )
    fcnet_bias_initializer_kwargs: Mapping[str, Any] | None = field(
        default=None, metadata={"doc": "Keywords for fcnet_bias_initializer; None means none."}
    )
    head_fcnet_hiddens: tuple[int, ...] = field(
        default=(), metadata={"doc": "Widths of hidden layers between the encoder's latent and each head's output."}
    )
    head_fcnet_activation: str = field(default="tanh", metadata={"doc": "Activation of the heads' hidden layers."})
    free_log_std: bool = field(
        default=True,
        metadata={"doc": "Gaussian policies: one learned log-std per action dimension (True), or one per state."},
    )
    log_std_clip_param: float = field(
        default=20.0, metadata={"doc": "Bound on the magnitude of a state-dependent log-std."}
    )
    vf_share_layers: bool | None = field(
        default=None,
        metadata={"doc": "Whether policy and value function share one encoder; None lets the algorithm decide."},
    )
    normalize_observations: bool | None = field(
        default=None,
        metadata={
            "doc": "Whether a running mean/std inside the module standardises float Box observations; "
            "None lets the algorithm decide (never for a custom encoder)."
        },
    )
    normalize_values: bool = field(
        default=True,
        metadata={"doc": "Whether the value head predicts standardised returns, so that their scale does not matter."},
    )
    normalize_actions: bool = field(
        default=True,
        metadata={
            "doc": "Whether a Gaussian policy's [-1, 1] is stretched to a bounded Box; False only clips to the bounds."
        },
    )

    def __post_init__(self) -> None:
        for name in ("fcnet_hiddens", "head_fcnet_hiddens"):
            object.__setattr__(self, name, _widths(name, getattr(self, name)))
        for name in ("fcnet_use_layernorm", "free_log_std", "normalize_values", "normalize_actions"):
            _check(name, getattr(self, name), "True or False", lambda value: isinstance(value, bool))
        for name in ("vf_share_layers", "normalize_observations"):
            _check(name, getattr(self, name), "True, False or None", lambda v: v is None or isinstance(v, bool))
        for name in ("fcnet_activation", "head_fcnet_activation"):
            _check(name, getattr(self, name), "the name of an activation", lambda value: isinstance(value, str))
            activation_by_name(getattr(self, name), f"model_config.{name}")
        for name in ("fcnet_kernel_initializer", "fcnet_bias_initializer"):
            initializer, kwargs = getattr(self, name), getattr(self, f"{name}_kwargs")
            _check(name, initializer, "a name, a function or None", _is_initializer)
            initializer_by_name(initializer, f"model_config.{name}")
            _check(f"{name}_kwargs", kwargs, "a dict of keywords or None", _is_mapping_or_none)
            if initializer is None:
                _check(f"{name}_kwargs", kwargs, f"no keywords, since {name} is None", lambda value: not value)
        _check("log_std_clip_param", self.log_std_clip_param, "a finite number > 0", _is_positive)

    @classmethod
    def from_any(cls, value: DefaultModelConfig | Mapping[str, Any] | None) -> DefaultModelConfig:
        """Full config from a config, a partial dict (defaults fill the rest) or None.

        Raises:
            ValueError: If the dict has an unknown key; names the closest known one.
            TypeError: If ``value`` is of another kind.
        """
        if value is None:
            return cls()
        if isinstance(value, DefaultModelConfig):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(
                explain_error(
                    "model_config",
                    expected="a DefaultModelConfig or a dict",
                    got=repr(value),
                    remedy="Pass DefaultModelConfig(fcnet_hiddens=[64, 64]) or {'fcnet_hiddens': [64, 64]}.",
                )
            )
        known = [f.name for f in dataclasses.fields(cls)]
        for key in value:
            if key not in known:
                raise ValueError(
                    explain_error(
                        f"model_config[{key!r}]",
                        expected="a model setting",
                        got=f"the unknown name {key!r}",
                        remedy=f"Use one of {', '.join(known)}.{closest(key, known)}",
                    )
                )
        return cls(**value)


def _check(name: str, value: object, expected: str, good: Callable[[Any], bool]) -> None:
    if not good(value):
        raise ValueError(
            explain_error(
                f"model_config.{name}", expected=expected, got=repr(value), remedy="Set it to one of these values."
            )
        )


def _is_initializer(value: object) -> bool:
    return value is None or isinstance(value, str) or callable(value)


def _is_mapping_or_none(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _widths(name: str, value: object) -> tuple[int, ...]:
    good = isinstance(value, list | tuple) and all(
        isinstance(width, int) and not isinstance(width, bool) and width > 0 for width in value
    )
    _check(name, value, "a list of widths > 0", lambda _: good)
    return tuple(value)  # type: ignore[arg-type]
