"""Choices and bits, against torch.distributions and by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch import distributions as oracle

from catalog import Bernoulli, Categorical, Distribution, MultiCategorical
from catalog.distributions.base import action_distribution_rules
from catalog.model_config import DefaultModelConfig

LEADS = [(), (5,), (3, 5), (2, 3, 5)]
INF = math.inf


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_of(lead: tuple[int, ...], width: int, seed: int = 0) -> Tensor:
    return torch.randn(*lead, width, generator=rng(seed), dtype=torch.float64)


def chosen(space: spaces.Space) -> type[Distribution]:
    return action_distribution_rules.root(space, DefaultModelConfig(), "action_space").run()


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_actions_are_integers_of_any_dtype(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 2.0, 5.0], [5.0, 2.0, 1.0]]).log()
    one, many = Categorical.from_logits(logits), MultiCategorical.bind(spaces.MultiDiscrete([3])).from_logits(logits)
    actions = torch.tensor([1, 2], dtype=dtype)
    for logp in (one.logp(actions), many.logp(actions.unsqueeze(-1))):
        torch.testing.assert_close(logp, torch.tensor([0.25, 0.125]).log())
    with pytest.raises(RuntimeError, match="int64"):
        one.logp(torch.tensor([1.5, 2.0]))


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


@pytest.mark.parametrize("low", [-INF, torch.finfo(torch.float32).min, -1e9])
def test_a_masked_categorical_is_one_over_what_is_left(low: float) -> None:
    p, q = logits_of((6,), 5, 1).float(), logits_of((6,), 5, 2).float()
    left = [0, 1, 3]
    masked = torch.full_like(p, low)
    dist, other = (Categorical.from_logits(masked.index_copy(-1, torch.tensor(left), x[:, left])) for x in (p, q))
    expected, expected_other = (oracle.Categorical(logits=x[:, left]) for x in (p, q))
    torch.testing.assert_close(dist.entropy(), expected.entropy())
    torch.testing.assert_close(dist.kl(other), oracle.kl_divergence(expected, expected_other))
    for index, action in enumerate(left):
        logp = expected.log_prob(torch.full((6,), index))
        torch.testing.assert_close(dist.logp(torch.full((6,), action)), logp)


def test_a_choice_without_probability_costs_nothing_against_one_with_it_and_everything_the_other_way() -> None:
    two, three = (Categorical.from_logits(torch.tensor(x)) for x in ([0.0, 0.0, -INF], [0.0, 0.0, 0.0]))
    # ½ log(½ / ⅓) twice
    assert two.kl(three).item() == pytest.approx(math.log(1.5))
    assert three.kl(two).item() == INF
    # its probability is 0 in float32, though the logit is finite
    assert Categorical.from_logits(torch.tensor([0.0, 0.0, -200.0])).kl(two).item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([4]), spaces.MultiBinary(4)], ids=str)
def test_gradients_stay_finite_where_logits_are_infinite(space: spaces.Space) -> None:
    dist_cls = chosen(space)
    logits = torch.tensor([[0.5, -INF, 1.0, -INF]], requires_grad=True)
    dist, other = dist_cls.from_logits(logits), dist_cls.from_logits(logits.detach() * 0.5)
    (dist.logp(dist.to_deterministic().sample()) + dist.entropy() + dist.kl(other) + other.kl(dist)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, [1, 3]].tolist() == [0, 0]
    assert logits.grad[0, [0, 2]].count_nonzero() == 2


# MultiCategorical -----------------------------------------------------------------------------------------------------

GRID = spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))
MULTI_DISCRETES = [
    spaces.MultiDiscrete([3, 2, 4]),
    spaces.MultiDiscrete([3, 3, 2, 3, 1]),
    spaces.MultiDiscrete([4] * 5),
    spaces.MultiDiscrete([7]),
    spaces.MultiDiscrete(np.array(3)),
    spaces.MultiDiscrete(np.full((2, 1, 2), 3)),
    GRID,
]


def test_multi_categorical_by_hand() -> None:
    dist_cls = MultiCategorical.bind(spaces.MultiDiscrete([2, 3]))
    dist = dist_cls.from_logits(torch.tensor([1.0, 3.0, 1.0, 1.0, 2.0]).log())
    # p(1) = 3/4 in the first part, p(2) = 2/4 in the second
    assert dist.logp(torch.tensor([1, 2])).item() == pytest.approx(math.log(0.375))
    assert dist.to_deterministic().sample().tolist() == [1, 2]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("space", MULTI_DISCRETES, ids=str)
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
    mode = torch.stack([part.logits.argmax(-1) for part in parts], -1).reshape((*lead, *space.shape))
    torch.testing.assert_close(dist.to_deterministic().sample(), mode)


def test_multi_categorical_splits_its_noise_like_its_logits() -> None:
    dist = MultiCategorical.bind(spaces.MultiDiscrete([2, 3])).from_logits(torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0]))
    # 0+2 > 1+0 → 0;  0+0, 1+1.5, 2+0 → 1
    assert dist.sample_from(torch.tensor([2.0, 0.0, 0.0, 1.5, 0.0])).tolist() == [0, 1]


def test_classes_bound_to_equal_spaces_are_comparable() -> None:
    one, two = (MultiCategorical.bind(spaces.MultiDiscrete([2, 3])) for _ in range(2))
    assert one.from_logits(torch.zeros(5)).kl(two.from_logits(torch.zeros(5))).item() == 0
    assert MultiCategorical.bind(spaces.MultiDiscrete([3, 2])) is not one
    assert MultiCategorical.nvec == ()


def test_neighbouring_parts_of_one_size_are_computed_together() -> None:
    assert MultiCategorical.bind(spaces.MultiDiscrete([3, 3, 2, 3])).runs == ((2, 3), (1, 2), (1, 3))


def test_multi_categorical_samples_each_part_as_often_as_probable() -> None:
    probs = torch.tensor([0.1, 0.9, 0.2, 0.3, 0.5, 0.6, 0.1, 0.3])
    many = MultiCategorical.bind(spaces.MultiDiscrete([2, 3, 3])).from_logits(probs.log().expand(40_000, 8))
    noise = MultiCategorical.draw_noise(np.random.default_rng(0), 40_000, 8)
    for samples in (many.sample(rng()), many.sample_from(noise)):
        counts = [samples[:, i].bincount(minlength=n) for i, n in enumerate((2, 3, 3))]
        # standard deviation of a frequency: at most √(0.25/40000) = 0.0025
        torch.testing.assert_close(torch.cat(counts) / 40_000, probs, atol=0.012, rtol=0)
        # parts are independent: 0.9 · 0.5 = 0.45
        both = ((samples[:, 0] == 1) & (samples[:, 1] == 2)).float().mean()
        assert both.item() == pytest.approx(0.45, abs=0.012)


def test_logp_after_acting_in_inference_mode_has_a_gradient() -> None:
    dist_cls = MultiCategorical.bind(spaces.MultiDiscrete([5, 6, 7]))
    with torch.inference_mode():
        actions = dist_cls.from_logits(torch.zeros(2, 18)).sample(rng())
        dist_cls.from_logits(torch.zeros(2, 18)).logp(actions)
    logits = torch.zeros(2, 18, requires_grad=True)
    dist_cls.from_logits(logits).logp(actions.clone()).sum().backward()
    assert logits.grad is not None


# integer Boxes --------------------------------------------------------------------------------------------------------


def test_an_integer_box_is_a_choice_among_its_numbers() -> None:
    space = spaces.Box(np.int32([[-3, 0]]), np.int32([[-1, 4]]), dtype=np.int32)
    dist_cls = chosen(space)
    assert dist_cls is MultiCategorical.bind(spaces.MultiDiscrete(np.array([[3, 5]])))
    assert dist_cls.required_input_dim(space) == 8
    logits = torch.zeros(8)
    logits[[2, 4]] = 5.0
    assert dist_cls.from_logits(logits).to_deterministic().sample().tolist() == [[2, 1]]


@pytest.mark.parametrize(("dtype", "count"), [(np.uint8, 256), (np.int8, 256), (bool, 2)])
def test_the_whole_range_of_a_dtype_may_be_the_bounds(dtype: type, count: int) -> None:
    whole = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    space = spaces.Box(*whole, (2,), dtype=dtype)
    assert chosen(space).required_input_dim(space) == 2 * count


def test_an_integer_box_that_cannot_be_counted_through_is_refused() -> None:
    half = spaces.Box(0, np.inf, (2,), np.int64)
    with pytest.raises(ValueError, match=r"action_space: expected a MultiDiscrete or a bounded .* Narrow the bounds"):
        chosen(half)
    wide = spaces.Box(0, 255, (40,), np.uint8)
    with pytest.raises(ValueError, match=r"action_space: expected at most 10000 choices in all.* Narrow the bounds"):
        chosen(wide)
    assert chosen(spaces.Box(0, 255, (39,), np.uint8)) is not None


# Bernoulli ------------------------------------------------------------------------------------------------------------


def bits(logits: Tensor) -> oracle.Independent:
    return oracle.Independent(oracle.Bernoulli(logits=logits), 1)


def test_bernoulli_by_hand() -> None:
    # log-odds log 3 and -log 3: P(1) = ¾ and ¼
    dist = Bernoulli.from_logits(torch.tensor([math.log(3), -math.log(3)]))
    assert dist.logp(torch.tensor([1, 1])).item() == pytest.approx(math.log(3 / 16))
    # each ¾ log 4/3 + ¼ log 4 = 0.21576 + 0.34657
    assert dist.entropy().item() == pytest.approx(2 * 0.56234, abs=1e-4)
    # against fair coins: log 2 - 0.56234 each
    assert dist.kl(Bernoulli.from_logits(torch.zeros(2))).item() == pytest.approx(2 * 0.13081, abs=1e-4)
    assert dist.to_deterministic().sample().tolist() == [1, 0]
    # log 3 - 1.2 < 0;  -log 3 + 1.2 > 0
    assert dist.sample_from(torch.tensor([-1.2, 1.2])).tolist() == [0, 1]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)], ids=str)
def test_bernoulli_matches_torch(lead: tuple[int, ...], shape: tuple[int, ...]) -> None:
    space, width = spaces.MultiBinary(shape), math.prod(shape)
    dist_cls = chosen(space)
    assert dist_cls.required_input_dim(space) == width
    p, q = logits_of(lead, width, 1), logits_of(lead, width, 2)
    dist = dist_cls.from_logits(p)
    actions = dist.sample(rng())
    assert actions.shape == (*lead, *shape)
    assert actions.dtype == torch.int8
    torch.testing.assert_close(dist.logp(actions), bits(p).log_prob(actions.reshape(*lead, width).double()))
    torch.testing.assert_close(dist.entropy(), bits(p).entropy())
    torch.testing.assert_close(dist.kl(dist_cls.from_logits(q)), oracle.kl_divergence(bits(p), bits(q)))
    expected = (p > 0).reshape((*lead, *shape)).to(torch.int8)
    assert torch.equal(dist.to_deterministic().sample(), expected)


def test_bernoulli_samples_as_often_as_probable() -> None:
    probs = torch.tensor([0.02, 0.5, 0.9])
    many = Bernoulli.from_logits(probs.logit().expand(40_000, 3))
    noise = Bernoulli.draw_noise(np.random.default_rng(0), 40_000, 3)
    for samples in (many.sample(rng()), many.sample_from(noise)):
        torch.testing.assert_close(samples.float().mean(0), probs, atol=0.012, rtol=0)


def test_bernoulli_is_sure_where_its_logits_are_infinite() -> None:
    dist = Bernoulli.from_logits(torch.tensor([-INF, INF, 0.0]))
    assert dist.logp(torch.tensor([0, 1, 0])).item() == pytest.approx(-math.log(2))
    assert dist.entropy().item() == pytest.approx(math.log(2))
    assert dist.kl(dist).item() == 0
    assert dist.kl(Bernoulli.from_logits(torch.zeros(3))).item() == pytest.approx(2 * math.log(2))
    assert Bernoulli.from_logits(torch.zeros(3)).kl(dist).item() == INF


# rsample --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3, 3]), spaces.MultiBinary((2, 2))], ids=str
)
def test_a_straight_through_sample_is_the_sample_with_the_gradient_of_the_probabilities(space: spaces.Space) -> None:
    dist_cls = chosen(space)
    width = dist_cls.required_input_dim(space)
    logits = logits_of((5,), width).requires_grad_()
    dist = dist_cls.from_logits(logits)
    hard, actions = dist.rsample(rng(3)), dist.sample(rng(3))
    weights = logits_of(tuple(hard.shape), 1, 9).squeeze(-1)
    (grad,) = torch.autograd.grad((hard * weights).sum(), logits)
    if isinstance(space, spaces.MultiBinary):
        assert torch.equal(hard.detach(), actions.double())
        soft = logits.sigmoid().reshape(5, 2, 2)
    else:
        sizes = [3] if isinstance(space, spaces.Discrete) else [2, 3, 3]
        columns = actions.reshape(5, -1).unbind(-1)
        codes = [torch.nn.functional.one_hot(a, n) for a, n in zip(columns, sizes, strict=True)]
        assert torch.equal(hard.detach(), torch.cat(codes, -1).double())
        soft = torch.cat([part.softmax(-1) for part in logits.split(sizes, -1)], -1)
    torch.testing.assert_close(grad, torch.autograd.grad((soft * weights).sum(), logits)[0])


def test_forbidden_and_impossible_choices_are_never_drawn_and_have_a_finite_gradient() -> None:
    for low in (-1e9, -INF):
        logits = torch.tensor([0.3, low, 0.7]).expand(500, 3).clone().requires_grad_()
        noise = Categorical.draw_noise(np.random.default_rng(0), 500, 3)
        code, logp = Categorical.from_logits(logits).rsample_with_logp(noise)
        assert not code[:, 1].any()
        (grad,) = torch.autograd.grad((code * torch.tensor([1.0, 5.0, 2.0])).sum() + logp.sum(), logits)
        assert bool(grad.isfinite().all())
        assert not grad[:, 1].any()


@pytest.mark.parametrize("nvec", [[4], [2, 3], [3, 3, 2], [2, 1, 2, 2]], ids=str)
def test_joint_log_probabilities_are_those_of_every_action(nvec: list[int]) -> None:
    space = spaces.MultiDiscrete(nvec)
    dist = chosen(space).from_logits(logits_of((5,), sum(nvec)))
    joint = dist.joint_log_probs()
    assert joint.shape == (5, math.prod(nvec))
    torch.testing.assert_close(joint.exp().sum(-1), torch.ones(5, dtype=joint.dtype))
    for place, action in enumerate(itertools.product(*map(range, nvec))):
        torch.testing.assert_close(joint[:, place], dist.logp(torch.tensor(action).expand(5, -1)))


# probabilities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [spaces.Discrete(4), GRID, spaces.MultiBinary((2, 2))], ids=str)
def test_the_probabilities_of_all_actions_sum_to_one(space: spaces.Space) -> None:
    dist_cls = chosen(space)
    logits = 3 * logits_of((), dist_cls.required_input_dim(space))
    if isinstance(space, spaces.Discrete):
        every = torch.arange(4)
    else:
        counts = space.nvec.flat if isinstance(space, spaces.MultiDiscrete) else [2] * 4
        every = torch.tensor([*itertools.product(*map(range, counts))]).reshape(-1, *space.shape)  # type: ignore[misc]
    logp = dist_cls.from_logits(logits.expand(len(every), -1)).logp(every)
    assert logp.exp().sum().item() == pytest.approx(1)
    # the entropy is the mean of what logp says
    assert dist_cls.from_logits(logits).entropy().item() == pytest.approx(-(logp.exp() * logp).sum().item())
