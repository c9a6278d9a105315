"""Activations and initialisers by name, and the names of norms and of residual blocks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from catalog.errors import closest

Initializer = str | Callable[..., Any] | None


Activation = str | type[nn.Module] | Callable[[], nn.Module]


Norm = Literal["layer", "rms"]
"""``nn.LayerNorm``, or ``nn.RMSNorm``, which neither centres nor has biases."""


Blocks = Literal["simba", "bro"]
"""Residual blocks of SimBa (Lee et al. 2024, section 4.1) or of BRO (Nauman et al. 2024, figure 2)."""


_ACTIVATIONS = {
    name.lower(): name
    for name in sorted({*nn.modules.activation.__all__} - {"GLU", "MultiheadAttention", "Softmax2d", "Threshold"})
} | {"swish": "SiLU"}
"""Activations that keep the shape and need no arguments, by lower-case name."""


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
"""Functions for the usual activations, which are faster to call than modules, and for the softmax activations, whose
modules would guess the dim."""


def activation_by_name(activation: Activation, where: str = "activation") -> Callable[[Tensor], Tensor] | None:
    """Return the function, or a new module, for ``activation``; None for "linear".

    Args:
        activation: A ``torch.nn`` class name in any case (``leaky_relu`` is ``LeakyReLU``), "swish", "linear", or a
            class or function without arguments that makes a module. Call this once per layer: a module may have
            parameters or a mode.
        where: The setting it comes from, for messages.

    Raises:
        ValueError: If no activation has that name (names the closest), or if a class or function makes no module.
    """
    got, hint = repr(activation), ""
    is_torch_class = isinstance(activation, type) and nn.__dict__.get(activation.__name__) is activation
    if isinstance(activation, str) or is_torch_class:
        name = (activation if isinstance(activation, str) else activation.__name__).lower().replace("_", "")
        if name in _LINEAR and activation is not nn.Linear:
            return None
        if name in _ACTIVATIONS:
            resolved = _ACTIVATIONS[name]
            return _FUNCTIONS[resolved] if resolved in _FUNCTIONS else nn.__dict__[resolved]()
        hint = closest(name, [*_LINEAR, *_ACTIVATIONS])
    else:
        try:
            made = activation()
        except TypeError as error:
            made = error
        if isinstance(made, nn.Module):
            return made
        got = f"{activation!r}, which gives {made!r}"
    raise ValueError(
        f"{where}: expected 'linear', or the name or class of a torch.nn activation that keeps the shape, got {got}. "
        f"Use for example 'tanh', 'relu', 'SiLU' or a function that makes a module.{hint}"
    )


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """Return the result of :func:`activation_by_name`, or an identity for "linear"."""
    return activation_by_name(activation) or nn.Identity()


def initializer_by_name(name: Initializer, where: str = "initializer") -> Callable[..., Any] | None:
    """Return the in-place function ``torch.nn.init.<name>``; return a callable or None as it is.

    Raises:
        ValueError: If torch has no such function; names the closest.
    """
    if not isinstance(name, str):
        return name
    known = [key for key in nn.init.__dict__ if key.endswith("_") and not key.startswith("_")]
    if name not in known:
        raise ValueError(
            f"{where}: expected the name of an in-place function of torch.nn.init, got {name!r}. "
            f"Use for example 'orthogonal_' or 'xavier_uniform_'.{closest(name, known)}"
        )
    return nn.init.__dict__[name]


@dataclass(frozen=True, kw_only=True)
class Init:
    """The initialisers of the weights and biases of a layer; None keeps torch's default.

    ``settings`` is the prefix of the model settings it was made from, such as "fcnet", for messages.
    """

    kernel: Initializer = None
    kernel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bias: Initializer = None
    bias_kwargs: Mapping[str, Any] = field(default_factory=dict)
    settings: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, settings: str, model_config: Any, gain: float = math.sqrt(2)) -> "Init":
        """Make the initialisers from the model settings that begin with ``settings``, such as "fcnet".

        If the settings give no keywords, ``orthogonal_`` gets ``gain``, and other initialisers get none.
        """
        given = vars(model_config)
        kernel, bias = given[f"{settings}_kernel_initializer"], given[f"{settings}_bias_initializer"]
        kernel_kwargs = given[f"{settings}_kernel_initializer_kwargs"]
        bias_kwargs = given[f"{settings}_bias_initializer_kwargs"] or {}
        if kernel_kwargs is None:
            kernel_kwargs = {"gain": gain} if initializer_by_name(kernel) is nn.init.orthogonal_ else {}
        return cls(kernel=kernel, kernel_kwargs=kernel_kwargs, bias=bias, bias_kwargs=bias_kwargs, settings=settings)

    def apply(self, layer: nn.Linear | nn.Conv2d | nn.ConvTranspose2d) -> None:
        """Initialise the weights and biases of ``layer`` in place.

        Raises:
            ValueError: If an initialiser does not take its keywords or the shape.
        """
        self.fill(layer.weight, layer.bias)

    @torch.no_grad()
    def fill(self, weight: Tensor, bias: Tensor | None) -> None:
        """Initialise the tensors in place, like :meth:`apply`."""
        for what, tensor in (("kernel", weight), ("bias", bias)):
            initializer, kwargs = vars(self)[what], vars(self)[f"{what}_kwargs"]
            where = f"model_config.{self.settings}_{what}_initializer" if self.settings else f"{what} initializer"
            function = initializer_by_name(initializer, where)
            if function is None or tensor is None:
                continue
            try:
                function(tensor, **kwargs)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{where}: expected a function for shape {tuple(tensor.shape)} that takes the keywords "
                    f"{dict(kwargs)}, got {initializer!r}, which says: {error}. Choose another {what} "
                    "initializer or other keywords for it."
                ) from error
