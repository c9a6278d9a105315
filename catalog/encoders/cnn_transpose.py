"""Decoders from latents to images, for world models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from typing_extensions import Self

from catalog.activations import Activation, Init, activation_function
from catalog.base import ModelConfig
from catalog.encoders.cnn import CNNEncoderConfig, Filter
from catalog.encoders.mlp import require_width


@dataclass(frozen=True, kw_only=True)
class CNNTransposeHeadConfig(ModelConfig):
    """Config of a head from ``[..., *input_dims]`` to images ``[..., *image_dims]``: a dense layer and transposed
    convolutions.

    The transposed convolutions reverse the convolutions of a :class:`CNNEncoderConfig`. Each restores exactly the size
    before its convolution, even if the convolution rounded it. The filters are those of the encoder in the same order,
    so that the first filter is next to the image. Only the ``output_activation`` follows the last layer.

    Attributes:
        input_dims: Width of the latent, as a tuple of one.
        image_dims: Shape of one image, with the forms of :attr:`CNNEncoderConfig.input_dims`.
        channels, filters, padding: As in :class:`CNNEncoderConfig`.
        activation: Activation of the dense layer and of every transposed convolution but the last.
        use_layernorm: Whether a LayerNorm precedes each of these activations.
        output_activation: Activation of the image; "sigmoid" keeps it in (0, 1), the range of bytes divided by 255.
        init: Initialisers of all layers but the last.
        output_init: Initialisers of the last layer.

    Raises:
        ValueError: If ``input_dims`` is not one positive width, or if :class:`CNNEncoderConfig` would raise for this
            shape or for these filters.
    """

    input_dims: tuple[int, ...]
    image_dims: tuple[int, ...]
    channels: Literal["first", "last"] | None = None
    filters: Sequence[Sequence[Any]] | Literal["nature"] | None = None
    padding: Literal["same", "valid"] = "same"
    activation: Activation = "relu"
    use_layernorm: bool = False
    output_activation: Activation = "linear"
    init: Init = field(default_factory=Init)
    output_init: Init = field(default_factory=Init)

    def __post_init__(self) -> None:
        require_width(self)
        _ = self.mirrored  # checks shape and filters

    @classmethod
    def mirror(cls, encoder: CNNEncoderConfig, input_dims: tuple[int, ...] | None = None, **changed: Any) -> Self:
        """Return the config of a decoder with the shape, filters, activation, LayerNorms and initialisers of
        ``encoder``.

        Args:
            encoder: Config of the encoder.
            input_dims: Width of the latent, as a tuple of one; None takes that of the encoder.
            **changed: Fields that the encoder does not give, or values that replace those of the encoder.

        Raises:
            ValueError: For a ``padding`` without ``filters``, because each filter of the encoder has its own padding.
        """
        if "padding" in changed and "filters" not in changed:
            raise ValueError(
                f"{cls.__name__}.mirror(padding=): expected none, since each of the encoder's filters has "
                f"its own, got {changed['padding']!r}. Leave it out, or give filters too."
            )
        kept = ("channels", "filters", "activation", "use_layernorm", "init")
        fields: dict[str, Any] = {name: vars(encoder)[name] for name in kept}
        fields["input_dims"] = encoder.output_dims if input_dims is None else input_dims
        fields["image_dims"] = encoder.input_dims
        return cls(**fields | changed)

    @property
    def mirrored(self) -> CNNEncoderConfig:
        """Config of the encoder whose convolutions this head reverses."""
        return CNNEncoderConfig(
            input_dims=self.image_dims,
            channels=self.channels,
            filters=self.filters,
            padding=self.padding,
            where="CNNTransposeHeadConfig.image_dims",
        )

    @property
    def output_dims(self) -> tuple[int, ...]:
        return tuple(self.image_dims)

    def build(self) -> CNNTransposeHead:
        return CNNTransposeHead(self)


class CNNTransposeHead(nn.Module):
    """The net of a :class:`CNNTransposeHeadConfig`."""

    def __init__(self, config: CNNTransposeHeadConfig) -> None:
        super().__init__()
        mirrored = config.mirrored
        self.image_dims, self.channels_last = tuple(config.image_dims), mirrored.channels == "last"
        self.layer_dims = mirrored.layer_dims[::-1]  # from the features to the image
        self.dense = nn.Linear(config.input_dims[0], math.prod(self.layer_dims[0]))
        # each step back leads from the output size of a convolution to its input size
        ways = [*zip(self.layer_dims, self.layer_dims[1:], mirrored.layers[::-1], strict=False)]
        convs, self._starts = zip(*(_transposed(*way) for way in ways), strict=True)
        self.convs, self.norms = nn.ModuleList(convs), nn.ModuleList()
        for dims in self.layer_dims[:-1]:
            self.norms.append(nn.LayerNorm([*dims]) if config.use_layernorm else nn.Identity())
        self._activations = tuple(activation_function(config.activation) for _ in convs)
        self._output_activation = activation_function(config.output_activation)
        made = (*self._activations, self._output_activation)
        self.activations = nn.ModuleList(net for net in made if isinstance(net, nn.Module))
        for layer in (self.dense, *convs[:-1]):
            config.init.apply(layer)
        config.output_init.apply(convs[-1])

    def forward(self, latent: Tensor) -> Tensor:
        """Map ``[..., latent] → [..., *image_dims]``."""
        images = self.dense(latent.reshape(-1, latent.shape[-1])).unflatten(-1, self.layer_dims[0])
        # norm and activation come before each convolution: the first pair belongs to the dense layer
        layers = zip(self.norms, self._activations, self.convs, self._starts, self.layer_dims[1:], strict=True)
        for norm, activation, conv, (top, left), (_, height, width) in layers:
            images = conv(activation(norm(images)))[..., top : top + height, left : left + width]
        images = self._output_activation(images)
        if self.channels_last:  # move the channels of each frame of a stack
            images = images.unflatten(1, (math.prod(self.image_dims[:-3]), -1)).movedim(-3, -1)
        return images.reshape(*latent.shape[:-1], *self.image_dims)


def _transposed(
    before: tuple[int, int, int], after: tuple[int, int, int], layer: Filter
) -> tuple[nn.ConvTranspose2d, tuple[int, int]]:
    """Return the layer from shape ``before`` back to shape ``after`` (channels, height, width), and the offset (top,
    left) of the image in its output.

    If padding makes the output larger than ``after``, the caller crops it at the offset. If the output would be
    smaller, because the stride of the convolution skipped the last rows or columns, ``output_padding`` extends it.
    """
    _, kernel, stride, _ = layer
    sizes = zip(before[1:], after[1:], kernel, stride, strict=True)
    down, right = (large - ((small - 1) * s + k) for small, large, k, s in sizes)
    conv = nn.ConvTranspose2d(before[0], after[0], kernel, stride, output_padding=(max(down, 0), max(right, 0)))
    return conv, (max(-down, 0) // 2, max(-right, 0) // 2)
