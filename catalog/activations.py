"""Activations and initialisers by name, and the names of norms and of residual blocks."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from catalog_rl import closest

if TYPE_CHECKING:
    from catalog.model_config import DefaultModelConfig

Initializer = str | Callable[..., Any] | None


Activation = str | type[nn.Module] | Callable[[], nn.Module]


Norm = Literal["layer", "rms", "batch"]
"""Name of a norm: ``nn.LayerNorm``; ``nn.RMSNorm``, which neither subtracts the mean nor has biases; or batch norm,
which has running statistics."""


Blocks = Literal["simba", "bro"]
"""Name of a kind of residual block: SimBa (Lee et al. 2024, section 4.1) or BRO (Nauman et al. 2024, figure 2)."""


def check_blocks(where: str, given: Mapping[str, Any], dims: str, norm: str, layernorm: str, blocks: str) -> None:
    """Check that a dense net with these settings can be built.

    Args:
        where: Name of the object with the settings, for error messages.
        given: The settings by name.
        dims: Name of the setting of the widths.
        norm, layernorm, blocks: Names of the settings of the norm, of whether there is a LayerNorm, and of the kind of
            residual blocks.

    Raises:
        ValueError: For two norms, or for residual blocks without at least two equal widths.
    """
    widths = given[dims]
    if given[layernorm] and given[norm] not in (None, "layer"):
        raise ValueError(
            f"{where}.{norm}: expected 'layer' or None, since {layernorm}=True, got {given[norm]!r}. Leave one out."
        )
    if given[blocks] is not None and (len(widths) < 2 or len({*widths}) > 1):
        raise ValueError(
            f"{where}.{dims}: expected two equal widths or more, since {blocks}={given[blocks]!r}, got {widths}. "
            "Give the width of the input layer and that of each residual block, such as (128, 128, 128) for two."
        )


# Names of the `torch.nn` classes of activations that keep the shape and need no arguments, by lower-case name.
_ACTIVATIONS = {
    name.lower(): name
    for name in sorted({*nn.modules.activation.__all__} - {"GLU", "MultiheadAttention", "Softmax2d", "Threshold"})
} | {"swish": "SiLU"}


_LINEAR = ("linear", "identity")


# Functions that replace modules, by class name: the usual activations, because functions are faster to call, and the
# softmax activations, because their modules would guess the dim, which is the last one here.
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


def activation_by_name(activation: Activation, where: str = "activation") -> Callable[[Tensor], Tensor] | None:
    """Return the function or a new module that computes ``activation``; None for "linear" and "identity".

    Call this function once per layer, because a module may have parameters or a mode.

    Args:
        activation: A ``torch.nn`` class or its name in any case (``leaky_relu`` is ``LeakyReLU``), "swish", "linear",
            "identity", or another class or function that returns a module when called without arguments.
        where: Name of the setting, for error messages.

    Raises:
        ValueError: If no activation has that name (the message names the closest one), or if the class or function
            does not return a module.
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


# Functions whose gradient needs only their result → those that overwrite their argument.
_IN_PLACE: dict[Any, Callable[[Tensor], Tensor]] = {
    torch.relu: torch.relu_,
    torch.tanh: torch.tanh_,
    torch.sigmoid: torch.sigmoid_,
}


def in_place_by_name(activation: Activation) -> Callable[[Tensor], Tensor] | None:
    """Return the result of :func:`activation_by_name`, or a faster function with the same results that may overwrite
    its argument: for the result of a linear layer, a convolution or a norm, which nothing else reads."""
    made = activation_by_name(activation)
    return _IN_PLACE.get(made, made)


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """Return the result of :func:`activation_by_name`, or an identity module in place of None."""
    return activation_by_name(activation) or nn.Identity()


def initializer_by_name(name: Initializer, where: str = "initializer") -> Callable[..., Any] | None:
    """Return the in-place function ``torch.nn.init.<name>``; return a callable or None unchanged.

    Args:
        name: Name of the function, such as "orthogonal_", or a callable or None.
        where: Name of the setting, for error messages.

    Raises:
        ValueError: If torch has no function of that name; the message names the closest one.
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


_initialises: ContextVar[bool] = ContextVar("initialises", default=True)


@contextmanager
def without_initialisers() -> Iterator[None]:
    """Skip the initialisers of all layers built within the block, for nets whose weights are replaced afterwards.
    Orthogonal weights of a wide layer take a second."""
    token = _initialises.set(False)
    try:
        yield
    finally:
        _initialises.reset(token)


@dataclass(frozen=True, kw_only=True)
class Init:
    """The initialisers of the weights and biases of a layer.

    Attributes:
        kernel, bias: Initialiser of the weights, and of the biases; None keeps torch's default.
        kernel_kwargs, bias_kwargs: Keyword arguments of these initialisers.
        settings: Prefix of the model settings that gave the initialisers, such as "fcnet", for error messages.
    """

    kernel: Initializer = None
    kernel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bias: Initializer = None
    bias_kwargs: Mapping[str, Any] = field(default_factory=dict)
    settings: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, settings: str, model_config: "DefaultModelConfig", gain: float = math.sqrt(2)) -> "Init":
        """Make the initialisers from the model settings that begin with ``settings``, such as "fcnet".

        Args:
            settings: Prefix of the names of the settings.
            model_config: The settings.
            gain: Gain of the weights if their initialiser is ``orthogonal_`` and its keyword arguments are not set.
        """
        kernel = getattr(model_config, f"{settings}_kernel_initializer")
        kernel_kwargs = getattr(model_config, f"{settings}_kernel_initializer_kwargs")
        bias = getattr(model_config, f"{settings}_bias_initializer")
        bias_kwargs = getattr(model_config, f"{settings}_bias_initializer_kwargs") or {}
        if kernel_kwargs is None:
            kernel_kwargs = {"gain": gain} if initializer_by_name(kernel) is nn.init.orthogonal_ else {}
        return cls(kernel=kernel, kernel_kwargs=kernel_kwargs, bias=bias, bias_kwargs=bias_kwargs, settings=settings)

    def apply(self, layer: nn.Linear | nn.Conv2d | nn.ConvTranspose2d) -> None:
        """Initialise the weights and biases of ``layer`` in place.

        Raises:
            ValueError: If an initialiser is unknown, or does not accept its keyword arguments or the shape of the
                tensor.
        """
        self.fill(layer.weight, layer.bias)

    @torch.no_grad()
    def fill(self, weight: Tensor, bias: Tensor | None) -> None:
        """Initialise ``weight`` and ``bias`` in place, as :meth:`apply` does for those of a layer."""
        for what, tensor in (("kernel", weight), ("bias", bias)):
            initializer, kwargs = vars(self)[what], vars(self)[f"{what}_kwargs"]
            where = f"model_config.{self.settings}_{what}_initializer" if self.settings else f"{what} initializer"
            function = initializer_by_name(initializer, where)
            if function is None or tensor is None or not _initialises.get():
                continue
            try:
                function(tensor, **kwargs)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{where}: expected a function for shape {tuple(tensor.shape)} that takes the keywords "
                    f"{dict(kwargs)}, got {initializer!r}, which says: {error}. Choose another {what} "
                    "initializer or other keywords for it."
                ) from error
