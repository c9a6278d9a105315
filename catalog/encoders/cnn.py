"""Convolutional encoders of images, and the rules that choose them."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.activations import Activation, Init, activation_function, in_place_by_name
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.checks import Bounds, Filters, check_value
from catalog.encoders.preprocessing import is_byte_box
from catalog.model_config import DefaultModelConfig
from catalog.rules import Node, of_rank

Pair = tuple[int, int]
Filter = tuple[int, Pair, Pair, str]
"""One convolution: channels, kernel (height, width), stride (height, width), and padding "same" or "valid"."""

NATURE: tuple[Filter, ...] = (
    (32, (8, 8), (4, 4), "valid"),
    (64, (4, 4), (2, 2), "valid"),
    (64, (3, 3), (1, 1), "valid"),
)
"""The convolutions of Mnih et al. 2015, "Human-level control through deep reinforcement learning"."""


def default_filters(height: int, width: int, padding: Literal["same", "valid"] = "same") -> tuple[Filter, ...]:
    """Return convolutions that shrink an image of any size to at most 7 on its shorter and 28 on its longer side.

    The first convolution has 32 channels. It is 8×8 with stride 4 if the shorter side is at least 64, else 4×4 with
    stride 2. All other convolutions are 4×4 with stride 2 and 64 channels. Once the shorter side is at most 7, it keeps
    its size: along that side the stride is 1 and the kernel 3, or 1 for padding "valid". An image of at most 7 × 28
    gets one 3×3 convolution with stride 1 and 32 channels; with padding "valid", its kernel is at most as large as
    the image.

    =========  ========================  ========================
    image      sizes, padding "same"     sizes, padding "valid"
    =========  ========================  ========================
    210 × 160  53×40, 27×20, 14×10, 7×5  51×39, 24×18, 11×8, 4×3
    96 × 96    24, 12, 6                 23, 10, 4
    84 × 84    21, 11, 6                 20, 9, 3
    64 × 64    16, 8, 4                  15, 6
    42 × 42    21, 11, 6                 20, 9, 3
    10 × 10    5                         4
    5 × 5      5                         3
    =========  ========================  ========================
    """
    large = min(height, width) >= 64
    filters: list[Filter] = []
    while min(height, width) > 7 or max(height, width) > 28:
        both = min(height, width) > 7
        shrink = (8, 4) if large and not filters else (4, 2)
        keep = (3 if padding == "same" else 1, 1)
        (rows, down), (columns, across) = (shrink if both or size > 28 else keep for size in (height, width))
        filters.append((64 if filters else 32, (rows, columns), (down, across), padding))
        height, width = _shrunk(height, rows, down, padding), _shrunk(width, columns, across, padding)
    if not filters:
        kernel = (3, 3) if padding == "same" else (min(3, height), min(3, width))
        filters.append((32, kernel, (1, 1), padding))
    return tuple(filters)


def _shrunk(size: int, kernel: int, stride: int, padding: str) -> int:
    """Return the length of one side of an image after a convolution, given its length ``size`` before."""
    return -(-size // stride) if padding == "same" else (size - kernel) // stride + 1


@dataclass(frozen=True, kw_only=True)
class ImageEncoderConfig(ModelConfig):
    """Base of configs of image encoders.

    Attributes:
        input_dims: Shape of an observation: ``[H, W, C]`` or ``[C, H, W]``, a stack of these ``[K, ...]`` whose frames
            become channels, or a grey image ``[H, W]``.
        channels: Whether the channels of an image are "first" or "last". None guesses from the shape: it takes the
            reading with a square image, else the reading with fewer channels, else "last".
        activation: Activation after every convolution and after the dense layer.
        dense_dim: Width of a dense layer after the convolutions; None only flattens their output.
        init: Initialisers of the convolutions and of the dense layer.
        scale: Factor by which the numbers of an image are multiplied.
        where: Name of the image in error messages.

    Raises:
        ValueError: If ``input_dims`` is not the shape of an image.
    """

    input_dims: tuple[int, ...]
    channels: Literal["first", "last"] | None = None
    activation: Activation = "relu"
    dense_dim: int | None = 512
    init: Init = field(default_factory=Init)
    scale: float = 1.0
    where: str = field(default="input_dims", repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.input_dims) not in (2, 3, 4) or 0 in self.input_dims:
            raise ValueError(
                f"{self.where}: expected an image [H, W], [H, W, C] or [C, H, W], or a stack of "
                f"images [K, ...], not empty, got shape {self.input_dims}. Reshape it with an "
                "environment wrapper, or leave it out of the observation."
            )
        if self.channels is None:
            object.__setattr__(self, "channels", _guessed_channels(self.input_dims))

    @property
    def image_dims(self) -> tuple[int, int, int]:
        """Channels, height and width of the input of the first convolution."""
        if len(self.input_dims) == 2:
            return 1, *self.input_dims
        *frames, a, b, c = self.input_dims
        channels, height, width = (a, b, c) if self.channels == "first" else (c, a, b)
        return channels * math.prod(frames), height, width

    @property
    @abstractmethod
    def feature_dims(self) -> tuple[int, int, int]:
        """Channels, height and width after the last convolution."""

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (math.prod(self.feature_dims) if self.dense_dim is None else self.dense_dim,)


def _guessed_channels(dims: tuple[int, ...]) -> Literal["first", "last"]:
    if len(dims) == 2:
        return "last"
    a, b, c = dims[-3:]
    # if only one reading gives a square image, that one, else fewer channels
    first = b == c if (a == b) != (b == c) else a < c
    return "first" if first else "last"


class ImageEncoder(Encoder):
    """Base of image encoders, which converts observations to float images, and features to a latent.

    Observations may have any leading dims. Images are channels-last in memory, which makes convolutions on CPUs faster.
    """

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        self.input_dims, self.image_dims = tuple(config.input_dims), config.image_dims
        self.channels_last = config.channels == "last" and len(config.input_dims) > 2
        self.scale = config.scale

    def finish(self, config: ImageEncoderConfig) -> None:
        """Add the dense layer if the config has one, and initialise all layers. Subclasses call this method at the end
        of ``__init__``."""
        self.dense = None
        if config.dense_dim is not None:
            self.dense = nn.Linear(math.prod(config.feature_dims), config.dense_dim)
            self.dense_activation = in_place_by_name(config.activation) or nn.Identity()
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                config.init.apply(layer)

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Map images ``[N, C, H, W]`` to features ``[N, *feature_dims]``."""

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        """Return latents ``[..., *output_dims]`` of images ``[..., *input_dims]``.

        Raises:
            ValueError: If the images do not have the shape that the net was built for.
        """
        leading = obs.shape[: -len(self.input_dims)]
        if obs.shape[len(leading) :] != self.input_dims:
            raise ValueError(
                f"{type(self).__name__}: expected images of shape (..., "
                f"{', '.join(map(str, self.input_dims))}), got shape {tuple(obs.shape)}. Give it "
                "what it was built for, or build it with other input_dims."
            )
        images = obs.reshape(math.prod(leading), *self.input_dims)
        if self.channels_last:
            images = images.movedim(-1, -3)
        images = images.reshape(images.shape[0], *self.image_dims).contiguous(memory_format=torch.channels_last)
        dtype = next(self.parameters()).dtype
        is_copied = images.dtype != dtype
        images = images.to(dtype)  # converted last: moving bytes is four times cheaper
        if self.scale != 1:
            # a copy is scaled in place, as another one takes long
            images = images.mul_(self.scale) if is_copied else images * self.scale
        latent = self.features(images).flatten(1)
        if self.dense is not None:
            latent = self.dense_activation(self.dense(latent))
        return EncoderOutput(latent.reshape(*leading, latent.shape[-1]))


@dataclass(frozen=True, kw_only=True)
class CNNEncoderConfig(ImageEncoderConfig):
    """Config of a CNN: convolution (→ LayerNorm) → activation per filter, then a dense layer and its activation if
    ``dense_dim`` is not None.

    Attributes:
        filters: ``[[channels, kernel, stride], …]`` with the padding as an optional fourth entry; kernels and strides
            are numbers or pairs (height, width). "nature" stands for :data:`NATURE`, None for
            :func:`default_filters`. Stored as a tuple of :data:`Filter`.
        padding: Padding of filters that name none. "same" adds zeros so that the size becomes ``ceil(size / stride)``.
            If their number is odd, the extra zero is at the right or the bottom. "valid" adds no zeros.
        use_layernorm: Whether a LayerNorm over channels, height and width precedes each activation.

    Raises:
        ValueError: If an unpadded filter is larger than its input, or if ``input_dims`` is not the shape of an image.
    """

    filters: Sequence[Sequence[Any]] | Literal["nature"] | None = None
    padding: Literal["same", "valid"] = "same"
    use_layernorm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        filters = NATURE if self.filters == "nature" else self.filters
        _, height, width = self.image_dims
        if filters is None:
            filters = default_filters(height, width, self.padding)
        example = "[[16, 8, 4], [32, 4, 2, 'valid']], 'nature' or None."
        filters = check_value(f"{self.where}, filters", filters, Filters, Bounds(ge=1), example)
        object.__setattr__(self, "filters", tuple(_in_full(entry, self.padding) for entry in filters))
        for i, ((_, kernel, _, padding), (_, *left)) in enumerate(zip(self.layers, self.layer_dims, strict=False), 1):
            if padding == "valid" and (kernel[0] > left[0] or kernel[1] > left[1]):
                raise ValueError(
                    f"{self.where}: expected convolutions that fit an image of {height}×{width}, got an unpadded "
                    f"kernel of {kernel[0]}×{kernel[1]} in layer {i}, where {left[0]}×{left[1]} is left. Choose "
                    "smaller kernels or strides or 'same' padding in conv_filters, or conv_filters=None."
                )

    @property
    def layers(self) -> tuple[Filter, ...]:
        """The convolutions, as a tuple of :data:`Filter`."""
        return self.filters  # type: ignore[return-value]  # __post_init__ made it so

    @property
    def layer_dims(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, height and width of the image, and of the output of each convolution."""
        dims = [self.image_dims]
        for channels, kernel, stride, padding in self.layers:
            _, height, width = dims[-1]
            height, width = map(_shrunk, (height, width), kernel, stride, (padding, padding))
            dims.append((channels, height, width))
        return tuple(dims)

    @property
    def feature_dims(self) -> tuple[int, int, int]:
        return self.layer_dims[-1]

    def build(self) -> "CNNEncoder":
        return CNNEncoder(self)


def _in_full(entry: Sequence[Any], padding: str) -> Filter:
    channels, kernel, stride, *rest = entry
    kernel, stride = ((value, value) if isinstance(value, int) else tuple(value) for value in (kernel, stride))
    return channels, kernel, stride, rest[0] if rest else padding


class CNNEncoder(ImageEncoder):
    """The net of a :class:`CNNEncoderConfig`."""

    def __init__(self, config: CNNEncoderConfig) -> None:
        super().__init__(config)
        self.pads, self.convs, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        steps = zip(pairwise(config.layer_dims), config.layers, strict=True)
        for (before, after), (width, kernel, stride, padding) in steps:
            (top, bottom), (left, right) = map(_pads, before[1:], kernel, stride, (padding, padding))
            even = (top, left) == (bottom, right)  # Conv2d pads both sides alike: uneven padding needs its own layer
            self.pads.append(nn.Identity() if even else nn.ZeroPad2d((left, right, top, bottom)))
            self.convs.append(nn.Conv2d(before[0], width, kernel, stride, (top, left) if even else 0))
            self.norms.append(nn.LayerNorm([*after]) if config.use_layernorm else nn.Identity())
        self._activations = tuple(in_place_by_name(config.activation) or nn.Identity() for _ in self.convs)
        self.activations = nn.ModuleList(made for made in self._activations if isinstance(made, nn.Module))
        self.finish(config)

    def features(self, images: Tensor) -> Tensor:
        for pad, conv, norm, activation in zip(self.pads, self.convs, self.norms, self._activations, strict=True):
            images = activation(norm(conv(pad(images))))
        return images


def _pads(size: int, kernel: int, stride: int, padding: str) -> Pair:
    """Return the numbers of zeros to add at the two ends of a side of length ``size``; (0, 0) for "valid" padding."""
    total = max((_shrunk(size, kernel, stride, padding) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


@dataclass(frozen=True, kw_only=True)
class ImpalaEncoderConfig(ImageEncoderConfig):
    """Config of the residual net of Espeholt et al. 2018, "IMPALA: Scalable distributed deep-RL with importance
    weighted actor-learner architectures", for images of any size.

    Each section is a 3×3 convolution, a 3×3 max-pool that halves the image (rounding up) and two residual blocks of two
    3×3 convolutions each. An activation and the dense layer follow the last section.

    Attributes:
        section_channels: Number of channels of each section.
    """

    section_channels: tuple[int, ...] = (16, 32, 32)

    @property
    def feature_dims(self) -> tuple[int, int, int]:
        _, height, width = self.image_dims
        for _ in self.section_channels:
            height, width = -(-height // 2), -(-width // 2)
        return self.section_channels[-1], height, width

    def build(self) -> "ImpalaEncoder":
        return ImpalaEncoder(self)


class ImpalaEncoder(ImageEncoder):
    """The net of an :class:`ImpalaEncoderConfig`."""

    def __init__(self, config: ImpalaEncoderConfig) -> None:
        super().__init__(config)
        layers: list[nn.Module] = []
        for before, after in pairwise((config.image_dims[0], *config.section_channels)):
            blocks = [_ResidualBlock(after, config.activation) for _ in range(2)]
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), *blocks]
        self.layers = nn.Sequential(*layers)
        self.activation = activation_function(config.activation)
        self.finish(config)

    def features(self, images: Tensor) -> Tensor:
        return self.activation(self.layers(images))


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int, activation: Activation) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.activation1, self.activation2 = activation_function(activation), activation_function(activation)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.activation2(self.conv1(self.activation1(x))))


@encoder_rules.register(spaces.Box, name="Box of rank 2 as a grey image → CNN", when=of_rank(2, matrix="image"))
@encoder_rules.register(spaces.Box, name="Box of rank 4 → frames as channels → CNN", when=of_rank(4))
@encoder_rules.register(spaces.Box, name="Box of rank 3 → CNN", when=of_rank(3))
def _(space: spaces.Box, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> ImageEncoderConfig:
    filters = model_config.conv_filters
    padding = model_config.conv_padding
    channels = model_config.conv_channels
    activation = model_config.conv_activation
    use_layernorm = model_config.conv_use_layernorm
    common: dict[str, Any] = {
        "input_dims": space.shape,
        "channels": channels,
        "activation": activation,
        "dense_dim": model_config.conv_dense_dim,
        "init": Init.of("conv", model_config),
        "scale": 1 / 255 if is_byte_box(space) else 1.0,
        "where": node.path,
    }
    if filters != "impala":
        return CNNEncoderConfig(filters=filters, padding=padding, use_layernorm=use_layernorm, **common)
    for name, got, expected, why in (
        ("conv_use_layernorm", use_layernorm, False, "no LayerNorm"),
        ("conv_padding", padding, "same", "its own padding"),
    ):
        if got != expected:
            raise ValueError(
                f"model_config.{name}: expected {expected!r} for conv_filters='impala', which has "
                f"{why}, at {node.path}, got {got!r}. Set it to {expected!r}, or list the convolutions "
                "in conv_filters."
            )
    return ImpalaEncoderConfig(**common)
