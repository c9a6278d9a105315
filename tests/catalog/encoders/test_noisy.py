"""Noisy heads: how they start, what the noise is, and who has which."""

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from catalog import MLPHeadConfig, NoisyHeadConfig
from catalog.activations import Init
from catalog.encoders.noisy import NoisyHead

LATENT = torch.randn(6, 9, generator=torch.Generator().manual_seed(3))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def head(output: int = 4, hidden: tuple[int, ...] = (16,), sigma0: float = 0.5) -> NoisyHead:
    torch.manual_seed(0)
    config = NoisyHeadConfig(input_dims=(9,), output_layer_dim=output, hidden_layer_dims=hidden, sigma0=sigma0)
    return config.build()


def test_layers_start_as_the_paper_says() -> None:
    torch.manual_seed(0)
    net = NoisyHeadConfig(input_dims=(400,), output_layer_dim=7, hidden_layer_dims=(100,), sigma0=0.4).build()
    for linear, scales, inputs in zip(net.linears, net.scales, (400, 100), strict=True):
        for means in linear.parameters():
            assert means.abs().max() <= 1 / math.sqrt(inputs)
        assert linear.weight.std().item() == pytest.approx(1 / math.sqrt(3 * inputs), rel=0.05)  # type: ignore[operator]
        for scale in scales.parameters():
            assert torch.all(scale == torch.tensor(0.4 / math.sqrt(inputs)))
        assert [p.shape for p in linear.parameters()] == [p.shape for p in scales.parameters()]


def test_without_a_draw_there_is_no_noise() -> None:
    net = head()
    assert torch.equal(net(LATENT), net.forward_mean(LATENT))


def test_the_noise_is_that_of_equations_10_and_11() -> None:
    net = head()
    net.resample_noise(generator(5))
    drawn = torch.randn(9 + 16 + 16 + 4, generator=generator(5))
    f = torch.where(drawn > 0, 1, -1) * drawn.abs().sqrt()
    x = LATENT
    for layer, (outputs, inputs) in enumerate([(f[:16], f[16:25]), (f[25:29], f[29:])]):
        (weight, bias), (scale, bias_scale) = net.linears[layer].parameters(), net.scales[layer].parameters()
        x = functional.linear(x, weight + scale * outputs[:, None] * inputs, bias + bias_scale * outputs)
        x = torch.tanh(x) if layer == 0 else x
    torch.testing.assert_close(net(LATENT), x)


def test_noise_stays_until_it_is_drawn_anew_and_never_reaches_the_mean() -> None:
    net = head()
    mean = net(LATENT)
    net.resample_noise(generator(1))
    one = net(LATENT)
    assert torch.equal(one, net(LATENT))
    assert torch.equal(mean, net.forward_mean(LATENT))
    net.resample_noise(generator(2))
    assert not torch.allclose(one, mean)
    assert not torch.allclose(one, net(LATENT))
    net.resample_noise(generator(1))
    assert torch.equal(one, net(LATENT))


def test_training_mode_changes_nothing() -> None:
    net = head()
    net.resample_noise(generator())
    assert torch.equal(net.train()(LATENT), net.eval()(LATENT))


def test_means_and_scales_are_learned() -> None:
    net = head()
    net.resample_noise(generator())
    net(LATENT).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    net.zero_grad()
    net.forward_mean(LATENT).sum().backward()
    assert all(p.grad is None for p in net.scales.parameters())


def test_the_factors_have_the_variance_of_the_paper() -> None:
    net = head(output=3, hidden=())
    stream, outs = generator(), list[Tensor]()
    for _ in range(4000):
        net.resample_noise(stream)
        outs.append(net(LATENT[:1]) - net.forward_mean(LATENT[:1]))
    noise = torch.cat(outs).detach()
    # E[f(x)²] = E|x| = √(2/π), for each of two factors of a weight and for the one of a bias
    moment, scale = math.sqrt(2 / math.pi), 0.5 / math.sqrt(9)
    expected = scale**2 * (moment**2 * LATENT[0].square().sum().item() + moment)
    assert noise.var(0).mean().item() == pytest.approx(expected, rel=0.1)
    assert noise.mean().abs().item() < 0.05


def test_noise_is_no_part_of_the_state_and_copies_have_their_own() -> None:
    net, other = head(), head()
    names = [*net.state_dict()]
    net.resample_noise(generator(1))
    assert [*net.state_dict()] == names
    assert not [*net.buffers()]
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(LATENT), net.forward_mean(LATENT))
    copied = copy.deepcopy(net)
    before = net(LATENT)
    copied.resample_noise(generator(2))
    assert torch.equal(net(LATENT), before)


def test_tensors_put_in_place_of_others_are_used() -> None:
    net, other = head(), head()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1)
    for mine, theirs in zip(other.modules(), net.modules(), strict=True):
        mine._parameters.update(theirs._parameters)
    for each in (net, other):
        each.resample_noise(generator(4))
    assert torch.equal(net(LATENT), other(LATENT))


def test_a_head_of_the_settings_becomes_noisy() -> None:
    plain = MLPHeadConfig(
        input_dims=(9,),
        output_layer_dim=2,
        hidden_layer_dims=(5,),
        hidden_layer_activation="relu",
        hidden_layer_use_layernorm=True,
        init=Init(kernel="zeros_"),
    )
    noisy = NoisyHeadConfig.of(plain, 0.3)
    assert (noisy.hidden_layer_dims, noisy.hidden_layer_activation, noisy.sigma0) == ((5,), "relu", 0.3)
    assert noisy.output_dims == (2,)
    net = noisy.build()
    assert len(net.norms) == 1
    assert net.linears[0].weight.any()  # type: ignore[operator]


def test_double_precision_is_kept() -> None:
    net = head().double()
    net.resample_noise(generator())
    assert net(LATENT.double()).dtype == torch.float64


def test_a_moved_head_draws_its_noise_where_its_weights_are() -> None:
    net = head()
    net.resample_noise(generator())
    moved = copy.deepcopy(net).to("meta")
    moved.resample_noise(generator())
    assert moved(LATENT.to("meta")).device.type == "meta"


def test_a_head_reads_one_width() -> None:
    with pytest.raises(ValueError, match=r"NoisyHeadConfig\.input_dims: expected one positive width"):
        NoisyHeadConfig(input_dims=(), output_layer_dim=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init": Init(kernel="zeros_")}, r"NoisyHeadConfig\.init: expected Init\(.*their own initial values"),
        ({"output_init": Init(bias="zeros_")}, r"NoisyHeadConfig\.output_init"),
        ({"output_layer_dim": 2, "clip_log_std": True}, r"NoisyHeadConfig\.clip_log_std: expected False, got True"),
        ({"input_dims": ()}, r"NoisyHeadConfig\.input_dims: expected one positive width"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoisyHeadConfig(**{"input_dims": (9,), "output_layer_dim": 4} | settings)
