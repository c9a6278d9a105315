"""Deterministic actions: the action, its noise, where the noise comes from, and which spaces fit."""

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from catalog import DeterministicAction, DiagGaussian, MultiDistribution, SquashedGaussian
from catalog.distributions.deterministic import ExplorationNoise

BOX = spaces.Box(-2, 3, (2,))


class Acting(nn.Module):
    """A module that explores with noise of the size ``scale``."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.exploration_noise = ExplorationNoise()
        self.exploration_noise.scale.fill_(scale)


def test_the_action_is_the_tanh_of_its_input() -> None:
    inputs = torch.tensor([[0.0, math.atanh(0.5)]], requires_grad=True)
    actions = DeterministicAction.from_logits(inputs).to_deterministic().sample()
    assert actions.tolist() == [[0, pytest.approx(0.5)]]
    actions.sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.tolist() == [[1, pytest.approx(0.75)]]  # 1 - tanh²


def test_noise_is_added_and_the_sum_clipped() -> None:
    dist = DeterministicAction.for_module(Acting(0.5)).from_logits(torch.tensor([0.0, math.atanh(0.5)]))
    assert dist.sample_from(torch.tensor([1.0, -1.0])).tolist() == [pytest.approx(0.5), pytest.approx(0, abs=1e-7)]
    assert dist.sample_from(torch.tensor([-3.0, 3.0])).tolist() == [-1, 1]
    actions, _ = dist.rsample_with_logp(torch.tensor([-3.0, 0.2]))
    assert actions.tolist() == [-1, pytest.approx(0.6)]


def test_without_a_module_the_noise_is_a_tenth_as_published() -> None:
    dist = DeterministicAction.from_logits(torch.zeros(100_000, 1))
    drawn = dist.sample(torch.Generator().manual_seed(1))
    assert drawn.std().item() == pytest.approx(0.1, rel=0.02)
    noise = DeterministicAction.draw_noise(np.random.default_rng(1), 100_000, 1)
    assert dist.sample_from(noise).std().item() == pytest.approx(0.1, rel=0.02)


def test_the_noise_follows_the_module_and_each_copy_its_own() -> None:
    module = Acting(0.0)
    dist_cls, other = DeterministicAction.for_module(module), copy.deepcopy(module)
    inputs, noise = torch.zeros(1, 1), torch.ones(1, 1)
    assert dist_cls.from_logits(inputs).sample_from(noise).item() == 0
    module.exploration_noise.scale.fill_(0.25)
    assert dist_cls.from_logits(inputs).sample_from(noise).item() == 0.25
    assert DeterministicAction.for_module(other).from_logits(inputs).sample_from(noise).item() == 0


def test_densities_are_those_of_the_normal_distribution_before_clipping() -> None:
    inputs, module = torch.randn(5, 2), Acting(0.3)
    dist = DeterministicAction.for_module(module).from_logits(inputs)
    normal = torch.distributions.Normal(inputs.tanh(), 0.3)
    actions = torch.rand(5, 2)
    torch.testing.assert_close(dist.logp(actions), normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(dist.entropy(), normal.entropy().sum(-1))


def test_actions_have_the_shape_of_the_space_and_parts_their_own_noise() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 1, (2, 1)), "b": spaces.Box(-1, 1, ())})
    dist_cls = MultiDistribution.bind(space, {key: DeterministicAction.bind(space[key]) for key in ("a", "b")})
    assert dist_cls.required_input_dim(space) == 3
    dist = dist_cls.for_module(Acting(0.5)).from_logits(torch.zeros(4, 3))
    drawn = dist.sample_from(torch.tensor([1.0, 0.5, -1.0]).expand(4, 3))
    assert drawn["a"].shape == (4, 2, 1)
    assert drawn["a"][0].flatten().tolist() == [0.5, 0.25]
    assert drawn["b"].tolist() == [-0.5] * 4


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2), spaces.Box(0, 3, (2,), np.int64)])
def test_choices_are_refused(space: spaces.Space) -> None:
    expected = r"action_space\['x'\]: expected a Box of floats with finite bounds .* DeterministicAction, got "
    with pytest.raises(ValueError, match=expected + re.escape(f"{space}. Leave custom_action_dist out")):
        DeterministicAction.bind(space, path="action_space['x']")


def test_a_box_without_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"action_space: expected a Box of floats with finite bounds .* wrapper"):
        DeterministicAction.bind(spaces.Box(-1, np.inf, (2,)))


@pytest.mark.parametrize("other", [DiagGaussian, SquashedGaussian])
def test_only_its_own_kind_can_be_compared(other: Any) -> None:
    with pytest.raises(TypeError, match="expected another DeterministicAction"):
        DeterministicAction.from_logits(torch.zeros(2)).kl(other.from_logits(torch.zeros(4)))
