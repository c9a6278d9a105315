"""Every distribution against torch.distributions, and by hand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch import distributions as oracle

from catalog import Categorical, DiagGaussian, Distribution, MultiCategorical, SquashedGaussian
from catalog.actions import Offset

LEADS = [(), (5,), (3, 5), (2, 3, 5)]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_of(lead: tuple[int, ...], width: int, seed: int = 0) -> Tensor:
    return torch.randn(*lead, width, generator=rng(seed), dtype=torch.float64)


def normal(logits: Tensor, rank: int = 1) -> oracle.Independent:
    mean, log_std = logits.chunk(2, -1)
    return oracle.Independent(oracle.Normal(mean, log_std.exp()), rank)


# Categorical ----------------------------------------------------------------------------------------------------------


def test_categorical_by_hand() -> None:
    # logits log 1, log 2, log 5 → p = 1/8, 2/8, 5/8
    dist = Categorical.from_logits(torch.tensor([1.0, 2.0, 5.0]).log())
    assert dist.logp(torch.tensor(1)).item() == pytest.approx(math.log(0.25))
    # 1/8·log 8 + 1/4·log 4 + 5/8·log 8/5 = 0.25993 + 0.34657 + 0.29375 = 0.90026
    assert dist.entropy().item() == pytest.approx(0.90026, abs=1e-4)
    # against the uniform: log 3 - H = 1.09861 - 0.90026
    assert dist.kl(Categorical.from_logits(torch.zeros(3))).item() == pytest.approx(0.19835, abs=1e-4)
    assert dist.to_deterministic().sample().item() == 2


@pytest.mark.parametrize("lead", LEADS)
def test_categorical_matches_torch(lead: tuple[int, ...]) -> None:
    p, q = logits_of(lead, 4, 1), logits_of(lead, 4, 2)
    dist, expected, other = Categorical.from_logits(p), oracle.Categorical(logits=p), oracle.Categorical(logits=q)
    actions = dist.sample(rng())
    assert actions.shape == lead
    assert actions.dtype == torch.int64
    torch.testing.assert_close(dist.logp(actions), expected.log_prob(actions))
    torch.testing.assert_close(dist.entropy(), expected.entropy())
    torch.testing.assert_close(dist.kl(Categorical.from_logits(q)), oracle.kl_divergence(expected, other))
    torch.testing.assert_close(dist.to_deterministic().sample(), expected.probs.argmax(-1))


def test_categorical_samples_as_often_as_probable() -> None:
    probs = torch.tensor([0.1, 0.2, 0.7])
    many = Categorical.from_logits(probs.log().expand(40_000, 3))
    noise = Categorical.draw_noise(np.random.default_rng(0), 40_000, 3)
    for samples in (many.sample(rng()), many.sample_from(noise)):
        # standard deviation of a frequency: √(0.7·0.3/40000) ≈ 0.0023
        torch.testing.assert_close(samples.bincount(minlength=3) / 40_000, probs, atol=0.012, rtol=0)


def test_categorical_adds_noise_and_takes_the_largest() -> None:
    # 1 + 0.5, 0 + 2, 1.2 + 0 → the second
    assert Categorical.from_logits(torch.tensor([1.0, 0.0, 1.2])).sample_from(torch.tensor([0.5, 2.0, 0.0])) == 1


@pytest.mark.parametrize("masked", [-math.inf, torch.finfo(torch.float32).min])
def test_categorical_never_takes_a_masked_action_even_where_the_exponential_is_zero(masked: float) -> None:
    class Zeros(np.random.Generator):
        def standard_exponential(self, size, dtype):  # type: ignore[no-untyped-def, override]
            return np.zeros(size, dtype)

    noise = Categorical.draw_noise(Zeros(np.random.PCG64(0)), 4, 3)
    assert noise.isfinite().all()
    dist = Categorical.from_logits(torch.tensor([masked, 0.0, masked]).expand(4, 3))
    assert dist.sample_from(noise).tolist() == [1, 1, 1, 1]


def test_categorical_with_masked_logits_has_finite_entropy_and_kl() -> None:
    low = torch.finfo(torch.float32).min
    dist = Categorical.from_logits(torch.tensor([0.0, 0.0, low]))
    assert dist.entropy().item() == pytest.approx(math.log(2))
    # p = ½, ½, 0 against q = ¼, ¾, 0: ½ log 2 + ½ log ⅔ = 0.14384
    other = Categorical.from_logits(torch.tensor([1.0, 3.0, 0.0]).log().clamp_min(low))
    assert dist.kl(other).item() == pytest.approx(0.14384, abs=1e-5)


# MultiCategorical -----------------------------------------------------------------------------------------------------

GRID = spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))


def test_multi_categorical_by_hand() -> None:
    dist_cls = MultiCategorical.bind(spaces.MultiDiscrete([2, 3]))
    dist = dist_cls.from_logits(torch.tensor([1.0, 3.0, 1.0, 1.0, 2.0]).log())
    # p(1) = 3/4 in the first part, p(2) = 2/4 in the second
    assert dist.logp(torch.tensor([1, 2])).item() == pytest.approx(math.log(0.375))
    assert dist.to_deterministic().sample().tolist() == [1, 2]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2, 4]), GRID], ids=["flat", "grid"])
def test_multi_categorical_matches_torch_part_by_part(lead: tuple[int, ...], space: spaces.MultiDiscrete) -> None:
    nvec, dist_cls = space.nvec.reshape(-1).tolist(), MultiCategorical.bind(space)
    width = MultiCategorical.required_input_dim(space)
    assert width == sum(nvec)
    p, q = logits_of(lead, width, 1), logits_of(lead, width, 2)
    dist = dist_cls.from_logits(p)
    parts = [oracle.Categorical(logits=part) for part in p.split(nvec, -1)]
    others = [oracle.Categorical(logits=part) for part in q.split(nvec, -1)]
    actions = dist.sample(rng())
    assert actions.shape == (*lead, *space.shape)
    columns = actions.reshape(*lead, len(nvec)).unbind(-1)
    expected = torch.stack([part.log_prob(a) for part, a in zip(parts, columns, strict=True)]).sum(0)
    torch.testing.assert_close(dist.logp(actions), expected)
    torch.testing.assert_close(dist.entropy(), torch.stack([part.entropy() for part in parts]).sum(0))
    kl = torch.stack([oracle.kl_divergence(a, b) for a, b in zip(parts, others, strict=True)]).sum(0)
    torch.testing.assert_close(dist.kl(dist_cls.from_logits(q)), kl)
    mode = torch.stack([part.logits.argmax(-1) for part in parts], -1).reshape(*lead, *space.shape)
    torch.testing.assert_close(dist.to_deterministic().sample(), mode)


def test_multi_categorical_splits_its_noise_like_its_logits() -> None:
    dist = MultiCategorical.bind(spaces.MultiDiscrete([2, 3])).from_logits(torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0]))
    # 0+2 > 1+0 → 0;  0+0, 1+1.5, 2+0 → 1
    assert dist.sample_from(torch.tensor([2.0, 0.0, 0.0, 1.5, 0.0])).tolist() == [0, 1]


def test_the_bare_multi_categorical_asks_to_be_bound() -> None:
    with pytest.raises(TypeError, match=r"MultiCategorical\.bind\(space\)"):
        MultiCategorical.from_logits(torch.zeros(5))


def test_classes_bound_to_equal_spaces_are_comparable() -> None:
    one, two = (MultiCategorical.bind(spaces.MultiDiscrete([2, 3])) for _ in range(2))
    assert one.from_logits(torch.zeros(5)).kl(two.from_logits(torch.zeros(5))).item() == 0
    assert MultiCategorical.bind(spaces.MultiDiscrete([3, 2])) is not one
    assert MultiCategorical.nvec == ()


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


def test_squashed_entropy_estimates_the_integral() -> None:
    logits = torch.tensor([0.3, -0.5], dtype=torch.float64)
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    logp = SquashedGaussian.from_logits(logits.expand(len(grid), 2)).logp(grid[:, None])
    exact = -torch.trapezoid(logp.exp() * logp, grid).item()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        estimate = SquashedGaussian.from_logits(logits.expand(100_000, 2)).entropy()
    assert estimate.shape == (100_000,)
    assert estimate.mean().item() == pytest.approx(exact, abs=0.02)


def test_squashed_kl_is_that_before_squashing() -> None:
    p, q = logits_of((5,), 6, 1), logits_of((5,), 6, 2)
    kl = SquashedGaussian.from_logits(p).kl(SquashedGaussian.from_logits(q))
    torch.testing.assert_close(kl, oracle.kl_divergence(normal(p), normal(q)))


def test_squashed_logp_is_finite_at_the_edge() -> None:
    dist = SquashedGaussian.from_logits(torch.zeros(2, 2))
    assert dist.logp(torch.tensor([[-1.0], [1.0]])).isfinite().all()


# all ------------------------------------------------------------------------------------------------------------------

CASES = [
    (Categorical, 3),
    (MultiCategorical.bind(GRID), 11),
    (DiagGaussian, 6),
    (DiagGaussian.bind(spaces.Box(-1, 1, (1, 3))), 6),
    (SquashedGaussian, 6),
]


@pytest.mark.parametrize(("dist_cls", "width"), CASES)
def test_noise_and_samples_depend_on_their_generator_alone(dist_cls: type[Distribution], width: int) -> None:
    one, again, other = (dist_cls.draw_noise(np.random.default_rng(seed), 50, width) for seed in (1, 1, 2))
    assert one is not None
    assert one.shape[0] == 50
    assert one.dtype == torch.float32
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    dist = dist_cls.from_logits(torch.randn(50, width, generator=rng()))
    torch.manual_seed(0)
    first = dist.sample(rng(1))
    torch.manual_seed(1)
    assert torch.equal(first, dist.sample(rng(1)))
    assert not torch.equal(first, dist.sample(rng(2)))


@pytest.mark.parametrize(("dist_cls", "width"), CASES)
def test_noise_of_a_block_is_that_of_its_steps(dist_cls: type[Distribution], width: int) -> None:
    whole, parts = (np.random.default_rng(1) for _ in range(2))
    block = dist_cls.draw_noise(whole, 10, width)
    steps = [dist_cls.draw_noise(parts, 5, width) for _ in range(2)]
    assert torch.equal(block, torch.cat(steps))


@pytest.mark.parametrize(("dist_cls", "width"), CASES)
def test_logits_are_never_changed_in_place(dist_cls: type[Distribution], width: int) -> None:
    logits = torch.randn(4, width, generator=rng())
    before, dist = logits.clone(), dist_cls.from_logits(logits)
    dist.logp(dist.sample(rng()))
    dist.entropy()
    dist.kl(dist_cls.from_logits(logits))
    dist.sample_from(dist_cls.draw_noise(np.random.default_rng(0), 4, width))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(("dist_cls", "width"), CASES)
def test_logp_has_a_gradient_and_agrees_with_finite_differences(dist_cls: type[Distribution], width: int) -> None:
    logits = logits_of((2,), width).requires_grad_()
    actions = dist_cls.from_logits(logits).sample(rng())
    actions = actions.double() if actions.is_floating_point() else actions
    assert torch.autograd.gradcheck(lambda x: dist_cls.from_logits(x).logp(actions), (logits,))


def test_a_kl_between_classes_raises() -> None:
    with pytest.raises(TypeError, match=r"Categorical\.kl: expected another Categorical, got DiagGaussian"):
        Categorical.from_logits(torch.zeros(4)).kl(DiagGaussian.from_logits(torch.zeros(4)))


@pytest.mark.parametrize("dist_cls", [Categorical, MultiCategorical, DiagGaussian])
def test_the_wrong_space_is_named(dist_cls: type[Distribution]) -> None:
    with pytest.raises(ValueError, match=rf"{dist_cls.__name__}\.required_input_dim: .*MultiBinary"):
        dist_cls.required_input_dim(spaces.MultiBinary(3))


def test_a_class_of_ones_own_may_leave_noise_out() -> None:
    class Mine(Categorical):
        @classmethod
        def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
            return Distribution.draw_noise(rng, steps, input_dim)  # type: ignore[return-value]

        sample_from = Distribution.sample_from

    assert Mine.draw_noise(np.random.default_rng(0), 2, 3) is None
    with pytest.raises(TypeError, match=r"Mine\.sample_from"):
        Mine.from_logits(torch.zeros(3)).sample_from(torch.zeros(3))


def test_choices_are_zero_based_until_the_converter_adds_the_start() -> None:
    assert Categorical.required_input_dim(spaces.Discrete(3, start=5)) == 3
    assert Offset(np.asarray(5))(torch.tensor([0, 2])).tolist() == [5, 7]
