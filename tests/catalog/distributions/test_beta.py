"""The Beta distribution, against torch.distributions, by integration and by hand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as oracle
from torch.nn import functional as F

from algorithms.ppo import PPOCatalog
from catalog import Beta
from catalog.distributions.beta import _TRIES, _gammas

LEADS = [(), (5,), (3, 5)]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_of(*parameters: float) -> Tensor:
    """Inputs for the given α and β, all α first."""
    over_one = torch.tensor(parameters, dtype=torch.float64) - 1
    return over_one.expm1().log()


def stretched(logits: Tensor) -> oracle.TransformedDistribution:
    alpha, beta = (1 + F.softplus(logits)).chunk(2, -1)
    return oracle.TransformedDistribution(oracle.Beta(alpha, beta), oracle.AffineTransform(-1, 2))


def unstretched(logits: Tensor) -> oracle.Independent:
    return oracle.Independent(stretched(logits).base_dist, 1)


def test_beta_by_hand() -> None:
    # α = 2, β = 3: B(2, 3) = 1/12, density 12·u·(1 - u)²; at u = ½ it is 1.5, in (-1, 1) half of that
    dist = Beta.from_logits(logits_of(2, 3))
    torch.testing.assert_close(dist.alpha, torch.tensor([2.0], dtype=torch.float64))
    torch.testing.assert_close(dist.beta, torch.tensor([3.0], dtype=torch.float64))
    assert dist.logp(torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(math.log(0.75))
    # mode (2 - 1) / (2 + 3 - 2) = 1/3, stretched -1/3
    assert dist.to_deterministic().sample().item() == pytest.approx(-1 / 3)
    # ψ(2) = 1 - γ, ψ(3) = 3/2 - γ, ψ(5) = 25/12 - γ: log(1/12) - (1 - γ) - 2(3/2 - γ) + 3(25/12 - γ) + log 2
    assert dist.entropy().item() == pytest.approx(-math.log(6) + 2.25)
    # to α = β = 2, B = 1/6: log((1/6) / (1/12)) + 0 + 1·(3/2 - 25/12)
    assert dist.kl(Beta.from_logits(logits_of(2, 2))).item() == pytest.approx(math.log(2) - 7 / 12)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_beta_matches_torch(lead: tuple[int, ...], shape: tuple[int, ...]) -> None:
    space = spaces.Box(-1, 1, shape)
    dist_cls, width = Beta.bind(space), Beta.required_input_dim(space)
    assert width == 2 * math.prod(shape)
    p, q = (3 * torch.randn(*lead, width, generator=rng(seed), dtype=torch.float64) for seed in (1, 2))
    dist = dist_cls.from_logits(p)
    actions = dist.sample(rng())
    assert actions.shape == (*lead, *shape)
    assert (actions.abs() < 1).all()
    flat = actions.reshape(*lead, width // 2)
    torch.testing.assert_close(dist.logp(actions), stretched(p).log_prob(flat).sum(-1))
    torch.testing.assert_close(dist.entropy(), unstretched(p).entropy() + width // 2 * math.log(2))
    expected = oracle.kl_divergence(unstretched(p), unstretched(q))
    torch.testing.assert_close(dist.kl(dist_cls.from_logits(q)), expected)
    mode = 2 * unstretched(p).mode - 1
    torch.testing.assert_close(dist.to_deterministic().sample(), mode.reshape((*lead, *shape)))
    noise = dist_cls.draw_noise(np.random.default_rng(0), math.prod(lead), width).reshape(*lead, -1)
    assert dist.sample_from(noise).shape == (*lead, *shape)


@pytest.mark.parametrize("scale", [1e2, 1e3, 1e4, 1e5])
def test_sharp_policies_are_as_exact_in_float32(scale: float) -> None:
    logits = scale * (1 + torch.rand(200, 2, generator=rng(1)))
    others = logits + scale**0.5 * torch.randn(200, 2, generator=rng(2))
    dist, other = Beta.from_logits(logits), Beta.from_logits(others)
    actions = dist.sample(rng())
    p, q = unstretched(logits.double()), unstretched(others.double())
    logp = stretched(logits.double()).log_prob(actions.double()).sum(-1)
    expected = p.entropy() + math.log(2), logp, oracle.kl_divergence(p, q)
    for found, exact in zip((dist.entropy(), dist.logp(actions), dist.kl(other)), expected, strict=True):
        torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=2e-5)
    assert {x.dtype for x in (dist.entropy(), dist.logp(actions), dist.kl(other))} == {torch.float32}


@pytest.mark.parametrize(("alpha", "beta"), [(1.001, 1.001), (1.7, 1.7), (5.0, 1.2), (40.0, 200.0)])
def test_samples_are_beta_distributed_whatever_they_are_drawn_from(alpha: float, beta: float) -> None:
    count = 20_000
    many = Beta.from_logits(logits_of(alpha, beta).float().expand(count, 2))
    noise = Beta.draw_noise(np.random.default_rng(0), count, 2)
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)[1:-1]
    density = oracle.Beta(torch.tensor(alpha).double(), torch.tensor(beta).double()).log_prob(grid).exp()
    below = density.cumsum(0) / density.sum()
    for samples in (many.sample(rng()), many.sample_from(noise)):
        found = ((samples.squeeze(-1).sort().values + 1) / 2).double()
        theory = below[(found * 20_000).long().clamp(1, 19_999) - 1]
        gap = (theory - torch.arange(1, count + 1) / count).abs().max()
        assert gap < 1.95 / math.sqrt(count)  # Kolmogorov-Smirnov at 0.1 %


def test_the_first_candidate_that_is_taken_is_the_gamma_variate() -> None:
    shape = torch.tensor([4 / 3])  # d = 1, c = 1/3
    normal = torch.tensor([-3.0, 1.5, 0.0, 0.0, 0.0, 0.0]).unsqueeze(-1)  # v = 0: refused; v = 1.5³
    assert len(normal) == _TRIES
    taken = torch.full((_TRIES, 1), 0.5)
    assert _gammas(shape, normal, taken).item() == pytest.approx(1.5**3)
    # log(u) < ½·1.5² + 1 - 3.375 + log 3.375 = -0.0336 is false for u = 0.99, and then v = 1
    refused = torch.full((_TRIES, 1), 0.99)
    assert _gammas(shape, normal, refused).item() == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(st.floats(-200, 200), st.floats(-200, 200), st.floats(-1, 1))
def test_all_is_finite_and_inside_whatever_the_net_says(one: float, two: float, action: float) -> None:
    dist = Beta.from_logits(torch.tensor([[one, two]]).requires_grad_())
    drawn = dist.sample_from(Beta.draw_noise(np.random.default_rng(0), 1, 2))
    mode = dist.to_deterministic().sample()
    for actions in (drawn, dist.sample(rng()), mode):
        assert (actions.abs() <= 1).all()
        assert dist.logp(actions.detach()).isfinite().all()
    logp, entropy = dist.logp(torch.tensor([[action]])), dist.entropy()
    (gradient,) = torch.autograd.grad((logp + entropy).sum(), dist._over_one)
    assert all(x.isfinite().all() for x in (logp, entropy, gradient))


def test_the_gradient_of_a_sample_moves_it_towards_greater_mass() -> None:
    alpha, beta = (torch.full((50_000, 1), x, dtype=torch.float64, requires_grad=True) for x in (2.0, 3.0))
    dist = Beta.from_logits(torch.cat([(alpha - 1).expm1().log(), (beta - 1).expm1().log()], -1))
    dist.rsample(rng()).sum().backward()
    # the mean is 2α / (α + β) - 1, with derivatives 2β / 25 and -2α / 25
    assert alpha.grad is not None
    assert beta.grad is not None
    assert alpha.grad.mean().item() == pytest.approx(6 / 25, abs=0.01)
    assert beta.grad.mean().item() == pytest.approx(-4 / 25, abs=0.01)


@pytest.mark.parametrize(
    "space", [spaces.Box(0, np.inf, (2,)), spaces.Box(-np.inf, 1, ()), spaces.Box(0, 3, (2,), np.int64)]
)
def test_what_it_is_not_for_is_told(space: spaces.Box) -> None:
    with pytest.raises(
        ValueError, match=r"^action_space: expected a Box of floats( with finite bounds on all sides)?, for"
    ):
        PPOCatalog(spaces.Box(-1, 1, (4,)), space, {"custom_action_dist": "Beta"})


def test_it_is_chosen_by_name_and_its_actions_are_stretched_to_the_bounds() -> None:
    space = spaces.Dict({"arm": spaces.Box(2, 4, (3,)), "grip": spaces.Discrete(2)})
    catalog = PPOCatalog(spaces.Box(-1, 1, (4,)), space, {"custom_action_dist": {"arm": "Beta"}})
    assert "Beta, 6 inputs" in catalog.explain()
    dist = catalog.get_action_dist_cls().from_logits(torch.zeros(100, 8))
    arm = catalog.build_action_converter()(dist.sample(rng()))["arm"]
    assert arm.min() < 2.3
    assert arm.max() > 3.7
    assert (arm.min() >= 2) & (arm.max() <= 4)
