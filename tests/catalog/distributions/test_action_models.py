"""Actions whose parts are drawn one after the other: against slow sums over all actions, and what may see what."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from catalog import (
    MADE,
    ActionModel,
    AutoregressiveDistribution,
    Catalog,
    Categorical,
    DefaultModelConfig,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    MultiDistribution,
)
from catalog.actions.masks import find_action_mask
from catalog.distributions import autoregressive as source
from catalog.distributions import categorical

OBS = spaces.Box(-1, 1, (3,))
CONTEXT = 5
ROBOT = spaces.Dict(
    [
        ("walk", spaces.Box(-1, 1, (2, 1))),
        ("hand", spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary((2, 2))])),
        (
            "arm",
            spaces.Dict({"grip": spaces.MultiDiscrete(np.array([[2, 3]])), "bend": spaces.Box(0, 3, (2,), np.int8)}),
        ),
    ]
)
"""Parts in order: walk; the finger; 4 bits; 2 numbers of bend of 4 choices each, before grip; 2 and 3 choices of it."""
CHOICES: dict[str, Space] = {
    "MultiDiscrete": spaces.MultiDiscrete([2, 3, 2]),
    "MultiDiscrete, rank 2": spaces.MultiDiscrete(np.array([[2, 1], [3, 2]])),
    "MultiBinary": spaces.MultiBinary(3),
    "integers": spaces.Box(np.array([-1, 2]), np.array([1, 4]), dtype=np.int64),
    "Tuple": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]),
    "nested": spaces.Dict(z=spaces.Tuple([spaces.MultiDiscrete([2, 2])]), a=spaces.Discrete(2, start=4)),
}
"""Spaces whose every action can be gone through."""


class Owner(nn.Module):
    """A module that has an action model."""

    def __init__(self, action_model: nn.Module) -> None:
        super().__init__()
        self.action_model = action_model


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bound(space: Space, seed: int = 0, independent: type[Distribution] | None = None, **kwargs: Any) -> Any:
    """The class for a model with random weights, in float64."""
    dist_cls = AutoregressiveDistribution.bind(space, independent, CONTEXT)
    model = MADE(dist_cls, space, **{"hidden_dims": (16, 12), **kwargs}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng(seed), dtype=torch.float64))
    return dist_cls.for_module(Owner(model))


def logits_for(dist_cls: type[Distribution], space: Space, *lead: int, seed: int = 1) -> Tensor:
    return torch.randn(*lead, dist_cls.required_input_dim(space), generator=rng(seed), dtype=torch.float64)


def every_action(space: Space) -> Iterator[Any]:
    """All actions as a distribution samples them, one at a time; written independently, by recursion over the space."""
    if isinstance(space, spaces.Dict):
        for values in itertools.product(*(list(every_action(part)) for part in space.spaces.values())):
            yield dict(zip(space.spaces, values, strict=True))
    elif isinstance(space, spaces.Tuple):
        yield from itertools.product(*(list(every_action(part)) for part in space.spaces))
    elif isinstance(space, spaces.Discrete):
        yield from torch.arange(int(space.n))
    else:
        for values in itertools.product(*map(range, sizes_of(space).flat)):
            yield torch.tensor(values).reshape(sizes_of(space).shape)


def sizes_of(space: Space) -> np.ndarray:
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec
    if isinstance(space, spaces.Box):
        return space.high - space.low + 1
    return np.full(space.shape or (), 2)


def joined(actions: list[Any]) -> Any:
    first = actions[0]
    if isinstance(first, dict):
        return {key: joined([action[key] for action in actions]) for key in first}
    if isinstance(first, tuple):
        return tuple(joined(list(part)) for part in zip(*actions, strict=True))
    return torch.stack(actions)


def expanded(action: Any, *lead: int) -> Any:
    if isinstance(action, dict):
        return {key: expanded(part, *lead) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(expanded(part, *lead) for part in action)
    return action.expand(*lead, *action.shape)


def flat(action: Any) -> list[Tensor]:
    if isinstance(action, dict | tuple):
        return [leaf for part in (action.values() if isinstance(action, dict) else action) for leaf in flat(part)]
    return [action]


def one_by_one(dist: AutoregressiveDistribution, code: Tensor) -> Iterator[tuple[Any, Tensor]]:
    """Each part, and its inputs given the code of the parts before it alone: what comes later is zeroed."""
    for part in dist.parts:
        known = torch.where(torch.arange(code.shape[-1]) < part.code.start, code, 0)
        inputs = dist.model(dist.inputs, dist.context, known)  # type: ignore[misc]
        yield part, inputs[..., part.inputs.start : part.inputs.start + part.inputs.width]


def slow_logp(dist: AutoregressiveDistribution, action: Any) -> Tensor:
    """The chain of conditionals, in as many passes as parts, from the code alone."""
    code, total = dist.model.encode(action).double(), torch.zeros(())  # type: ignore[union-attr]
    for part, inputs in one_by_one(dist, code):
        mine = code[..., part.code.start : part.code.start + part.code.width]
        if part.nvec:
            term = (inputs.log_softmax(-1) * mine).sum(-1)
        elif part.dist_cls is source.Bernoulli:
            term = torch.where(mine == 1, inputs.sigmoid(), 1 - inputs.sigmoid()).log().sum(-1)
        else:
            mean, log_std = inputs.chunk(2, -1)
            term = torch.distributions.Normal(mean, log_std.exp()).log_prob(mine).sum(-1)
        total = total + term
    return total


# --- probabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_the_log_probability_of_a_given_action_is_the_chain_of_conditionals(lead: tuple[int, ...]) -> None:
    dist_cls = bound(ROBOT)
    assert dist_cls.required_input_dim(ROBOT) == 4 + 3 + 4 + 8 + 5 + CONTEXT
    dist = dist_cls.from_logits(logits_for(dist_cls, ROBOT, *lead))
    for seed in range(3):
        action = dist.sample(rng(seed))
        assert [tuple(leaf.shape) for leaf in flat(action)] == [
            (*lead, *shape) for shape in [(2, 1), (), (2, 2), (2,), (1, 2)]
        ]
        assert dist.logp(action).shape == lead
        # codes are of float32
        torch.testing.assert_close(dist.logp(action), slow_logp(dist, action), atol=1e-5, rtol=1e-5)


def test_the_log_probability_is_that_of_the_given_parts_and_not_of_parts_drawn_anew() -> None:
    # by hand: P(a1) = (0.9, 0.1); a2 is a1 with probability 0.8
    space = spaces.MultiDiscrete([2, 2])
    dist_cls = AutoregressiveDistribution.bind(space, context_dim=CONTEXT)
    model = MADE(dist_cls, space).double()
    with torch.no_grad():
        model.direct[2:, :2] = torch.tensor([[0.8, 0.2], [0.2, 0.8]]).log()
    logits = torch.cat([torch.tensor([0.9, 0.1]).log(), torch.zeros(2 + CONTEXT)]).double()
    dist = dist_cls.for_module(Owner(model)).from_logits(logits.expand(4, -1))
    state = torch.get_rng_state()
    given = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    torch.testing.assert_close(dist.logp(given).exp(), torch.tensor([0.72, 0.18, 0.02, 0.08], dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn
    # H(a1) + H(a2 | a1), and 0.9 of the mass is on the action taken greedily
    h1, h2 = (-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.9, 0.8))
    torch.testing.assert_close(dist.entropy(), torch.full((4,), h1 + h2, dtype=torch.float64))
    assert dist.to_deterministic().sample().tolist() == [[0, 0]] * 4


@pytest.mark.parametrize("space", CHOICES.values(), ids=CHOICES)
def test_probabilities_sum_to_1_and_entropy_and_kl_are_exact(space: Space) -> None:
    dist_cls, lead = bound(space), (2,)
    p, q = (dist_cls.from_logits(logits_for(dist_cls, space, *lead, seed=seed)) for seed in (1, 2))
    assert dist_cls.num_prefixes is not None
    actions = list(every_action(space))
    mine, theirs = (torch.stack([d.logp(expanded(action, *lead)) for action in actions]) for d in (p, q))
    one = torch.ones(lead, dtype=torch.float64)
    torch.testing.assert_close(mine.exp().sum(0), one)
    torch.testing.assert_close(p.entropy(), -(mine.exp() * mine).sum(0))
    torch.testing.assert_close(p.kl(q), (mine.exp() * (mine - theirs)).sum(0))
    assert (p.kl(q) > 0.01).all()
    torch.testing.assert_close(p.kl(p), 0 * one)


sizes = st.integers(1, 4)
leaves = st.one_of(
    st.builds(spaces.Discrete, sizes),
    st.builds(spaces.MultiDiscrete, st.lists(sizes, min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 3)),
)
tuples = st.recursive(
    leaves, lambda part: st.builds(spaces.Tuple, st.lists(part, min_size=1, max_size=3)), max_leaves=4
)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(tuples, st.integers(0, 10))
def test_any_space_of_choices_has_probabilities_that_sum_to_1(space: Space, seed: int) -> None:
    actions = list(itertools.islice(every_action(space), 5001))
    if len(actions) > 5000:
        return
    try:
        dist_cls = bound(space, seed)
    except ValueError as error:
        assert "at least two parts" in str(error)  # noqa: PT017  # what must hold if it raises
        assert len(flat(actions[0])) == 1
        assert flat(actions[0])[0].numel() == 1
        return
    logits = logits_for(dist_cls, space, seed=seed).expand(len(actions), -1)
    logp = dist_cls.from_logits(logits).logp(joined(actions))
    torch.testing.assert_close(logp.exp().sum(), torch.ones((), dtype=torch.float64))


def test_samples_are_as_frequent_as_probable() -> None:
    space, count = CHOICES["nested"], 40_000
    dist_cls = bound(space)
    logits = logits_for(dist_cls, space).expand(count, -1)
    dist = dist_cls.from_logits(logits)
    noise = dist_cls.draw_noise(np.random.default_rng(0), count, logits.shape[-1])
    for drawn in (dist.sample(rng()), dist.sample_from(noise)):
        found = Counter(tuple(row) for row in torch.cat([x.reshape(count, -1) for x in flat(drawn)], -1).tolist())
        assert len(found) > 4
        for action in every_action(space):
            share = found[tuple(torch.cat([x.reshape(-1) for x in flat(action)]).tolist())] / count
            assert share == pytest.approx(dist_cls.from_logits(logits[0]).logp(action).exp().item(), abs=0.012)


# --- what sees what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden_dims", [(16,), (3,), (64, 2, 16)], ids=str)
def test_inputs_of_a_part_depend_on_earlier_parts_and_the_context_alone(hidden_dims: tuple[int, ...]) -> None:
    dist_cls = bound(ROBOT, hidden_dims=hidden_dims)
    dist = dist_cls.from_logits(logits_for(dist_cls, ROBOT))
    code = torch.randn(dist_cls.code_dim, generator=rng(), dtype=torch.float64)
    jacobian: Any = torch.autograd.functional.jacobian(lambda x: dist.model(dist.inputs, dist.context, x), code)
    of_context: Any = torch.autograd.functional.jacobian(lambda x: dist.model(dist.inputs, x, code), dist.context)
    assert len(dist_cls.parts) == 10
    for i, row in enumerate(dist_cls.parts):
        inputs = slice(row.inputs.start, row.inputs.start + row.inputs.width)
        for j, column in enumerate(dist_cls.parts):
            block = jacobian[inputs, column.code.start : column.code.start + column.code.width]
            if j < i:  # everything later sees everything earlier, whatever the widths
                assert block.count_nonzero() == block.numel(), (row.name, column.name)
            else:
                assert block.count_nonzero() == 0, (row.name, column.name)
    assert of_context[dist_cls.parts[-1].inputs.start :].all()


def test_a_gradient_reaches_every_weight_and_the_given_actions() -> None:
    space = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.Box(-1, 1, (1,))])
    dist_cls = bound(space, hidden_dims=(8,))
    logits = logits_for(dist_cls, space, 50).requires_grad_()
    first, choice, last = dist_cls.from_logits(logits).sample(rng())
    first.requires_grad_()
    dist_cls.from_logits(logits).logp((first, choice, last)).sum().backward()
    assert first.grad is not None
    assert logits.grad is not None
    model = dist_cls.model
    masks = [model.stack.mask_0, model.stack.mask_1, model.direct_mask]
    weights = [model.stack.linears[0].weight, model.stack.linears[1].weight, model.direct]
    for weight, mask in zip(weights, masks, strict=True):
        assert torch.equal(weight.grad != 0, mask != 0)
    assert (first.grad != 0).all()
    assert (logits.grad != 0).all()


def test_a_new_model_adds_nothing_so_that_the_parts_begin_independent() -> None:
    dist_cls = AutoregressiveDistribution.bind(ROBOT, context_dim=CONTEXT)
    logits = logits_for(dist_cls, ROBOT, 6).float()
    dist = dist_cls.for_module(Owner(MADE(dist_cls, ROBOT))).from_logits(logits)
    alone = dist_cls.independent.from_logits(logits[:, :-CONTEXT])
    noise = dist_cls.draw_noise(np.random.default_rng(0), 6, logits.shape[-1])
    assert noise is not None
    drawn = dist.sample_from(noise)
    for mine, theirs in zip(flat(drawn), flat(alone.sample_from(noise)), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    torch.testing.assert_close(dist.logp(drawn), alone.logp(drawn))
    greedy = zip(flat(dist.to_deterministic().sample()), flat(alone.to_deterministic().sample()), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in greedy)


def test_greedy_actions_are_the_most_likely_part_by_part() -> None:
    # by hand: a1 = 0 has 0.6, after which all a2 are alike; after a1 = 1 one a2 is certain, and the pair likelier
    space = spaces.MultiDiscrete([2, 3])
    dist_cls = AutoregressiveDistribution.bind(space, context_dim=1)
    model = MADE(dist_cls, space)
    with torch.no_grad():
        model.direct[2:, 1] = torch.tensor([0.0, 0.0, 50.0])
    logits = torch.cat([torch.tensor([0.6, 0.4]).log(), torch.zeros(4)])
    dist = dist_cls.for_module(Owner(model)).from_logits(logits)
    assert dist.to_deterministic().sample().tolist() == [0, 0]
    assert dist.logp(torch.tensor([0, 0])).exp().item() == pytest.approx(0.2)
    assert dist.logp(torch.tensor([1, 2])).exp().item() == pytest.approx(0.4)


# --- too many prefixes to go through ----------------------------------------------------------------------------------


def test_entropy_and_kl_by_drawn_prefixes_have_the_right_mean_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    space, count = CHOICES["Tuple"], 40_000
    exact = bound(space)
    monkeypatch.setattr(source, "MOST_PREFIXES", 1)
    drawn = AutoregressiveDistribution.bind(space, context_dim=CONTEXT).for_module(Owner(exact.model))
    assert exact.num_prefixes == 6
    assert drawn.num_prefixes is None
    p, q = (logits_for(exact, space, seed=seed) for seed in (1, 2))

    def both(dist_cls: Any, rows: int, ask: str) -> tuple[Tensor, Tensor]:
        leaf = p.clone().requires_grad_()
        dist, other = dist_cls.from_logits(leaf.expand(rows, -1)), dist_cls.from_logits(q.expand(rows, -1))
        value = (dist.entropy() if ask == "entropy" else dist.kl(other)).mean()
        (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach(), gradient

    torch.manual_seed(0)
    for ask in ("entropy", "kl"):
        (value, gradient), (expected, right) = both(drawn, count, ask), both(exact, 1, ask)
        torch.testing.assert_close(value, expected, atol=0.02, rtol=0)
        torch.testing.assert_close(gradient, right, atol=0.02, rtol=0)
        assert right.abs().max() > 0.1


def test_the_entropy_of_a_box_after_a_choice_is_exact_and_before_it_drawn() -> None:
    box, choice = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
    after, before = (AutoregressiveDistribution.bind(spaces.Tuple(parts)) for parts in ([choice, box], [box, choice]))
    assert after.num_prefixes == 2
    assert before.num_prefixes is None
    space = spaces.Tuple([choice, box])
    dist_cls = bound(space)
    dist = dist_cls.from_logits(logits_for(dist_cls, space))
    total = torch.zeros((), dtype=torch.float64)
    for a in range(2):
        inputs = dist.model(dist.inputs, dist.context, torch.eye(3, dtype=torch.float64)[a])
        logp = inputs[:2].log_softmax(-1)[a]
        total += logp.exp() * (0.5 * math.log(2 * math.pi * math.e) + inputs[3] - logp)
    torch.testing.assert_close(dist.entropy(), total)


# --- what goes with it ------------------------------------------------------------------------------------------------


def test_what_a_mask_forbids_has_probability_0_given_anything() -> None:
    action = spaces.Dict(a=spaces.Discrete(3), b=spaces.MultiDiscrete([2, 3]), c=spaces.Box(-1, 1, (1,)))
    observation = spaces.Dict(x=OBS, action_mask=spaces.MultiBinary(8))
    dist_cls = bound(action)
    mask = find_action_mask("action_mask", observation["action_mask"], action, dist_cls)
    allowed = torch.tensor([0, 1, 1, 0, 1, 1, 1, 0])
    logits = logits_for(dist_cls, action, 500).requires_grad_()
    masked = mask(logits, {"action_mask": allowed.expand(500, -1)})
    assert torch.equal(masked[:, 8:], logits[:, 8:])  # the Box and the context are as they were
    dist = dist_cls.from_logits(masked)
    assert dist.entropy().isfinite().all()
    drawn = dist.sample(rng())
    assert set(drawn["a"].tolist()) == {1, 2}
    assert set(drawn["b"][:, 0].tolist()) == {1}
    assert set(drawn["b"][:, 1].tolist()) == {0, 1}
    forbidden = {**drawn, "a": torch.zeros(500, dtype=torch.long)}
    assert (dist.logp(forbidden) < -1e8).all()
    (dist.entropy() + dist.logp(drawn)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, :8][:, allowed == 0] == 0).all()
    everything = torch.ones(1, 8)
    assert not mask.rows_without_choice({"action_mask": everything}).any()
    everything[0, 3:5] = 0
    assert mask.rows_without_choice({"action_mask": everything}).all()


@pytest.mark.parametrize("free", [True, False])
def test_log_stds_depend_on_earlier_parts_if_they_depend_on_the_state(free: bool) -> None:
    space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])
    dist_cls = AutoregressiveDistribution.bind(space, context_dim=CONTEXT)
    assert dist_cls.log_std_indices(space) == (4, 5)
    config = DefaultModelConfig(autoregressive_actions=True, free_log_std=free, log_std_clip_param=0.5)
    model = MADE.of(dist_cls, space, config)
    with torch.no_grad():
        model.direct.fill_(10.0)
    out = model(torch.zeros(6), torch.zeros(CONTEXT), torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert out.tolist() == [0, 0, 10, 10, *([0, 0] if free else [0.5, 0.5])]


class Sixes(Categorical):
    """Always the last choice."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.full(self.logits.shape[:-1], self.logits.shape[-1] - 1)

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Any:
        return None


class Paired(MultiCategorical):
    """A joint distribution of ones's own over a MultiDiscrete."""


def test_distributions_of_ones_own_are_parts_of_it() -> None:
    space = spaces.Dict(die=spaces.Discrete(6), coin=spaces.MultiDiscrete([2, 2]), move=spaces.Box(-1, 1, (2,)))
    independent = MultiDistribution.bind(
        space, {"die": Sixes, "coin": Paired.bind(space["coin"]), "move": DiagGaussian.bind(space["move"])}
    )
    dist_cls = bound(space, independent=independent)
    assert [part.name for part in dist_cls.parts] == ["die", "coin", "move"]  # in one part each
    assert dist_cls.draw_noise(np.random.default_rng(0), 3, 0) is None
    dist = dist_cls.from_logits(logits_for(dist_cls, space, 7))
    drawn = dist.sample(rng())
    assert drawn["die"].tolist() == [5] * 7
    assert drawn["coin"].shape == (7, 2)
    torch.testing.assert_close(dist.logp(drawn), slow_logp_of_paired(dist, drawn))


def slow_logp_of_paired(dist: Any, action: Any) -> Tensor:
    inputs = dist.model(dist.inputs, dist.context, dist.model.encode(action).double())
    coins = inputs[:, 6:10].unflatten(-1, (2, 2)).log_softmax(-1)
    total = sum(coins[:, i].gather(-1, action["coin"][:, i : i + 1]).squeeze(-1) for i in range(2))
    total = total + Categorical(inputs[:, :6]).logp(action["die"])
    return total + DiagGaussian(inputs[:, 10:]).logp(action["move"])


@pytest.mark.parametrize(
    "space",
    [spaces.MultiDiscrete([2, 3, 2]), spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3), spaces.Discrete(2)])],
    ids=["MultiDiscrete", "Tuple"],
)
def test_what_acting_made_first_can_be_trained_with(space: Space) -> None:
    for cached in (source._combinations, categorical.part_starts):
        cached.cache_clear()
    dist_cls = bound(space)
    logits = logits_for(dist_cls, space, 4).requires_grad_()
    with torch.inference_mode():
        acting = dist_cls.from_logits(logits)
        actions = acting.sample()
        assert (acting.entropy() + acting.logp(actions)).isfinite().all()
    actions = dist_cls.from_logits(logits).sample()
    dist = dist_cls.from_logits(logits)
    (dist.entropy() + dist.logp(actions) + dist.kl(dist_cls.from_logits(logits.detach()))).sum().backward()
    assert logits.grad is not None
    for cached in (source._combinations, categorical.part_starts):
        cached.cache_clear()


def test_positions_that_acting_made_first_can_be_trained_with() -> None:
    made = [(source._combinations, (2, 3)), (categorical.part_starts, (2, 3))]
    for cached, sizes in made:
        cached.cache_clear()
        with torch.inference_mode():
            assert not cached(sizes, torch.device("cpu")).is_inference()
        cached.cache_clear()


def test_an_action_model_of_ones_own_may_stand_in() -> None:
    space = spaces.Tuple([spaces.MultiBinary(1), spaces.MultiBinary(1), spaces.MultiBinary(1)])

    class Chained(ActionModel):
        """A bit is likely that before it."""

        def forward(self, inputs: Tensor, context: Tensor, code: Tensor) -> Tensor:
            return inputs + torch.cat([torch.zeros_like(code[..., :1]), 100 * code[..., :-1] - 50], -1)

    class Chains(Catalog):
        def build_action_model(self) -> ActionModel:
            return Chained(self.action_space)

    catalog = Chains(OBS, space, {"autoregressive_actions": True})
    dist_cls = catalog.get_action_dist_cls().for_module(Owner(catalog.build_action_model()))
    drawn = dist_cls.from_logits(torch.zeros(100, 3 + 16)).sample(rng())
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[1], drawn[2])
    assert 20 < drawn[0].sum() < 80


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(4), spaces.MultiDiscrete([4]), spaces.Box(-1, 1, (3,)), spaces.Dict(a=spaces.Discrete(2))],
    ids=str,
)
def test_one_part_leaves_nothing_to_condition(space: Space) -> None:
    with pytest.raises(ValueError, match=r"action_space: expected a space of at least two parts.*to condition"):
        Catalog(OBS, space, {"autoregressive_actions": True})
    Catalog(OBS, space)


def test_its_layers_are_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        DefaultModelConfig(autoregressive_actions=True, autoregressive_hiddens=())


@pytest.mark.parametrize(
    "activation", ["softmax", "softmin", "log_softmax", nn.Softmax, lambda: nn.LayerNorm(8), lambda: nn.GLU()]
)
def test_an_activation_over_units_would_lead_past_the_masks(activation: Any) -> None:
    space = spaces.MultiDiscrete([3, 3, 2])
    settings = {"autoregressive_actions": True, "autoregressive_hiddens": [8], "head_fcnet_activation": activation}
    with pytest.raises(
        ValueError, match=r"head_fcnet_activation: expected one that reads each hidden unit alone.*got "
    ):
        Catalog(OBS, space, settings).build_action_model()
    Catalog(OBS, space, {"head_fcnet_activation": activation})


@pytest.mark.parametrize("activation", ["RReLU", "linear", nn.PReLU, lambda: nn.Sequential(nn.ReLU(), nn.Dropout())])
def test_an_activation_of_single_units_may_draw_and_learn(activation: Any) -> None:
    model = MADE(AutoregressiveDistribution.bind(CHOICES["nested"]), CHOICES["nested"], activation=activation)
    assert all(part.training for part in model.modules())


def test_a_hook_that_takes_it_away_is_named() -> None:
    class Independent(Catalog):
        def get_action_dist_cls(self) -> type[Distribution]:
            return MultiCategorical.bind(self.action_space)

    with pytest.raises(ValueError, match=r"Independent.get_action_dist_cls\(\): expected an Autoreg"):
        Independent(OBS, spaces.MultiDiscrete([2, 2]), {"autoregressive_actions": True})


def test_a_class_without_an_action_model_says_so() -> None:
    dist_cls = AutoregressiveDistribution.bind(spaces.MultiDiscrete([2, 2]))
    with pytest.raises(TypeError, match="knows the action model of a module"):
        dist_cls.from_logits(torch.zeros(20))
    with pytest.raises(TypeError, match=r"Owner.action_model: expected an ActionModel.*build_action_model\(\)"):
        dist_cls.for_module(Owner(nn.Linear(2, 2)))


def test_distributions_of_other_parts_are_not_compared() -> None:
    one, two = (bound(spaces.MultiDiscrete(nvec)) for nvec in ([2, 3], [3, 2]))
    with pytest.raises(TypeError, match="of the same parts"):
        one.from_logits(torch.zeros(10).double()).kl(two.from_logits(torch.zeros(10).double()))


def test_explain_tells_the_order() -> None:
    text = Catalog(OBS, ROBOT, {"autoregressive_actions": True}).explain()
    order = "walk → hand.0 → hand.1[0] → hand.1[1] → hand.1[2] → hand.1[3] → arm.bend[0] → arm.bend[1] → arm.grip[0]"
    assert " ".join(text.split()).count(f"each part given those before it: {order} → arm.grip[1]") == 1
    assert "autoregressive" not in Catalog(OBS, ROBOT).explain()
