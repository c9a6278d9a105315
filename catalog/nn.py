"""Dense stacks, and activations and initialisers by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from catalog.errors import closest, explain_error

Initializer = str | Callable[..., Any] | None

_ALIASES = {"relu": "ReLU", "tanh": "Tanh", "elu": "ELU", "silu": "SiLU", "swish": "SiLU", "gelu": "GELU"}
_ACTIVATIONS = sorted({*nn.modules.activation.__all__} - {"GLU", "MultiheadAttention", "Softmax2d", "Threshold"})
"""Those that keep the width and need no arguments."""
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "LogSoftmax": partial(torch.log_softmax, dim=-1),
    "Softmax": partial(torch.softmax, dim=-1),
    "Softmin": partial(functional.softmin, dim=-1),
}
"""The usual ones without a module around them, and those whose module guesses a dim."""


def activation_by_name(name: str, where: str = "activation") -> Callable[[Tensor], Tensor] | None:
    """The activation called ``name`` (a ``torch.nn`` class name, or relu, tanh, elu, silu, gelu); None for "linear".

    Raises:
        ValueError: If there is none; names the closest.
    """
    if name == "linear":
        return None
    resolved = _ALIASES.get(name.lower(), name)
    if resolved not in _ACTIVATIONS:
        raise ValueError(
            explain_error(
                where,
                expected="'linear' or the name of a torch.nn activation",
                got=repr(name),
                remedy=f"Use for example 'tanh', 'relu' or 'SiLU'.{closest(name, [*_ACTIVATIONS, *_ALIASES])}",
            )
        )
    return _FUNCTIONS[resolved] if resolved in _FUNCTIONS else nn.__dict__[resolved]()


def initializer_by_name(name: Initializer, where: str = "initializer") -> Callable[..., Any] | None:
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
                where,
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


class DenseStack(nn.Module):
    """Base of dense nets: linear (→ LayerNorm) → activation per hidden width, then a bare linear layer if there is an
    ``output_dim``. A subclass writes ``forward`` around :meth:`run`.

    ``[..., input_dim] → [..., width of the last layer]``. The layers are ordinary ``nn.Linear`` modules, but run as
    functions of their parameters: calling a module and looking up its attributes takes as long as a small matrix
    product. Forward hooks therefore fire on the whole net, not on single layers.

    Raises:
        ValueError: If activation or initialiser is unknown; names the closest.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int],
        *,
        activation: str,
        layernorm: bool,
        init: Init,
        output_dim: int | None = None,
        output_init: Init | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation_by_name(activation)
        widths = [input_dim, *hidden_dims, *([] if output_dim is None else [output_dim])]
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.linears = nn.ModuleList(linears)
        self._weights = tuple(linear._parameters for linear in linears)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden_dims) if layernorm else None
        self.num_hidden = len(hidden_dims)
        for i, linear in enumerate(linears):
            (init if i < self.num_hidden or output_init is None else output_init).apply(linear)

    def run(self, x: Tensor) -> Tensor:
        """``[..., input_dim] → [..., width of the last layer]``."""
        activation, norms = self.activation, self.norms
        for i, weights in enumerate(self._weights):
            x = functional.linear(x, **weights)  # type: ignore[arg-type]
            if i < self.num_hidden:
                if norms is not None:
                    x = norms[i](x)
                if activation is not None:
                    x = activation(x)
        return x
