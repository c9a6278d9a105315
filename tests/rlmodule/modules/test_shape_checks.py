"""Modules are tried on two observations when a learner gets them: what has a wrong shape is refused at build."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import tree
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms.dqn import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOModule
from algorithms.sac import SACCatalog, SACModule
from catalog import DiagGaussian, Distribution
from catalog.base import Tree
from rlmodule import Columns, QNetAPI, RLModule, RLModuleSpec
from rlmodule.modules.shape_checks import check_module
from tests.rlmodule.toys import NoNets, Recurrent, Regression, Settings, Small

VECTOR, TORQUES, TWO = spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
INPUTS = Columns.ACTION_DIST_INPUTS


def spec_of(module_class: type[RLModule], action_space: Space = TORQUES) -> RLModuleSpec:
    return RLModuleSpec(module_class, VECTOR, action_space, {"max_seq_len": 4}, NoNets)


class Own(RLModule):
    """Two means for two torques, without deviations: as many inputs as would broadcast over both."""

    width = 4

    def setup(self) -> None:
        self.net = nn.Linear(4, self.width)

    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: self.net(batch[Columns.OBS])}


class TooNarrow(Own):
    width = 2


class Bare(Own):
    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return self.net(batch[Columns.OBS])


class Unnamed(Own):
    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return {"logits": self.net(batch[Columns.OBS])}


class OneRow(Own):
    def _forward_exploration(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: self._forward(batch)[INPUTS][:1]}


class NarrowInTraining(Own):
    def _forward_train(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: self._forward(batch)[INPUTS][..., :2]}


class InPlace(Own):
    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: self.net(batch[Columns.OBS].clamp_(-0.5, 0.5))}


class OtherSpace(Own):
    def setup(self) -> None:
        self.net = nn.Linear(5, 4)


class Valued(Own, Small):
    def setup(self) -> None:
        self.net, self.vf = nn.Linear(4, 4), nn.Linear(4, 1)

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return self.vf(batch[Columns.OBS])


class ListOfStates(Recurrent):
    def get_initial_state(self) -> Tree:
        return {"h": torch.zeros(self.width), "more": [torch.zeros(())]}


class OtherState(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        return out | {Columns.STATE_OUT: tree.map_structure(lambda x: x[:1], out[Columns.STATE_OUT])}


class StateInTurn(Recurrent):
    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = super()._forward(batch)
        return out | {INPUTS: out[INPUTS].transpose(0, 1)}


@pytest.mark.parametrize(
    ("module_class", "message"),
    [
        (
            TooNarrow,
            r"TooNarrow\.forward_inference\(\)\['action_dist_inputs'\].* floats of shape \(2, 4\), got .* \(2, 2\) ",
        ),
        (Bare, r"Bare\.forward_inference\(\): expected a dict with the column 'action_dist_inputs', got a Tensor"),
        (Unnamed, r"Unnamed\.forward_inference\(\): expected a dict with .* got one with logits"),
        (OneRow, r"OneRow\.forward_exploration\(\).* floats of shape \(2, 4\), got .* \(1, 4\)"),
        (NarrowInTraining, r"NarrowInTraining\.forward_train\(\).* \(2, 4\), got .* \(2, 2\)"),
        (InPlace, r"InPlace\.forward_inference\(\): expected a net that leaves its input as it is, got .* in place"),
        (OtherSpace, r"OtherSpace\.forward_inference\(\): expected a method that takes obs of 2 observations.* 5x4"),
        (Valued, r"Valued\.compute_values\(\) of 2 rows: expected floats of shape \(2,\), got .* \(2, 1\)"),
        (ListOfStates, r"ListOfStates: expected a tensor, or dicts and tuples .* got a list"),
        (OtherState, r"OtherState\.forward_inference\(\)\['state_out'\]: expected .*\(2, 8\).* got .*\(1, 8\)"),
        (StateInTurn, r"StateInTurn\.forward_inference\(\).* floats of shape \(1, 2, 4\), got .* \(2, 1, 4\)"),
    ],
)
def test_a_module_whose_passes_do_not_fit_is_refused_at_build(module_class: type[RLModule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Regression(Settings(), spec_of(module_class).as_multi(), run_seed=0)


class LogpOfParts(DiagGaussian):
    def logp(self, actions: Tree) -> Tensor:
        return super().logp(actions).unsqueeze(-1)


class EntropyOfParts(DiagGaussian):
    def entropy(self) -> Tensor:
        return self.log_std + 1.42


class OneTorque(DiagGaussian):
    def sample(self, generator: torch.Generator | None = None) -> Tree:
        return super().sample(generator)[..., :1]


class BareMode(DiagGaussian):
    def to_deterministic(self) -> Any:
        return super().to_deterministic().sample()


@pytest.mark.parametrize(
    ("dist_cls", "message"),
    [
        (LogpOfParts, r"LogpOfParts\.logp\(\) of \(2,\) actions: expected floats of shape \(2,\), got shape \(2, 1\)"),
        (
            EntropyOfParts,
            r"EntropyOfParts\.entropy\(\) of \(2,\) actions: .*, got shape \(2, 2\) .* Sum over the numbers",
        ),
        (OneTorque, r"OneTorque\.sample\(\): expected actions of shape \(2, 2\), got \(2, 1\)"),
        (BareMode, r"BareMode: expected a distribution .* Return .* of to_deterministic\(\) catalog\.Deterministic"),
    ],
)
def test_a_distribution_that_does_not_fit_is_refused_at_build(dist_cls: type[Distribution], message: str) -> None:
    model_config = {"custom_action_dist": dist_cls}
    spec = RLModuleSpec(PPOModule, VECTOR, TORQUES, model_config, PPOCatalog)
    with pytest.raises(ValueError, match=message):
        Regression(Settings(), spec.as_multi(), run_seed=0)


def test_a_module_that_is_added_later_is_tried_too() -> None:
    learner = Regression(Settings(), spec_of(Own).as_multi(), run_seed=0)
    with pytest.raises(ValueError, match=r"TooNarrow\.forward_inference"):
        learner.add_module("more", spec_of(TooNarrow))
    assert "more" not in learner.module


def test_values_of_actions_are_tried() -> None:
    class Wide(Own, QNetAPI):
        width = 2

        def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
            return self.net(batch[Columns.OBS])[..., :1]

    message = r"compute_q_values\(\) of 2 rows: .* \(2, 2\), got .* \(2, 1\) .*Return one value for each action"
    with pytest.raises(ValueError, match=message):
        check_module(spec_of(Wide, TWO).build())


class NoCriticDim(SACModule):
    def compute_action_values(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().compute_action_values(*args, **kwargs)[0]


class IgnoresNumCritics(SACModule):
    def compute_action_values(self, *args: Any, num_critics: int | None = None, **kwargs: Any) -> Tensor:
        return super().compute_action_values(*args, **kwargs)


class MovesCritics(SACModule):
    def compute_action_values(self, *args: Any, frozen: bool = False, **kwargs: Any) -> Tensor:
        return super().compute_action_values(*args, **kwargs)


class IgnoresActions(SACModule):
    def compute_action_values(self, batch: Any, actions: Any, *args: Any, **kwargs: Any) -> Tensor:
        return super().compute_action_values(batch, torch.zeros_like(actions), *args, **kwargs)


class BareLinear(SACCatalog):
    def build_qf(self) -> nn.Module:
        return nn.Linear(6, 1)


@pytest.mark.parametrize(
    ("module_class", "catalog_class", "action_space", "message"),
    [
        (NoCriticDim, SACCatalog, TORQUES, r"of 2 rows: expected floats of shape \(critics, 2\), got shape \(2,\)"),
        (NoCriticDim, SACCatalog, TWO, r"of 2 rows: expected floats of shape \(critics, 2\), got shape \(2,\)"),
        (IgnoresNumCritics, SACCatalog, TORQUES, r"with num_critics=1: expected floats of shape \(1, 2\)"),
        (IgnoresNumCritics, SACCatalog, TWO, r"with num_critics=1: expected floats of shape \(1, 2\)"),
        (MovesCritics, SACCatalog, TORQUES, "with frozen=True: expected a gradient to the actions alone, got another"),
        (MovesCritics, SACCatalog, TWO, "with frozen=True: expected a gradient to the actions alone, got another"),
        (IgnoresActions, SACCatalog, TORQUES, "with frozen=True: expected a gradient to the actions alone"),
        (SACModule, BareLinear, TORQUES, r"expected a method that takes obs .*'frozen'"),
    ],
)
def test_critics_that_do_not_fit_are_refused(
    module_class: type[RLModule], catalog_class: type[Any], action_space: Space, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"{module_class.__name__}\.compute_action_values\(\).* {message}"):
        check_module(RLModuleSpec(module_class, VECTOR, action_space, {}, catalog_class).build())


class WarmsActing(PPOModule):
    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: 0.5 * super()._forward(batch)[INPUTS] + 1}


class AddsToValues(DQNModule):
    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return super().compute_q_values(batch, embeddings) + torch.arange(2.0)


class AddsToCritics(SACModule):
    def compute_action_values(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().compute_action_values(*args, **kwargs) + 1


@pytest.mark.parametrize(
    ("module_class", "catalog_class", "message"),
    [
        (
            WarmsActing,
            PPOCatalog,
            r"forward_inference\(\): expected the numbers that forward_train\(\) gives.*_forward_train",
        ),
        (AddsToValues, DQNCatalog, r"compute_q_values\(\): expected .* the mean of compute_q_outputs\(\) gives"),
        (
            AddsToCritics,
            SACCatalog,
            r"compute_action_values\(\): expected .* the mean of compute_action_outputs\(\) gives",
        ),
    ],
)
def test_methods_of_which_one_alone_was_overridden_are_refused(
    module_class: type[RLModule], catalog_class: type[Any], message: str
) -> None:
    """Losses read one of them and acting the other, so that half of the algorithm would skip the override."""
    with pytest.raises(ValueError, match=rf"{module_class.__name__}\.{message}"):
        check_module(RLModuleSpec(module_class, VECTOR, TWO, {}, catalog_class).build())


class ExploresOtherwise(PPOModule):
    def _forward_exploration(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: 0.5 * self._forward(batch)[INPUTS] + 1}

    def _forward_inference(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: 2 * self._forward(batch)[INPUTS]}


class WithPrior(DQNModule):
    """Adds fixed values to those of the net, in all that reads them (Osband et al. 2018)."""

    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return super().compute_q_values(batch, embeddings) + torch.tensor([0.0, 9.0])

    def compute_q_outputs(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return super().compute_q_outputs(batch, embeddings) + torch.tensor([0.0, 9.0])


def test_passes_and_values_may_be_overridden_on_purpose() -> None:
    check_module(RLModuleSpec(ExploresOtherwise, VECTOR, TWO, {}, PPOCatalog).build())
    module: Any = RLModuleSpec(WithPrior, VECTOR, TWO, {}, DQNCatalog).build()
    check_module(module)
    module.set_exploration(0.0)
    obs = torch.linspace(-9, 9, 40).view(10, 4) * torch.tensor([1, -1, 1, -1])
    for forward in (module.forward_inference, module.forward_exploration):
        assert forward({Columns.OBS: torch.cat([obs, -obs])})[INPUTS].argmax(-1).all()


def test_a_training_pass_that_reads_more_than_observations_is_left_to_the_first_batch() -> None:
    class Recalls(Own):
        def _forward_train(self, batch: Mapping[str, Tree]) -> Any:
            return {INPUTS: self._forward(batch)[INPUTS] * batch[Columns.ACTIONS].sum()}

    check_module(spec_of(Recalls).build())


def test_trying_a_module_changes_nothing_of_it() -> None:
    class Counting(Own):
        seen: Tensor
        norm: nn.Module
        drop: nn.Module

        def setup(self) -> None:
            super().setup()
            self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
            self.register_buffer("seen", torch.zeros(()))

        def _forward(self, batch: Mapping[str, Tree]) -> Any:
            self.seen = self.seen + 1
            return {INPUTS: self.net(self.drop(self.norm(batch[Columns.OBS]))) + torch.rand(())}

    module = spec_of(Counting).build().train()
    module.drop.eval()
    before = {name: value.clone() for name, value in module.get_state().items()}
    stream, seen = torch.random.get_rng_state(), module.seen
    check_module(module)
    assert all(torch.equal(value, before[name]) for name, value in module.get_state().items())
    assert module.seen is seen
    assert torch.equal(torch.random.get_rng_state(), stream)
    assert (module.training, module.norm.training, module.drop.training) == (True, True, False)


MASKED = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(2))


@pytest.mark.parametrize("observation_space", [VECTOR, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("model_config", [{}, {"use_lstm": True}, {"use_attention": True, "max_seq_len": 1}], ids=str)
@pytest.mark.parametrize(("module_class", "catalog_class"), [(PPOModule, PPOCatalog), (DQNModule, DQNCatalog)])
def test_the_modules_of_the_algorithms_fit(
    module_class: type[RLModule], catalog_class: type[Any], model_config: dict[str, Any], observation_space: Space
) -> None:
    check_module(RLModuleSpec(module_class, observation_space, TWO, model_config, catalog_class).build())


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 6)),
        nn.Sequential(nn.Hardtanh(inplace=True), nn.Flatten(), nn.Linear(4, 6)),
    ],
    ids=["relu", "clamp"],
)
def test_an_encoder_that_changes_observations_in_place_is_refused(net: nn.Module) -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return net

    message = r"Mine\.build_encoder\(\): expected a net that leaves its input as it is.* nn\.ReLU\(\) without inplace"
    with pytest.raises(ValueError, match=message):
        RLModuleSpec(PPOModule, VECTOR, TWO, {"vf_share_layers": True}, Mine).build()


# --- what a net of your own computes ---------------------------------------------------------------------------------


class OverRows(Own):
    """Standardises over the batch."""

    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        obs = batch[Columns.OBS]
        return {INPUTS: self.net(obs - obs.mean(0))}


class WithoutGradient(Own):
    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: self.net(batch[Columns.OBS]).detach()}


class Frozen(WithoutGradient):
    """Acts alone, and says so."""

    def setup(self) -> None:
        super().setup()
        self.requires_grad_(False)


class BatchNormed(Own):
    def setup(self) -> None:
        super().setup()
        self.norm = nn.BatchNorm1d(4)

    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: self.net(self.norm(batch[Columns.OBS]))}


def own(module_class: type[RLModule]) -> RLModule:
    return spec_of(module_class, spaces.Discrete(4)).build()


def test_outputs_that_depend_on_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"OverRows\.forward_inference\(\): expected outputs for a row that depend on"):
        check_module(own(OverRows))


def test_a_training_pass_without_a_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match=r"WithoutGradient\.forward_train\(\): expected outputs with a gradient"):
        check_module(own(WithoutGradient))


@pytest.mark.parametrize("module_class", [Frozen, BatchNormed])
def test_frozen_nets_and_running_statistics_are_fine(module_class: type[RLModule]) -> None:
    check_module(own(module_class))


@pytest.mark.parametrize(("hook", "returned"), [("build_action_converter", None), ("build_action_mask", nn.Identity())])
def test_a_hook_that_returns_a_part_of_another_class_is_named(hook: str, returned: Any) -> None:
    catalog_class = type("Mine", (PPOCatalog,), {hook: lambda self: returned})
    with pytest.raises(TypeError, match=rf"Mine\.{hook}\(\): expected an Action(Converter|Mask or None), got "):
        check_module(RLModuleSpec(PPOModule, VECTOR, TWO, catalog_class=catalog_class).build())


class Listed(Own):
    """Keeps its net where torch does not look for it."""

    def setup(self) -> None:
        self.nets = [nn.Linear(4, self.width)]

    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        return {INPUTS: self.nets[0](batch[Columns.OBS])}


class Named(Own):
    def setup(self) -> None:
        super().setup()
        self.nets = {"same": self.net, "fixed": nn.Linear(4, 4).requires_grad_(False)}


def test_nets_in_a_plain_list_are_refused_as_they_would_be_neither_trained_nor_saved() -> None:
    with pytest.raises(ValueError, match=r"Listed\.nets: expected nets that are .* got a plain list.* nn\.ModuleList"):
        check_module(own(Listed))
    check_module(own(Named))


class Scaled(Own):
    """Keeps what it trains as a plain tensor."""

    def setup(self) -> None:
        super().setup()
        self.scale = torch.ones(4, requires_grad=True)

    def _forward(self, batch: Mapping[str, Tree]) -> Any:
        self.seen = self.net(batch[Columns.OBS]) * self.scale  # an activation, which a loss may read
        return {INPUTS: self.seen}


class ScaledByParameter(Scaled):
    def setup(self) -> None:
        super().setup()
        del self.scale
        self.scale = nn.Parameter(torch.ones(4))


def test_a_plain_tensor_to_train_is_refused_as_it_would_be_neither_trained_nor_saved() -> None:
    with pytest.raises(ValueError, match=r"Scaled\.scale: expected a parameter .* plain tensor .* nn\.Parameter\."):
        check_module(own(Scaled))
    module = own(ScaledByParameter)
    for _ in range(2):
        check_module(module)


def test_a_state_that_ignores_starts_is_warned_of() -> None:
    class Endless(Recurrent):
        def _forward(self, batch: Mapping[str, Tree]) -> Any:
            return super()._forward({**batch, Columns.STARTS: torch.zeros_like(batch[Columns.STARTS])})

    check_module(spec_of(Recurrent).build())
    with pytest.warns(UserWarning, match=r"Endless\.forward_inference\(\): expected a state that begins again where"):
        check_module(spec_of(Endless).build())
