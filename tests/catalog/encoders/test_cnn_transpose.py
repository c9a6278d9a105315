"""The way back from latents to images gives exactly the shape the encoder reads."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from catalog import CNNEncoderConfig, CNNTransposeHeadConfig
from catalog.activations import Init
from catalog.encoders.cnn import CNNEncoder

SIDE = st.integers(1, 13)


@st.composite
def encoders(draw: st.DrawFn, layers: int = 3) -> CNNEncoderConfig:
    """Any image that some filters fit."""
    height, width, channels = draw(SIDE), draw(SIDE), draw(st.integers(1, 3))
    orders: tuple[Literal["first", "last"], ...] = ("first", "last")
    order = draw(st.sampled_from(orders))
    image = (height, width, channels) if order == "last" else (channels, height, width)
    dims = draw(st.sampled_from([image, (2, *image), (height, width)]))
    pairs = st.tuples(st.integers(1, 5), st.integers(1, 5))
    paddings = st.sampled_from(["same", "valid"])
    filters = draw(st.lists(st.tuples(st.integers(1, 4), pairs, pairs, paddings), min_size=1, max_size=layers))
    try:
        return CNNEncoderConfig(input_dims=dims, channels=order, filters=filters, dense_dim=None)
    except ValueError:  # a kernel without padding is larger than what is left
        same = [(*given, "same") for *given, _ in filters]
        return CNNEncoderConfig(input_dims=dims, channels=order, filters=same, dense_dim=None)


@settings(max_examples=30, deadline=None)
@given(encoders(), st.booleans(), st.sampled_from([(), (2,), (2, 1), (0,)]))
def test_images_have_the_shape_the_encoder_reads(
    encoder: CNNEncoderConfig, layernorm: bool, lead: tuple[int, ...]
) -> None:
    config = CNNTransposeHeadConfig.mirror(encoder, (5,), use_layernorm=layernorm)
    assert config.output_dims == encoder.input_dims
    images = config.build()(torch.randn(*lead, 5))
    assert images.shape == (*lead, *encoder.input_dims)
    if 0 not in lead:
        encoder.build()(images)


@settings(max_examples=30, deadline=None)
@given(encoders(layers=1))
def test_each_layer_is_the_transpose_of_the_encoders(encoder: CNNEncoderConfig) -> None:
    # <conv(x), y> = <x, transposed(y)> for one layer with the same weights, without biases and activations
    encoder = CNNEncoderConfig(
        input_dims=encoder.input_dims,
        channels=encoder.channels,
        filters=encoder.filters,
        activation="linear",
        dense_dim=None,
        init=Init(bias="zeros_"),
    )
    net: CNNEncoder = encoder.build().double()
    width = encoder.output_dims[0]
    back = CNNTransposeHeadConfig.mirror(encoder, output_init=Init(bias="zeros_")).build().double()
    mine, theirs = back.convs[0], net.convs[0]
    assert isinstance(mine, nn.ConvTranspose2d)
    assert isinstance(theirs, nn.Conv2d)
    mine.weight.data = theirs.weight.data
    back.dense.weight.data, back.dense.bias.data = torch.eye(width).double(), torch.zeros(width).double()
    x, y = torch.randn(1, *encoder.input_dims).double(), torch.randn(1, width).double()
    torch.testing.assert_close((net(x).latent * y).sum(), (x * back(y)).sum())


def test_sizes_that_the_encoder_rounds_off_come_back() -> None:
    # 84 → 20 → 9 → 7 and back: (7-1)·1+3 = 9, (9-1)·2+4 = 20, (20-1)·4+8 = 84; of 85 one pixel is grown again
    for side in (84, 85):
        config = CNNTransposeHeadConfig(input_dims=(512,), image_dims=(4, side, side), filters="nature")
        head = config.build()
        assert head.dense.out_features == 64 * 7 * 7
        weights = [weight for name, weight in head.named_parameters() if name.endswith("weight")]
        assert [tuple(weight.shape) for weight in weights[1:]] == [(64, 64, 3, 3), (64, 32, 4, 4), (32, 4, 8, 8)]
        assert head(torch.zeros(2, 512)).shape == (2, 4, side, side)


def test_a_sigmoid_keeps_images_between_0_and_1() -> None:
    config = CNNTransposeHeadConfig(input_dims=(8,), image_dims=(10, 10, 3), output_activation="sigmoid")
    images = config.build()(100 * torch.randn(20, 8))
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std() > 0.1


def test_wrong_widths_and_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"CNNTransposeHeadConfig\.input_dims: expected one positive width"):
        CNNTransposeHeadConfig(input_dims=(3, 3), image_dims=(8, 8, 3))
    with pytest.raises(ValueError, match=r"CNNTransposeHeadConfig\.image_dims: expected an image"):
        CNNTransposeHeadConfig(input_dims=(3,), image_dims=(8,))
    with pytest.raises(ValueError, match=r"CNNTransposeHeadConfig\.image_dims: expected convolutions that fit"):
        CNNTransposeHeadConfig(input_dims=(3,), image_dims=(6, 6, 3), filters="nature")


def test_filters_of_its_own_may_have_another_padding() -> None:
    encoder = CNNEncoderConfig(input_dims=(8, 8, 3), filters=[[4, 3, 2]])
    back = CNNTransposeHeadConfig.mirror(encoder, filters=[[4, 3, 2]], padding="valid")
    assert back.mirrored.layers == ((4, (3, 3), (2, 2), "valid"),)


@pytest.mark.end_to_end
def test_an_autoencoder_learns_to_reproduce_eight_images() -> None:
    torch.manual_seed(0)
    images = torch.rand(8, 12, 12, 1).round()
    encoder_config = CNNEncoderConfig(
        input_dims=(12, 12, 1), filters=[[8, 4, 2], [16, 4, 2]], activation="tanh", dense_dim=64
    )
    decoder_config = CNNTransposeHeadConfig.mirror(encoder_config)
    encoder, decoder = encoder_config.build(), decoder_config.build()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for _ in range(150):
        loss = functional.mse_loss(decoder(encoder(images).latent), images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # guessing the mean of each pixel leaves more than 0.2
    assert functional.mse_loss(decoder(encoder(images).latent), images) < 0.02


def test_a_padding_that_would_have_no_effect_is_refused() -> None:
    encoder = CNNEncoderConfig(input_dims=(8, 8, 3), filters=[[4, 3, 2]])
    with pytest.raises(ValueError, match=r"CNNTransposeHeadConfig\.mirror\(padding=\): expected none.*, got 'valid'\."):
        CNNTransposeHeadConfig.mirror(encoder, padding="valid")
    back = CNNTransposeHeadConfig.mirror(encoder, filters=[[4, 3, 2]], padding="valid")
    assert back.mirrored.layers == ((4, (3, 3), (2, 2), "valid"),)
