"""Dense encoders and heads: shapes, starts, log-stds, and what they refuse."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog import DefaultModelConfig, FreeLogStdMLPHeadConfig, MLPEncoderConfig, MLPHeadConfig
from catalog.mlp import mlp_encoder_config
from catalog.nn import DenseStack, Init


def test_an_encoder_by_hand() -> None:
    init = Init(kernel="constant_", kernel_kwargs={"val": 0.5}, bias="constant_", bias_kwargs={"val": -1.0})
    config = MLPEncoderConfig(input_dims=(2,), hidden_layer_dims=(2, 1), hidden_layer_activation="relu", init=init)
    # (4, 2)/2 - 1 = 2 in both units; (2 + 2)/2 - 1 = 1. And (0, 0) → relu(-1) = 0 → relu(-1) = 0
    assert config.build()(torch.tensor([[4.0, 2.0], [0.0, 0.0]])).latent.tolist() == [[1], [0]]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("layernorm", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "linear", "ELU"])
def test_a_stack_equals_the_same_layers_in_a_row(lead: tuple[int, ...], layernorm: bool, activation: str) -> None:
    stack = DenseStack(4, (6, 5), activation=activation, layernorm=layernorm, init=Init(), output_dim=3)
    x = torch.randn((*lead, 4))
    linears = [m for m in stack.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in stack.modules() if isinstance(m, nn.LayerNorm)]
    assert (len(linears), len(norms)) == (3, 2 if layernorm else 0)
    expected = x
    for i, linear in enumerate(linears):
        expected = linear(expected)
        if i < 2:
            expected = norms[i](expected) if layernorm else expected
            expected = {"tanh": torch.tanh, "linear": lambda y: y, "ELU": nn.ELU()}[activation](expected)
    torch.testing.assert_close(stack.run(x), expected)


def test_the_output_layer_starts_its_own_way() -> None:
    small = Init(kernel="constant_", kernel_kwargs={"val": 0.01})
    stack = DenseStack(
        3, (4,), activation="tanh", layernorm=False, init=Init(kernel="ones_"), output_dim=2, output_init=small
    )
    hidden, output = [m for m in stack.modules() if isinstance(m, nn.Linear)]
    assert hidden.weight.unique().tolist() == [1]
    assert output.weight.unique().tolist() == pytest.approx([0.01])


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(3, start=2), torch.tensor([2, 4, 3])),
        (spaces.MultiDiscrete(np.array([[2, 2]])), torch.tensor([[[0, 1]], [[1, 1]], [[0, 0]]])),
    ],
)
def test_a_one_hot_encoder_tells_observations_apart(space: Any, obs: Tensor) -> None:
    config = mlp_encoder_config(3 if isinstance(space, spaces.Discrete) else 4, DefaultModelConfig(), space)
    latent = config.build()(obs).latent
    assert latent.shape == (3, *config.output_dims) == (3, 64)
    assert len(latent.unique(dim=0)) == 3


def test_model_settings_shape_the_encoder() -> None:
    settings = DefaultModelConfig(fcnet_hiddens=(8, 7), fcnet_activation="relu", fcnet_use_layernorm=True)
    config = mlp_encoder_config(5, settings)
    assert config.output_dims == (7,)
    net = config.build()
    assert [tuple(p.shape) for p in net.parameters() if p.dim() == 2] == [(8, 5), (7, 8)]
    assert sum(isinstance(m, nn.LayerNorm) for m in net.modules()) == 2
    assert net(torch.randn(9, 5)).latent.min() == 0


def test_an_encoder_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden_layer_dims: expected at least one layer"):
        MLPEncoderConfig(input_dims=(4,), hidden_layer_dims=())


def test_every_build_has_fresh_weights() -> None:
    config = MLPEncoderConfig(input_dims=(4,))
    one, two = config.build(), config.build()
    assert not {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("config_cls", [MLPHeadConfig, FreeLogStdMLPHeadConfig])
@pytest.mark.parametrize("hidden", [(), (6,)])
def test_heads_keep_leading_dims(
    lead: tuple[int, ...], config_cls: type[MLPHeadConfig], hidden: tuple[int, ...]
) -> None:
    config = config_cls(input_dims=(5,), output_layer_dim=4, hidden_layer_dims=hidden)
    assert config.output_dims == (4,)
    assert config.build()(torch.randn((*lead, 5))).shape == (*lead, 4)


def test_a_free_log_std_is_one_learned_vector_for_all_states() -> None:
    head = FreeLogStdMLPHeadConfig(input_dims=(5,), output_layer_dim=6).build()
    out = head(torch.randn(10, 5))
    assert out[:, 3:].eq(0).all()
    assert out[:, :3].unique(dim=0).shape[0] == 10
    out[:, 3:].sum().backward()
    # one contribution per row
    assert head.log_std.grad is not None
    assert head.log_std.grad.tolist() == [10, 10, 10]
    assert sum(p.numel() for p in head.parameters()) == 5 * 3 + 3 + 3


def test_a_state_dependent_log_std_is_clipped_and_means_are_not() -> None:
    config = MLPHeadConfig(
        input_dims=(1,),
        output_layer_dim=2,
        clip_log_std=True,
        log_std_clip_param=2.0,
        output_init=Init(kernel="ones_", bias="zeros_"),
    )
    assert config.build()(torch.tensor([[5.0], [-5.0], [1.0]])).tolist() == [[5, 2], [-5, -2], [1, 1]]


def test_without_clip_nothing_is_clipped() -> None:
    head = MLPHeadConfig(input_dims=(1,), output_layer_dim=2, output_init=Init(kernel="ones_", bias="zeros_")).build()
    assert head(torch.tensor([[50.0]])).tolist() == [[50, 50]]


@pytest.mark.parametrize(
    ("config_cls", "kwargs"), [(FreeLogStdMLPHeadConfig, {}), (MLPHeadConfig, {"clip_log_std": True})]
)
def test_an_odd_number_of_gaussian_inputs_is_refused(config_cls: type[MLPHeadConfig], kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{config_cls.__name__}\.output_layer_dim: expected an even number .* got 5"):
        config_cls(input_dims=(4,), output_layer_dim=5, **kwargs)


def test_an_odd_head_without_log_stds_is_fine() -> None:
    assert MLPHeadConfig(input_dims=(4,), output_layer_dim=5).build()(torch.zeros(1, 4)).shape == (1, 5)


def test_the_gain_reaches_every_hidden_layer() -> None:
    net = mlp_encoder_config(16, DefaultModelConfig(fcnet_hiddens=(16, 16))).build()
    for weight in (p for p in net.parameters() if p.dim() == 2):
        assert torch.linalg.matrix_norm(weight, 2).item() == pytest.approx(math.sqrt(2), rel=1e-4)
