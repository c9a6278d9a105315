"""Stacks of dense layers, and a warning for huge layers."""

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from catalog.activations import Activation, Init, activation_by_name

Layer = tuple[dict[str, Any], dict[str, Any] | None, Callable[[Tensor], Tensor] | None, bool]
"""Weights of a linear layer, weights of the norm after it, the activation, and whether the layer is hidden."""


class DenseStack(nn.Module):
    """Base of dense nets: linear (→ LayerNorm) → activation (→ dropout) per hidden width, then a bare linear layer if
    there is an ``output_dim``. A subclass writes ``forward`` around :meth:`run`.

    Maps ``[..., input_dim] → [..., width of the last layer]``; without layers, it is the identity. Layers are ordinary
    modules, but run as functions of their parameters: calling a module takes as long as a small matrix product. So
    forward hooks run for the whole net, not for its layers. Each layer has its own instance of an activation that is a
    module.

    Raises:
        ValueError: If activation or initialiser is unknown; names the closest.
    """

    low: Tensor
    high: Tensor
    has_bounds = False

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
        """Map ``[..., input_dim] → [..., width of the last layer]`` by ``layers``; None stands for ``self.layers``.

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
        except RuntimeError as error:  # checked only after a failure: a check beforehand would slow down every call
            dtype = self.linears[0].weight.dtype
            if given.shape[-1:] == (self.input_dim,) and given.dtype == dtype:
                raise
            raise ValueError(
                f"{type(self).__name__}: expected an input of shape (..., {self.input_dim}) and {dtype}, got shape "
                f"{tuple(given.shape)} and {given.dtype}. Give it what it was built for, or build it with other "
                "input_dims: for a head, the output_dims of the encoder before it."
            ) from error
        return x

    def bound_outputs(self, indices: Sequence[int], bound: float) -> None:
        """Let :meth:`bounded` clamp the outputs at ``indices`` to ``±bound``."""
        high = torch.full((len(self.layers[-1][0]["weight"]),), torch.inf)
        high[[*indices]] = bound
        self.has_bounds = len(indices) > 0
        self.register_buffer("low", -high, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def bounded(self, out: Tensor) -> Tensor:
        """Clamp the outputs ``[..., D]`` that :meth:`bound_outputs` named."""
        return torch.clamp(out, self.low, self.high) if self.has_bounds else out


LARGE = 10_000_000
"""Number of weights of one layer above which :func:`warn_if_large` warns."""


def warn_if_large(net: nn.Module, where: str) -> None:
    """Warn if a dense layer of ``net`` has more than ``LARGE`` weights, which is rarely intended."""
    # from its features: a lazy layer has no weights before the first batch
    ends = [(layer.in_features, layer.out_features) for layer in net.modules() if isinstance(layer, nn.Linear)]
    weights, inputs, outputs = max(((a * b, a, b) for a, b in ends), default=(0, 0, 0))
    if weights > LARGE:
        total = f"{sum(p.numel() for p in net.parameters()):,}"
        remedy = (
            "If that is not intended: give conv_filters larger strides or 'valid' padding, make the observation "
            "smaller, or set a smaller conv_dense_dim or fcnet_hiddens."
        )
        warnings.warn(
            f"{where}: {total} parameters, {weights:,} in one layer {inputs:,} → {outputs:,}. {remedy}", stacklevel=3
        )
