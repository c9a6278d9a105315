"""What holds for every distribution, and which one the table chooses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from catalog import (
    Bernoulli,
    Beta,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    MultiDistribution,
    SquashedGaussian,
)
from catalog.actions.converters import Offset
from catalog.distributions.base import action_distribution_rules
from catalog.model_config import DefaultModelConfig


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chosen(space: spaces.Space) -> type[Distribution]:
    return action_distribution_rules.root(space, DefaultModelConfig(), "action_space").run()


def map_tree(function, *trees):  # type: ignore[no-untyped-def]
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_tree(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(map_tree(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def same(one: object, two: object) -> bool:
    found = []
    map_tree(lambda a, b: found.append(torch.equal(a, b)), one, two)
    return all(found)


LEAVES = [
    (Categorical, 3),
    (MultiCategorical.bind(spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))), 11),
    (MultiCategorical.bind(spaces.MultiDiscrete([3, 3, 3])), 9),
    (Bernoulli.bind(spaces.MultiBinary((2, 3))), 6),
    (DiagGaussian, 6),
    (DiagGaussian.bind(spaces.Box(-1, 1, (1, 3))), 6),
    (SquashedGaussian, 6),
    (Beta, 6),
    (Beta.bind(spaces.Box(-1, 1, (1, 3))), 6),
]
NESTED = (chosen(spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple([spaces.Discrete(3)])})), 7)
ALL = pytest.mark.parametrize(("dist_cls", "width"), [*LEAVES, NESTED])


@ALL
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
    assert same(first, dist.sample(rng(1)))
    assert not same(first, dist.sample(rng(2)))


@pytest.mark.parametrize(("dist_cls", "width"), LEAVES)
def test_noise_of_a_block_is_that_of_its_steps(dist_cls: type[Distribution], width: int) -> None:
    whole, parts = (np.random.default_rng(1) for _ in range(2))
    block = dist_cls.draw_noise(whole, 10, width)
    steps = [dist_cls.draw_noise(parts, 5, width) for _ in range(2)]
    assert torch.equal(block, torch.cat(steps))


@ALL
def test_logits_are_never_changed_in_place(dist_cls: type[Distribution], width: int) -> None:
    logits = torch.randn(4, width, generator=rng())
    before, dist = logits.clone(), dist_cls.from_logits(logits)
    dist.logp(dist.sample(rng()))
    dist.entropy()
    dist.kl(dist_cls.from_logits(logits))
    dist.sample_from(dist_cls.draw_noise(np.random.default_rng(0), 4, width))
    dist.rsample(rng())
    assert torch.equal(logits, before)


@ALL
def test_only_rsample_has_a_gradient(dist_cls: type[Distribution], width: int) -> None:
    dist = dist_cls.from_logits(torch.randn(4, width, generator=rng()).requires_grad_())
    noise = dist_cls.draw_noise(np.random.default_rng(0), 4, width)
    for drawn, has_gradient in ((dist.sample(rng()), False), (dist.sample_from(noise), False), (dist.rsample(), True)):
        found: list[bool] = []
        map_tree(lambda leaf, found=found: found.append(leaf.requires_grad), drawn)
        assert set(found) == {has_gradient}


TRAINED = pytest.mark.parametrize(
    ("dist_cls", "width"), [*((cls, width) for cls, width in LEAVES if not issubclass(cls, Beta)), NESTED]
)


@TRAINED
def test_samples_from_noise_with_a_gradient_are_the_same_samples(dist_cls: type[Distribution], width: int) -> None:
    logits = (0.5 * torch.randn(40, width, generator=rng(), dtype=torch.float64)).requires_grad_()
    dist = dist_cls.from_logits(logits)
    noise = dist_cls.draw_noise(np.random.default_rng(0), 40, width)
    assert noise is not None
    actions, (drawn, logp) = dist.sample_from(noise.double()), dist.rsample_with_logp(noise.double())
    torch.testing.assert_close(logp, dist.logp(actions), rtol=1e-6, atol=1e-6)
    total = torch.zeros(())

    def check(leaf: Tensor, code: Tensor) -> None:
        nonlocal total
        assert code.requires_grad
        if leaf.is_floating_point():
            torch.testing.assert_close(code, leaf)
        elif code.shape == leaf.shape:  # bits
            assert torch.equal(code.detach(), leaf.double())
        else:  # one choice, or several one after the other
            places = code.detach().nonzero()[:, 1].reshape(40, -1)
            sizes = [width] if leaf.dim() == 1 else list(getattr(dist_cls, "nvec", ()))
            sizes = [3] if dist_cls is NESTED[0] else sizes
            starts = torch.tensor([0, *np.cumsum(sizes)[:-1]])
            assert torch.equal(places, leaf.reshape(40, -1) + starts)
        total = total + code.sum()

    map_tree(check, actions, drawn)
    (grad,) = torch.autograd.grad(total + logp.sum(), logits)
    assert bool(grad.isfinite().all())
    assert bool((grad != 0).any())


@TRAINED
def test_the_gradient_of_the_log_probability_is_that_of_its_expectation(
    dist_cls: type[Distribution], width: int
) -> None:
    count = 200_000
    logits = (0.5 * torch.randn(width, generator=rng(3), dtype=torch.float64)).requires_grad_()
    noise = dist_cls.draw_noise(np.random.default_rng(4), count, width)
    assert noise is not None
    _, logp = dist_cls.from_logits(logits.expand(count, width)).rsample_with_logp(noise.double())
    found = torch.autograd.grad(logp.mean(), logits)[0]
    expected = torch.autograd.grad(-dist_cls.from_logits(logits).entropy(), logits)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)


def test_classes_without_such_samples_say_so() -> None:
    noise = Beta.draw_noise(np.random.default_rng(0), 1, 2)
    with pytest.raises(TypeError, match=r"Beta\.rsample_with_logp: .* Choose SquashedGaussian"):
        Beta.from_logits(torch.zeros(1, 2)).rsample_with_logp(noise)


@ALL
def test_gradients_agree_with_finite_differences(dist_cls: type[Distribution], width: int) -> None:
    logits, fixed = (torch.randn(2, width, generator=rng(seed), dtype=torch.float64) for seed in (0, 1))
    actions = map_tree(
        lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, dist_cls.from_logits(logits).sample(rng())
    )

    def all_of_it(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        dist, other = dist_cls.from_logits(x), dist_cls.from_logits(y)
        return dist.logp(actions), dist.entropy(), dist.kl(other)

    assert torch.autograd.gradcheck(all_of_it, (logits.requires_grad_(), fixed.requires_grad_()))


@ALL
def test_kl_to_itself_is_nothing(dist_cls: type[Distribution], width: int) -> None:
    logits, other = (torch.randn(5, width, generator=rng(seed)) for seed in (0, 1))
    kl = dist_cls.from_logits(logits).kl(dist_cls.from_logits(logits.clone()))
    torch.testing.assert_close(kl, torch.zeros(5), atol=1e-6, rtol=0)
    assert (dist_cls.from_logits(logits).kl(dist_cls.from_logits(other)) > 0).all()


def test_a_kl_between_classes_raises() -> None:
    for mine, other in ((Categorical, DiagGaussian), (DiagGaussian, SquashedGaussian)):
        expected = rf"{mine.__name__}\.kl: expected another {mine.__name__}, got {other.__name__}\. Compare"
        with pytest.raises(TypeError, match=expected):
            mine.from_logits(torch.zeros(4)).kl(other.from_logits(torch.zeros(4)))


# of your own ---------------------------------------------------------------------------------------------------------


class Mine(Categorical):
    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Tensor:
        return Distribution.draw_noise(rng, steps, input_dim)  # type: ignore[return-value]

    sample_from = Distribution.sample_from
    rsample = Distribution.rsample


def test_a_class_of_ones_own_may_leave_noise_and_gradient_out() -> None:
    assert Mine.draw_noise(np.random.default_rng(0), 2, 3) is None
    with pytest.raises(NotImplementedError):
        Mine.from_logits(torch.zeros(3)).sample_from(torch.zeros(3))
    with pytest.raises(TypeError, match=r"Mine\.rsample: .* Use sample\(\), or implement rsample"):
        Mine.from_logits(torch.zeros(3)).rsample()


class Static(Categorical):
    """Says how many inputs it needs in a static method."""

    @staticmethod
    def required_input_dim(space: spaces.Space) -> int:
        assert isinstance(space, spaces.Discrete)
        return int(space.n) + 1


def test_required_input_dim_may_be_a_static_method() -> None:
    space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)])
    assert Static.required_input_dim(space[0]) == 4
    dist_cls = MultiDistribution.bind(space, (Static, Categorical))
    assert dist_cls.required_input_dim(space) == 6
    assert dist_cls.from_logits(torch.zeros(5, 6)).logp(tuple(torch.zeros(2, 5, dtype=torch.int64))).shape == (5,)


# the table ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "dist_cls", "width"),
    [
        (spaces.Discrete(4, start=2), Categorical, 4),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), MultiCategorical, 5),
        (spaces.MultiDiscrete(np.array(4)), MultiCategorical, 4),
        (spaces.MultiBinary(3), Bernoulli, 3),
        (spaces.MultiBinary((2, 3)), Bernoulli, 6),
        (spaces.Box(-1, 1, (3,)), DiagGaussian, 6),
        (spaces.Box(-np.inf, 1, ()), DiagGaussian, 2),
        (spaces.Box(-1, 1, (2, 2), np.float16), DiagGaussian, 8),
        (spaces.Box(-1, 1, (2,), np.float64), DiagGaussian, 4),
        (spaces.Box(-1, 2, (2,), np.int16), MultiCategorical, 8),
        (spaces.Box(3, 3, (), np.int64), MultiCategorical, 1),
        (spaces.Dict({"a": spaces.Discrete(2)}), MultiDistribution, 2),
        (spaces.Tuple([spaces.Discrete(2)]), MultiDistribution, 2),
    ],
    ids=str,
)
def test_the_table_knows_a_class_for_every_space(space: spaces.Space, dist_cls: type[Distribution], width: int) -> None:
    found = chosen(space)
    assert issubclass(found, dist_cls)
    assert found.required_input_dim(space) == width
    found.check(space)


REFUSED = [
    spaces.Box(-1, 1, (0,)),
    spaces.Box(-1, 1, (2, 0, 3)),
    spaces.Box(0, 3, (0,), np.int64),
    spaces.MultiDiscrete([]),
    spaces.Dict({}),
    spaces.Tuple([]),
    spaces.Text(3),
    spaces.Sequence(spaces.Discrete(2)),
    spaces.Graph(spaces.Discrete(2), None),
    spaces.OneOf([spaces.Discrete(2)]),
    spaces.Box(-1, 1, (2,), np.longdouble),
]


@pytest.mark.parametrize("space", REFUSED, ids=str)
def test_what_has_no_distribution_is_named_wherever_it_is(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"^action_space: expected"):
        chosen(space)
    nested = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(2), space])})
    with pytest.raises(ValueError, match=r"^action_space\['b'\]\[1\]: expected"):
        chosen(nested)


@pytest.mark.parametrize(
    "dist_cls", [Categorical, MultiCategorical, DiagGaussian, SquashedGaussian, Beta, MultiDistribution]
)
def test_the_wrong_space_is_named(dist_cls: type[Distribution]) -> None:
    remedy = r"Leave the choice to the Catalog, or name a class that fits in custom_action_dist\."
    wrong = rf"^action_space: expected .*, for {dist_cls.__name__}, got MultiBinary\(3\)\. {remedy}"
    with pytest.raises(ValueError, match=wrong):
        dist_cls.required_input_dim(spaces.MultiBinary(3))
    with pytest.raises(ValueError, match=r"^action_space\['arm'\]: "):
        dist_cls.bind(spaces.MultiBinary(3), path="action_space['arm']")


@pytest.mark.parametrize(
    ("space", "other"),
    [
        (spaces.MultiBinary((2, 2)), spaces.MultiBinary(4)),
        (spaces.Box(-1, 1, (2, 2)), spaces.Box(-1, 1, (4,))),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2])),
    ],
)
def test_a_class_bound_to_one_space_refuses_another(space: spaces.Space, other: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"Bind the class to this space\."):
        chosen(space).required_input_dim(other)


def test_choices_are_zero_based_until_the_converter_adds_the_start() -> None:
    assert Categorical.required_input_dim(spaces.Discrete(3, start=5)) == 3
    assert Offset(np.asarray(5))(torch.tensor([0, 2])).tolist() == [5, 7]
