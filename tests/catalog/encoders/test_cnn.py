"""Image encoders: sizes, channel order, padding, scaling, named nets, starts, and what they refuse."""

import re
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from catalog import Catalog
from catalog.activations import Init
from catalog.base import encoder_rules
from catalog.encoders.cnn import CNNEncoderConfig, ImageEncoderConfig, ImpalaEncoderConfig, default_filters
from catalog.model_config import DefaultModelConfig


def image_space(*shape: int, dtype: Any = np.uint8, high: float = 255) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


def decide(space: spaces.Box, **model_settings: Any) -> ImageEncoderConfig:
    config = encoder_rules.root(space, DefaultModelConfig(**model_settings), "observation_space").run()
    assert isinstance(config, ImageEncoderConfig)
    return config


def decide_cnn(space: spaces.Box, **model_settings: Any) -> CNNEncoderConfig:
    config = decide(space, **model_settings)
    assert isinstance(config, CNNEncoderConfig)
    return config


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def by_hand(config: CNNEncoderConfig, net: Any, images: Tensor) -> Tensor:
    """The latents of float images ``[N, C, H, W]``, written out with torch's functions and explicit zeros."""
    for i, (_, kernel, stride, padding) in enumerate(config.layers):
        conv = net.convs[i]
        if padding == "same":
            sides = []
            for size, k, s in zip(images.shape[2:], kernel, stride, strict=True):
                total = max((int(np.ceil(size / s)) - 1) * s + k - size, 0)
                sides.append((total // 2, total - total // 2))
            images = functional.pad(images, (*sides[1], *sides[0]))
        images = functional.conv2d(images, conv.weight, conv.bias, stride)
        if config.use_layernorm:
            flat = images.flatten(1)
            deviation = (flat.var(1, unbiased=False) + 1e-5).sqrt()
            images = ((flat - flat.mean(1, keepdim=True)) / deviation.unsqueeze(1)).view_as(images)
        images = images.relu()
    latent = images.flatten(1)
    return latent if config.dense_dim is None else net.dense(latent).relu()


# --- sizes and padding ------------------------------------------------------------------------------------------------

SIZES = {  # image → sizes after each default layer, "same" and "valid"
    (210, 160): ([(53, 40), (27, 20), (14, 10), (7, 5)], [(51, 39), (24, 18), (11, 8), (4, 3)]),
    (96, 96): ([(24, 24), (12, 12), (6, 6)], [(23, 23), (10, 10), (4, 4)]),
    (84, 84): ([(21, 21), (11, 11), (6, 6)], [(20, 20), (9, 9), (3, 3)]),
    (64, 64): ([(16, 16), (8, 8), (4, 4)], [(15, 15), (6, 6)]),
    (42, 42): ([(21, 21), (11, 11), (6, 6)], [(20, 20), (9, 9), (3, 3)]),
    (10, 10): ([(5, 5)], [(4, 4)]),
    (5, 5): ([(5, 5)], [(3, 3)]),
}


@pytest.mark.parametrize("size", SIZES)
def test_default_filters_shrink_every_size_in_the_table_as_it_says(size: tuple[int, int]) -> None:
    for padding, expected in zip(("same", "valid"), SIZES[size], strict=True):
        config = decide_cnn(image_space(*size, 3), conv_padding=padding)
        assert [dims[1:] for dims in config.layer_dims[1:]] == expected
        text = ", ".join(str(h) if h == w else f"{h}×{w}" for h, w in expected)
        row = next(line for line in str(default_filters.__doc__).splitlines() if f"{size[0]} × {size[1]}" in line)
        assert text in re.split(r"\s{2,}", row.strip())


def test_the_default_layers_are_those_of_the_rule() -> None:
    assert default_filters(84, 84) == (
        (32, (8, 8), (4, 4), "same"),
        (64, (4, 4), (2, 2), "same"),
        (64, (4, 4), (2, 2), "same"),
    )
    assert default_filters(42, 63) == tuple((n, (4, 4), (2, 2), "same") for n in (32, 64, 64))
    assert default_filters(7, 28) == ((32, (3, 3), (1, 1), "same"),)
    assert default_filters(2, 20, "valid") == ((32, (2, 3), (1, 1), "valid"),)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("size", [(500, 10), (10, 500), (3, 1000), (64, 1024)])
def test_a_long_thin_image_shrinks_until_both_sides_are_small(size: tuple[int, int], padding: Any) -> None:
    config = decide_cnn(image_space(*size, 3), conv_padding=padding, conv_channels="last")
    channels, height, width = config.feature_dims
    assert max(height, width) <= 28
    assert channels * height * width <= 64 * 7 * 28
    assert config.build()(pixels(1, *size, 3)).latent.shape == (1, 512)


# RLlib's filters for 84 × 84: 16·8²·3 + 16, 32·4²·16 + 32, 256·11²·32 + 256, and 256·11·11·512 + 512
LARGE = r"encoder of Box\(84, 84, 3\) .*: 16,863,024 parameters, 15,859,712 in one layer 30,976 → 512\. .*'valid'"


def test_a_dense_layer_that_is_larger_than_anyone_means_is_told_in_one_line() -> None:
    filters: list[list[Any]] = [[16, 8, 4], [32, 4, 2], [256, 11, 1]]
    with pytest.warns(UserWarning, match=LARGE) as expected_text:
        Catalog(image_space(84, 84, 3), spaces.Discrete(2), {"conv_filters": filters}).build_encoder()
    assert len(expected_text) == 1
    assert "\n" not in str(expected_text[0].message)
    filters[-1].append("valid")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Catalog(image_space(84, 84, 3), spaces.Discrete(2), {"conv_filters": filters}).build_encoder()


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    channels=st.integers(1, 4),
    first=st.booleans(),
    padding=st.sampled_from(["same", "valid"]),
    net=st.sampled_from([None, "impala", "list"]),
    dense=st.sampled_from([None, 3]),
)
def test_output_dims_are_known_before_building_for_images_of_any_size(
    height: int, width: int, channels: int, first: bool, padding: str, net: str | None, dense: int | None
) -> None:
    shape = (channels, height, width) if first else (height, width, channels)
    filters = [[2, 3, 2], [3, [2, 4], [1, 3], "same"]] if net == "list" else net
    space = image_space(*shape)
    kwargs = {"conv_filters": filters, "conv_dense_dim": dense}
    if net != "impala":
        kwargs["conv_padding"] = padding
    if net == "list" and padding == "valid" and min(height, width) < 3:
        with pytest.raises(ValueError, match=r"observation_space: expected convolutions that fit"):
            decide(space, **kwargs, conv_channels="first" if first else "last")
        return
    config = decide(space, **kwargs, conv_channels="first" if first else "last")
    assert config.image_dims == (channels, height, width)
    latent = config.build()(pixels(2, *shape)).latent
    assert latent.shape == (2, *config.output_dims)
    assert config.output_dims == (dense or int(np.prod(config.feature_dims)),)


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    layernorm=st.booleans(),
    dense=st.sampled_from([None, 4]),
)
def test_a_net_equals_its_layers_with_the_zeros_written_out(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], layernorm: bool, dense: int | None
) -> None:
    config = CNNEncoderConfig(
        input_dims=(*size, 2),
        channels="last",
        filters=[[3, kernel, stride], [2, 1, 1, "valid"]],
        use_layernorm=layernorm,
        dense_dim=dense,
    )
    net, obs = config.build(), torch.randn(3, *size, 2)
    assert config.feature_dims == (2, -(-size[0] // stride[0]), -(-size[1] // stride[1]))
    torch.testing.assert_close(net(obs).latent, by_hand(config, net, obs.permute(0, 3, 1, 2)), atol=1e-5, rtol=1e-4)


def test_an_odd_zero_goes_to_the_right_and_to_the_bottom() -> None:
    init = Init(kernel="ones_", bias="zeros_")
    config = CNNEncoderConfig(input_dims=(3, 3), filters=[[1, 2, 1]], dense_dim=None, init=init)
    image = torch.arange(1.0, 10.0).view(3, 3)
    # 1 2 3 0
    # 4 5 6 0
    # 7 8 9 0
    # 0 0 0 0, summed in windows of 2 × 2
    assert config.build()(image).latent.tolist() == [12, 16, 9, 24, 28, 15, 15, 17, 9]


def test_the_padding_of_a_filter_comes_before_the_common_one() -> None:
    filters = [[4, 3, 1], [4, 3, 1, "same"], [4, 3, 1, "valid"]]
    assert decide_cnn(image_space(9, 9, 1), conv_filters=filters).layer_dims[1:] == ((4, 9, 9), (4, 9, 9), (4, 7, 7))
    valid = decide_cnn(image_space(9, 9, 1), conv_filters=filters, conv_padding="valid")
    assert valid.layer_dims[1:] == ((4, 7, 7), (4, 7, 7), (4, 5, 5))


# --- how an image is read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((84, 84, 3), (3, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 84), (84, 84, 84)),
        ((8, 8, 20), (20, 8, 8)),  # square wins over few channels
        ((20, 8, 8), (20, 8, 8)),
        ((3, 60, 80), (3, 60, 80)),  # neither square: the fewer
        ((60, 80, 3), (3, 60, 80)),
        ((5, 7, 5), (5, 5, 7)),  # a draw: last
        ((2, 60, 80, 3), (6, 60, 80)),
        ((4, 1, 84, 84), (4, 84, 84)),
        ((4, 84, 84, 1), (4, 84, 84)),
    ],
)
def test_channels_are_told_by_the_shape(shape: tuple[int, ...], image: tuple[int, int, int]) -> None:
    assert decide(image_space(*shape)).image_dims == image


def test_a_draw_reads_channels_last() -> None:
    assert decide(image_space(6, 6, 6)).channels == "last"
    assert decide(image_space(5, 7, 5)).channels == "last"


@pytest.mark.parametrize(("channels", "image"), [("first", (8, 8, 3)), ("last", (3, 8, 8))])
def test_a_setting_for_the_channels_comes_first(channels: str, image: tuple[int, int, int]) -> None:
    assert decide(image_space(8, 8, 3), conv_channels=channels).image_dims == image


def test_the_same_image_in_either_order_gives_the_same_latent() -> None:
    last, first = (decide(image_space(*shape), conv_dense_dim=8).build() for shape in ((12, 12, 3), (3, 12, 12)))
    first.load_state_dict(last.state_dict())
    obs = pixels(4, 12, 12, 3)
    torch.testing.assert_close(last(obs).latent, first(obs.permute(0, 3, 1, 2)).latent)


def test_frames_of_a_stack_become_channels_in_their_order() -> None:
    stack, merged = (decide(image_space(*shape), conv_channels="last").build() for shape in ((2, 9, 8, 3), (9, 8, 6)))
    merged.load_state_dict(stack.state_dict())
    obs = pixels(4, 2, 9, 8, 3)
    torch.testing.assert_close(stack(obs).latent, merged(torch.cat([obs[:, 0], obs[:, 1]], -1)).latent)
    first = decide(image_space(2, 3, 9, 8), conv_channels="first").build()
    first.load_state_dict(stack.state_dict())
    torch.testing.assert_close(first(obs.permute(0, 1, 4, 2, 3)).latent, stack(obs).latent)


def test_a_matrix_is_a_grey_image_where_settings_say_so() -> None:
    config = decide(image_space(12, 10), matrix_observations="image")
    assert config.image_dims == (1, 12, 10)
    obs = pixels(3, 12, 10)
    with_channel = decide(image_space(12, 10, 1)).build()
    net = config.build()
    with_channel.load_state_dict(net.state_dict())
    torch.testing.assert_close(net(obs).latent, with_channel(obs.unsqueeze(-1)).latent)


@pytest.mark.parametrize(
    ("space", "scale"),
    [
        (image_space(8, 8, 1), 255),
        (image_space(8, 8, 1, high=254), 1),
        (image_space(8, 8, 1, dtype=np.int32), 1),
        (image_space(8, 8, 1, dtype=np.float32), 1),
    ],
)
def test_only_bytes_from_0_to_255_are_scaled(space: spaces.Box, scale: float) -> None:
    config = decide_cnn(space, conv_dense_dim=None)
    net = config.build()
    obs = torch.as_tensor(np.stack([space.sample() for _ in range(3)]))
    expected = by_hand(config, net, obs.permute(0, 3, 1, 2).double().div(scale).float())
    torch.testing.assert_close(net(obs).latent, expected, atol=1e-4, rtol=1e-4)
    images = obs.float()
    kept = images.clone()
    assert torch.equal(net(images).latent, net(obs).latent)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("shape", [(9, 9, 2), (2, 9, 9), (3, 9, 9, 2), (9, 9)])
@pytest.mark.parametrize("filters", [None, "impala"])
def test_any_leading_dims_are_kept(lead: tuple[int, ...], shape: tuple[int, ...], filters: str | None) -> None:
    config = decide(image_space(*shape), conv_filters=filters, conv_dense_dim=None, matrix_observations="image")
    net, obs = config.build(), pixels(*lead, *shape)
    latent = net(obs).latent
    assert latent.shape == (*lead, *config.output_dims)
    alone = [net(row).latent for row in obs.reshape(int(np.prod(lead)), *shape)]
    if alone:
        rows = latent.flatten(0, -2) if lead else latent[None]
        torch.testing.assert_close(rows, torch.stack(alone), atol=2e-4, rtol=1e-4)


def test_float_observations_are_not_changed_and_pass_gradients_on() -> None:
    obs = torch.rand(2, 8, 8, 1, requires_grad=True)
    before = obs.detach().clone()
    decide(image_space(8, 8, 1, dtype=np.float32)).build()(obs).latent.sum().backward()
    assert torch.equal(obs, before)
    assert obs.grad is not None
    assert obs.grad.abs().sum() > 0


# --- named nets -------------------------------------------------------------------------------------------------------


def test_nature_is_the_net_of_mnih_et_al() -> None:
    config = decide_cnn(image_space(84, 84, 4), conv_filters="nature")
    assert config.layer_dims == ((4, 84, 84), (32, 20, 20), (64, 9, 9), (64, 7, 7))
    assert config.output_dims == (512,)
    # 4·32·64 + 32, 32·64·16 + 64, 64·64·9 + 64, 3136·512 + 512
    assert sum(p.numel() for p in config.build().parameters()) == 8224 + 32832 + 36928 + 1606144


def test_impala_is_the_residual_net_of_espeholt_et_al() -> None:
    config = decide(image_space(72, 96, 3), conv_filters="impala", conv_dense_dim=256)
    assert isinstance(config, ImpalaEncoderConfig)
    assert (config.feature_dims, config.output_dims) == ((32, 9, 12), (256,))
    net = config.build()
    assert net.dense is not None
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [16] * 5 + [32] * 10  # one and two blocks of two per section

    def block(x: Tensor, one: nn.Module, two: nn.Module) -> Tensor:
        return x + two(one(x.relu()).relu())

    obs = pixels(2, 72, 96, 3)
    x = obs.permute(0, 3, 1, 2) / 255
    for i in range(3):
        section = convs[5 * i : 5 * i + 5]
        x = functional.max_pool2d(section[0](x), 3, 2, padding=1)
        x = block(block(x, *section[1:3]), *section[3:5])
    expected = functional.relu(net.dense(x.relu().flatten(1)))
    torch.testing.assert_close(net(obs).latent, expected, atol=2e-4, rtol=1e-4)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_shape_the_net() -> None:
    config = decide_cnn(
        image_space(12, 12, 3),
        conv_filters=[[4, [3, 2], 2], [5, 2, [1, 2], "valid"]],
        conv_activation="tanh",
        conv_use_layernorm=True,
        conv_dense_dim=7,
    )
    assert config.layers == ((4, (3, 2), (2, 2), "same"), (5, (2, 2), (1, 2), "valid"))
    assert config.layer_dims[1:] == ((4, 6, 6), (5, 5, 3))
    net = config.build()
    assert [tuple(m.normalized_shape) for m in net.modules() if isinstance(m, nn.LayerNorm)] == [(4, 6, 6), (5, 5, 3)]
    latent = net(pixels(50, 12, 12, 3)).latent
    assert latent.shape == (50, 7)
    assert latent.min() < 0
    assert latent.abs().max() <= 1


@pytest.mark.parametrize("filters", [None, "impala"])
def test_activations_with_parameters_have_one_instance_per_layer(filters: str | None) -> None:
    net = decide(image_space(30, 30, 3), conv_activation=nn.PReLU, conv_filters=filters).build()
    slopes = [m for m in net.modules() if isinstance(m, nn.PReLU)]
    # two layers and the dense one; three sections of two blocks with two each, the last one, and the dense one
    assert len({id(slope.weight) for slope in slopes}) == (4 if filters is None else 14)
    net(pixels(2, 30, 30, 3)).latent.sum().backward()
    assert all(slope.weight.grad is not None for slope in slopes)


def test_a_linear_activation_leaves_the_net_affine() -> None:
    config = decide(image_space(9, 9, 1, dtype=np.float32), conv_activation="linear", conv_bias_initializer="zeros_")
    net, obs = config.build(), torch.rand(1, 9, 9, 1)
    torch.testing.assert_close(net(obs * 3).latent, net(obs).latent * 3, atol=1e-4, rtol=1e-4)


def test_layers_start_orthogonal_with_gain_root_2_by_default() -> None:
    for layer in decide(image_space(20, 20, 3)).build().modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2).item() == pytest.approx(2**0.5, rel=1e-4)
            assert layer.bias is not None
            assert layer.bias.eq(0).all()


@pytest.mark.parametrize("filters", [None, "impala"])
def test_initialisers_may_be_names_or_functions_with_keywords(filters: str | None) -> None:
    net = decide(
        image_space(9, 9, 1),
        conv_filters=filters,
        conv_kernel_initializer=nn.init.constant_,
        conv_kernel_initializer_kwargs={"val": 0.25},
        conv_bias_initializer="constant_",
        conv_bias_initializer_kwargs={"val": -1.0},
    ).build()
    for p in net.parameters():
        assert p.unique().tolist() == [0.25 if p.dim() > 1 else -1.0]


def test_every_build_has_fresh_weights() -> None:
    config = decide(image_space(9, 9, 1))
    one, two = config.build(), config.build()
    assert not {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_filters_larger_than_the_image_are_refused_with_path_layer_and_sizes() -> None:
    node = encoder_rules.root(image_space(10, 12, 3), DefaultModelConfig(conv_filters="nature"), "observation_space")
    node.keys = ("robot", "camera")
    with pytest.raises(
        ValueError, match=r"\['robot'\]\['camera'\]: .* fit an image of 10×12, got an unpadded kernel of "
    ):
        node.run()
    with pytest.raises(ValueError, match=r"kernel of 4×4 in layer 2, where 1×2 is left"):
        node.run()
    with pytest.raises(ValueError, match=r"input_dims: .* kernel of 3×5 in layer 1, where 10×4 is left"):
        CNNEncoderConfig(input_dims=(10, 4, 1), filters=[[4, (3, 5), 1, "valid"]])


@pytest.mark.parametrize("shape", [(0, 8, 3), (8, 8, 0), (0, 8, 8, 3)])
@pytest.mark.parametrize("filters", [None, "nature", "impala"])
def test_empty_images_are_refused_with_their_path(shape: tuple[int, ...], filters: str | None) -> None:
    with pytest.raises(ValueError, match=rf"observation_space: .* not empty, got shape {re.escape(str(shape))}"):
        decide(image_space(*shape), conv_filters=filters)


def test_what_is_no_net_or_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"input_dims: expected an image .* got shape \(8,\)"):
        CNNEncoderConfig(input_dims=(8,))
    for name, default, other in (("conv_use_layernorm", False, True), ("conv_padding", "same", "valid")):
        with pytest.raises(
            ValueError, match=rf"{name}: expected {default!r} for conv_filters='impala'.*at obs.* got {other!r}"
        ):
            decide(image_space(8, 8, 1), **{"conv_filters": "impala", name: other})


@pytest.mark.parametrize("shape", [(2, 9, 9, 1), (9, 9), (2, 1, 9, 8)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"CNNEncoder: expected images of shape \(\.\.\., 9, 8, 1\), got shape"):
        decide(image_space(9, 8, 1)).build()(pixels(*shape))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_other_ranks_are_not_taken_for_images(rank: int) -> None:
    space = image_space(*[2] * rank)
    with suppress(ValueError):  # no rule at all is for rank 5
        rule, _ = encoder_rules.find(space, DefaultModelConfig(), "observation_space")
        assert "CNN" not in rule.name
