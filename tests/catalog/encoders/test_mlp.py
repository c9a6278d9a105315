"""Dense encoders and heads: shapes, starts, log-stds, the branches that choose them, and what they refuse."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import ModelConfig, encoder_rules
from catalog.encoders.dense import BatchNorm, DenseStack
from catalog.encoders.mlp import (
    FreeLogStdMLPHeadConfig,
    MLPEncoderConfig,
    MLPHeadConfig,
)
from catalog.encoders.preprocessing import Vectorize
from catalog.model_config import DefaultModelConfig

VECTOR = spaces.Box(-1, 1, (4,))
HALF_BOUNDED = spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32))


def decide(space: spaces.Space, **settings: Any) -> tuple[ModelConfig, str]:
    """The config the table gives for ``space``, and the name of its rule."""
    node = encoder_rules.root(space, DefaultModelConfig.from_any(settings), "observation_space")
    config = node.run()
    assert node.rule is not None
    return config, node.rule.name


# --- encoders ---------------------------------------------------------------------------------------------------------


def test_an_encoder_by_hand() -> None:
    init = Init(kernel="constant_", kernel_kwargs={"val": 0.5}, bias="constant_", bias_kwargs={"val": -1.0})
    config = MLPEncoderConfig(input_dims=(2,), hidden_layer_dims=(2, 1), hidden_layer_activation="relu", init=init)
    # (4, 2)/2 - 1 = 2 in both units; (2 + 2)/2 - 1 = 1. And (0, 0) → relu(-1) = 0 → relu(-1) = 0
    assert config.build()(torch.tensor([[4.0, 2.0], [0.0, 0.0]])).latent.tolist() == [[1], [0]]


def test_an_encoder_of_a_space_reads_its_observations() -> None:
    space = spaces.Dict({"n": spaces.Discrete(2, start=1), "x": spaces.Box(0, 255, (1,), np.uint8)})
    init = Init(kernel="ones_", bias="zeros_")
    config = MLPEncoderConfig(
        input_space=space, hidden_layer_dims=(1,), hidden_layer_activation="linear", hidden_layer_dropout=0.0, init=init
    )
    assert config.input_dims == (3,)
    # one of the two bits, and 51/255
    obs = {"n": torch.tensor([1, 2]), "x": torch.tensor([[51], [0]], dtype=torch.uint8)}
    assert config.build()(obs).latent.tolist() == [[pytest.approx(1.2)], [1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_vector_of_floats_is_read_in_any_float_dtype(dtype: torch.dtype) -> None:
    obs = torch.tensor([[0.5, -0.25, 1, 0]], dtype=dtype)
    net = MLPEncoderConfig(input_space=VECTOR).build()
    assert torch.equal(net(obs).latent, net(obs.float()).latent)


def test_model_settings_shape_the_encoder() -> None:
    config, _ = decide(
        spaces.Box(-1, 1, (5,)),
        fcnet_hiddens=(8, 7),
        fcnet_activation="relu",
        fcnet_use_layernorm=True,
        fcnet_dropout=0.25,
    )
    assert config.output_dims == (7,)
    net = config.build()
    assert [tuple(p.shape) for p in net.parameters() if p.dim() == 2] == [(8, 5), (7, 8)]
    assert sum(isinstance(m, nn.LayerNorm) for m in net.modules()) == 2
    x = torch.randn(9, 5)
    assert net.eval()(x).latent.min() == 0
    assert torch.equal(net(x).latent, net(x).latent)
    assert not torch.equal(net.train()(x).latent, net(x).latent), "dropout draws again"


@pytest.mark.parametrize(
    ("norm", "kind"),
    [(None, nn.LayerNorm), ("layer", nn.LayerNorm), ("rms", nn.RMSNorm), ("batch", BatchNorm)],
)
@pytest.mark.parametrize("blocks", ["simba", "bro"])
def test_residual_blocks_and_norms_are_model_settings(blocks: Any, norm: Any, kind: type[nn.Module]) -> None:
    settings: dict[str, Any] = {"fcnet_hiddens": (8, 8), "fcnet_norm": norm, "fcnet_blocks": blocks}
    config, _ = decide(spaces.Box(-1, 1, (5,)), **settings)
    assert config.output_dims == (8,)
    net = config.build()
    wide = 32 if blocks == "simba" else 8
    assert [tuple(p.shape) for p in net.parameters() if p.dim() == 2] == [(8, 5), (wide, 8), (8, wide)]
    assert {type(m) for m in net.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm | BatchNorm)} == {kind}
    assert net(torch.randn(2, 3, 5)).latent.shape == (2, 3, 8)
    plain = decide(spaces.Box(-1, 1, (5,)), fcnet_norm=norm)[0].build()
    assert sum(isinstance(m, kind) for m in plain.modules()) == (0 if norm is None else 2)


def test_batch_norm_standardises_by_the_rows_in_training_and_by_running_statistics_elsewhere() -> None:
    net, rows = BatchNorm(1), torch.tensor([[1.0], [3.0], [8.0]])
    # the mean is 4, the variance 26 / 3, or 13 as an estimate from three rows
    expected = (rows - 4) / math.sqrt(26 / 3 + 1e-5)
    torch.testing.assert_close(net(rows), expected)
    assert net.running_mean.tolist() == pytest.approx([0.1 * 4])
    assert net.running_var.tolist() == pytest.approx([0.9 + 0.1 * 13])
    kept = net.running_mean.clone()
    expected = (rows - 0.4) / math.sqrt(2.2 + 1e-5)
    torch.testing.assert_close(net.eval()(rows), expected)
    torch.testing.assert_close(net(rows.view(3, 1, 1)).view(3, 1), expected)
    assert torch.equal(net.running_mean, kept)


def test_batch_norm_of_a_dense_net_is_that_of_torch() -> None:
    config, _ = decide(spaces.Box(-1, 1, (5,)), fcnet_hiddens=(8, 7), fcnet_norm="batch", fcnet_activation="relu")
    net: Any = config.build()
    plain = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 7), nn.BatchNorm1d(7), nn.ReLU())
    assert isinstance(net, DenseStack)
    parts = [layer for pair in zip(net.linears, net.norms, strict=True) for layer in pair]
    for ours, theirs in zip(parts, [plain[0], plain[1], plain[3], plain[4]], strict=True):
        theirs.load_state_dict(ours.state_dict(), strict=False)
    for _ in range(3):
        x = torch.randn(9, 5)
        torch.testing.assert_close(net(x).latent, plain(x))
    for norm, theirs in zip(net.norms, [plain[1], plain[4]], strict=True):
        torch.testing.assert_close(norm.running_mean, theirs.running_mean)
        torch.testing.assert_close(norm.running_var, theirs.running_var)
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(net.eval()(x).latent, plain.eval()(x.flatten(0, 1)).view(2, 3, 7))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"use_layernorm": True, "norm": "rms"},
            "norm: expected 'layer' or None, since {}use_layernorm=True, got 'rms'",
        ),
        (
            {"blocks": "bro", "dims": (8,)},
            "dims: expected two equal widths or more, since {}blocks='bro', got (8,). Give",
        ),
        (
            {"blocks": "simba", "dims": (8, 9)},
            "dims: expected two equal widths or more, since {}blocks='simba', got (8, 9)",
        ),
        ({"blocks": "simba", "dims": ()}, "dims: expected two equal widths or more, since {}blocks='simba', got ()"),
    ],
)
def test_norms_and_widths_that_do_not_go_together_are_refused(given: dict[str, Any], message: str) -> None:
    ours = {f"hidden_layer_{name}": value for name, value in given.items()}
    with pytest.raises(ValueError, match=re.escape("MLPEncoderConfig.hidden_layer_" + message.format("hidden_layer_"))):
        MLPEncoderConfig(input_dims=(4,), **ours)
    settings = {f"fcnet_{name}".replace("dims", "hiddens"): value for name, value in given.items()}
    expected = f"model_config.fcnet_{message.format('fcnet_')}".replace("dims:", "hiddens:")
    with pytest.raises(ValueError, match=re.escape(expected)):
        DefaultModelConfig(**settings)
    with pytest.raises(ValueError, match=re.escape(expected.replace("config.", "config.functions['value'], "))):
        DefaultModelConfig(functions={"value": settings})


@pytest.mark.parametrize("config_cls", [MLPEncoderConfig, MLPHeadConfig, FreeLogStdMLPHeadConfig])
@pytest.mark.parametrize("dims", [(), (0,), (3, 4)])
def test_a_dense_net_refuses_inputs_that_are_not_one_positive_width(config_cls: Any, dims: tuple[int, ...]) -> None:
    more = {} if config_cls is MLPEncoderConfig else {"output_layer_dim": 2}
    with pytest.raises(ValueError, match=rf"{config_cls.__name__}\.input_dims: expected one positive width"):
        config_cls(input_dims=dims, **more)


def test_every_build_has_fresh_weights() -> None:
    config = MLPEncoderConfig(input_dims=(4,))
    one, two = config.build(), config.build()
    assert not {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


def test_the_gain_reaches_every_hidden_layer() -> None:
    config, _ = decide(spaces.Box(-1, 1, (16,)), fcnet_hiddens=(16, 16))
    for weight in (p for p in config.build().parameters() if p.dim() == 2):
        assert torch.linalg.matrix_norm(weight, 2).item() == pytest.approx(math.sqrt(2), rel=1e-4)


def test_an_mlp_without_layers_is_the_vector_and_nothing_else() -> None:
    space = spaces.Tuple([VECTOR, spaces.Discrete(3)])
    config = MLPEncoderConfig(input_space=space, hidden_layer_dims=())
    assert config.output_dims == (7,)
    net = config.build()
    assert not list(net.parameters())
    obs = (torch.randn(2, 3, 4), torch.tensor([[0, 1, 2], [2, 1, 0]]))
    assert torch.equal(net(obs).latent, Vectorize(space)(obs))


def test_a_space_that_is_no_vector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"MLPEncoderConfig\.input_space\['x'\]: expected a space of arrays"):
        MLPEncoderConfig(input_space=spaces.Dict({"x": spaces.Text(3)}))


@pytest.mark.parametrize("blocks", [None, "simba", "bro"])
def test_many_choices_are_read_without_their_codes(blocks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space, few = spaces.Discrete(5000, start=2), spaces.Discrete(5)
    nets = [
        MLPEncoderConfig(input_space=each, hidden_layer_dims=(8, 8), hidden_layer_blocks=blocks).build()
        for each in (space, few)
    ]
    net = nets[0]
    assert [*net.state_dict()] == [*nets[1].state_dict()]
    obs = torch.tensor([[2, 5001], [77, 2500]])
    expected = net.run(Vectorize(space)(obs))
    monkeypatch.setattr(Vectorize, "forward", lambda *_: pytest.fail("a code of 5000 numbers per row was made"))
    torch.testing.assert_close(net(obs).latent, expected)


def test_many_choices_without_layers_are_their_codes() -> None:
    space = spaces.Discrete(2000)
    net = MLPEncoderConfig(input_space=space, hidden_layer_dims=()).build()
    assert torch.equal(net(torch.tensor([3])).latent, Vectorize(space)(torch.tensor([3])))


def test_an_embedding_counts_from_the_start_of_its_space() -> None:
    config = MLPEncoderConfig(input_space=spaces.Discrete(3, start=-1), embedding_dim=5, hidden_layer_dims=())
    assert config.output_dims == (5,)
    net = config.build()
    obs = torch.tensor([[1, -1], [0, 1]], dtype=torch.int32)
    assert torch.equal(net(obs).latent, net.vectorize.weight[[2, 0, 1, 2]].unflatten(0, (2, 2)))


def test_an_embedding_learns_the_rows_it_saw_and_the_layers_after_it() -> None:
    net = MLPEncoderConfig(input_space=spaces.Discrete(3), embedding_dim=2, hidden_layer_dims=(4,)).build()
    net(torch.tensor([0, 2])).latent.sum().backward()
    assert net.vectorize.weight.grad is not None
    assert net.vectorize.weight.grad.abs().sum(1).ne(0).tolist() == [True, False, True]
    assert all(p.grad is not None for p in net.parameters())


# --- branches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "rule", "width"),
    [
        (VECTOR, "Box of rank 0 or 1 → MLP", 4),
        (spaces.Box(-np.inf, np.inf, (), np.float64), "Box of rank 0 or 1 → MLP", 1),
        (spaces.Box(-5, 9, (3,), np.int64), "Box of rank 0 or 1 → MLP", 3),
        (
            spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)),
            "Box of rank 0 or 1 → MLP",
            2,
        ),
        (spaces.Box(-1, 1, (2, 3)), "Box of rank 2 → one vector → MLP", 6),
        (spaces.Discrete(5, start=3), "Discrete → one-hot → MLP", 5),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "MultiDiscrete → one-hot per part → MLP", 14),
        (spaces.MultiBinary((2, 2)), "MultiBinary → MLP", 4),
    ],
)
def test_a_leaf_goes_through_an_mlp(space: spaces.Space, rule: str, width: int) -> None:
    config, name = decide(space)
    assert name == rule
    assert isinstance(config, MLPEncoderConfig)
    assert (config.input_dims, config.output_dims) == ((width,), (64,))
    samples = torch.as_tensor(np.stack([space.sample() for _ in range(6)]))
    latent = config.build()(samples).latent
    assert latent.shape == (6, 64)
    assert latent.isfinite().all()


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(3, start=2), torch.tensor([2, 4, 3])),
        (spaces.MultiDiscrete(np.array([[2, 2]])), torch.tensor([[[0, 1]], [[1, 1]], [[0, 0]]])),
    ],
)
def test_a_one_hot_encoder_tells_observations_apart(space: spaces.Space, obs: Tensor) -> None:
    latent = decide(space)[0].build()(obs).latent
    assert latent.shape == (3, 64)
    assert len(latent.unique(dim=0)) == 3


def test_a_discrete_is_embedded_where_a_width_is_set() -> None:
    config, name = decide(spaces.Discrete(9, start=1), discrete_embedding_dim=3, fcnet_hiddens=(8,))
    assert name == "Discrete → embedding → MLP"
    assert isinstance(config, MLPEncoderConfig)
    assert [tuple(p.shape) for p in config.build().parameters()] == [(8, 3), (8,), (9, 3)]
    node = encoder_rules.root(spaces.Discrete(9), DefaultModelConfig(), "observation_space")
    node.run()
    assert "Discrete → embedding → MLP" in [rule.name for rule in node.passed]


@pytest.mark.parametrize("kind", [spaces.Dict, spaces.Tuple])
def test_a_nested_space_is_one_vector_where_it_is_flattened(kind: Any) -> None:
    parts = [("b", VECTOR), ("a", spaces.Discrete(3)), ("c", spaces.Box(0, 1, (2, 2, 2)))]
    space = kind(parts if kind is spaces.Dict else [part for _, part in parts])
    config, name = decide(space, flatten_observations=True)
    assert name == f"{kind.__name__} → one vector → MLP"
    assert isinstance(config, MLPEncoderConfig)
    assert config.input_dims == (4 + 3 + 8,)


def test_without_layers_the_latent_is_the_vector() -> None:
    config, _ = decide(spaces.Discrete(3), fcnet_hiddens=())
    assert config.output_dims == (3,)
    assert not list(config.build().parameters())


def test_every_setting_that_shapes_the_result_is_named() -> None:
    space, plain = spaces.Discrete(4), DefaultModelConfig()
    node = encoder_rules.root(space, plain, "observation_space")
    before = node.run()
    assert node.rule is not None
    changes: dict[str, Any] = {
        "fcnet_hiddens": (3,),
        "fcnet_activation": "relu",
        "fcnet_use_layernorm": True,
        "fcnet_norm": "rms",
        "fcnet_blocks": "bro",
        "fcnet_dropout": 0.5,
        "fcnet_kernel_initializer": "ones_",
        "fcnet_kernel_initializer_kwargs": {"gain": 3.0},
        "fcnet_bias_initializer": "ones_",
        "fcnet_bias_initializer_kwargs": {"x": 1},
        "discrete_embedding_dim": 2,
        "fusionnet_hiddens": (7,),
        "conv_activation": "tanh",
    }
    shaping = {name for name, value in changes.items() if decide(space, **{name: value})[0] != before}
    assert shaping == set(node.reads)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (0,)), spaces.Box(-1, 1, (2, 0))])
def test_a_space_without_entries_is_refused(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"observation_space: expected a space with at least one entry"):
        decide(space)


def test_a_box_of_rank_five_has_no_branch() -> None:
    with pytest.raises(ValueError, match=r"observation_space: expected a space with a branch.*got Box.*Register one"):
        decide(spaces.Box(-1, 1, (1, 2, 1, 2, 1)))


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("config_cls", [MLPHeadConfig, FreeLogStdMLPHeadConfig])
@pytest.mark.parametrize("hidden", [(), (6,)])
def test_heads_keep_leading_dims(
    lead: tuple[int, ...], config_cls: type[MLPHeadConfig], hidden: tuple[int, ...]
) -> None:
    config = config_cls(input_dims=(5,), output_layer_dim=4, hidden_layer_dims=hidden)
    assert config.output_dims == (4,)
    assert config.build()(torch.randn((*lead, 5))).shape == (*lead, 4)


def test_a_head_s_hidden_layers_have_a_layer_norm_if_asked() -> None:
    config = MLPHeadConfig(
        input_dims=(5,), output_layer_dim=4, hidden_layer_dims=(6, 7), hidden_layer_use_layernorm=True
    )
    norms = [m for m in config.build().modules() if isinstance(m, nn.LayerNorm)]
    assert [norm.normalized_shape for norm in norms] == [(6,), (7,)]


def test_head_settings_shape_the_start_of_hidden_layers() -> None:
    layer = nn.Linear(4, 3)
    Init.of("head_fcnet", DefaultModelConfig()).apply(layer)
    torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * torch.eye(3), atol=1e-5, rtol=0)
    settings = {"head_fcnet_kernel_initializer": "constant_", "head_fcnet_kernel_initializer_kwargs": {"val": 0.5}}
    settings |= {"head_fcnet_bias_initializer": "constant_", "head_fcnet_bias_initializer_kwargs": {"val": -1.0}}
    Init.of("head_fcnet", DefaultModelConfig.from_any(settings)).apply(layer)
    assert layer.weight.unique().tolist() == [0.5]
    assert layer.bias.tolist() == [-1, -1, -1]


def test_a_head_on_a_latent_of_another_width_says_so() -> None:
    with pytest.raises(ValueError, match=r"MLPHead: expected an input of shape \(\.\.\., 5\).*got shape \(2, 6\)"):
        MLPHeadConfig(input_dims=(5,), output_layer_dim=4).build()(torch.zeros(2, 6))


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


def test_a_free_log_std_is_used_within_its_bound() -> None:
    head = FreeLogStdMLPHeadConfig(input_dims=(1,), output_layer_dim=6, log_std_clip_param=2.0).build()
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([5.0, -5.0, 1.5]))
    assert head(torch.ones(2, 1))[:, 3:].tolist() == [[2, -2, 1.5]] * 2
    assert head.log_std.tolist() == [5, -5, 1.5]


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


def test_log_stds_may_lie_anywhere_among_the_outputs() -> None:
    plain = MLPHeadConfig(input_dims=(1,), output_layer_dim=5, output_init=Init(kernel="ones_", bias="zeros_"))
    clipped = plain.with_log_stds((1, 3), DefaultModelConfig(free_log_std=False, log_std_clip_param=2.0))
    assert clipped.build()(torch.tensor([[7.0]])).tolist() == [[7, 2, 7, 2, 7]]
    free = plain.with_log_stds((1, 3), DefaultModelConfig(log_std_clip_param=2.0))
    head = free.build()
    assert isinstance(free, FreeLogStdMLPHeadConfig)
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([0.5, -9.0]))  # type: ignore[operator]
    assert head(torch.tensor([[7.0], [8.0]])).tolist() == [[7, 0.5, 7, -2, 7], [8, 0.5, 8, -2, 8]]
    assert sum(p.numel() for p in head.parameters()) == 3 + 3 + 2


def test_a_head_keeps_everything_else_when_told_of_log_stds() -> None:
    plain = MLPHeadConfig(input_dims=(3,), output_layer_dim=4, hidden_layer_dims=(9,), hidden_layer_activation="relu")
    assert plain.with_log_stds((), DefaultModelConfig()) is plain
    free = plain.with_log_stds((2, 3), DefaultModelConfig())
    assert (free.input_dims, free.hidden_layer_dims, free.hidden_layer_activation) == ((3,), (9,), "relu")


def test_an_odd_head_without_log_stds_is_fine() -> None:
    assert MLPHeadConfig(input_dims=(4,), output_layer_dim=5).build()(torch.zeros(1, 4)).shape == (1, 5)


@pytest.mark.parametrize(
    ("config_cls", "kwargs"), [(FreeLogStdMLPHeadConfig, {}), (MLPHeadConfig, {"clip_log_std": True})]
)
def test_an_odd_number_of_gaussian_inputs_is_refused(config_cls: type[MLPHeadConfig], kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{config_cls.__name__}\.output_layer_dim: expected an even number .* got 5"):
        config_cls(input_dims=(4,), output_layer_dim=5, **kwargs).build()
    with pytest.raises(ValueError, match=rf"{config_cls.__name__}\.output_layer_dim: expected an int > 0, got 0"):
        config_cls(input_dims=(4,), output_layer_dim=0, **kwargs)
