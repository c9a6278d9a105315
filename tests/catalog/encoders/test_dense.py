"""Dense stacks, and activations and initialisers by name."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from catalog.activations import Init, activation_by_name
from catalog.encoders.dense import DenseStack
from catalog.model_config import DefaultModelConfig

SHAPE_KEEPING = [
    name
    for name in nn.modules.activation.__all__
    if name not in ("GLU", "MultiheadAttention", "Softmax2d", "Threshold", "RReLU")
]


def stack(hidden: tuple[int, ...] = (6, 5), **kwargs: Any) -> DenseStack:
    defaults: dict[str, Any] = {"activation": "tanh", "init": Init()}
    return DenseStack(4, hidden, **defaults | kwargs)


@pytest.mark.parametrize("name", SHAPE_KEEPING)
def test_every_shape_keeping_activation_goes_by_name_lower_case_name_and_class(name: str) -> None:
    x = torch.linspace(-2, 2, 30).reshape(2, 3, 5)
    over_a_dim = "Softm" in name
    expected = nn.__dict__[name](-1)(x) if over_a_dim or name == "LogSoftmax" else nn.__dict__[name]()(x)
    for given in (name, name.lower(), nn.__dict__[name]):
        function = activation_by_name(given)
        assert function is not None
        torch.testing.assert_close(function(x), expected)


def test_underscores_and_swish_are_understood() -> None:
    x = torch.linspace(-2, 2, 9)
    leaky, swish = activation_by_name("leaky_relu"), activation_by_name("swish")
    assert leaky is not None
    assert swish is not None
    assert torch.equal(leaky(x), nn.LeakyReLU()(x))
    assert torch.equal(swish(x), nn.SiLU()(x))


@pytest.mark.parametrize("given", ["linear", "Identity", nn.Identity])
def test_linear_is_no_activation(given: Any) -> None:
    assert activation_by_name(given) is None


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("rellu", "'rellu'.*Did you mean 'relu'"),
        ("leaky_rel", "Did you mean 'leakyrelu'"),
        ("GLU", "'GLU'"),
        (nn.GLU, "GLU"),
        (nn.Softmax2d, "Softmax2d"),
        (nn.Linear, "Linear"),
        (torch.tanh, r"tanh.*which gives TypeError"),
        (nn.Tanh(), r"Tanh\(\), which gives TypeError"),
        (lambda: 3, "which gives 3"),
    ],
)
def test_what_is_no_activation_is_refused_by_its_setting(given: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)model_config\.x: expected .*got .*{got}"):
        activation_by_name(given, "model_config.x")


def test_an_activation_with_parameters_has_one_instance_per_layer_and_learns() -> None:
    net = stack(activation="PReLU")
    slopes = [m.weight for m in net.modules() if isinstance(m, nn.PReLU)]
    assert len(slopes) == 2
    assert {id(p) for p in slopes} <= {id(p) for p in net.parameters()}
    net.run(-torch.ones(3, 4)).sum().backward()
    assert all(slope.grad is not None for slope in slopes)


def test_a_factory_makes_the_activation() -> None:
    net = stack((1,), activation=lambda: nn.LeakyReLU(0.3), init=Init(kernel="ones_", bias="zeros_"))
    assert net.run(-torch.ones(4)).tolist() == pytest.approx([-1.2])


def test_a_random_activation_follows_the_mode_of_the_net() -> None:
    net, x = stack(activation="rrelu"), -torch.ones(50, 4)
    assert not torch.equal(net.run(x), net.run(x))
    net.eval()
    assert torch.equal(net.run(x), net.run(x))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("norm", [None, "layer", "rms"])
@pytest.mark.parametrize("activation", ["tanh", "linear", "ELU", nn.Hardswish])
def test_a_stack_equals_the_same_layers_in_a_row(lead: tuple[int, ...], norm: Any, activation: Any) -> None:
    net = stack(activation=activation, norm=norm, output_dim=3)
    x = torch.randn((*lead, 4))
    linears = [m for m in net.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in net.modules() if isinstance(m, nn.RMSNorm if norm == "rms" else nn.LayerNorm)]
    assert (len(linears), len(norms)) == (3, 2 if norm else 0)
    for weight in (p for made in norms for p in made.parameters()):
        nn.init.uniform_(weight)
    expected = x
    modules = {"tanh": nn.Tanh(), "linear": nn.Identity(), "ELU": nn.ELU(), nn.Hardswish: nn.Hardswish()}
    for i, linear in enumerate(linears):
        expected = linear(expected)
        if i < 2:
            expected = norms[i](expected) if norm else expected
            expected = modules[activation](expected)
    torch.testing.assert_close(net.run(x), expected)


ONES = Init(kernel="ones_", bias="zeros_")


@pytest.mark.parametrize(
    ("blocks", "norm", "expected"),
    [
        # 3 + 1 = 4 = -(-4): the norm of (4, 4) is 0 without a scale for it, so relu(0) adds nothing, and the last is 0
        ("simba", "layer", [0, 0]),
        # the norm of (4, 4) is (1, 1); eight units of 2, each output their sum 16; (20, 20) has the norm (1, 1)
        ("simba", "rms", [1, 1]),
        ("bro", "layer", [0, 0]),
        # (4, 4) → (1, 1), kept; (2, 2) → (1, 1); (2, 2) → (1, 1), added
        ("bro", "rms", [2, 2]),
    ],
)
def test_a_residual_block_by_hand(blocks: Any, norm: Any, expected: list[float]) -> None:
    net = stack((2, 2), activation="relu", norm=norm, blocks=blocks, init=ONES)
    torch.testing.assert_close(net.run(torch.tensor([1.0, 2.0, 3.0, -2.0])), torch.tensor(expected).float())


@pytest.mark.parametrize("norm", [None, "layer", "rms"])
@pytest.mark.parametrize("blocks", ["simba", "bro"])
def test_residual_blocks_equal_the_formulas_of_the_papers(blocks: Any, norm: Any) -> None:
    net, x = stack((6, 6, 6), activation="SiLU", norm=norm, blocks=blocks, output_dim=2), torch.randn(2, 3, 4)
    for weight in net.norms.parameters():
        nn.init.uniform_(weight)
    f, (first, a, b, c, d, last), act = net.norms, net.linears, nn.SiLU()
    assert {type(made) for made in f} == {nn.RMSNorm if norm == "rms" else nn.LayerNorm}
    if blocks == "simba":
        assert (a.out_features, c.out_features, len(f)) == (24, 24, 3)
        one = first(x)
        two = one + b(act(a(f[0](one))))
        expected = f[2](two + d(act(c(f[1](two)))))
    else:
        assert (a.out_features, c.out_features, len(f)) == (6, 6, 5)
        one = act(f[0](first(x)))
        two = one + f[2](b(act(f[1](a(one)))))
        expected = two + f[4](d(act(f[3](c(two)))))
    torch.testing.assert_close(net.run(x), last(expected))
    net.run(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.ne(0).any() for p in net.parameters())


@pytest.mark.parametrize("blocks", ["simba", "bro"])
def test_dropout_in_a_residual_block_leaves_what_goes_around_it(blocks: Any) -> None:
    zeros = Init(kernel="zeros_", bias="zeros_")
    net = stack((4, 4), activation="relu", blocks=blocks, dropout=0.9, init=zeros).train()
    for linear in net.linears:  # the block adds nothing, and BRO's first layer drops, as every plain layer does
        assert linear.weight.eq(0).all()
    net.linears[0].bias.data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    out = net.run(torch.zeros(500, 4))
    assert (out.unique(dim=0).shape[0] == 1) == (blocks == "simba")


def test_a_stack_without_layers_is_the_identity() -> None:
    x = torch.randn(3, 4)
    assert stack(()).run(x) is x


def test_the_output_layer_starts_its_own_way() -> None:
    small = Init(kernel="constant_", kernel_kwargs={"val": 0.01})
    net = stack((4,), init=Init(kernel="ones_"), output_dim=2, output_init=small)
    hidden, output = [m for m in net.modules() if isinstance(m, nn.Linear)]
    assert hidden.weight.unique().tolist() == [1]
    assert output.weight.unique().tolist() == pytest.approx([0.01])


def test_dropout_follows_the_activation_in_training_only() -> None:
    init = Init(kernel="constant_", kernel_kwargs={"val": 0.25}, bias="zeros_")
    net = stack((1000,), activation="sigmoid", init=init, dropout=0.2)
    on = 1 / (1 + math.exp(-1))
    assert net.eval().run(torch.ones(4)).unique().tolist() == pytest.approx([on])
    torch.manual_seed(0)
    out = net.train().run(torch.ones(4))
    # before the activation a dropped unit would give sigmoid(0) = 1/2, and what is left is scaled by 1/0.8
    assert out.unique().tolist() == pytest.approx([0, on / 0.8])
    assert out.eq(0).float().mean().item() == pytest.approx(0.2, abs=0.05)


def test_an_output_layer_has_no_dropout() -> None:
    net = stack((), output_dim=200, init=Init(kernel="ones_"), dropout=0.9)
    assert net.train().run(torch.ones(4)).ne(0).all()


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (torch.zeros(3, 5), r"shape \(3, 5\) and torch.float32"),
        (torch.zeros(5), r"shape \(5,\)"),
        (torch.zeros(3, 4, dtype=torch.int64), r"shape \(3, 4\) and torch.int64"),
        (torch.tensor(1.0), r"shape \(\)"),
    ],
)
def test_an_input_of_another_width_or_dtype_says_what_was_expected(x: Tensor, got: str) -> None:
    expected = r"DenseStack: expected an input of shape \(\.\.\., 4\) and torch\.float32, got "
    with pytest.raises(ValueError, match=expected + got):
        stack().run(x)


def test_an_error_of_the_activation_itself_is_not_taken_for_a_wrong_input() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match=r"^broken$"):
        stack(activation=Broken).run(torch.zeros(3, 4))


@pytest.mark.parametrize("activation", ["softmax", "PReLU", "SiLU"])
def test_copies_are_complete_and_their_own(activation: str) -> None:
    net, x = stack((5, 5, 5), activation=activation, norm="rms", blocks="bro", output_dim=2), torch.randn(3, 4)
    before = net.run(x)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(copied.run(x), before)
        with torch.no_grad():
            for p in copied.parameters():
                p.add_(1)
        assert not torch.equal(copied.run(x), before)
        assert torch.equal(net.run(x), before)


@pytest.mark.parametrize("given", ["orthogonal_", nn.init.orthogonal_])
def test_orthogonal_has_a_gain_of_root_two_unless_keywords_are_given(given: Any) -> None:
    layer = nn.Linear(4, 3)
    Init.of("fcnet", DefaultModelConfig(fcnet_kernel_initializer=given)).apply(layer)
    torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * torch.eye(3), atol=1e-5, rtol=0)
    ones = {"fcnet_kernel_initializer_kwargs": {}, "fcnet_bias_initializer": "ones_"}
    Init.of("fcnet", DefaultModelConfig(fcnet_kernel_initializer=given, **ones)).apply(layer)
    torch.testing.assert_close(layer.weight @ layer.weight.T, torch.eye(3), atol=1e-5, rtol=0)
    assert layer.bias.tolist() == [1, 1, 1]


def test_a_function_of_one_s_own_is_an_initializer() -> None:
    def halves(tensor: Tensor, times: int = 1) -> None:
        tensor.fill_(0.5 * times)

    layer = nn.Conv2d(2, 3, 2)
    Init(kernel=halves, kernel_kwargs={"times": 3}, bias=halves).apply(layer)
    assert layer.weight.unique().tolist() == [1.5]
    assert layer.bias is not None
    assert layer.bias.tolist() == [0.5] * 3


def test_none_keeps_torch_s_own_start_and_a_missing_bias_is_fine() -> None:
    torch.manual_seed(0)
    expected = nn.Linear(3, 2).weight.tolist()
    torch.manual_seed(0)
    layer = nn.Linear(3, 2, bias=False)
    Init(bias="zeros_").apply(layer)
    assert layer.weight.tolist() == expected


@pytest.mark.parametrize(
    ("init", "match"),
    [
        (Init(bias="xavier_uniform_"), r"bias initializer: expected a function for shape \(2,\).*'xavier_uniform_'"),
        (Init(kernel="dirac_"), r"kernel initializer: expected a function for shape \(2, 3\).*'dirac_'"),
        (Init(kernel="zeros_", kernel_kwargs={"gain": 2}), r"kernel initializer: .*\{'gain': 2\}.*says: .*gain"),
        (Init(kernel="zeroes_"), r"kernel initializer: .*Did you mean 'zeros_'\?"),
    ],
)
def test_an_initializer_that_does_not_fit_says_so(init: Init, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        init.apply(nn.Linear(3, 2))
