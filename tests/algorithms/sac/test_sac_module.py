"""SAC's catalog and module: what is built for which spaces and settings, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import nn

from algorithms.sac import SACCatalog, SACModule
from catalog import Beta, Categorical, DiagGaussian, MultiCategorical, SquashedGaussian
from rlmodule import Columns, RLModuleSpec
from rlmodule.testing.module_contract import RLModuleContract
from tests.algorithms.sac.conftest import ARM, BOX, OBS, tiny

MASKED_OBS = spaces.Dict({"x": OBS, "action_mask": spaces.MultiBinary(3)})
THREE = spaces.Discrete(3)


def spec(action_space: Space = BOX, observation_space: Space = OBS, **model_config: Any) -> RLModuleSpec:
    return RLModuleSpec(SACModule, observation_space, action_space, {"fcnet_hiddens": [8], **model_config}, SACCatalog)


def build(*args: Any, **model_config: Any) -> SACModule:
    module = spec(*args, **model_config).build()
    assert isinstance(module, SACModule)
    return module


class TestBox(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec()


class TestMaskedDiscrete(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec(THREE, MASKED_OBS, normalize_observations=True)


class TestMixtureSharing(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec(ARM, vf_share_layers=True)


class TestSharedMemory(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec(use_lstm=True, lstm_cell_size=4, max_seq_len=4)


class TestSeparateMemories(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec(THREE, use_gru=True, lstm_cell_size=4, max_seq_len=4, vf_share_layers=False)


@pytest.mark.parametrize(
    ("space", "expected", "values_all"),
    [
        (BOX, SquashedGaussian, False),
        (THREE, Categorical, True),
        (spaces.MultiDiscrete([4, 4]), MultiCategorical, True),
        (spaces.MultiDiscrete([40, 40]), MultiCategorical, False),
        (spaces.Box(0, 3, (2,), np.int8), MultiCategorical, True),
    ],
    ids=str,
)
def test_the_distribution_follows_from_the_action_space(space: Space, expected: type, values_all: bool) -> None:
    module = build(space)
    assert issubclass(module.action_dist_cls, expected)
    assert module.values_all_actions is values_all
    assert build(spaces.Dict(a=BOX, b=space)).values_all_actions is False


def test_observations_are_standardised_where_actions_are_a_box() -> None:
    assert build().observation_normalizer is not None
    for other in (build(THREE), build(ARM), build(normalize_observations=False)):
        assert other.observation_normalizer is None


def test_each_module_has_a_temperature_that_acting_does_not_need() -> None:
    module, acting = build(initial_alpha=0.25), spec(initial_alpha=0.25).build(inference_only=True)
    assert float(module.log_temperature().detach().exp()) == pytest.approx(0.25)
    names = set(acting.state_dict())
    assert names
    assert not any(name.startswith(("qf", "temperature")) for name in names)
    assert names == set(module.get_state(inference_only=True))


@pytest.mark.parametrize("trunk", ["policy", "value"])
@pytest.mark.parametrize("share", [False, True])
def test_a_further_output_trains_the_encoder_that_it_is_on(trunk: str, share: bool) -> None:
    aux = {"output_dim": 2, "trunk": trunk}
    module = build(vf_share_layers=share, functions={"aux": aux})
    module.forward_train({Columns.OBS: torch.rand(3, 4)})[Columns.EXTRA_OUTPUTS]["aux"].sum().backward()
    trained = {name.rpartition(".linears")[0] for name, p in module.named_parameters() if p.grad is not None}
    assert ("encoder.actor_encoder" in trained) == (share or trunk == "policy")


def test_no_sample_is_a_forbidden_action() -> None:
    module = build(THREE, MASKED_OBS)
    masks = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8).repeat(500, 1)
    out = module.forward_exploration({Columns.OBS: {"x": torch.rand(1000, 4), "action_mask": masks}})
    actions = module.action_dist_cls.from_logits(out[Columns.ACTION_DIST_INPUTS]).sample(torch.Generator())
    assert bool(masks.gather(-1, actions.unsqueeze(-1)).all())
    assert actions.unique().tolist() == [0, 1, 2]


def test_explain_lists_the_critics() -> None:
    text = build().explain()
    assert "critics              2 × ActionCritic  6 → 8 → 1" in text
    assert "SquashedGaussian, 4 inputs" in text
    assert "SACCatalog._get_dist_cls_from_action_space()" in text


@pytest.mark.parametrize(
    ("args", "settings", "message"),
    [
        ((spaces.Box(-np.inf, np.inf, (2,)),), {}, r"action_space: expected a Box of floats with finite bounds"),
        (
            (spaces.Dict(a=spaces.Box(0, np.inf, (2,))),),
            {},
            r"action_space\['a'\]: expected a Box of floats with finite bounds on all sides, for SquashedGaussian",
        ),
        ((spaces.MultiDiscrete([2, 3]),), {"autoregressive_actions": True}, r"autoregressive_actions: expected False"),
        (
            (THREE, spaces.Dict(x=OBS, avail_actions=spaces.Box(-1, 1, (3, 2)))),
            {},
            r"action_embeddings_key: expected None, since the critics of SACCatalog",
        ),
    ],
)
def test_what_sac_cannot_do_is_refused(args: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(*args, **settings)


def test_a_distribution_without_gradient_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Beta\.rsample_with_logp: expected a class whose samples"):
        build(custom_action_dist="Beta")
    both, entropy = spaces.Dict(a=BOX, b=THREE), "of SACCatalog: expected one with entropy.*DeterministicAction.*TD3"
    with pytest.raises(ValueError, match=f"distribution of actions {entropy}"):
        build(custom_action_dist="DeterministicAction")
    with pytest.raises(ValueError, match=rf"distribution of actions\['a'\] {entropy}"):
        build(both, custom_action_dist={"a": "DeterministicAction"})
    assert issubclass(build(custom_action_dist=DiagGaussian).action_dist_cls, DiagGaussian)
    assert Beta.bounded


def test_an_unbounded_box_goes_with_a_gaussian() -> None:
    module = build(spaces.Box(-np.inf, np.inf, (2,)), custom_action_dist="DiagGaussian")
    assert module.action_dist_cls is DiagGaussian


class Encoder(torch.nn.Module):
    """A custom encoder of images or vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 5)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.net(obs)


class Own(SACCatalog):
    """A catalog with its own encoder."""

    def build_encoder(self) -> torch.nn.Module:
        return Encoder()


def test_one_method_of_the_catalog_injects_an_encoder() -> None:
    config = tiny(gym.make("Pendulum-v1").unwrapped.__class__, rl_module_spec=RLModuleSpec(catalog_class=Own))
    module = config.get_rl_module_spec(OBS, BOX).build()
    assert isinstance(module, SACModule)
    found = [type(net.net) for net in (module.encoder.actor_encoder, module.encoder.critic_encoder)]  # type: ignore[union-attr]
    assert found == [Encoder, Encoder]
    assert module.qf.body.linears[0].in_features == 5 + 2


def test_settings_that_critics_read_are_not_called_unread() -> None:
    class Own(SACCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Linear(4, 5)

    config = {"fcnet_hiddens": [8], "normalize_observations": False, "functions": {"value": {"fcnet_hiddens": [6]}}}
    text = Own(OBS, BOX, config).explain()
    assert "ActionCritic  7 → 6 → 1" in text
    assert "no effect" not in text


def test_catalog_and_module_explain_the_same_number_of_parameters() -> None:
    """The temperature counts."""
    space = spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2,))
    module = SACModule(observation_space=space[0], action_space=space[1], catalog_class=SACCatalog)
    totals = [re.findall(r"^ *all +([\d,]+)$", text, re.M) for text in (module.catalog.explain(), module.explain())]
    number = f"{sum(parameter.numel() for parameter in module.parameters()):,}"
    assert totals == [[number], [number]]


def test_values_of_sequences_ask_for_rows() -> None:
    space = spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2,))
    module = SACModule(observation_space=space[0], action_space=space[1], catalog_class=SACCatalog)
    with pytest.raises(ValueError, match=r"compute_action_values\(\): expected rows, .* Flatten both"):
        module.compute_action_values({}, torch.zeros(2, 3, 2), torch.zeros(2, 3, 256))
