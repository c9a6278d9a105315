"""DQN's catalog and module: what is built for which settings, and what each forward pass gives."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms.dqn.module import ALWAYS_GREEDY, FORBIDDEN, DQNCatalog, DQNModule
from catalog import Categorical
from catalog.actions.masks import MASKED
from catalog.encoders.noisy import NoisyHead
from rlmodule import Columns, RLModuleSpec
from rlmodule.testing.data import random_observations
from rlmodule.testing.module_contract import RLModuleContract

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
THREE = spaces.Discrete(3)
MASKED_OBS = spaces.Dict({"x": BOX, "action_mask": spaces.MultiBinary(3)})
NESTED = spaces.Dict({"z": BOX, "a": spaces.Tuple((spaces.Discrete(5), spaces.MultiBinary(2)))})
C51: dict[str, Any] = {"num_atoms": 7, "v_min": -2.0, "v_max": 4.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "c51": C51,
    "dueling c51": C51 | {"dueling": True},
    "noisy": {"noisy": True},
    "rainbow": C51 | {"dueling": True, "noisy": True},
}


def spec(model_config: Mapping[str, Any], observation_space: Space = BOX, action_space: Space = THREE) -> RLModuleSpec:
    return RLModuleSpec(DQNModule, observation_space, action_space, {"fcnet_hiddens": [8], **model_config}, DQNCatalog)


def build(
    model_config: Mapping[str, Any] | None = None, observation_space: Space = BOX, action_space: Space = THREE
) -> DQNModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = spec(model_config or {}, observation_space, action_space).build()
    assert isinstance(module, DQNModule)
    return module


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(num: int = 6, seed: int = 0, space: Space = BOX) -> dict[str, Any]:
    return {Columns.OBS: random_observations(space, num, seed)}


def masked_batch() -> tuple[dict[str, Any], Tensor]:
    allowed = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 1]], dtype=torch.int8)
    return {Columns.OBS: {"x": torch.randn(4, 3, generator=generator()), "action_mask": allowed}}, allowed.bool()


class Contract(RLModuleContract):
    model_config: ClassVar[Mapping[str, Any]] = {}
    observation_space: ClassVar[Space] = BOX

    def make(self) -> RLModuleSpec:
        return spec(self.model_config, self.observation_space)


class TestPlain(Contract):
    pass


class TestDueling(Contract):
    model_config: ClassVar[Mapping[str, Any]] = VARIANTS["dueling"]


class TestC51(Contract):
    model_config: ClassVar[Mapping[str, Any]] = C51


class TestQuantiles(Contract):
    model_config: ClassVar[Mapping[str, Any]] = {"num_quantiles": 5, "dueling": True, "noisy": True}


class TestDuelingC51(Contract):
    model_config: ClassVar[Mapping[str, Any]] = VARIANTS["dueling c51"]


class TestNoisy(Contract):
    model_config: ClassVar[Mapping[str, Any]] = VARIANTS["rainbow"]


class TestMasked(Contract):
    model_config: ClassVar[Mapping[str, Any]] = VARIANTS["dueling c51"]
    observation_space = MASKED_OBS


class TestLSTM(Contract):
    model_config: ClassVar[Mapping[str, Any]] = {"use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 8}


class TestGRUWithPrevious(Contract):
    model_config: ClassVar[Mapping[str, Any]] = {
        "use_gru": True,
        "max_seq_len": 4,
        "lstm_cell_size": 8,
        "lstm_use_prev_action": True,
        "lstm_use_prev_reward": True,
        "normalize_observations": True,
        "dueling": True,
    }
    observation_space = MASKED_OBS


class TestImage(Contract):
    model_config: ClassVar[Mapping[str, Any]] = {"conv_filters": [[4, 4, 2]], "conv_dense_dim": 16}
    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    tolerance = 1e-4


class TestNested(Contract):
    model_config: ClassVar[Mapping[str, Any]] = {"functions": {"curiosity": {"output_dim": 4}}, "dueling": True}
    observation_space = NESTED


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(VARIANTS))
@pytest.mark.parametrize("leading", [(5,), (2, 5)])
def test_forward_passes(name: str, leading: tuple[int, ...]) -> None:
    module, obs = build(VARIANTS[name]), {Columns.OBS: torch.randn(*leading, 3)}
    trained = module.forward_train(obs)
    assert set(trained) == {Columns.EMBEDDINGS}
    values = module.compute_q_values(obs, trained[Columns.EMBEDDINGS])
    assert values.shape == (*leading, 3)
    torch.testing.assert_close(module.compute_q_values(obs), values)
    inferred = module.forward_inference(obs)
    assert set(inferred) == {Columns.ACTION_DIST_INPUTS}
    torch.testing.assert_close(inferred[Columns.ACTION_DIST_INPUTS], values.detach())
    explored = module.forward_exploration(obs)[Columns.ACTION_DIST_INPUTS]
    assert torch.equal(explored.argmax(-1), values.argmax(-1))
    assert set(obs) == {Columns.OBS}


def test_dueling_values_are_worked_by_hand() -> None:
    module = build({"dueling": True})
    module.af_head, module.vf_head = Fixed([1.0, 2.0, 6.0]), Fixed([10.0])
    assert module.compute_q_values({}, torch.zeros(1, 8)).tolist() == [[8.0, 9.0, 13.0]]


def test_the_mean_of_dueling_advantages_is_that_of_allowed_actions() -> None:
    module = build({"dueling": True}, MASKED_OBS)
    module.af_head, module.vf_head = Fixed([1.0, 2.0, 6.0]), Fixed([10.0])
    obs, _ = masked_batch()
    values, low = module.compute_q_values(obs, torch.zeros(4, 8)), pytest.approx(FORBIDDEN)
    assert values.tolist() == [[8.0, 9.0, 13.0], [7.5, low, 12.5], [low, low, 10.0], [low, 8.0, 12.0]]


def test_dueling_logits_are_centred_atom_by_atom() -> None:
    module = build(VARIANTS["dueling c51"] | {"num_atoms": 2}, action_space=spaces.Discrete(2))
    module.af_head, module.vf_head = Fixed([1.0, 2.0, 5.0, 0.0]), Fixed([10.0, 20.0])
    # the means of the atoms are 3 and 1
    assert module.compute_q_outputs({}, torch.zeros(1, 8)).tolist() == [[[8.0, 21.0], [12.0, 19.0]]]


def test_values_of_atoms_are_means_of_the_support() -> None:
    module = build(C51 | {"num_atoms": 3}, action_space=spaces.Discrete(2))
    half = math.log(2.0)
    module.af_head = Fixed([0.0, 0.0, 0.0, half, 0.0, -50.0])
    # uniform: 1; then 2/3 and 1/3: -2·2/3 + 1·1/3 = -1
    torch.testing.assert_close(module.compute_q_values({}, torch.zeros(1, 8)), torch.tensor([[1.0, -1.0]]))


@pytest.mark.parametrize("name", ["dueling", "dueling c51"])
@pytest.mark.parametrize("obs", [BOX, MASKED_OBS], ids=["all", "masked"])
def test_both_streams_have_a_gradient(name: str, obs: Space) -> None:
    module = build(VARIANTS[name], obs)
    columns = masked_batch()[0] if obs is MASKED_OBS else batch()
    values = module.compute_q_values(columns, module.forward_train(columns)[Columns.EMBEDDINGS])
    values[:, 2].square().sum().backward()
    assert module.vf_head is not None
    for part in (module.encoder, module.af_head, module.vf_head):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in part.parameters())


def test_a_constant_on_all_advantages_changes_nothing() -> None:
    module = build({"dueling": True})
    before = module.compute_q_values(batch())
    with torch.no_grad():
        [*module.af_head.parameters()][-1].add_(5.0)
    torch.testing.assert_close(module.compute_q_values(batch()), before)


@pytest.mark.parametrize("name", list(VARIANTS))
def test_forbidden_actions_are_masked_everywhere(name: str) -> None:
    module = build(VARIANTS[name], MASKED_OBS)
    module.set_exploration(0.5)
    obs, allowed = masked_batch()
    embeddings = module.forward_train(obs)[Columns.EMBEDDINGS]
    for values in (
        module.compute_q_values(obs),
        module.compute_q_values(obs, embeddings),
        module.forward_inference(obs)[Columns.ACTION_DIST_INPUTS],
    ):
        assert torch.equal(values == FORBIDDEN, ~allowed)
    assert torch.equal(module.forward_exploration(obs)[Columns.ACTION_DIST_INPUTS] == MASKED, ~allowed)


@pytest.mark.parametrize("name", ["plain", "c51"])
def test_forbidden_actions_are_never_chosen_on_whatever_scale_values_are(name: str) -> None:
    limits = {"v_min": -1e36, "v_max": -1e35} if name == "c51" else {}
    module = build(VARIANTS[name] | limits, MASKED_OBS)
    if name == "plain":
        module.af_head = Fixed([-1e36, -1e35, -1e34])
    module.set_exploration(0.0)
    obs, allowed = masked_batch()
    values = module.compute_q_values(obs)
    assert values[allowed].max() < -1e33
    best = torch.where(allowed, values, -torch.inf).argmax(-1)
    for forward in (module.forward_inference, module.forward_exploration):
        dist = Categorical(forward(obs)[Columns.ACTION_DIST_INPUTS])
        assert torch.equal(dist.to_deterministic().sample(), best)
        for numbers in (dist.entropy(), dist.logp(best)):
            assert numbers.tolist() == pytest.approx([0.0] * 4)
    with torch.autocast("cpu", torch.bfloat16):
        chosen = module.compute_q_values(obs).argmax(-1, keepdim=True)
    assert allowed.gather(-1, chosen).all()


def test_what_nothing_is_allowed_in_stays_finite() -> None:
    module = build({"dueling": True}, MASKED_OBS)
    obs = {Columns.OBS: {"x": torch.randn(2, 3), "action_mask": torch.zeros(2, 3, dtype=torch.int8)}}
    for epsilon in (0.0, 0.5):
        module.set_exploration(epsilon)
        for forward, low in ((module.forward_inference, FORBIDDEN), (module.forward_exploration, MASKED)):
            assert torch.all(forward(obs)[Columns.ACTION_DIST_INPUTS] == low)


def test_outputs_of_a_net_without_atoms_are_the_values() -> None:
    module, data = build(), batch()
    assert module.return_head().shape == ()
    assert torch.equal(module.compute_q_outputs(data), module.compute_q_values(data))


class Fixed(nn.Module):
    """Gives the same outputs for every latent."""

    def __init__(self, outputs: list[float]) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, latent: Tensor) -> Tensor:
        return self.outputs.expand(*latent.shape[:-1], -1)


# --- exploration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 0.3, 0.05, 1e-4])
def test_exploration_is_the_epsilon_greedy_policy(epsilon: float) -> None:
    module = build()
    module.set_exploration(epsilon)
    probs = Categorical(module.forward_exploration(batch())[Columns.ACTION_DIST_INPUTS]).log_probs.exp()
    greedy = module.forward_inference(batch())[Columns.ACTION_DIST_INPUTS].argmax(-1)
    expected = torch.full((6, 3), epsilon / 3)
    expected[torch.arange(6), greedy] += 1 - epsilon
    torch.testing.assert_close(probs, expected)


@pytest.mark.parametrize("epsilon", [1.0, 0.3, 1e-4, 0.0])
def test_exploration_draws_from_allowed_actions_alone(epsilon: float) -> None:
    module = build({}, MASKED_OBS)
    module.set_exploration(epsilon)
    obs, allowed = masked_batch()
    probs = Categorical(module.forward_exploration(obs)[Columns.ACTION_DIST_INPUTS]).log_probs.exp()
    greedy = module.forward_inference(obs)[Columns.ACTION_DIST_INPUTS].argmax(-1)
    expected = epsilon * allowed / allowed.sum(-1, keepdim=True)
    expected[torch.arange(4), greedy] += 1 - epsilon
    torch.testing.assert_close(probs, expected)


def test_without_epsilon_no_noise_lifts_another_action() -> None:
    module = build()
    at_first = module.forward_exploration(batch())[Columns.ACTION_DIST_INPUTS]
    module.set_exploration(0.5)
    module.set_exploration(0.0)
    for logits in (at_first, module.forward_exploration(batch())[Columns.ACTION_DIST_INPUTS]):
        assert logits.max() == ALWAYS_GREEDY
        assert logits.sum(-1).tolist() == [ALWAYS_GREEDY] * 6
    assert ALWAYS_GREEDY > 1e4  # Gumbel noise of float32 lies within ±104


def test_frequencies_of_sampled_actions() -> None:
    module = build()
    module.set_exploration(0.3)
    logits = module.forward_exploration({Columns.OBS: torch.zeros(20_000, 3)})[Columns.ACTION_DIST_INPUTS]
    counts = Categorical(logits).sample(generator()).bincount(minlength=3) / 20_000
    assert sorted(counts.tolist()) == pytest.approx([0.1, 0.1, 0.8], abs=0.01)


def test_epsilon_is_part_of_the_state_and_shared_in_place() -> None:
    module, copy, other = build(), build(), build()
    copy.share_tensors_of(module)
    module.set_exploration(0.25)
    other.set_state(module.get_state())
    assert module.epsilon.shape == ()
    expected = module.forward_exploration(batch())[Columns.ACTION_DIST_INPUTS]
    for same in (copy, other):
        assert same.epsilon.item() == 0.25
        assert torch.equal(same.forward_exploration(batch())[Columns.ACTION_DIST_INPUTS], expected)


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, math.nan])
def test_an_epsilon_that_is_no_share_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"set_exploration\(\): expected a number in \[0, 1\]"):
        build().set_exploration(epsilon)


def test_acting_costs_a_handful_of_operations_beyond_the_net() -> None:
    module, obs = build(), batch()
    module.set_exploration(0.1)

    def count(forward: Any) -> int:
        with torch.profiler.profile() as profile, torch.no_grad():
            forward(obs)
        return sum(event.name.startswith("aten::") and event.cpu_parent is None for event in profile.events() or [])

    assert count(module._forward_inference) > 3
    assert count(module._forward_exploration) - count(module._forward_inference) == 4


# --- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["noisy", "rainbow"])
def test_noise_reaches_all_passes_but_inference(name: str) -> None:
    module = build(VARIANTS[name])
    quiet = module.compute_q_values(batch())
    module.resample_noise(generator())
    noisy = module.compute_q_values(batch())
    assert not torch.allclose(noisy, quiet)
    torch.testing.assert_close(module.forward_inference(batch())[Columns.ACTION_DIST_INPUTS], quiet.detach())
    for seed in range(30):
        module.resample_noise(generator(seed))
        explored = module.forward_exploration(batch())[Columns.ACTION_DIST_INPUTS].argmax(-1)
        assert torch.equal(explored, module.compute_q_values(batch()).argmax(-1))


@pytest.mark.parametrize("name", ["noisy", "rainbow"])
def test_values_that_a_subclass_changes_are_those_of_the_greedy_pass_without_noise(name: str) -> None:
    class Doubled(DQNModule):
        def compute_q_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
            return 2 * super().compute_q_values(batch, embeddings)

    module = dataclasses.replace(spec(VARIANTS[name]), module_class=Doubled).build()
    assert isinstance(module, Doubled)
    quiet = module.compute_q_values(batch())
    module.resample_noise(generator())
    torch.testing.assert_close(module.forward_inference(batch())[Columns.ACTION_DIST_INPUTS], quiet.detach())
    assert not torch.allclose(module.compute_q_values(batch()), quiet)  # the noise is back


def test_each_head_has_noise_of_its_own() -> None:
    module, latent = build(VARIANTS["rainbow"]), torch.randn(2, 8)
    heads = [module.get_submodule(name) for name in ("af_head", "vf_head")]
    assert all(isinstance(head, NoisyHead) for head in heads)
    module.resample_noise(generator())
    before = [head(latent) for head in heads]
    module.resample_noise(generator(1))
    assert not any(torch.equal(x, head(latent)) for x, head in zip(before, heads, strict=True))


def test_copies_that_share_tensors_do_not_share_noise() -> None:
    module, copy = build({"noisy": True}), build({"noisy": True})
    copy.share_tensors_of(module)
    quiet = copy.compute_q_values(batch())
    module.resample_noise(generator())
    assert torch.equal(copy.compute_q_values(batch()), quiet)
    copy.resample_noise(generator())
    assert torch.equal(copy.compute_q_values(batch()), module.compute_q_values(batch()))


def test_a_net_without_noise_draws_none() -> None:
    module, stream = build(), generator()
    module.resample_noise(stream)
    assert torch.equal(stream.get_state(), generator().get_state())


# --- values of states, and advantages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["dueling", "dueling c51", "rainbow"])
def test_values_of_states_and_advantages_are_methods(variant: str) -> None:
    module, data = build(VARIANTS[variant]), batch()
    values, advantages, q = (
        method(data) for method in (module.compute_state_values, module.compute_advantages, module.compute_q_values)
    )
    assert values.shape == (6,)
    assert advantages.shape == (6, 3)
    torch.testing.assert_close(values.unsqueeze(-1) + advantages, q)
    if not module.return_head().shape:
        torch.testing.assert_close(values, q.mean(-1))
        assert module.vf_head is not None
        torch.testing.assert_close(values, module.vf_head(module.encoder(data[Columns.OBS]).latent).squeeze(-1))
    embeddings = module.forward_train(data)[Columns.EMBEDDINGS]
    assert torch.equal(module.compute_state_values(data, embeddings), values)
    values.sum().backward()
    assert module.vf_head is not None
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in module.vf_head.parameters())


def test_advantages_of_forbidden_actions_are_masked() -> None:
    module = build({"dueling": True}, MASKED_OBS)
    data, allowed = masked_batch()
    advantages = module.compute_advantages(data)
    assert (advantages[~allowed] == FORBIDDEN).all()
    means = torch.where(allowed, advantages, 0).sum(-1) / allowed.sum(-1)
    torch.testing.assert_close(means, torch.zeros(4), rtol=0, atol=1e-6)


def test_values_of_states_need_dueling_nets() -> None:
    with pytest.raises(ValueError, match=r"compute_state_values\(\): expected dueling nets, got dueling=False\. Set"):
        build().compute_advantages(batch())
