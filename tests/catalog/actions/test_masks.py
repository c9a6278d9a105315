"""Masks keep forbidden actions out of samples, probabilities, entropies and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch import distributions as oracle

from catalog import ActionMask, Catalog, Categorical, DefaultModelConfig, Distribution, MultiDistribution
from catalog.actions.masks import MASKED, find_action_mask, observation_space_without
from catalog.distributions.base import action_distribution_rules

KEY = "action_mask"


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flags(*shape: int) -> spaces.Box:
    return spaces.Box(0, 1, shape, np.int8)


def observed(mask: spaces.Space, key: str = KEY) -> spaces.Dict:
    return spaces.Dict({"position": spaces.Box(-1, 1, (2,)), key: mask})


def mask_for(mask: spaces.Space, action_space: spaces.Space) -> ActionMask:
    return find_action_mask(KEY, mask, action_space, chosen(action_space))


def chosen(space: spaces.Space) -> type[Distribution]:
    return action_distribution_rules.root(space, DefaultModelConfig(), "action_space").run()


def bits(*rows: str) -> Tensor:
    return torch.tensor([[int(bit) for bit in row] for row in rows], dtype=torch.int8)


# one categorical ------------------------------------------------------------------------------------------------------


def test_forbidden_logits_are_replaced() -> None:
    mask = mask_for(flags(3), spaces.Discrete(3))
    assert mask.key == KEY
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    masked = mask(logits, {KEY: bits("101", "010")})
    assert masked.tolist() == [[1, MASKED, 3], [MASKED, 5, MASKED]]


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (flags(3), torch.tensor([1, 0, 1], dtype=torch.int8)),
        (spaces.MultiBinary(3), torch.tensor([1, 0, 1], dtype=torch.int8)),
        (spaces.MultiDiscrete([2, 2, 2]), torch.tensor([1, 0, 1])),
        (spaces.Box(0, 1, (3,), bool), torch.tensor([True, False, True])),
        (spaces.Box(0, 1, (3,), np.float64), torch.tensor([1.0, 0.0, 0.5])),
        (spaces.Box(-9, 9, (3, 1), np.int64), torch.tensor([[-1], [0], [7]])),
    ],
    ids=str,
)
def test_any_array_of_the_right_size_will_do_and_what_is_not_zero_is_allowed(
    space: spaces.Space, values: Tensor
) -> None:
    masked = mask_for(space, spaces.Discrete(3, start=4))(
        torch.zeros(2, 5, 3), {KEY: values.expand(2, 5, *space.shape)}
    )  # type: ignore[misc]
    assert masked.shape == (2, 5, 3)
    assert torch.equal(masked, torch.tensor([0, MASKED, 0]).expand(2, 5, 3))


@pytest.mark.parametrize("lead", [(), (4,), (3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_are_those_of_a_categorical_over_what_is_left(lead: tuple[int, ...], dtype: torch.dtype) -> None:
    mask, left = mask_for(flags(5), spaces.Discrete(5)), [0, 2, 3]
    obs = {KEY: bits("10110")[0].expand(*lead, 5)}
    p, q = (3 * torch.randn(*lead, 5, generator=rng(seed), dtype=dtype) for seed in (1, 2))
    dist, other = (Categorical.from_logits(mask(x, obs)) for x in (p, q))
    expected, expected_other = (oracle.Categorical(logits=x[..., left]) for x in (p, q))
    torch.testing.assert_close(dist.entropy(), expected.entropy())
    torch.testing.assert_close(dist.kl(other), oracle.kl_divergence(expected, expected_other))
    for index, action in enumerate(left):
        logp = expected.log_prob(torch.full(lead, index))
        torch.testing.assert_close(dist.logp(torch.full(lead, action)), logp)
    assert torch.equal(dist.to_deterministic().sample(), torch.tensor(left)[expected.probs.argmax(-1)])


def test_probabilities_in_bfloat16_are_finite_and_sum_to_one() -> None:
    logits = mask_for(flags(4), spaces.Discrete(4))(torch.zeros(1, 4, dtype=torch.bfloat16), {KEY: bits("1010")})
    assert logits.dtype == torch.bfloat16
    dist = Categorical.from_logits(logits)
    assert dist.log_probs.isfinite().all()
    assert dist.log_probs.exp().tolist() == [[0.5, 0, 0.5, 0]]
    assert dist.entropy().item() == pytest.approx(math.log(2), abs=0.01)
    assert dist.kl(dist).item() == 0


def test_a_forbidden_action_is_never_sampled() -> None:
    mask = mask_for(flags(4), spaces.Discrete(4))
    logits = torch.tensor([500.0, 0.0, 1.0, -500.0]).expand(20_000, 4)
    dist = Categorical.from_logits(mask(logits, {KEY: bits("0110").expand(20_000, 4)}))
    noise = Categorical.draw_noise(np.random.default_rng(0), 20_000, 4)
    for actions in (dist.sample(rng()), dist.sample_from(noise)):
        # of the two that are left, e / (1 + e) = 0.731
        shares = actions.bincount(minlength=4) / 20_000
        assert shares[[0, 3]].tolist() == [0, 0]
        assert shares[2].item() == pytest.approx(0.731, abs=0.015)


def test_however_unlikely_what_is_left_is_taken() -> None:
    mask = mask_for(flags(4), spaces.Discrete(4))
    dist = Categorical.from_logits(mask(torch.full((1000, 4), -1e6), {KEY: bits("0110").expand(1000, 4)}))
    assert set(dist.sample(rng()).tolist()) == {1, 2}
    assert dist.log_probs.exp()[0].tolist() == [0, 0.5, 0.5, 0]


def test_forbidden_logits_get_no_gradient() -> None:
    mask = mask_for(flags(4), spaces.Discrete(4))
    logits = torch.randn(3, 4, generator=rng()).requires_grad_()
    obs = {KEY: bits("1010", "1100", "0000")}
    masked = mask(logits, obs)
    dist = Categorical.from_logits(masked)
    (dist.logp(torch.tensor([2, 0, 1])) + dist.entropy() + masked.sum(-1)).sum().backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad != 0, obs[KEY].bool())


def test_neither_logits_nor_the_observation_are_changed() -> None:
    logits, obs = torch.randn(2, 3, generator=rng()), {KEY: bits("101", "010")}
    before, seen = logits.clone(), obs[KEY].clone()
    mask = mask_for(flags(3), spaces.Discrete(3))
    mask(logits, obs)
    mask.rows_without_choice(obs)
    assert torch.equal(logits, before)
    assert torch.equal(obs[KEY], seen)
    assert mask.state_dict() == {}


def test_a_row_without_any_choice_is_found_and_stays_finite() -> None:
    mask, obs = mask_for(flags(3), spaces.Discrete(3)), {KEY: bits("101", "000", "010")}
    assert mask.rows_without_choice(obs).tolist() == [False, True, False]
    dist = Categorical.from_logits(mask(torch.randn(3, 3, generator=rng()), obs))
    # all alike, as if nothing were known
    assert dist.entropy()[1].item() == pytest.approx(math.log(3))
    assert dist.logp(torch.tensor([0, 0, 1])).isfinite().all()
    assert dist.kl(dist).tolist() == [0, 0, 0]
    assert dist.sample_from(torch.zeros(3, 3)).shape == (3,)


# several --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action_space", "mask_space"),
    [
        (spaces.MultiDiscrete([2, 3]), flags(5)),
        (spaces.MultiDiscrete(np.array([[2], [3]])), flags(5, 1)),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), flags(5)),
        (spaces.Box(np.int64([4, 4]), np.int64([5, 6]), dtype=np.int64), flags(5)),
    ],
    ids=str,
)
def test_entries_are_in_the_order_of_the_logits(action_space: spaces.Space, mask_space: spaces.Box) -> None:
    mask = mask_for(mask_space, action_space)
    obs = {KEY: bits("10110", "00111", "01000", "10101").reshape(4, *mask_space.shape)}
    masked = mask(torch.zeros(4, 5), obs)
    assert ((masked == 0).int() == bits("10110", "00111", "01000", "10101")).all()
    # the second has nothing in its first part, the third nothing in its second
    assert mask.rows_without_choice(obs).tolist() == [False, True, True, False]


def test_parts_of_one_size_may_be_masked_by_a_matrix() -> None:
    mask = mask_for(flags(2, 3), spaces.MultiDiscrete([3, 3]))
    obs = {KEY: torch.tensor([[[1, 0, 1], [0, 0, 1]], [[1, 1, 1], [0, 0, 0]]])}
    masked = mask(torch.zeros(2, 6), obs)
    assert (masked == 0).int().tolist() == [[1, 0, 1, 0, 0, 1], [1, 1, 1, 0, 0, 0]]
    assert mask.rows_without_choice(obs).tolist() == [False, True]


ROBOT = spaces.Dict(
    [
        ("walk", spaces.Box(-1, 1, (2,))),
        ("hand", spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])),
        ("arm", spaces.Dict({"bend": spaces.Box(-1, 1, ()), "grip": spaces.MultiDiscrete([2, 2])})),
    ]
)
"""Inputs: walk 0-3, hand 4-6 and 7-8, bend 9-10, grip 11-14."""


def allowed(mask: ActionMask, entries: Any) -> list[int]:
    masked = mask(torch.arange(1.0, 16.0), {KEY: entries})
    assert set(masked.tolist()) <= {MASKED, *range(1, 16)}
    return [i for i in range(15) if masked[i] == i + 1]


def without(*indices: int) -> list[int]:
    return [i for i in range(15) if i not in indices]


def test_one_array_masks_all_categorical_parts_of_a_nested_action() -> None:
    mask = mask_for(flags(7), ROBOT)
    assert allowed(mask, torch.tensor([1, 0, 1, 1, 1, 0, 1])) == without(5, 13)
    obs = {KEY: bits("1010101", "0001010", "1000011", "1110001")}
    assert mask.rows_without_choice(obs).tolist() == [False, True, True, True]


def test_a_dict_masks_some_keys_of_a_dict() -> None:
    mask = mask_for(spaces.Dict({"arm": spaces.Dict({"grip": flags(2, 2)})}), ROBOT)
    assert allowed(mask, {"arm": {"grip": torch.tensor([[0, 1], [1, 0]])}}) == without(11, 14)
    obs = {KEY: {"arm": {"grip": torch.tensor([[[0, 0], [1, 0]], [[0, 1], [1, 0]]])}}}
    assert mask.rows_without_choice(obs).tolist() == [True, False]


def test_a_tuple_masks_each_part_of_a_tuple() -> None:
    mask = mask_for(spaces.Dict({"hand": spaces.Tuple([flags(3), flags(0)]), "arm": flags(4), "walk": flags(0)}), ROBOT)
    entries = {"hand": (torch.tensor([0, 0, 1]), torch.zeros(0)), "arm": torch.tensor([1, 0, 0, 1]), "walk": None}
    assert allowed(mask, entries) == without(4, 5, 12, 13)


def test_masked_parts_of_a_nested_action_are_sampled_as_often_as_probable() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (1,)), "c": spaces.MultiDiscrete([2, 2])})
    mask, dist_cls = mask_for(flags(7), space), chosen(space)
    logits = mask(torch.zeros(20_000, 9), {KEY: bits("1101011").expand(20_000, 7)})
    noise = dist_cls.draw_noise(np.random.default_rng(0), 20_000, 9)
    assert noise is not None
    dist = dist_cls.from_logits(logits)
    for action in (dist.sample(rng()), dist.sample_from(noise)):
        torch.testing.assert_close(action["a"].bincount() / 20_000, torch.tensor([0.5, 0.5]), atol=0.015, rtol=0)
        torch.testing.assert_close(action["c"].float().mean(0), torch.tensor([0.0, 0.5]), atol=0.015, rtol=0)
    # log 2, a normal's, 0 and log 2
    assert dist.entropy()[0].item() == pytest.approx(2 * math.log(2) + 0.5 * math.log(2 * math.pi * math.e))


# recognised or not ----------------------------------------------------------------------------------------------------


def test_only_a_dict_with_the_field_has_a_mask() -> None:
    action_space = spaces.Discrete(3)
    for space in (spaces.Box(0, 1, (3,)), observed(flags(3), "other")):
        assert Catalog(space, action_space).action_mask is None
    assert Catalog(observed(flags(3)), action_space, {"action_mask_key": None}).action_mask is None
    named = Catalog(observed(flags(3), "legal"), action_space, {"action_mask_key": "legal"}).action_mask
    assert named is not None
    assert named.key == "legal"


ORDINARY = r"or set action_mask_key=None to treat it as an ordinary observation\."


@pytest.mark.parametrize(
    ("mask", "action_space", "wrong"),
    [
        (flags(4), spaces.Discrete(3), r"\['action_mask'\]: expected 3 entries, one for each choice in Discrete\(3\)"),
        (flags(2, 3), spaces.MultiDiscrete([3, 2]), r"\['action_mask'\]: expected 5 entries"),
        (flags(2), spaces.Box(-1, 1, (1,)), r"\['action_mask'\]: expected an action space with choices to forbid"),
        (flags(2), spaces.MultiBinary(2), r"\['action_mask'\]: expected an action space with choices to forbid"),
        (
            flags(2),
            spaces.Tuple([spaces.Box(-1, 1, (1,))]),
            r"\['action_mask'\]: expected an action space with choices",
        ),
        (spaces.Text(3), spaces.Discrete(3), r"\['action_mask'\]: expected an array of 0s and 1s .* got Text"),
        (spaces.MultiDiscrete([3, 2, 2]), spaces.Discrete(3), r"\['action_mask'\]: expected an array of 0s and 1s"),
        (
            spaces.MultiDiscrete([2, 2], start=[0, 1]),
            spaces.Discrete(2),
            r"\['action_mask'\]: expected an array of 0s and 1s",
        ),
        (
            spaces.Dict({"a": flags(3)}),
            spaces.Discrete(3),
            r"\['action_mask'\]: expected one array of 3 entries, one for each choice in Dis.*Make it MultiBinary\(3\)",
        ),
        (spaces.Dict({}), ROBOT, r"\['action_mask'\]: expected a mask for at least one part"),
        (
            spaces.Tuple([flags(7)]),
            ROBOT,
            r"\['action_mask'\]: expected one array of 7 entries, one for each choice in Dict",
        ),
        (
            spaces.Dict({"amr": flags(4)}),
            ROBOT,
            r"\['action_mask'\]: expected masks for parts .*got Dict.*mean 'arm'\?",
        ),
        (
            spaces.Dict({"arm": spaces.Dict({"grip": flags(3)})}),
            ROBOT,
            r"\['action_mask'\]\['arm'\]\['grip'\]: expected 4 entries",
        ),
        (spaces.Dict({"walk": flags(2)}), ROBOT, r"\['action_mask'\]\['walk'\]: expected 0 entries"),
        (
            spaces.Dict({"hand": spaces.Tuple([flags(3)])}),
            ROBOT,
            r"\['action_mask'\]\['hand'\]: expected masks for parts .*one for each, Box\(0, 1, \(0,\)\)",
        ),
        (
            spaces.Dict({"hand": spaces.Tuple([flags(3), flags(0), flags(1)])}),
            ROBOT,
            r"\['action_mask'\]\['hand'\]: expected masks for parts of the action \(0, 1\), got Tuple",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mask_that_does_not_fit_is_named(mask: spaces.Space, action_space: spaces.Space, wrong: str) -> None:
    with pytest.raises(ValueError, match=rf"^observation_space(?=.*{ORDINARY}){wrong}"):
        mask_for(mask, action_space)


class PerParticle(Categorical):
    """Takes two inputs per choice, so that a mask would not know which to replace."""

    @classmethod
    def required_input_dim(cls, space: spaces.Space) -> int:
        return 2 * super().required_input_dim(space)


def test_inputs_that_are_not_one_per_choice_are_left_alone() -> None:
    with pytest.raises(
        ValueError, match=r"expected an action space with choices .* got Discrete\(3\) with PerParticle"
    ):
        find_action_mask(KEY, flags(3), spaces.Discrete(3), PerParticle)
    space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)])
    dist_cls = MultiDistribution.bind(space, (PerParticle, Categorical))
    mask = find_action_mask(KEY, flags(2), space, dist_cls)
    masked = mask(torch.arange(8.0), {KEY: torch.tensor([0, 1])})
    assert masked.tolist() == [0, 1, 2, 3, 4, 5, MASKED, 7]


def test_a_distribution_of_ones_own_with_one_input_per_choice_is_masked() -> None:
    class Mine(Categorical):
        pass

    assert find_action_mask(KEY, flags(3), spaces.Discrete(3), Mine).source.tolist() == [0, 1, 2]


def test_the_rest_of_the_observation_keeps_its_order() -> None:
    space = spaces.Dict([("z", spaces.Discrete(2)), (KEY, flags(3)), ("a", spaces.Box(0, 1, (2,)))])
    assert list(observation_space_without(space, KEY).spaces.items()) == [
        ("z", spaces.Discrete(2)),
        ("a", spaces.Box(0, 1, (2,))),
    ]
    assert KEY in space.spaces
    with pytest.raises(ValueError, match=r"observation_space: expected something to observe besides 'action_mask'"):
        observation_space_without(spaces.Dict({KEY: flags(3)}), KEY)
