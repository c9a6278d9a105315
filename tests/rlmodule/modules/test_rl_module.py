"""Modules: the contract, on several spaces, and what the contract itself must notice."""

import copy
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.dqn.module import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from catalog import MADE, ActionModel, AutoregressiveDistribution, Catalog, Categorical, Distribution
from catalog.base import Tree
from rlmodule import Columns, MultiRLModule, QNetAPI, RLModule, RLModuleSpec
from rlmodule.testing.data import differences, random_observations
from rlmodule.testing.module_contract import RLModuleContract
from tests.rlmodule.toys import NoNets, Recurrent, Small

VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float64)
TWO = spaces.Discrete(2)


class DropsNothing(Small):
    def get_non_inference_attributes(self) -> list[str]:
        return ["vff"]


class TestSmall(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=Small, observation_space=VECTOR, action_space=TWO)


class TestPPODiscrete(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return RLModuleSpec(
            module_class=PPOModule, catalog_class=PPOCatalog, observation_space=VECTOR, action_space=TWO
        )


class TestPPOBox(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return RLModuleSpec(
            module_class=PPOModule,
            catalog_class=PPOCatalog,
            observation_space=spaces.Box(-3, 3, (5,), np.float32),
            action_space=spaces.Box(np.float32([-2, 0, -np.inf]), np.float32([1, np.inf, np.inf])),
            model_config={"fcnet_hiddens": [8, 8]},
        )


class TestPPOSharedMultiDiscrete(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return RLModuleSpec(
            module_class=PPOModule,
            catalog_class=PPOCatalog,
            observation_space=spaces.MultiDiscrete([3, 4], start=[1, -1]),
            action_space=spaces.MultiDiscrete([2, 5], start=[0, 7]),
            model_config={"fcnet_hiddens": [8], "vf_share_layers": True},
        )


class Tied(Small):
    """Two names for one encoder, of which an inference-only copy keeps the second."""

    def setup(self) -> None:
        super().setup()
        encoder, pi = self.encoder, self.pi
        del self.encoder, self.pi
        self.critic = encoder
        self.encoder = encoder
        self.pi = pi

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf", "critic"]


class TestTied(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=Tied, observation_space=VECTOR, action_space=TWO)


class Nested(RLModule):
    """Its own nets, on a space of dicts and tuples."""

    def setup(self) -> None:
        self.net = nn.Linear(4, 2)

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        first, (second, third) = batch[Columns.OBS]["z"], batch[Columns.OBS]["a"]
        return {Columns.ACTION_DIST_INPUTS: self.net(torch.cat([first, second, third.float().unsqueeze(-1)], -1))}


class TestNested(RLModuleContract):
    def make(self) -> RLModuleSpec:
        box = spaces.Box(-1, 1, (1,), np.float64)
        pair = spaces.Tuple((spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(5)))
        return RLModuleSpec(
            module_class=Nested,
            catalog_class=NoNets,
            observation_space=spaces.Dict({"z": box, "a": pair}),
            action_space=TWO,
        )


RECURRENT: dict[str, Any] = {"use_lstm": True, "max_seq_len": 4}


class TestRecurrent(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return RLModuleSpec(Recurrent, VECTOR, TWO, RECURRENT, NoNets)


class TestRecurrentWithPrevious(RLModuleContract):
    def make(self) -> RLModuleSpec:
        model = RECURRENT | {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
        actions = spaces.Dict({"one": TWO, "other": spaces.Box(-1, 1, (2,), np.float32)})
        return RLModuleSpec(Recurrent, VECTOR, actions, model, NoNets)


class ChangesBatch(Small):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        batch[Columns.OBS].mul_(0.5)
        return super()._forward(batch)


class AddsColumn(Small):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        batch["mine"] = out[Columns.EMBEDDINGS]  # type: ignore[index]
        return out


class TrainsAsOneRow(Small):
    def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return {key: value[:1] for key, value in super()._forward_train(batch).items()}


class ActsWithValue(Small):
    """Needs what its inference-only copy has not."""

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        scale = 1.0 if self.vf is None else self.vf.weight.mean()
        return out | {Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS] * scale}


class Remembers(Small):
    last: Tensor | None = None

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        logits = out[Columns.ACTION_DIST_INPUTS]
        if self.last is not None:
            logits = logits + self.last.mean()
        self.last = logits.detach()
        return out | {Columns.ACTION_DIST_INPUTS: logits}


class ReusesMemory(Small):
    memory: Tensor | None = None

    def _forward_inference(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        if self.memory is None:
            self.memory = torch.zeros_like(out[Columns.ACTION_DIST_INPUTS])
        return out | {Columns.ACTION_DIST_INPUTS: self.memory.copy_(out[Columns.ACTION_DIST_INPUTS])}


class MixesRows(Small):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        obs = batch[Columns.OBS]
        return super()._forward({Columns.OBS: obs - obs.mean(0)})


class HidesWeights(Small):
    """Keeps a tensor that is neither parameter nor buffer."""

    def setup(self) -> None:
        super().setup()
        self.hidden = torch.randn(())

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        return out | {Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS] + self.hidden}


class KeepsReference(Small):
    """Computes with the weights it was born with."""

    def setup(self) -> None:
        super().setup()
        self.kept = [self.pi.weight, self.pi.bias]

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        return out | {Columns.ACTION_DIST_INPUTS: nn.functional.linear(out[Columns.EMBEDDINGS], *self.kept)}


class ActsOutside(Small):
    def setup(self) -> None:
        super().setup()
        self.action_converter = nn.Identity()  # type: ignore[assignment]


class NarrowValues(Small):
    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return super().compute_values(batch, embeddings).unsqueeze(-1)


@pytest.mark.parametrize(
    ("cls", "test"),
    [
        (ChangesBatch, "test_forwards_leave_batches_and_each_other_as_they_are"),
        (AddsColumn, "test_forwards_leave_batches_and_each_other_as_they_are"),
        (TrainsAsOneRow, "test_forward_passes_agree_and_only_training_has_a_gradient"),
        (ActsWithValue, "test_inference_only_copy_acts_identically"),
        (Remembers, "test_forwards_leave_batches_and_each_other_as_they_are"),
        (ReusesMemory, "test_forwards_leave_batches_and_each_other_as_they_are"),
        (MixesRows, "test_rows_do_not_see_each_other"),
        (HidesWeights, "test_state_round_trip"),
        (KeepsReference, "test_shares_tensors"),
        (ActsOutside, "test_actions_lie_in_the_action_space"),
        (NarrowValues, "test_forward_passes_agree_and_only_training_has_a_gradient"),
    ],
)
def test_contract_notices(cls: type[RLModule], test: str, tmp_path: Any) -> None:
    class Contract(RLModuleContract):
        def make(self) -> RLModuleSpec:
            actions = spaces.Discrete(2, start=3)  # type: ignore[arg-type]
            return RLModuleSpec(module_class=cls, observation_space=VECTOR, action_space=actions)

    with pytest.raises((AssertionError, ValueError)):
        getattr(Contract(), test)(*([tmp_path] if "round_trip" in test else []))


class Values(RLModule, QNetAPI):
    """Acts greedily on values that it makes of embeddings, and trains them alone."""

    def setup(self) -> None:
        self.encoder, self.q = nn.Linear(4, 8), nn.Linear(8, 2)

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return {Columns.ACTION_DIST_INPUTS: self.compute_q_values(batch)}

    def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return {Columns.EMBEDDINGS: self.encoder(batch[Columns.OBS])}

    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return self.q(self.encoder(batch[Columns.OBS]) if embeddings is None else embeddings)


class TestValues(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=Values, observation_space=VECTOR, action_space=TWO)


class DetachedValues(Values):
    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return super().compute_q_values(batch, embeddings).detach()


class StateValue(Values):
    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return super().compute_q_values(batch, embeddings)[..., :1]


class OtherValues(Values):
    """Makes others of embeddings than of observations."""

    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        values = super().compute_q_values(batch, embeddings)
        return values if embeddings is None else 2 * values


@pytest.mark.parametrize(
    ("cls", "test"),
    [
        (DetachedValues, "test_forward_passes_agree_and_only_training_has_a_gradient"),
        (DetachedValues, "test_values"),
        (StateValue, "test_forward_passes_agree_and_only_training_has_a_gradient"),
        (OtherValues, "test_values"),
    ],
)
def test_contract_notices_of_modules_of_values(cls: type[RLModule], test: str) -> None:
    class Contract(RLModuleContract):
        def make(self) -> RLModuleSpec:
            return RLModuleSpec(module_class=cls, observation_space=VECTOR, action_space=TWO)

    with pytest.raises((AssertionError, ValueError)):
        getattr(Contract(), test)()


def test_embeddings_are_no_training_pass_of_a_module_without_values() -> None:
    class Bare(Small):
        def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            return {Columns.EMBEDDINGS: self.encoder(batch[Columns.OBS]).latent}

    class Contract(RLModuleContract):
        def make(self) -> RLModuleSpec:
            return RLModuleSpec(module_class=Bare, observation_space=VECTOR, action_space=TWO)

    with pytest.raises(ValueError, match=Columns.ACTION_DIST_INPUTS):
        Contract().test_forward_passes_agree_and_only_training_has_a_gradient()


class IgnoresStarts(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return super()._forward({**batch, Columns.STARTS: torch.zeros_like(batch[Columns.STARTS])})


class StartsTooLate(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return super()._forward({**batch, Columns.STARTS: batch[Columns.STARTS].roll(1, 0)})


class ValuesIgnoreStarts(Recurrent):
    def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        ignored = self._forward({**batch, Columns.STARTS: torch.zeros_like(batch[Columns.STARTS])})
        return self._forward(batch) | {Columns.EMBEDDINGS: ignored[Columns.ACTION_DIST_INPUTS]}


class StartsForAll(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        starts = batch[Columns.STARTS]
        return super()._forward({**batch, Columns.STARTS: starts.any(1, keepdim=True).expand_as(starts)})


class IgnoresState(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        state = tree.map_structure(torch.zeros_like, batch[Columns.STATE_IN])
        return super()._forward({**batch, Columns.STATE_IN: state})


class ReturnsOldState(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return super()._forward(batch) | {Columns.STATE_OUT: batch[Columns.STATE_IN]}


class ReturnsFlatState(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        return out | {Columns.STATE_OUT: tree.map_structure(torch.ravel, out[Columns.STATE_OUT])}


class WritesIntoState(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        batch[Columns.STATE_IN]["h"].copy_(out[Columns.STATE_OUT]["h"].detach())
        return out


class ForgetsNothing(Recurrent):
    """Sees in training what it has not seen when it acted."""

    def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return self._forward({**batch, Columns.OBS: batch[Columns.OBS].flip(0)})


@pytest.mark.parametrize(
    ("cls", "test"),
    [
        (IgnoresStarts, "test_a_start_forgets_what_was_before"),
        (ValuesIgnoreStarts, "test_a_start_forgets_what_was_before"),
        (StartsTooLate, "test_a_start_forgets_what_was_before"),
        (StartsForAll, "test_rows_do_not_see_each_other"),
        (IgnoresState, "test_training_sees_what_acting_saw"),
        (ReturnsOldState, "test_training_sees_what_acting_saw"),
        (ReturnsFlatState, "test_forward_passes_agree_and_only_training_has_a_gradient"),
        (WritesIntoState, "test_forwards_leave_batches_and_each_other_as_they_are"),
        (ForgetsNothing, "test_training_sees_what_acting_saw"),
    ],
)
def test_contract_notices_of_recurrent_modules(cls: type[RLModule], test: str) -> None:
    class Contract(RLModuleContract):
        def make(self) -> RLModuleSpec:
            return RLModuleSpec(cls, VECTOR, TWO, RECURRENT, NoNets)

    with pytest.raises((AssertionError, ValueError)):
        getattr(Contract(), test)()


def test_a_part_that_does_not_exist_cannot_be_dropped() -> None:
    assert hasattr(small(cls=DropsNothing), "vf")
    with pytest.raises(AttributeError, match=r"get_non_inference_attributes.*'vff'"):
        small(cls=DropsNothing, inference_only=True)


def small(seed: int = 0, cls: type[RLModule] = Small, **settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(observation_space=VECTOR, action_space=TWO, **settings)


def test_base_class_cannot_be_built() -> None:
    with pytest.raises(TypeError, match="setup"):
        RLModule(observation_space=VECTOR, action_space=TWO)  # type: ignore[abstract]


def test_module_without_apis_has_nothing_to_drop() -> None:
    class Plain(RLModule):
        def setup(self) -> None:
            self.net = nn.Linear(4, 2)

        def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}

    full, acting = small(cls=Plain), small(cls=Plain, inference_only=True)
    assert full.get_state().keys() == acting.get_state().keys() == full.get_state(inference_only=True).keys()
    assert full.get_initial_state() is None


def test_what_a_module_observes_is_the_envs_observation_and_what_it_asked_for() -> None:
    module = small()
    assert not module.is_stateful()
    assert (module.max_seq_len, module.input_space, module.sees_more_than_the_env) == (20, VECTOR, False)
    assert module.env_part(3) == 3
    settings: dict[str, Any] = {"cls": Recurrent, "catalog_class": NoNets}
    recurrent = small(model_config=RECURRENT, **settings)
    assert recurrent.is_stateful()
    assert (recurrent.max_seq_len, recurrent.input_space, recurrent.sees_more_than_the_env) == (4, VECTOR, False)
    more = small(model_config=RECURRENT | {"lstm_use_prev_action": True}, **settings)
    assert more.sees_more_than_the_env
    assert more.input_space["obs"] == VECTOR
    assert more.env_part({"obs": 3, "prev_action": 4}) == 3


def test_a_distribution_may_know_the_module() -> None:
    class Knowing(Categorical):
        module: Any = None

        @classmethod
        def for_module(cls, module: nn.Module) -> type[Distribution]:
            return type("Known", (cls,), {"module": module})

    class Knows(Catalog):
        def get_action_dist_cls(self) -> type[Distribution]:
            return Knowing

    class Asks(Small):
        def setup(self) -> None:
            self.inside = self.action_dist_cls
            super().setup()

    module = small(cls=Asks, catalog_class=Knows)
    assert module.inside is Knowing
    assert module.action_dist_cls.module is module
    assert isinstance(module.action_dist_cls.from_logits(torch.zeros(1, 2)), Knowing)


PARTS = spaces.MultiDiscrete([2, 3])


class Renamed(PPOModule):
    """Has a distribution and an attribute of its own, and buffers that a copy keeps."""

    def setup(self) -> None:
        super().setup()
        self.action_dist_cls = type("Renamed", (self.action_dist_cls,), {})
        self.notes = ["mine"]
        self.register_buffer("seen", torch.ones(()), persistent=False)


def in_order(cls: type[PPOModule] = PPOModule, inference_only: bool = False) -> Any:
    model = {"fcnet_hiddens": [4], "autoregressive_actions": True}
    return RLModuleSpec(cls, VECTOR, PARTS, model, PPOCatalog).build(inference_only=inference_only)


def logps(module: RLModule) -> Tensor:
    """Log-probabilities of all actions of ``PARTS`` for inputs of 0."""
    actions = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    width = module.action_dist_cls.required_input_dim(PARTS)
    return module.action_dist_cls.from_logits(torch.zeros(6, width)).logp(actions).detach()


def likelier_after_1(module: RLModule) -> None:
    """Let the last choice of the second part be likelier once the first one is 1."""
    assert isinstance(module.action_model, MADE)
    with torch.no_grad():
        module.action_model.direct[4, 1] = 5.0


@pytest.mark.parametrize("cls", [PPOModule, Renamed])
@pytest.mark.parametrize("inference_only", [False, True])
def test_a_copy_asks_its_own_action_model(cls: type[PPOModule], inference_only: bool) -> None:
    module = in_order(cls, inference_only)
    before = logps(module)
    copied = copy.deepcopy(module)
    again = copy.deepcopy(copied)  # a copy of a copy
    likelier_after_1(copied)
    assert differences(logps(module), before) == []
    assert differences(logps(again), before) == []
    assert logps(copied)[5] > before[5] + 1
    assert issubclass(copied.action_dist_cls, AutoregressiveDistribution)
    assert copied.action_dist_cls.__name__ == module.action_dist_cls.__name__
    assert copied.inference_only is inference_only
    if cls is Renamed:
        assert copied.notes == ["mine"]
        assert copied.notes is not module.notes
        assert copied.seen is not module.seen


def test_copies_in_a_multi_module_ask_their_own_action_models() -> None:
    modules = MultiRLModule({"a": in_order(), "b": in_order()})
    copied = copy.deepcopy(modules)
    assert copied["a"] is copied.rl_modules["a"]
    before = logps(modules["a"])
    likelier_after_1(copied["a"])
    assert differences(logps(modules["a"]), before) == []
    assert logps(copied["a"])[5] > before[5] + 1
    assert logps(copied["b"])[5] == before[5]


@pytest.mark.parametrize(
    "model", [{}, {"noisy": True, "dueling": True}, RECURRENT], ids=["plain", "noisy", "recurrent"]
)
def test_a_copy_of_a_module_of_action_values_stands_alone(model: dict[str, Any]) -> None:
    module = RLModuleSpec(DQNModule, VECTOR, TWO, {"fcnet_hiddens": [4], **model}, DQNCatalog).build()
    copied = copy.deepcopy(module)
    assert type(copied) is DQNModule
    assert copied.action_dist_cls is module.action_dist_cls
    assert differences(copied.get_state(), module.get_state()) == []
    before = {name: value.clone() for name, value in module.get_state().items()}
    for parameter in copied.parameters():
        parameter.data += 1
    assert differences(module.get_state(), before) == []


def test_a_copy_keeps_a_distribution_that_was_put_in_later() -> None:
    module = in_order()
    module.action_dist_cls = Categorical
    assert copy.deepcopy(module).action_dist_cls is Categorical


def test_each_forward_can_be_its_own() -> None:
    class Three(Small):
        def _forward_exploration(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            return {"who": 1}

        def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            return {"who": 2}

    module = small(cls=Three)
    batch = {Columns.OBS: random_observations(VECTOR, 2)}
    assert module.forward_exploration(batch) == {"who": 1}
    assert module.forward_train(batch) == module(batch) == {"who": 2}
    assert Columns.ACTION_DIST_INPUTS in module.forward_inference(batch)


def test_forward_train_of_an_inference_only_copy_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"inference-only copy.*get_module"):
        small(inference_only=True).forward_train({})


def test_set_state_names_what_does_not_fit() -> None:
    module = small()
    state = module.get_state()
    before = {name: value.clone() for name, value in state.items()}
    with pytest.raises(ValueError, match=r"differs at pi\.bias"):
        module.set_state({name: value for name, value in state.items() if name != "pi.bias"})
    with pytest.raises(ValueError, match=r"differs at more"):
        module.set_state(state | {"more": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"differs at vf\.bias"):
        module.set_state(state | {"vf.bias": torch.zeros(2), "pi.bias": torch.ones(2)})
    assert differences(before, module.get_state()) == []


def test_moments_of_earlier_files_are_cast_and_every_other_dtype_is_refused() -> None:
    module = RLModuleSpec(
        PPOModule, VECTOR, TWO, {"fcnet_hiddens": [4], "normalize_observations": True}, PPOCatalog
    ).build()
    state = {name: value + 1 / 3 for name, value in module.get_state().items()}
    moments = ["observation_normalizer.moments.mean", "value_normalizer.std"]
    assert {state[name].dtype for name in moments} == {torch.float64}
    module.set_state(state | {name: state[name].float() for name in moments})
    for name, value in module.get_state().items():
        assert value.dtype == state[name].dtype
        assert torch.equal(value, state[name].float().double() if name in moments else state[name])
    for name, dtype in (
        (moments[0], torch.float16),
        ("pi_head.linears.0.bias", torch.float64),
        ("pi_head.linears.0.bias", torch.bfloat16),
    ):
        with pytest.raises(ValueError, match=rf"names, shapes and dtypes.*differs at {name}"):
            module.set_state(state | {name: state[name].to(dtype)})
    with pytest.raises(ValueError, match=r"differs at value_normalizer\.count"):
        module.set_state(state | {"value_normalizer.count": state["value_normalizer.count"].float()})


def test_inference_only_copy_takes_its_part_of_a_full_state_but_not_less() -> None:
    full, acting = small(0), small(1, inference_only=True)
    acting.set_state(full.get_state())
    assert differences(acting.get_state(), full.get_state(inference_only=True)) == []
    with pytest.raises(ValueError, match=r"pi\.bias"):
        acting.set_state({name: value for name, value in full.get_state().items() if name != "pi.bias"})


def test_set_state_copies_in_place() -> None:
    one, two, acting = small(0), small(1), small(2, inference_only=True)
    acting.share_tensors_of(two)
    two.set_state(one.get_state())
    assert differences(acting.get_state(), one.get_state(inference_only=True)) == []
    with torch.no_grad():
        one.pi.bias.add_(1)
    assert differences(two.get_state(), one.get_state())


def test_sharing_refuses_a_module_that_lacks_a_tensor() -> None:
    full, acting = small(), small(inference_only=True)
    with pytest.raises(KeyError, match=r"vf\.weight"):
        full.share_tensors_of(acting)


def test_model_config_reaches_the_catalog() -> None:
    module = small(model_config={"fcnet_hiddens": [3]})
    assert module.catalog.latent_dims == (3,)
    assert type(module.catalog) is Catalog


def test_multi_module_is_a_module_of_modules() -> None:
    one, two = small(0), small(1)
    both = MultiRLModule({"one": one, "two": two})
    assert list(both) == ["one", "two"]
    assert len(both) == 2
    assert "one" in both
    assert "three" not in both
    assert dict(both.items()) == {"one": one, "two": two}
    assert len(list(both.parameters())) == 2 * len(list(one.parameters()))
    with pytest.raises(KeyError, match=r"one, two.*'onne'.*Did you mean"):
        both["onne"]


def test_multi_module_state() -> None:
    both = MultiRLModule({"one": small(0), "two": small(1)})
    other = MultiRLModule({"one": small(2), "two": small(3)})
    kept = {name: value.clone() for name, value in other["two"].get_state().items()}
    other.set_state({"one": both["one"].get_state()})
    assert differences(other["one"].get_state(), both["one"].get_state()) == []
    assert differences(other["two"].get_state(), kept) == []
    other.set_state(both.get_state())
    assert differences(other.get_state(), both.get_state()) == []
    assert "vf.bias" not in both.get_state(inference_only=True)["two"]


def test_random_observations_lie_in_their_space_and_leave_its_stream_alone() -> None:
    space = spaces.Dict({"b": spaces.Box(0, 255, (2, 3), np.uint8), "a": spaces.Discrete(4, start=2)})
    space.seed(5)
    first = space.sample()
    space.seed(5)
    batch = random_observations(space, 9)
    assert differences(space.sample(), first) == []
    assert batch["b"].shape == (9, 2, 3)
    assert batch["b"].dtype == torch.uint8
    assert set(batch["a"].tolist()) <= {2, 3, 4, 5}
    assert differences(batch, random_observations(space, 9)) == []
    assert differences(batch, random_observations(space, 9, seed=1))


def test_differences_sees_bits_types_and_keys() -> None:
    nan = float("nan")
    assert differences({"a": torch.tensor(nan), "b": [1, nan]}, {"a": torch.tensor(nan), "b": (1, nan)}) == []
    assert differences({"a": torch.tensor([0.0, 1.0])}, {"a": torch.tensor([-0.0, 1.0])}) == ["/a"]
    assert differences(torch.zeros(2), torch.zeros(2, dtype=torch.int32)) == [""]
    assert differences(torch.zeros(0), torch.zeros(0)) == []
    assert differences(torch.zeros(1, 2)[:, 0], torch.zeros(1)) == []  # one item with a stride of 2
    assert differences({"a": 1}, {"b": 1}) == ["/a", "/b"]
    assert differences({"a": 1}, {"a": True}) == ["/a"]
    assert differences([1], [1, 2]) == ["/1"]
    assert differences({"a/b": 1, "a": {"b": 2}}, {"a/b": 1, "a": {"b": 3}}) == ["/a/b"]


@pytest.mark.parametrize("module_id", ["a.b", "items", "", "training", "_modules", "_parameters", 3])
def test_module_ids_that_cannot_be_attributes_are_refused(module_id: Any) -> None:
    with pytest.raises(ValueError, match="MultiRLModule: expected ids without dots"):
        MultiRLModule({module_id: small(0)})


# --- action models and embeddings of your own ------------------------------------------------------------------------

WORKER = spaces.Dict(
    [("finger", spaces.Discrete(3)), ("lamps", spaces.MultiBinary(2)), ("move", spaces.Box(-1, 1, (2,)))]
)
"""Parts: 3 logits, 1, 1, and 4 inputs of move; codes of 3, 1, 1 and 2 numbers."""


class Mixing(ActionModel):
    """Adds the code times a matrix to the inputs: that of what is before each part, and one entry ``also``."""

    also: tuple[int, int] | None = None
    matrix: Tensor

    def __init__(self, action_space: spaces.Space) -> None:
        super().__init__(action_space)
        matrix = torch.zeros(9, 7)
        matrix[3:, :3], matrix[4:, 3], matrix[5:, 4] = 0.3, 0.2, 0.1
        if self.also is not None:
            matrix[self.also] = 0.01
        self.register_buffer("matrix", matrix)

    def forward(self, inputs: Tensor, context: Tensor, code: Tensor) -> Tensor:
        return inputs + code @ self.matrix.T


def working(model: type[ActionModel]) -> Any:
    class Own(PPOCatalog):
        def build_action_model(self) -> ActionModel:
            return model(self.action_space)

    return RLModuleSpec(PPOModule, VECTOR, WORKER, {"autoregressive_actions": True}, Own).build()


def test_an_action_model_that_goes_by_earlier_parts_alone_is_taken() -> None:
    module = working(Mixing)
    dist = module.action_dist_cls.from_logits(torch.zeros(3, 9 + 16))
    assert dist.logp(dist.sample()).shape == (3,)


@pytest.mark.parametrize(
    ("also", "name"),
    [
        ((0, 2), "finger"),
        ((1, 6), "finger"),
        ((3, 3), r"lamps\[0\]"),
        ((3, 4), r"lamps\[0\]"),
        ((4, 4), r"lamps\[1\]"),
        ((5, 5), "move"),
        ((8, 6), "move"),
    ],
)
def test_an_action_model_that_looks_ahead_is_refused_by_the_part_that_does(also: tuple[int, int], name: str) -> None:
    ahead = type("Ahead", (Mixing,), {"also": also})
    text = rf"^PPOModule\.action_model: expected inputs of the part '{name}' that depend on earlier parts only, got "
    with pytest.raises(ValueError, match=text):
        working(ahead)


def test_a_made_of_ones_own_is_tried_too() -> None:
    class Unmasked(MADE):
        def __init__(self, action_space: spaces.Space) -> None:
            super().__init__(AutoregressiveDistribution.bind(action_space), action_space)
            self.direct_mask.fill_(1)
            nn.init.ones_(self.direct)

    with pytest.raises(ValueError, match="expected inputs of the part 'finger'"):
        working(Unmasked)


def test_an_action_model_of_another_width_is_refused_when_it_is_built() -> None:
    class Narrow(Mixing):
        def forward(self, inputs: Tensor, context: Tensor, code: Tensor) -> Tensor:
            return super().forward(inputs, context, code)[..., :8]

    class Broken(Mixing):
        def forward(self, inputs: Tensor, context: Tensor, code: Tensor) -> Tensor:
            return inputs + code

    with pytest.raises(ValueError, match=r"^PPOModule\.action_model: expected .* shape \(5, 9\) .*got shape \(5, 8\)"):
        working(Narrow)
    text = r"^PPOModule\.action_model: expected .* of shapes \(1, 9\), \(1, 16\), \(1, 7\), got RuntimeError: .*See Act"
    with pytest.raises(ValueError, match=text):
        working(Broken)


def test_an_action_model_that_the_distribution_never_asks_is_refused() -> None:
    class Asked(PPOCatalog):
        def build_action_model(self) -> ActionModel | None:
            return cast(ActionModel, nn.Identity())

    space = spaces.MultiDiscrete([2, 3])
    with pytest.raises(
        ValueError, match=r"^Asked\.build_action_model\(\): expected None, since MultiCategorical.*_actions"
    ):
        RLModuleSpec(PPOModule, VECTOR, space, {}, Asked).build()


def test_another_default_dtype_is_named() -> None:
    """A library may have set it, and every net would then have weights that observations do not fit."""
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"default dtype float32, got torch\.float64.* Call torch\.set_def"):
            PPOConfig(env="CartPole-v1").build()
    finally:
        torch.set_default_dtype(torch.float32)
