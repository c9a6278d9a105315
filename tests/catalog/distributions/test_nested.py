"""Distributions over Dict and Tuple actions: the sum of their parts."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog import Bernoulli, Categorical, DiagGaussian, Distribution, MultiCategorical, MultiDistribution
from catalog.distributions.base import action_distribution_rules
from catalog.model_config import DefaultModelConfig

LEADS = [(), (5,), (3, 5)]

ROBOT = spaces.Dict(
    [
        ("walk", spaces.Box(-1, 1, (2,))),
        ("hand", spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary((2, 2))])),
        ("arm", spaces.Dict({"grip": spaces.MultiDiscrete([2, 3]), "bend": spaces.Box(0, 1, ())})),
    ]
)
"""Inputs: walk 4, hand 3 + 4, arm (bend before grip, since a dict is sorted by Gymnasium) 2 + 5."""


def chosen(space: spaces.Space) -> type[Distribution]:
    return action_distribution_rules.root(space, DefaultModelConfig(), "action_space").run()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(logits: Tensor) -> dict[str, Distribution]:
    """The leaves of ROBOT, each with its slice of the inputs."""
    grip = MultiCategorical.bind(spaces.MultiDiscrete([2, 3]))
    return {
        "walk": DiagGaussian.from_logits(logits[..., :4]),
        "finger": Categorical.from_logits(logits[..., 4:7]),
        "buttons": Bernoulli.bind(spaces.MultiBinary((2, 2))).from_logits(logits[..., 7:11]),
        "bend": DiagGaussian.bind(spaces.Box(0, 1, ())).from_logits(logits[..., 11:13]),
        "grip": grip.from_logits(logits[..., 13:18]),
    }


def leaves(action: dict[str, Any]) -> dict[str, Tensor]:
    walk, (finger, buttons), arm = action["walk"], action["hand"], action["arm"]
    return {"walk": walk, "finger": finger, "buttons": buttons, "bend": arm["bend"], "grip": arm["grip"]}


@pytest.mark.parametrize("lead", LEADS)
def test_everything_is_that_of_the_parts(lead: tuple[int, ...]) -> None:
    dist_cls = chosen(ROBOT)
    assert dist_cls.required_input_dim(ROBOT) == 18
    p, q = (torch.randn(*lead, 18, generator=rng(seed), dtype=torch.float64) for seed in (1, 2))
    dist, other, parts, others = dist_cls.from_logits(p), dist_cls.from_logits(q), by_hand(p), by_hand(q)
    action = dist.sample(rng())
    assert list(action) == ["walk", "hand", "arm"]
    assert isinstance(action["hand"], tuple)
    assert list(action["arm"]) == ["bend", "grip"]
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves(action).items()}
    inner = {"walk": (2,), "finger": (), "buttons": (2, 2), "bend": (), "grip": (2,)}
    assert shapes == {name: (*lead, *shape) for name, shape in inner.items()}
    logp = sum(parts[name].logp(leaf) for name, leaf in leaves(action).items())
    torch.testing.assert_close(dist.logp(action), logp)
    torch.testing.assert_close(dist.entropy(), sum(part.entropy() for part in parts.values()))
    torch.testing.assert_close(dist.kl(other), sum(parts[name].kl(others[name]) for name in parts))
    for name, leaf in leaves(dist.to_deterministic().sample()).items():
        assert torch.equal(leaf, parts[name].to_deterministic().sample()), name


def test_samples_are_those_of_the_parts_one_after_the_other() -> None:
    logits, mine, theirs = torch.randn(6, 18, generator=rng()), rng(1), rng(1)
    action = leaves(chosen(ROBOT).from_logits(logits).sample(mine))
    for name, part in by_hand(logits).items():
        assert torch.equal(action[name], part.sample(theirs)), name


def test_noise_is_that_of_the_parts_side_by_side() -> None:
    dist_cls, logits = chosen(ROBOT), torch.randn(6, 18, generator=rng())
    noise = dist_cls.draw_noise(np.random.default_rng(0), 6, 18)
    assert noise is not None
    # walk 2, finger 3, buttons 4, bend 1, grip 5
    assert noise.shape == (6, 15)
    assert noise.dtype == torch.float32
    pieces = dict(zip(by_hand(logits), noise.split([2, 3, 4, 1, 5], -1), strict=True))
    action = leaves(dist_cls.from_logits(logits).sample_from(noise))
    for name, part in by_hand(logits).items():
        assert torch.equal(action[name], part.sample_from(pieces[name])), name
    # no part repeats the noise of another
    assert len(set(noise.flatten().tolist())) == noise.numel()


def test_samples_from_noise_are_as_frequent_as_probable() -> None:
    space = spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(1)])
    logits = torch.tensor([0.2, 0.3, 0.5, 4.0]).log().expand(40_000, 4)  # odds of 4: P(1) = 0.8
    noise = chosen(space).draw_noise(np.random.default_rng(0), 40_000, 4)
    assert noise is not None
    choice, bit = chosen(space).from_logits(logits).sample_from(noise)
    torch.testing.assert_close(choice.bincount() / 40_000, torch.tensor([0.2, 0.3, 0.5]), atol=0.012, rtol=0)
    assert bit.float().mean().item() == pytest.approx(0.8, abs=0.01)
    # independent: 0.5 · 0.8
    assert ((choice == 2) & (bit[:, 0] == 1)).float().mean().item() == pytest.approx(0.4, abs=0.012)


def test_rsample_is_a_tree_with_a_gradient_through_every_part() -> None:
    logits = torch.randn(4, 18, generator=rng(), dtype=torch.float64).requires_grad_()
    sample = leaves(chosen(ROBOT).from_logits(logits).rsample(rng()))
    assert sample["finger"].shape == (4, 3)  # one-hot
    weighted = [(leaf * torch.arange(1, leaf.numel() + 1).reshape(leaf.shape)).sum() for leaf in sample.values()]
    sum(weighted, torch.tensor(0.0)).backward()
    assert logits.grad is not None
    assert logits.grad.count_nonzero() == logits.numel()


def test_a_dict_keeps_its_own_order_of_keys() -> None:
    space = spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(3))])
    dist = chosen(space).from_logits(torch.tensor([0.0, 9.0, 0.0, 0.0, 9.0]))
    assert list(dist.sample().items()) == [("z", 1), ("a", 2)]
    # actions are read by key
    assert dist.logp({"a": torch.tensor(2), "z": torch.tensor(1)}).item() == pytest.approx(0, abs=1e-3)


def test_equal_spaces_give_one_class() -> None:
    one, two = (chosen(spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([2, 3])])) for _ in range(2))
    assert one is two
    assert one is not chosen(spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Discrete(2)]))
    assert one.__name__ == "MultiDistribution"


def test_log_stds_are_found_in_every_part() -> None:
    # walk: 0 1 | 2 3, bend: 11 | 12
    assert chosen(ROBOT).log_std_indices(ROBOT) == (2, 3, 12)
    assert chosen(spaces.Discrete(3)).log_std_indices(spaces.Discrete(3)) == ()


def test_without_children_binding_asks_the_table() -> None:
    assert MultiDistribution.bind(ROBOT) is chosen(ROBOT)


def test_kl_needs_the_same_parts() -> None:
    one, two = (chosen(spaces.Tuple([spaces.Discrete(n), spaces.Discrete(2)])) for n in (2, 3))
    with pytest.raises(TypeError, match=r"MultiDistribution\.kl: expected another one of the same parts"):
        one.from_logits(torch.zeros(4)).kl(two.from_logits(torch.zeros(5)))
    with pytest.raises(TypeError, match=r"MultiDistribution\.kl: .* got Categorical"):
        one.from_logits(torch.zeros(4)).kl(Categorical.from_logits(torch.zeros(4)))


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (spaces.Discrete(3), r"action_space: expected a Dict or Tuple"),
        (spaces.Tuple([spaces.Discrete(3)]), r"action_space: expected the parts \['a', 'b'\]"),
        (spaces.Dict({"a": spaces.Discrete(3)}), r"action_space: expected the parts \['a', 'b'\]"),
        (
            spaces.Dict({"a": spaces.Discrete(3), "c": spaces.Dict({"c": spaces.MultiDiscrete([2, 3])})}),
            r"action_space: expected the parts \['a', 'b'\]",
        ),
        (
            spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Dict({"c": spaces.Box(-1, 1, (3,))})}),
            r"action_space\['b'\]\['c'\]: expected a MultiDiscrete or a bounded Box of integers, for MultiCategorical",
        ),
        (
            spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Dict({"c": spaces.MultiDiscrete([2])})}),
            r"action_space\['b'\]\['c'\]: expected actions of shape \(2,\)",
        ),
        (
            spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Dict({"c": spaces.MultiDiscrete([2, 4])})}),
            r"action_space\['b'\]\['c'\]: expected parts of \(2, 3\) choices",
        ),
    ],
    ids=str,
)
def test_a_bound_class_refuses_another_space_and_names_the_part(space: spaces.Space, wrong: str) -> None:
    right = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Dict({"c": spaces.MultiDiscrete([2, 3])})})
    dist_cls = chosen(right)
    assert dist_cls.required_input_dim(right) == 8
    with pytest.raises(ValueError, match=wrong):
        dist_cls.required_input_dim(space)


# for a module ---------------------------------------------------------------------------------------------------------


class Cooled(Categorical):
    """Divides its logits by a temperature that its module learned."""

    module: ClassVar[nn.Module]

    @classmethod
    def for_module(cls, module: nn.Module) -> type[Distribution]:
        return type(cls.__name__, (cls,), {"module": module})

    @classmethod
    def from_logits(cls, logits: Tensor) -> Categorical:
        return cls(logits / cls.module.temperature)


def with_temperature(value: float) -> nn.Module:
    module = nn.Module()
    module.temperature = nn.Parameter(torch.tensor(value))
    return module


def test_a_distribution_may_use_the_module_it_acts_for() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(2)])})
    inner = MultiDistribution.bind(space["b"], (Cooled,))
    unbound = MultiDistribution.bind(space, {"a": Categorical, "b": inner})
    hot, cold = unbound.for_module(with_temperature(2.0)), unbound.for_module(with_temperature(0.5))
    assert hot.required_input_dim(space) == 4
    logits = torch.tensor([0.0, 1.0, 0.0, 1.0])
    action = {"a": torch.tensor(1), "b": (torch.tensor(1),)}
    plain = -math.log(1 + math.exp(-1))
    assert hot.from_logits(logits).logp(action).item() == pytest.approx(plain - math.log(1 + math.exp(-0.5)))
    assert cold.from_logits(logits).logp(action).item() == pytest.approx(plain - math.log(1 + math.exp(-2)))
    noise = hot.draw_noise(np.random.default_rng(0), 3, 4)
    assert noise is not None
    assert set(hot.from_logits(logits.expand(3, 4)).sample_from(noise)) == {"a", "b"}


def test_a_class_without_wishes_stays_itself_for_any_module() -> None:
    for space in (ROBOT, spaces.Discrete(3), spaces.MultiBinary(2), spaces.Box(-1, 1, (2,))):
        assert chosen(space).for_module(nn.Linear(1, 1)) is chosen(space)


# parts that draw for themselves ---------------------------------------------------------------------------------------


class DrawsItself(Categorical):
    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> None:  # type: ignore[override]
        return None

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.multinomial(self.log_probs.exp(), 1, generator=generator).squeeze(-1)

    sample_from = Distribution.sample_from


def test_one_part_that_draws_no_noise_makes_the_whole_draw_for_itself() -> None:
    space = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(2)])
    dist_cls = MultiDistribution.bind(space, (DiagGaussian, DrawsItself))
    assert dist_cls.draw_noise(np.random.default_rng(0), 3, 6) is None
    dist = dist_cls.from_logits(torch.zeros(3, 6))
    box, choice = dist.sample(rng())
    assert (box.shape, choice.shape) == ((3, 2), (3,))
