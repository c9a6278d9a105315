"""The way back from a latent to an image, for decoders and world models."""

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
    """A head from ``[..., *input_dims]`` to images ``[..., *image_dims]``: a dense layer, then the convolutions of a
    :class:`CNNEncoderConfig` in reverse, each as the transposed one, which gives back exactly the sizes that the
    convolution came from, whatever it rounded off.

    The filters are written as the encoder's are, first the one next to the image: the same list makes both nets. The
    last layer of this net, which gives the image, has neither LayerNorm nor activation but ``output_activation``.

    Attributes:
        input_dims: One width, that of the latent.
        image_dims: Shape of one image, as :attr:`CNNEncoderConfig.input_dims`.
        channels, filters, padding: As those of :class:`CNNEncoderConfig`.
        activation: After the dense layer and after every transposed convolution but the last.
        use_layernorm: Whether a LayerNorm stands before each of these activations.
        output_activation: Of the image; "sigmoid" keeps it between 0 and 1, as the encoder reads bytes.
        init, output_init: How the layers start, and the last one.

    Raises:
        ValueError: If ``input_dims`` is not one positive width, or :class:`CNNEncoderConfig` finds that shape and
            filters do not go together.
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
        _ = self.mirrored  # which finds what does not fit

    @classmethod
    def mirror(cls, encoder: CNNEncoderConfig, input_dims: tuple[int, ...] | None = None, **changed: Any) -> Self:
        """The way back of ``encoder``: its shape, filters, activation, LayerNorms and starts.

        Args:
            encoder: What made the latent.
            input_dims: Of the latent; None takes the encoder's own.
            **changed: Further fields, or others than the encoder's.

        Raises:
            ValueError: If there is a padding without filters: each of the encoder's has its own.
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
        """The encoder whose convolutions are gone through in reverse."""
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
        ways = [*zip(self.layer_dims, self.layer_dims[1:], mirrored.layers[::-1], strict=False)]
        convs, self._starts = zip(*(_transposed(*way) for way in ways), strict=True)
        self.convs, self.norms = nn.ModuleList(convs), nn.ModuleList()
        for dims in self.layer_dims[:-1]:
            self.norms.append(nn.LayerNorm([*dims]) if config.use_layernorm else nn.Identity())
        self._activations = tuple(activation_function(config.activation) for _ in convs)
        self._output_activation = activation_function(config.output_activation)
        made = (*self._activations, self._output_activation)
        self.activations = nn.ModuleList(each for each in made if isinstance(each, nn.Module))
        for layer in (self.dense, *convs[:-1]):
            config.init.apply(layer)
        config.output_init.apply(convs[-1])

    def forward(self, latent: Tensor) -> Tensor:
        """``[..., latent] → [..., *image_dims]``."""
        images = self.dense(latent.reshape(-1, latent.shape[-1])).unflatten(-1, self.layer_dims[0])
        layers = zip(self.norms, self._activations, self.convs, self._starts, self.layer_dims[1:], strict=True)
        for norm, activation, conv, (top, left), (_, height, width) in layers:
            images = conv(activation(norm(images)))[..., top : top + height, left : left + width]
        images = self._output_activation(images)
        if self.channels_last:  # of each frame of a stack
            images = images.unflatten(1, (math.prod(self.image_dims[:-3]), -1)).movedim(-3, -1)
        return images.reshape(*latent.shape[:-1], *self.image_dims)


def _transposed(
    before: tuple[int, int, int], after: tuple[int, int, int], layer: Filter
) -> tuple[nn.ConvTranspose2d, tuple[int, int]]:
    """The layer from ``before`` back to ``after`` (channels, height, width), and where in its output the image
    begins: what padding added is cut off, and what the stride left over is grown again."""
    _, kernel, stride, _ = layer
    sizes = zip(before[1:], after[1:], kernel, stride, strict=True)
    down, right = (large - ((small - 1) * s + k) for small, large, k, s in sizes)
    conv = nn.ConvTranspose2d(before[0], after[0], kernel, stride, output_padding=(max(down, 0), max(right, 0)))
    return conv, (max(-down, 0) // 2, max(-right, 0) // 2)
