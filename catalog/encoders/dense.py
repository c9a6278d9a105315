"""Dense stacks, and activations and initialisers by name."""

import math
import warnings
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
Activation = str | type[nn.Module] | Callable[[], nn.Module]

_ACTIVATIONS = {
    name.lower(): name
    for name in sorted({*nn.modules.activation.__all__} - {"GLU", "MultiheadAttention", "Softmax2d", "Threshold"})
} | {"swish": "SiLU"}
"""Those that keep the shape and need no arguments, by lower-case name."""
_LINEAR = ("linear", "identity")
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "Sigmoid": torch.sigmoid,
    "ELU": functional.elu,
    "SiLU": functional.silu,
    "GELU": functional.gelu,
    "LeakyReLU": functional.leaky_relu,
    "LogSoftmax": partial(torch.log_softmax, dim=-1),
    "Softmax": partial(torch.softmax, dim=-1),
    "Softmin": partial(functional.softmin, dim=-1),
}
"""The usual ones without a module around them, and those whose module guesses a dim."""


def activation_by_name(activation: Activation, where: str = "activation") -> Callable[[Tensor], Tensor] | None:
    """The function or fresh module for ``activation``; None for "linear".

    Args:
        activation: A ``torch.nn`` class name in any case (``leaky_relu`` is ``LeakyReLU``), "swish", "linear", or a
            class or function without arguments that makes a module. A module may have parameters or a mode of its own,
            so ask once per layer.
        where: The setting it comes from, for messages.

    Raises:
        ValueError: If there is no such name (the closest is given), or no module comes out.
    """
    torch_class = isinstance(activation, type) and nn.__dict__.get(activation.__name__) is activation
    if not isinstance(activation, str) and not torch_class:
        return _made(activation, where)
    name = (activation if isinstance(activation, str) else activation.__name__).lower().replace("_", "")
    if name in _LINEAR and activation is not nn.Linear:
        return None
    if name not in _ACTIVATIONS:
        known = [*_LINEAR, *_ACTIVATIONS, *_ACTIVATIONS.values()]
        raise ValueError(
            explain_error(
                where,
                expected="'linear', or the name or class of a torch.nn activation that keeps the shape",
                got=repr(activation),
                remedy="Use for example 'tanh', 'relu', 'SiLU' or a function that makes a module."
                + (closest(activation, known) if isinstance(activation, str) else ""),
            )
        )
    resolved = _ACTIVATIONS[name]
    return _FUNCTIONS[resolved] if resolved in _FUNCTIONS else nn.__dict__[resolved]()


def _made(factory: Callable[[], Any], where: str) -> nn.Module:
    """What ``factory`` makes, if it is a module."""
    try:
        made = factory()
    except TypeError as error:
        made = error
    if not isinstance(made, nn.Module):
        raise ValueError(
            explain_error(
                where,
                expected="a name, or a class or function that makes a module when called without arguments",
                got=f"{factory!r}, which gives {made!r}",
                remedy="Use for example 'tanh', nn.PReLU or lambda: nn.LeakyReLU(0.2).",
            )
        )
    return made


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
    """How the weights and biases of a layer start; None keeps torch's own start.

    ``settings`` is what the model settings it comes from begin with, such as "fcnet", for messages.
    """

    kernel: Initializer = None
    kernel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bias: Initializer = None
    bias_kwargs: Mapping[str, Any] = field(default_factory=dict)
    settings: str = field(default="", repr=False, compare=False)

    @classmethod
    def from_settings(
        cls,
        kernel: Initializer,
        kernel_kwargs: Mapping[str, Any] | None,
        bias: Initializer,
        bias_kwargs: Mapping[str, Any] | None,
        settings: str = "",
    ) -> "Init":
        """From four model settings: keywords that are None mean none, but a gain of √2 for ``orthogonal_`` kernels."""
        if kernel_kwargs is None:
            kernel_kwargs = {"gain": math.sqrt(2)} if initializer_by_name(kernel) is nn.init.orthogonal_ else {}
        return cls(
            kernel=kernel, kernel_kwargs=kernel_kwargs, bias=bias, bias_kwargs=bias_kwargs or {}, settings=settings
        )

    def apply(self, layer: nn.Linear | nn.Conv2d) -> None:
        """Fill ``layer`` in place.

        Raises:
            ValueError: If an initialiser does not take its keywords, or does not fit the shape.
        """
        self.fill(layer.weight, layer.bias)

    def fill(self, weight: Tensor, bias: Tensor | None) -> None:
        """Fill the tensors in place; see :meth:`apply`."""
        _fill("kernel", weight, self.kernel, self.kernel_kwargs, self.settings)
        if bias is not None:
            _fill("bias", bias, self.bias, self.bias_kwargs, self.settings)


@torch.no_grad()
def _fill(what: str, tensor: Tensor, initializer: Initializer, kwargs: Mapping[str, Any], settings: str) -> None:
    where = f"model_config.{settings}_{what}_initializer" if settings else f"{what} initializer"
    function = initializer_by_name(initializer, where)
    if function is None:
        return
    try:
        function(tensor, **kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(
            explain_error(
                where,
                expected=f"a function for shape {tuple(tensor.shape)} that takes the keywords {dict(kwargs)}",
                got=f"{initializer!r}, which says: {error}",
                remedy=f"Choose another {what} initializer or other keywords for it.",
            )
        ) from error


Layer = tuple[dict[str, Any], dict[str, Any] | None, Callable[[Tensor], Tensor] | None, bool]
"""Weights of a linear layer, those of the norm after it, the activation, and whether the layer is a hidden one."""


class DenseStack(nn.Module):
    """Base of dense nets: linear (→ LayerNorm) → activation (→ dropout) per hidden width, then a bare linear layer if
    there is an ``output_dim``. A subclass writes ``forward`` around :meth:`run`.

    ``[..., input_dim] → [..., width of the last layer]``; the identity without layers. The layers are ordinary modules,
    but linear ones, norms and the usual activations run as functions of their parameters: calling a module and looking
    up its attributes takes as long as a small matrix product. Forward hooks therefore fire on the whole net, not on
    single layers. An activation that is a module has one instance per layer, with parameters of its own.

    Raises:
        ValueError: If activation or initialiser is unknown; names the closest.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int],
        *,
        activation: Activation,
        layernorm: bool,
        init: Init,
        dropout: float = 0.0,
        output_dim: int | None = None,
        output_init: Init | None = None,
    ) -> None:
        super().__init__()
        self.input_dim, self.dropout = input_dim, dropout
        widths = [input_dim, *hidden_dims, *([] if output_dim is None else [output_dim])]
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        norms = [nn.LayerNorm(width) for width in hidden_dims] if layernorm else []
        activations = [activation_by_name(activation) for _ in hidden_dims]
        self.linears, self.norms = nn.ModuleList(linears), nn.ModuleList(norms)
        self.activations = nn.ModuleList(made for made in activations if isinstance(made, nn.Module))
        self.layers: list[Layer] = []
        for i, linear in enumerate(linears):
            hidden = i < len(hidden_dims)
            (init if hidden or output_init is None else output_init).apply(linear)
            norm = norms[i]._parameters if hidden and layernorm else None
            self.layers.append((linear._parameters, norm, activations[i] if hidden else None, hidden))

    def run(self, x: Tensor, layers: Sequence[Layer] | None = None) -> Tensor:
        """``[..., input_dim] → [..., width of the last layer]``.

        Args:
            x: Inputs.
            layers: What to compute with in place of ``self.layers``, such as the same with noise in the weights.

        Raises:
            ValueError: If ``x`` has another width or dtype than the first layer.
        """
        given, dropout = x, self.dropout if self.training else 0.0
        try:
            for weights, norm, activation, hidden in self.layers if layers is None else layers:
                x = functional.linear(x, **weights)
                if norm is not None:
                    x = functional.layer_norm(x, x.shape[-1:], **norm)
                if activation is not None:
                    x = activation(x)
                if dropout and hidden:
                    x = functional.dropout(x, dropout)
        except RuntimeError as error:  # looked at only once something failed: a check beforehand would cost every call
            self._explain(given, error)
            raise
        return x

    def _explain(self, x: Tensor, error: RuntimeError) -> None:
        """Say so where ``x`` itself was wrong."""
        dtype = self.linears[0].weight.dtype
        if x.shape[-1:] != (self.input_dim,) or x.dtype != dtype:
            raise ValueError(
                explain_error(
                    type(self).__name__,
                    expected=f"an input of shape (..., {self.input_dim}) and {dtype}",
                    got=f"shape {tuple(x.shape)} and {x.dtype}",
                    remedy="Give it what it was built for, or build it with other input_dims: for a head, the "
                    "output_dims of the encoder before it.",
                )
            ) from error


LARGE = 10_000_000
"""Weights of a layer above which it is said how many there are."""


def warn_if_large(net: nn.Module, where: str) -> None:
    """Warn if a dense layer of ``net`` has more than ``LARGE`` weights, which is rarely meant."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    # by its features, since a lazy layer has no weights before the first batch
    largest = max(layers, key=lambda layer: layer.in_features * layer.out_features, default=None)
    if largest is not None and (weights := largest.in_features * largest.out_features) > LARGE:
        sizes = f"{largest.in_features:,} → {largest.out_features:,}"
        total = f"{sum(p.numel() for p in net.parameters()):,}"
        remedy = (
            "If that is not meant: give conv_filters larger strides or 'valid' padding, make the observation smaller, "
            "or set a smaller conv_dense_dim or fcnet_hiddens."
        )
        warnings.warn(f"{where}: {total} parameters, {weights:,} in one layer {sizes}. {remedy}", stacklevel=3)
