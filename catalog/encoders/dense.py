"""Stacks of dense layers, and a warning for huge layers."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from catalog.activations import Activation, Blocks, Init, Norm, in_place_by_name

EXPANSION = 4
"""Width of the hidden layer of a SimBa block, as a multiple of the width of its input and output."""


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of rows ``[..., width]`` (Ioffe and Szegedy 2015, "Batch Normalization", Algorithm 1). In training it
    standardises each input by its mean and variance over the rows, and moves running statistics towards them. Otherwise
    it uses these."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, -2)).view_as(input)


class EnsembleBatchNorm(nn.BatchNorm1d):
    """The batch norms of the nets of a :class:`DenseEnsemble`, with their weights and statistics side by side."""

    def forward(self, input: Tensor, *, frozen: bool = False) -> Tensor:
        """Normalise the rows ``[members, B, width]`` of all nets, or of the first ones. If ``frozen``, use the running
        statistics without moving them, and give the weights no gradient."""
        assert self.running_mean is not None
        assert self.running_var is not None
        rows = input.transpose(0, 1).flatten(1)
        parts = (self.running_mean, self.running_var, self.weight, self.bias)
        parts = [(part.detach() if frozen else part)[: rows.shape[1]] for part in parts]
        rows = functional.batch_norm(rows, *parts, training=self.training and not frozen)
        return rows.unflatten(1, (len(input), -1)).transpose(0, 1)


class Layer(NamedTuple):
    """One layer of a :class:`DenseStack`: linear, norm and activation, in this order, each of which may be None.

    Attributes:
        linear: Weights and biases of the linear part, by parameter name.
        norm: Weights and biases of the norm, by parameter name, or a batch norm itself.
        activation: The activation; None for none, or for "linear".
        drops: Whether dropout follows the activation.
        keeps: Whether to keep the input of this layer for the next layer with ``adds``.
        adds: Whether to add the kept input to the output of this layer, as residual blocks do.
    """

    linear: dict[str, Any] | None
    norm: dict[str, Any] | Callable[..., Tensor] | None = None
    activation: Callable[[Tensor], Tensor] | None = None
    drops: bool = False
    keeps: bool = False
    adds: bool = False


class DenseStack(nn.Module):
    """Base of dense nets: linear (→ norm) → activation (→ dropout) per hidden width, then a bare linear layer if
    there is an ``output_dim``. A subclass writes ``forward``, which calls :meth:`run`.

    With ``blocks``, each hidden width after the first is that of a residual block. SimBa has the blocks ``x +
    linear(activation(linear(norm(x))))``, four times as wide in the middle, and a norm after the last block. BRO has
    the blocks ``x + norm(linear(activation(norm(linear(x)))))`` after a plain first layer.

    The net maps ``[..., input_dim] → [..., width of the last layer]``. Without layers it is the identity. Its layers
    are ordinary modules, but run as functions of their parameters, because calling a module takes as long as a small
    matrix product. So forward hooks run for the whole net but not for its layers. If the activation is a module, each
    layer has its own instance.

    Args:
        input_dim: Width of the input.
        hidden_dims: Widths of the hidden layers; with ``blocks``, of the first layer and of the output of each block.
        activation: Activation of the hidden layers.
        init: Initialisers of the hidden layers, and of the output layer if ``output_init`` is None.
        norm: Norm before each activation; None for no norm or, with ``blocks``, for LayerNorm.
        blocks: Kind of the residual blocks; None stacks plain layers.
        dropout: Share of the activations that dropout sets to 0 in training.
        output_dim: Width of the output layer; None for no such layer.
        output_init: Initialisers of the output layer.

    Raises:
        ValueError: If the activation or an initialiser is unknown; names the closest.
    """

    low: Tensor
    high: Tensor
    has_bounds = False
    _linear = staticmethod(functional.linear)

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int],
        *,
        activation: Activation,
        init: Init,
        norm: Norm | None = None,
        blocks: Blocks | None = None,
        dropout: float = 0.0,
        output_dim: int | None = None,
        output_init: Init | None = None,
    ) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.dropout = dropout
        self.normalize = functional.rms_norm if norm == "rms" else functional.layer_norm
        self.linears, self.norms = nn.ModuleList(), nn.ModuleList()
        hidden = [*self._hidden_layers(input_dim, hidden_dims, norm, blocks)]
        # all layers exist before the first is initialised: both draw random numbers, and seeds rely on their order
        output = None if output_dim is None else nn.Linear((input_dim, *hidden_dims)[-1], output_dim)
        for layer in hidden:
            if layer.linear is not None:
                init.fill(**layer.linear)
        if output is not None:
            (output_init or init).apply(output)
        # each layer has its own activation, which stands where dropout does
        self.layers = [
            layer._replace(activation=in_place_by_name(activation)) if layer.drops else layer for layer in hidden
        ]
        if output is not None:
            self.layers.append(Layer(output._parameters))
            self.linears.append(output)
        activations = [layer.activation for layer in self.layers]
        self.activations = nn.ModuleList(made for made in activations if isinstance(made, nn.Module))

    def _hidden_layers(
        self, input_dim: int, hidden_dims: Sequence[int], norm: Norm | None, blocks: Blocks | None
    ) -> Iterator[Layer]:
        """Build the modules of all layers except the output layer, and yield these layers without activations."""
        norm_class = nn.RMSNorm if norm == "rms" else nn.LayerNorm

        def linear(inputs: int, outputs: int) -> dict[str, Any]:
            self.linears.append(nn.Linear(inputs, outputs))
            return self.linears[-1]._parameters

        def normed(width: int) -> dict[str, Any] | nn.Module:
            if norm == "batch":
                self.norms.append(self._batch_norm(width))
                return self.norms[-1]
            self.norms.append(norm_class(width))
            return self.norms[-1]._parameters

        if blocks is None:
            for inputs, width in pairwise((input_dim, *hidden_dims)):
                yield Layer(linear(inputs, width), normed(width) if norm else None, drops=True)
            return
        # Both kinds of blocks keep the sum of their inputs free of activations, so that gradients pass unchanged.
        width, *others = hidden_dims
        if blocks == "bro":
            yield Layer(linear(input_dim, width), normed(width), drops=True)
            for _ in others:
                yield Layer(linear(width, width), normed(width), drops=True, keeps=True)
                yield Layer(linear(width, width), normed(width), adds=True)
        else:
            yield Layer(linear(input_dim, width))
            for _ in others:
                yield Layer(None, normed(width), keeps=True)
                yield Layer(linear(width, EXPANSION * width), drops=True)
                yield Layer(linear(EXPANSION * width, width), adds=True)
            yield Layer(None, normed(width))

    def _batch_norm(self, width: int) -> nn.Module:
        return BatchNorm(width)

    def _norm(self, x: Tensor, **weights: Any) -> Tensor:
        return self.normalize(x, x.shape[-1:], **weights)

    def _norm_of_members(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Normalise ``[members, ..., width]`` with the weights of each member, ``[members, 1, width]``."""
        x = self.normalize(x, x.shape[-1:])
        return x * weight if bias is None else torch.addcmul(bias, x, weight)

    def run(self, x: Tensor, layers: Sequence[Layer] | None = None) -> Tensor:
        """Map ``[..., input_dim] → [..., width of the last layer]`` through ``layers``; None uses ``self.layers``.

        Raises:
            ValueError: If ``x`` does not have the width and the dtype that the first layer expects.
        """
        given = kept = x
        dropout = self.dropout if self.training else 0.0
        try:
            for weights, norm, activation, drops, keeps, adds in self.layers if layers is None else layers:
                if keeps:
                    kept = x
                if weights is not None:
                    x = self._linear(x, **weights)
                if norm is not None:
                    x = self._norm(x, **norm) if isinstance(norm, dict) else norm(x)
                if activation is not None:
                    x = activation(x)
                if dropout and drops:
                    x = functional.dropout(x, dropout)
                if adds:
                    x = kept + x
        except RuntimeError as error:  # checked only after a failure: a check beforehand would slow down every call
            self._check_input(given, error)
            raise
        return x

    def _check_input(self, given: Tensor, error: RuntimeError) -> None:
        """Raise ``ValueError`` from ``error`` unless ``given`` has the width and dtype that the first layer expects."""
        dtype = self.linears[0].weight.dtype
        if given.shape[-1:] != (self.input_dim,) or given.dtype != dtype:
            raise ValueError(
                f"{type(self).__name__}: expected an input of shape (..., {self.input_dim}) and {dtype}, got shape "
                f"{tuple(given.shape)} and {given.dtype}. Give it what it was built for, or build it with other "
                "input_dims: for a head, the output_dims of the encoder before it."
            ) from error

    def take_members(self) -> None:
        """From now on apply each layer as a :class:`DenseEnsemble` does: to stacked inputs, with stacked weights. The
        caller must replace the weights with stacks ``[members, ...]``."""
        self._linear = DenseEnsemble._linear
        self._norm = self._norm_of_members  # pyright: ignore[reportAttributeAccessIssue]

    def bound_outputs(self, indices: Sequence[int], bound: float, most: float = torch.inf) -> None:
        """Make :meth:`bounded` clamp the outputs at ``indices`` to ``±bound``, and to at most ``most``."""
        outputs = self.layers[-1].linear
        assert outputs is not None  # only blocks end with a norm
        high = torch.full((len(outputs["weight"]),), torch.inf)
        low, high[[*indices]] = -high, min(bound, most)
        low[[*indices]] = -bound
        self.has_bounds = len(indices) > 0
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def bounded(self, out: Tensor) -> Tensor:
        """Return the outputs ``out`` ``[..., D]``, clamped as :meth:`bound_outputs` asked for."""
        return torch.clamp(out, self.low, self.high) if self.has_bounds else out


class DenseEnsemble(DenseStack):
    """Several dense nets of the same widths with separate weights, computed together with one batched product per
    layer.

    The ensemble maps ``[members, B, input_dim] → [members, B, width of the last layer]``. The initialisers draw the
    weights of each member separately. Weights are ``[members, in, out]``, biases ``[members, 1, out]``, and those of
    batch norms ``[members * width]``.

    Args:
        members: Number of nets.
        **layers: Arguments of :class:`DenseStack` for each net.

    Raises:
        ValueError: As :class:`DenseStack`. Also if the activation has parameters.
    """

    def __init__(self, members: int, **layers: Any) -> None:
        self.members = members
        super().__init__(**layers)
        for activation in self.activations:
            if [*activation.parameters()]:
                raise ValueError(
                    f"activation of {type(self).__name__}: expected one without parameters, since its nets are "
                    f"computed together, got {type(activation).__name__}. Choose another one, for critics by "
                    "functions={'value': {'fcnet_activation': 'relu', 'head_fcnet_activation': 'relu'}}."
                )
        nets = [self, *(DenseStack(**layers) for _ in range(members - 1))]
        for of_layer in zip(*([*net.linears, *net.norms] for net in nets), strict=True):
            if isinstance(of_layer[0], EnsembleBatchNorm):
                continue
            for name in [*of_layer[0]._parameters]:
                weights = torch.stack([layer.get_parameter(name).detach() for layer in of_layer])
                # [in, out], in which order the product of a batch of matrices needs no transposed copies
                stack = weights.transpose(1, 2).contiguous() if weights.dim() == 3 else weights.unsqueeze(1)
                setattr(of_layer[0], name, nn.Parameter(stack))

    def _batch_norm(self, width: int) -> nn.Module:
        return EnsembleBatchNorm(self.members * width)

    @staticmethod
    def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # with one output, a product of matrices takes three times as long on the CPU, with its gradient
        if weight.shape[-1] == 1 and weight.shape[-2] == x.shape[-1]:
            return (x * weight.mT).sum(-1, keepdim=True) + bias
        return torch.baddbmm(bias, x, weight)

    _norm = DenseStack._norm_of_members  # pyright: ignore[reportAssignmentType]

    def layers_of(self, members: int | None = None, *, frozen: bool = False) -> Sequence[Layer]:
        """Return the layers of the first ``members`` nets, or of all for None, for :meth:`run`. The weights of
        ``frozen`` layers get no gradient."""

        def taken(weights: Any) -> Any:
            if isinstance(weights, EnsembleBatchNorm):
                return partial(weights, frozen=frozen)
            return weights and {name: (x.detach() if frozen else x)[:members] for name, x in weights.items()}

        if members is None and not frozen:
            return self.layers
        return [layer._replace(linear=taken(layer.linear), norm=taken(layer.norm)) for layer in self.layers]


LARGE = 10_000_000
"""Number of weights of one layer above which :func:`warn_if_large` warns."""


def warn_if_large(net: nn.Module, where: str) -> None:
    """Warn if a dense layer of ``net`` has more than ``LARGE`` weights, because this is rarely intended. ``where`` is
    the name of the net in the warning."""
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
