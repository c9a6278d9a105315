"""Logits of actions that the observation describes by vectors: how they are made, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog
from catalog import ActionEmbeddings, Categorical, Distribution
from catalog.actions.embeddings import find_action_embeddings
from catalog.actions.masks import find_action_mask

KEY, MASK = "avail_actions", "action_mask"


def vectors(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(-10, 10, shape, dtype)


def observed(field: spaces.Space, **more: spaces.Space) -> spaces.Dict:
    return spaces.Dict({"x": spaces.Box(-1, 1, (3,)), KEY: field, **more})


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- logits -----------------------------------------------------------------------------------------------------------


def test_logits_are_worked_by_hand() -> None:
    # (1, 2)·(3, -1) = 1; (0, 4)·(3, -1) = -4; (0, 0)·… = 0; and with the intent (0.5, 2): 4.5, 8, 0
    rows = torch.tensor([[1.0, 2.0], [0.0, 4.0], [0.0, 0.0]])
    logits = ActionEmbeddings(KEY, 2)(torch.tensor([[3.0, -1.0], [0.5, 2.0]]), {KEY: rows.expand(2, 3, 2)})
    assert logits.tolist() == [[1, -4, 0], [4.5, 8, 0]]


def test_several_intents_side_by_side_are_worked_by_hand() -> None:
    intents = torch.tensor([[[1.0, 0.0, 2.0], [0.0, 3.0, -1.0]]])  # [1, E = 2, K = 3]
    rows = torch.tensor([[[1.0, 2.0], [5.0, 0.0]]])
    # action 0: 1·(1, 0, 2) + 2·(0, 3, -1); action 1: 5·(1, 0, 2)
    assert ActionEmbeddings(KEY, 2).products(intents, {KEY: rows}).tolist() == [[[1, 6, 0], [5, 0, 10]]]


@given(
    num=st.integers(1, 12),
    width=st.integers(1, 9),
    lead=st.lists(st.integers(0, 4), max_size=2),
    dtype=st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.int8]),
    seed=st.integers(0, 99),
)
def test_logits_are_those_of_one_action_after_another(
    num: int, width: int, lead: list[int], dtype: Any, seed: int
) -> None:
    found = find_action_embeddings(KEY, spaces.Box(0, 9, (num, width), dtype), spaces.Discrete(num), Categorical)
    assert found.width == width
    rows = torch.from_numpy(np.random.default_rng(seed).integers(0, 9, (*lead, num, width)).astype(dtype))
    intents = torch.randn(*lead, width, generator=rng(seed))
    logits = found(intents, {KEY: rows})
    assert logits.shape == (*lead, num)
    assert logits.dtype == torch.float32
    for action in range(num):
        torch.testing.assert_close(logits[..., action], (rows[..., action, :].float() * intents).sum(-1))


@given(num=st.integers(1, 10), width=st.integers(1, 6), seed=st.integers(0, 99))
def test_the_order_of_the_actions_is_that_of_their_vectors(num: int, width: int, seed: int) -> None:
    rows, intents = torch.randn(4, num, width, generator=rng(seed)), torch.randn(4, width, generator=rng(seed + 1))
    order, product = torch.randperm(num, generator=rng(seed)), ActionEmbeddings(KEY, width)
    torch.testing.assert_close(product(intents, {KEY: rows[:, order]}), product(intents, {KEY: rows})[:, order])


def test_an_intent_gets_no_gradient_of_forbidden_actions() -> None:
    space = observed(vectors(3, 2), **{MASK: spaces.MultiBinary(3)})
    mask = find_action_mask(MASK, space[MASK], spaces.Discrete(3), Categorical)
    product = ActionEmbeddings(KEY, 2)
    assert mask is not None
    intents = torch.zeros(2, 2, requires_grad=True)
    # each action points its own way; in row 1 only action 2 is left
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 7.0]]).expand(2, 3, 2)
    obs = {KEY: rows, MASK: torch.tensor([[1, 1, 0], [0, 0, 1]])}
    dist = Categorical.from_logits(mask(product(intents, obs), obs))
    dist.logp(torch.tensor([0, 2])).sum().backward()
    # softmax of two equal logits: d logp / d intent = e0 - (e0 + e1) / 2, and 0 where there is no choice
    assert intents.grad is not None
    assert intents.grad.tolist() == [[0.5, -0.5], [0, 0]]


@pytest.mark.parametrize("large", [1e30, 3e38])
def test_however_large_what_is_forbidden_nothing_becomes_nan(large: float) -> None:
    space = observed(vectors(3, 2), **{MASK: spaces.MultiBinary(3)})
    mask = find_action_mask(MASK, space[MASK], spaces.Discrete(3), Categorical)
    product = ActionEmbeddings(KEY, 2)
    assert mask is not None
    intents = torch.tensor([[100.0, 100.0]], requires_grad=True)
    obs = {KEY: torch.tensor([[[large, large], [0.1, 0.2], [-large, large]]]), MASK: torch.tensor([[0, 1, 0]])}
    dist = Categorical.from_logits(mask(product(intents, obs), obs))
    assert dist.log_probs.exp().tolist() == [[0, 1, 0]]
    loss = dist.logp(torch.tensor([1])) + dist.entropy() + dist.kl(Categorical.from_logits(dist.logits.detach()))
    loss.sum().backward()
    assert intents.grad is not None
    assert loss.isfinite().all()
    assert intents.grad.isfinite().all()


def test_a_net_may_stand_before_the_product() -> None:
    net = nn.Linear(3, 2)
    product = ActionEmbeddings(KEY, 2, net)
    rows, intents = torch.randn(5, 4, 3, generator=rng()), torch.randn(5, 2, generator=rng(1))
    torch.testing.assert_close(product(intents, {KEY: rows}), torch.einsum("bnf,bf->bn", net(rows), intents))
    assert {name for name, _ in product.named_parameters()} == {"net.weight", "net.bias"}


def test_bfloat16_intents_give_bfloat16_logits() -> None:
    logits = ActionEmbeddings(KEY, 2)(torch.ones(1, 2, dtype=torch.bfloat16), {KEY: torch.ones(1, 3, 2)})
    assert logits.dtype == torch.bfloat16


# --- finding ----------------------------------------------------------------------------------------------------------


def test_without_the_field_or_the_name_there_are_none() -> None:
    action = spaces.Discrete(3)
    for space in (spaces.Box(-1, 1, (2,)), spaces.Dict(x=vectors(3, 2))):
        assert PPOCatalog(space, action).action_embeddings is None
    ordinary = PPOCatalog(observed(vectors(2)), spaces.Box(-1, 1, (2,)), {"action_embeddings_key": None})
    assert ordinary.action_embeddings is None


@pytest.mark.parametrize(
    "field", [vectors(3, 4), vectors(3, 4, dtype=np.float64), vectors(3, 4, dtype=np.int8), spaces.MultiBinary([3, 4])]
)
def test_an_array_with_a_row_for_each_action_will_do(field: spaces.Space) -> None:
    found = find_action_embeddings(KEY, field, spaces.Discrete(3, start=7), Categorical)
    assert (found.key, found.width) == (KEY, 4)
    assert found.state_dict() == {}


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        (vectors(4, 2), ""),
        (vectors(2, 3), ""),
        (vectors(3), r" If it says which actions are allowed, set action_mask_key='avail_actions'\."),
        (vectors(4), ""),
        (vectors(3, 2, 2), ""),
        (vectors(3, 0), ""),
        (spaces.Discrete(3), ""),
        (spaces.Tuple([vectors(2)] * 3), ""),
        (spaces.MultiDiscrete(np.full((3, 2), 2)), ""),
    ],
    ids=str,
)
def test_a_field_of_another_shape_is_refused(field: spaces.Space, hint: str) -> None:
    text = (
        r"(?s)observation_space\['avail_actions'\]: expected a Box of shape \(3, width\), a vector for each of the 3 "
        r"actions, got .*\. Change its space, or set action_embeddings_key=None to treat it as an ordinary observation"
        rf"\.{hint}$"
    )
    with pytest.raises(ValueError, match=text):
        find_action_embeddings(KEY, field, spaces.Discrete(3), Categorical)


@pytest.mark.parametrize(
    "action",
    [
        spaces.MultiDiscrete([3]),
        spaces.Box(-1, 1, (3,)),
        spaces.MultiBinary(3),
        spaces.Dict(a=spaces.Discrete(3)),
        spaces.Tuple([spaces.Discrete(3)]),
    ],
    ids=str,
)
def test_actions_that_are_no_discrete_are_refused(action: spaces.Space) -> None:
    text = (
        r"observation_space\['avail_actions'\]: expected a Discrete action space, whose actions it describes, got .* "
        r"or set action_embeddings_key=None"
    )
    with pytest.raises(ValueError, match=text):
        PPOCatalog(observed(vectors(3, 2)), action)
    ordinary = PPOCatalog(observed(vectors(3, 2)), action, {"action_embeddings_key": None})
    assert ordinary.action_embeddings is None


def test_a_distribution_with_other_inputs_is_refused() -> None:
    class Tempered(Categorical):
        @classmethod
        def required_input_dim(cls, space: spaces.Space) -> int:
            return super().required_input_dim(space) + 1

    class Noisy(Categorical):
        @classmethod
        def log_std_indices(cls, space: spaces.Space) -> tuple[int, ...]:
            return (0,)

    kinds: list[tuple[type[Distribution], int]] = [(Tempered, 4), (Noisy, 3)]
    for dist_cls, inputs in kinds:
        text = (
            rf"expected a distribution with one input for each of the 3 actions, got {dist_cls.__name__} with {inputs}"
        )
        with pytest.raises(ValueError, match=text):
            find_action_embeddings(KEY, vectors(3, 2), spaces.Discrete(3), dist_cls)
        with pytest.raises(ValueError, match=text):
            PPOCatalog(observed(vectors(3, 2)), spaces.Discrete(3), {"custom_action_dist": dist_cls})


# --- in a catalog -----------------------------------------------------------------------------------------------------


BOTH = observed(vectors(4, 2), **{MASK: spaces.MultiBinary(4)})
FOUR = spaces.Discrete(4)


def test_the_head_gives_an_intent_and_nets_do_not_read_the_vectors() -> None:
    catalog = PPOCatalog(BOTH, FOUR, {"fcnet_hiddens": [5], "normalize_observations": True})
    encoder, normalizer = catalog.build_actor_critic_encoder(), catalog.build_observation_normalizer()
    assert catalog.action_head_dim == 2
    assert catalog.build_pi_head()(torch.zeros(3, 5)).shape == (3, 2)
    assert catalog.get_action_dist_cls().required_input_dim(FOUR) == 4
    assert [leaf.name for leaf in catalog.encoder_node.walk() if leaf.keys] == ["x"]
    obs = {"x": torch.ones(3, 3), KEY: torch.full((3, 4, 2), 5.0), MASK: torch.ones(3, 4)}
    other = obs | {KEY: torch.zeros(3, 4, 2), MASK: torch.zeros(3, 4)}
    assert torch.equal(encoder(obs).actor, encoder(other).actor)
    assert normalizer is not None
    normalizer.update(obs)
    assert normalizer(obs)[KEY] is obs[KEY]
    assert {name.partition(".")[0] for name in normalizer.state_dict()} == {"parts"}
    assert len(normalizer.parts) == 1


def test_flattened_observations_do_without_them() -> None:
    catalog = PPOCatalog(BOTH, FOUR, {"flatten_observations": True, "fcnet_hiddens": [5]})
    first = next(catalog.build_encoder().parameters())
    assert first.shape == (5, 3)


def test_only_vectors_leave_nothing_to_normalize() -> None:
    space = spaces.Dict({"x": spaces.Discrete(3), KEY: vectors(4, 2)})
    assert not PPOCatalog(space, FOUR).normalizes_observations
    with pytest.raises(ValueError, match=r"model_config\.normalize_observations: expected a Box of floats"):
        PPOCatalog(space, FOUR, {"normalize_observations": True})


def test_an_observation_of_vectors_alone_is_refused() -> None:
    text = r"observation_space: expected something to observe besides 'action_mask' and 'avail_actions', which nets do"
    with pytest.raises(ValueError, match=text):
        PPOCatalog(spaces.Dict({KEY: vectors(4, 2), MASK: spaces.MultiBinary(4)}), FOUR)


def test_another_name() -> None:
    space = spaces.Dict(x=spaces.Box(-1, 1, (3,)), items=vectors(4, 2))
    assert PPOCatalog(space, FOUR).action_head_dim == 4
    named = PPOCatalog(space, FOUR, {"action_embeddings_key": "items"})
    assert named.action_head_dim == 2
    assert (
        "action embeddings    observation_space['items'] has a vector of 2 for each action: action_embeddings_key ="
        in named.explain()
    )
    with pytest.raises(
        ValueError, match=r"model_config\.action_embeddings_key: expected a field .* Did you mean 'items'"
    ):
        PPOCatalog(space, FOUR, {"action_embeddings_key": "item"})
    with pytest.raises(ValueError, match="expected a field other than action_mask_key, or None, got 'items'"):
        PPOCatalog(space, FOUR, {"action_embeddings_key": "items", "action_mask_key": "items"})


def test_a_mask_of_that_name_is_a_mask() -> None:
    space = observed(spaces.MultiBinary(4))
    catalog = PPOCatalog(space, FOUR, {"action_mask_key": KEY})
    assert catalog.action_embeddings is None
    assert catalog.action_mask is not None
    assert catalog.action_head_dim == 4
    assert [leaf.name for leaf in catalog.encoder_node.walk() if leaf.keys] == ["x"]


def test_without_the_name_the_field_is_read_like_any_other() -> None:
    catalog = PPOCatalog(BOTH, FOUR, {"action_embeddings_key": None})
    assert catalog.action_head_dim == 4
    assert [leaf.name for leaf in catalog.encoder_node.walk() if leaf.keys] == [KEY, "x"]
    assert "action embeddings" not in catalog.explain()


def test_a_net_for_the_vectors_by_a_hook() -> None:
    class Described(PPOCatalog):
        def build_action_embeddings(self) -> ActionEmbeddings:
            return ActionEmbeddings(KEY, 6, nn.Linear(2, 6))

    class Plain(PPOCatalog):
        def build_action_embeddings(self) -> None:
            return None

    assert Described(BOTH, FOUR).action_head_dim == 6
    assert Plain(BOTH, FOUR).action_head_dim == 4
    assert "Described.build_action_embeddings() in place of Catalog.build_action" in Described(BOTH, FOUR).explain()


def test_what_is_built_twice_is_not_shared() -> None:
    catalog = PPOCatalog(BOTH, FOUR)
    assert catalog.build_action_embeddings() is not catalog.build_action_embeddings()


def test_a_tensor_stays_as_it_was() -> None:
    obs = {KEY: torch.randn(2, 4, 3, generator=rng())}
    before: Tensor = obs[KEY].clone()
    ActionEmbeddings(KEY, 3)(torch.ones(2, 3), obs)
    assert torch.equal(obs[KEY], before)
