"""Dense stacks, and activations and initialisers by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from catalog.errors import closest, explain_error
from catalog.model_config import Initializer

_ALIASES = {"relu": "ReLU", "tanh": "Tanh", "elu": "ELU", "silu": "SiLU", "swish": "SiLU", "gelu": "GELU"}
_ACTIVATIONS = sorted(nn.modules.activation.__all__)


def activation_by_name(name: str) -> Callable[[], nn.Module] | None:
    """The torch activation called ``name`` (a ``torch.nn`` class name, or relu, tanh, elu, silu, gelu); None for "linear".

    Raises:
        ValueError: If there is none; names the closest.
    """
    if name == "linear":
        return None
    resolved = _ALIASES.get(name.lower(), name)
    if resolved not in _ACTIVATIONS:
        raise ValueError(
            explain_error(
                "activation",
                expected="'linear' or the name of a torch.nn activation",
                got=repr(name),
                remedy=f"Use for example 'tanh', 'relu' or 'SiLU'.{closest(name, [*_ACTIVATIONS, *_ALIASES])}",
            )
        )
    return nn.__dict__[resolved]


def initializer_by_name(name: Initializer) -> Callable[..., Any] | None:
    """The in-place function ``torch.nn.init.<name>``; callables and None pass through.

    Raises:
        ValueError: If there is no such function; names the closest.
    """
    if not isinstance(name, str):
        return name
    known = [key for key in nn.init.__dict__ if key.endswith("_") and not key.startswith("_")]
    if name not in known:
        raise ValueError(
            explain_error(
                "initializer",
                expected="the name of an in-place function of torch.nn.init",
                got=repr(name),
                remedy=f"Use for example 'orthogonal_' or 'xavier_uniform_'.{closest(name, known)}",
            )
        )
    return nn.init.__dict__[name]


@dataclass(frozen=True, kw_only=True)
class Init:
    """How the weights and biases of a dense layer start; None keeps torch's own start."""

    kernel: Initializer = None
    kernel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bias: Initializer = None
    bias_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, layer: nn.Linear) -> None:
        """Fill ``layer`` in place."""
        with torch.no_grad():
            if (kernel := initializer_by_name(self.kernel)) is not None:
                kernel(layer.weight, **self.kernel_kwargs)
            if (bias := initializer_by_name(self.bias)) is not None:
                bias(layer.bias, **self.bias_kwargs)


def dense_stack(
    input_dim: int,
    hidden_dims: Sequence[int],
    *,
    activation: str,
    layernorm: bool,
    init: Init,
    output_dim: int | None = None,
    output_init: Init | None = None,
) -> nn.Sequential:
    """Linear (→ LayerNorm) → activation, per hidden width; then a bare linear output layer if ``output_dim`` is given."""
    make_activation = activation_by_name(activation)
    layers: list[nn.Module] = []
    width = input_dim
    for hidden in hidden_dims:
        linear = nn.Linear(width, hidden)
        init.apply(linear)
        layers.append(linear)
        if layernorm:
            layers.append(nn.LayerNorm(hidden))
        if make_activation is not None:
            layers.append(make_activation())
        width = hidden
    if output_dim is not None:
        linear = nn.Linear(width, output_dim)
        (output_init or init).apply(linear)
        layers.append(linear)
    return nn.Sequential(*layers)
