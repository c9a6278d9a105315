"""Normal and squashed normal distributions, against torch.distributions and by hand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch import distributions as oracle

from catalog import DiagGaussian, SquashedGaussian

LEADS = [(), (5,), (3, 5), (2, 3, 5)]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_of(lead: tuple[int, ...], width: int, seed: int = 0) -> Tensor:
    return torch.randn(*lead, width, generator=rng(seed), dtype=torch.float64)


def normal(logits: Tensor, rank: int = 1) -> oracle.Independent:
    mean, log_std = logits.chunk(2, -1)
    return oracle.Independent(oracle.Normal(mean, log_std.exp()), rank)


# DiagGaussian ---------------------------------------------------------------------------------------------------------


def test_gaussian_by_hand() -> None:
    # means 0 and 1, deviations 1 and 2
    dist = DiagGaussian.from_logits(torch.tensor([0.0, 1.0, 0.0, math.log(2)]))
    # at (1, 3): z = 1, 1 → -½ - ½ - log 1 - log 2 - log 2π = -1 - 0.69315 - 1.83788
    assert dist.logp(torch.tensor([1.0, 3.0])).item() == pytest.approx(-3.53102, abs=1e-4)
    # log 2 + 2·½(1 + log 2π) = 0.69315 + 2.83788
    assert dist.entropy().item() == pytest.approx(3.53102, abs=1e-4)
    # against standard normals: ½(1+0-1-0) + ½(4+1-1-log 4) = 2 - 0.69315
    assert dist.kl(DiagGaussian.from_logits(torch.zeros(4))).item() == pytest.approx(1.30685, abs=1e-4)
    # mean + deviation · noise
    assert dist.sample_from(torch.tensor([0.5, -1.0])).tolist() == pytest.approx([0.5, -1.0])
    assert dist.to_deterministic().sample().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_gaussian_matches_torch(lead: tuple[int, ...], shape: tuple[int, ...]) -> None:
    space = spaces.Box(-1, 1, shape)
    dist_cls, width = DiagGaussian.bind(space), DiagGaussian.required_input_dim(space)
    assert width == 2 * math.prod(shape)
    p, q = logits_of(lead, width, 1), logits_of(lead, width, 2)
    dist = dist_cls.from_logits(p)
    actions = dist.sample(rng()).double()
    assert actions.shape == (*lead, *shape)
    torch.testing.assert_close(dist.logp(actions), normal(p).log_prob(actions.reshape(*lead, width // 2)))
    torch.testing.assert_close(dist.entropy(), normal(p).entropy())
    torch.testing.assert_close(dist.kl(dist_cls.from_logits(q)), oracle.kl_divergence(normal(p), normal(q)))
    torch.testing.assert_close(dist.to_deterministic().sample(), p[..., : width // 2].reshape((*lead, *shape)))
    noise = dist_cls.draw_noise(np.random.default_rng(0), math.prod(lead), width).reshape(*lead, width // 2)
    expected = p.chunk(2, -1)[0] + p.chunk(2, -1)[1].exp() * noise
    torch.testing.assert_close(dist.sample_from(noise), expected.reshape((*lead, *shape)))


def test_gaussian_samples_have_its_moments() -> None:
    many = DiagGaussian.from_logits(torch.tensor([1.0, -2.0, 0.0, math.log(3)]).expand(40_000, 4))
    noise = DiagGaussian.draw_noise(np.random.default_rng(0), 40_000, 4)
    for samples in (many.sample(rng()), many.sample_from(noise)):
        # standard error of the second mean: 3/√40000 = 0.015
        torch.testing.assert_close(samples.mean(0), torch.tensor([1.0, -2.0]), atol=0.07, rtol=0)
        torch.testing.assert_close(samples.std(0), torch.tensor([1.0, 3.0]), atol=0.07, rtol=0)


def test_gaussian_kl_stays_finite_where_the_ratio_of_variances_underflows() -> None:
    narrow, wide = (DiagGaussian.from_logits(torch.tensor([0.0, log_std])) for log_std in (-30.0, 30.0))
    # ½(e^-120 - 1 + 120)
    assert narrow.kl(wide).item() == pytest.approx(59.5)


def test_gaussian_gradient_flows_through_rsample_only() -> None:
    logits = torch.zeros(4, requires_grad=True)
    dist = DiagGaussian.from_logits(logits)
    assert not dist.sample().requires_grad
    dist.rsample(rng()).sum().backward()
    assert logits.grad is not None
    # d(mean + e^s·ε)/dmean = 1
    assert logits.grad[:2].tolist() == [1.0, 1.0]


# SquashedGaussian -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
def test_squashed_gaussian_matches_torch(lead: tuple[int, ...], shape: tuple[int, ...]) -> None:
    dist_cls, width = SquashedGaussian.bind(spaces.Box(-1, 1, shape)), 2 * math.prod(shape)
    p = logits_of(lead, width)
    dist = dist_cls.from_logits(p)
    # on the base: Independent over the transformed sums the log-slope as well
    expected = oracle.Independent(
        oracle.TransformedDistribution(normal(p, 0).base_dist, [oracle.TanhTransform(cache_size=1)]), 1
    )
    actions = dist.sample(rng()).double()
    assert actions.shape == (*lead, *shape)
    torch.testing.assert_close(dist.logp(actions), expected.log_prob(actions.reshape(*lead, width // 2)))
    torch.testing.assert_close(dist.to_deterministic().sample(), p[..., : width // 2].tanh().reshape((*lead, *shape)))
    noise = torch.randn(*lead, width // 2, generator=rng(1), dtype=torch.float64)
    mean, log_std = p.chunk(2, -1)
    torch.testing.assert_close(dist.sample_from(noise), (mean + log_std.exp() * noise).tanh().reshape((*lead, *shape)))


def test_squashed_density_integrates_to_one() -> None:
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    dist = SquashedGaussian.from_logits(torch.tensor([0.3, -0.5], dtype=torch.float64).expand(len(grid), 2))
    density = dist.logp(grid[:, None]).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("std", "error"), [(0.01, 1e-9), (0.5, 1e-9), (1.6, 1e-4), (2.7, 0.002), (7.0, 0.1)])
@pytest.mark.parametrize("mean", [0.0, 0.3, -2.5, 6.0])
def test_squashed_entropy_is_as_near_to_the_integral_as_it_says(mean: float, std: float, error: float) -> None:
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    x = mean + std * z
    weight = oracle.Normal(0.0, 1.0).log_prob(z).exp()
    slope = torch.trapezoid(weight * torch.cosh(x).log() * -2, z).item()  # log(1 - tanh²x) = -2 log cosh x
    exact = 0.5 * math.log(2 * math.pi * math.e) + math.log(std) + slope
    logits = torch.tensor([mean, math.log(std)], dtype=torch.float64)
    assert SquashedGaussian.from_logits(logits).entropy().item() == pytest.approx(exact, abs=error)


def test_squashed_entropy_keeps_its_digits_where_layers_compute_in_bfloat16() -> None:
    dist = SquashedGaussian.from_logits(torch.tensor([0.3, -1.0, -0.5, 0.1]))
    with torch.autocast("cpu", torch.bfloat16):
        lower = dist.entropy()
    assert torch.equal(lower, dist.entropy())


def test_squashed_entropy_is_minus_the_mean_of_logp() -> None:
    logits = torch.tensor([0.3, -1.0, -0.5, 0.1], dtype=torch.float64)
    many = SquashedGaussian.from_logits(logits.expand(100_000, 4))
    estimate = -many.logp(many.sample(rng()).double())
    # standard deviation of logp ≈ 1, of its mean ≈ 0.004
    assert estimate.mean().item() == pytest.approx(SquashedGaussian.from_logits(logits).entropy().item(), abs=0.015)


def test_squashed_kl_is_that_before_squashing() -> None:
    p, q = logits_of((5,), 6, 1), logits_of((5,), 6, 2)
    kl = SquashedGaussian.from_logits(p).kl(SquashedGaussian.from_logits(q))
    torch.testing.assert_close(kl, oracle.kl_divergence(normal(p), normal(q)))


def test_squashed_logp_is_finite_at_the_edge() -> None:
    dist = SquashedGaussian.from_logits(torch.zeros(2, 2))
    assert dist.logp(torch.tensor([[-1.0], [1.0]])).isfinite().all()


def test_squashed_samples_have_their_gradient_through_tanh() -> None:
    logits = torch.tensor([0.4, -0.2], dtype=torch.float64, requires_grad=True)
    sample = SquashedGaussian.from_logits(logits).rsample(rng())
    sample.sum().backward()
    # d tanh(x)/dmean = 1 - tanh²x
    assert logits.grad is not None
    assert logits.grad[0].item() == pytest.approx(1 - sample.item() ** 2)


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (0, np.inf), (-np.inf, 3)])
def test_squashing_needs_finite_bounds(bounds: tuple[float, float]) -> None:
    space = spaces.Box(np.float32([-1, bounds[0]]), np.float32([1, bounds[1]]))
    wrong = (
        r"arm: expected a Box of floats with finite bounds on all sides, for SquashedGaussian, got Box.*DiagGaussian"
    )
    with pytest.raises(ValueError, match=wrong):
        SquashedGaussian.bind(space, path="arm")
    with pytest.raises(ValueError, match=r"action_space: expected a Box of floats with finite bounds"):
        SquashedGaussian.required_input_dim(space)


@pytest.mark.parametrize("dist_cls", [DiagGaussian, SquashedGaussian])
def test_gaussians_refuse_integers(dist_cls: type[DiagGaussian]) -> None:
    with pytest.raises(ValueError, match=rf"action_space: expected a Box of floats, for {dist_cls.__name__}"):
        dist_cls.bind(spaces.Box(0, 9, (2,), np.int64))


def test_the_second_half_of_the_inputs_are_log_stds() -> None:
    space = spaces.Box(-1, 1, (2, 2))
    assert DiagGaussian.bind(space).log_std_indices(space) == (4, 5, 6, 7)


def test_an_empty_batch_keeps_its_shape() -> None:
    dist = DiagGaussian.bind(spaces.Box(-1, 1, (2, 3))).from_logits(torch.zeros(0, 12))
    assert dist.sample(rng()).shape == (0, 2, 3)
    assert dist.logp(torch.zeros(0, 2, 3)).shape == (0,)


@pytest.mark.parametrize("mean", [0.5, 10.0, -30.0])
def test_the_log_density_of_a_squashed_sample_and_its_gradient_are_exact_beyond_the_floats_below_1(mean: float) -> None:
    def of(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        logits = torch.tensor([[mean, -1.0]], dtype=dtype, requires_grad=True)
        noise = torch.randn(1, 1, generator=rng())
        if dtype == torch.float64:  # log N(x) - log(1 - tanh²x) with 1 - tanh²x = 4 / (eˣ + e⁻ˣ)²
            x = logits[:, :1] + logits[:, 1:].exp() * noise
            slope = math.log(4) - 2 * torch.logaddexp(x, -x)
            logp = (-0.5 * noise.double().square() - logits[:, 1:] - 0.5 * math.log(2 * math.pi) - slope).sum(-1)
        else:
            dist = SquashedGaussian.from_logits(logits)
            logp = dist.logp(dist.rsample(rng()))
        (gradient,) = torch.autograd.grad(logp.sum(), logits)
        return logp.detach().double(), gradient.double()

    for found, expected in zip(of(torch.float32), of(torch.float64), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
