"""DQN's catalog: heads, settings and what is refused."""

import math
from typing import Any

import pytest
import torch
from gymnasium import Space, spaces
from torch import nn

from algorithms.dqn.module import DQNCatalog, DQNModelConfig, DQNModule
from algorithms.ppo import PPOCatalog
from catalog import Bernoulli, DefaultModelConfig, Distribution, NoisyHeadConfig
from catalog.encoders.noisy import NoisyHead
from rlmodule import Columns, RLModuleSpec
from tests.algorithms.dqn.test_dqn_module import BOX, C51, THREE, VARIANTS, batch, build, generator, spec


def test_heads_and_their_widths() -> None:
    for name, (values, state) in {"plain": (3, None), "dueling": (3, 1), "c51": (21, None), "rainbow": (21, 7)}.items():
        module = build(VARIANTS[name])
        assert module.af_head(torch.zeros(1, 8)).shape == (1, values)
        assert (module.vf_head is None) == (state is None)
        if module.vf_head is not None:
            assert module.vf_head(torch.zeros(1, 8)).shape == (1, state)


def test_heads_go_by_the_settings_of_their_function() -> None:
    functions = {"q": {"head_fcnet_hiddens": [5], "fcnet_hiddens": [11]}, "state_value": {"head_fcnet_hiddens": [6, 7]}}
    module = build({"dueling": True, "functions": functions})
    widths = [[m.out_features for m in part.modules() if isinstance(m, nn.Linear)] for part in module.children()]
    assert widths[-3:] == [[11], [5, 3], [6, 7, 1]]


def test_further_outputs_are_computed_in_training_alone() -> None:
    functions = {
        "curiosity": {"output_dim": 4},
        "risk": {"output_dim": 1, "trunk": "state_value"},
        "next": {"output_dim": 3, "trunk": "own"},
    }
    module = build({"dueling": True, "functions": functions})
    out = module.forward_train(batch())[Columns.EXTRA_OUTPUTS]
    assert {name: tuple(x.shape) for name, x in out.items()} == {"curiosity": (6, 4), "risk": (6, 1), "next": (6, 3)}
    assert set(module.forward_inference(batch())) == {Columns.ACTION_DIST_INPUTS}
    acting = spec({"dueling": True, "functions": functions}).build(inference_only=True)
    assert not [name for name in acting.get_state() if "extra_outputs" in name]


def test_standardised_observations_reach_the_net() -> None:
    module = build({"normalize_observations": True})
    assert build().observation_normalizer is None
    far = {Columns.OBS: 1000 * batch(500)[Columns.OBS] + 500}
    before = module.compute_q_values(far)
    module.update_observation_statistics(far[Columns.OBS])
    assert not torch.allclose(module.compute_q_values(far), before)
    assert module.observation_normalizer is not None
    obs = module.observation_normalizer(far[Columns.OBS])
    torch.testing.assert_close(module.compute_q_values(far), module.compute_q_values({}, module.encoder(obs).latent))
    torch.testing.assert_close(module.forward_train(far)[Columns.EMBEDDINGS], module.encoder(obs).latent)


def test_a_custom_encoder_and_head() -> None:
    class Mine(DQNCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Sequential(nn.Linear(3, 13), nn.ReLU())

        def build_vf_head(self) -> nn.Module:
            return nn.Linear(self.latent_dims[0], 1, bias=False)

    module = RLModuleSpec(DQNModule, BOX, THREE, {"dueling": True, "use_gru": True, "noisy": True}, Mine).build()
    assert isinstance(module, DQNModule)
    assert module.is_stateful()
    assert module.catalog.latent_dims == (64,)
    assert module.vf_head is not None
    assert [*module.vf_head.state_dict()] == ["weight"]
    module.resample_noise(generator())


def test_a_head_that_does_not_fit_is_named() -> None:
    class Mine(DQNCatalog):
        def build_af_head(self) -> nn.Module:
            return nn.Linear(8, 4)

    with pytest.raises(ValueError, match=r"Mine\.build_af_head\(\): expected outputs of shape \(1, 3\)"):
        RLModuleSpec(DQNModule, BOX, THREE, {"fcnet_hiddens": [8]}, Mine).build()


def test_settings_of_all_nets_are_taken_over() -> None:
    catalog = DQNCatalog(BOX, THREE, DefaultModelConfig(fcnet_hiddens=(5,), functions={"more": {"output_dim": 2}}))
    assert isinstance(catalog.model_config, DQNModelConfig)
    assert (catalog.model_config.fcnet_hiddens, catalog.model_config.dueling) == ((5,), False)
    assert catalog.extra_outputs == {"more": 2}
    given = DQNModelConfig(dueling=True)
    assert DQNModelConfig.from_any(given) is given
    assert DQNCatalog(BOX, THREE, given).model_config.dueling
    assert DQNCatalog(BOX, THREE).model_config.num_atoms == 1


def test_a_config_and_a_dict_of_the_same_settings_make_the_same_nets() -> None:
    for settings in ({"use_lstm": True}, {"fcnet_hiddens": (64, 64)}):
        configs = [DQNCatalog(BOX, THREE, given).model_config for given in (settings, DefaultModelConfig(**settings))]
        assert configs[0] == configs[1]
        assert configs[1].fcnet_activation == "relu"
    assert DQNCatalog(BOX, THREE, DefaultModelConfig(use_lstm=True)).model_config.fcnet_hiddens == (256, 256)


def test_explain_lists_heads_and_settings() -> None:
    text = " ".join(DQNCatalog(BOX, THREE, VARIANTS["rainbow"] | {"fcnet_hiddens": [8]}).explain().split())
    for part in (
        "DQNCatalog",
        "advantage head NoisyHead 8 → 21 378",  # (8·21 + 21)·2
        "state value head NoisyHead 8 → 7 126",
        "settings of its own num_atoms = 7 (set), v_min = -2.0 (set), v_max = 4.0 (set), num_quantiles = 1, dueling = "
        "True (set), noisy = True (set), sigma0 = 0.5",
        "normalize_observations = False, DQN's default",
    ):
        assert part in text
    assert "overridden" not in text
    plain = " ".join(DQNCatalog(BOX, THREE, {"functions": {"more": {"output_dim": 2}}}).explain().split())
    assert "q head MLPHead 256 → 3" in plain
    assert "'more' head MLPHead 256 → 2" in plain
    assert "state value" not in plain
    assert "settings of its own" not in PPOCatalog(BOX, THREE).explain()


def test_noisy_heads_are_those_of_the_catalog() -> None:
    catalog = DQNCatalog(BOX, THREE, {"noisy": True, "fcnet_hiddens": [64], "sigma0": 0.2, "head_fcnet_hiddens": [5]})
    head = catalog.build_af_head()
    assert isinstance(head, NoisyHead)
    config = NoisyHeadConfig(input_dims=(64,), output_layer_dim=3, hidden_layer_dims=(5,), sigma0=0.2)
    assert {n: p.shape for n, p in head.named_parameters()} == {
        n: p.shape for n, p in config.build().named_parameters()
    }
    assert head.scales[0].weight[0, 0].item() == pytest.approx(0.2 / 8)  # type: ignore[index]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_atoms": 51}, r"model_config\.v_min: expected a number, since num_atoms=51, got None"),
        ({"num_atoms": 51, "v_min": 0}, r"model_config\.v_max: expected a number"),
        ({"v_max": 1.0}, r"model_config\.v_max: expected None, since num_atoms=1, got 1\.0"),
        (C51 | {"v_min": 4.0}, r"model_config\.v_min: expected less than v_max=4\.0, got 4\.0"),
        (C51 | {"v_max": math.inf}, r"model_config\.v_max: expected finite float \| None, got inf"),
        ({"num_atoms": 0}, r"model_config\.num_atoms: expected finite int, >= 1, got 0"),
        ({"noisy": True, "sigma0": 0}, r"model_config\.sigma0: expected finite float, > 0, got 0"),
        ({"sigma0": 0.4}, r"model_config\.sigma0: expected 0\.5, since noisy=False, got 0\.4"),
        ({"duelling": True}, r"the unknown name 'duelling'.*Did you mean 'dueling'"),
        ({"vf_share_layers": True}, r"model_config\.vf_share_layers: expected None.*Leave it out"),
        ({"vf_share_layers": False}, r"model_config\.vf_share_layers: expected None"),
        (
            {"functions": {"q": {"noisy": True}}},
            r"functions\['q'\]: expected settings.*'noisy'.*set it for the whole module",
        ),
        (
            {"dueling": True, "functions": {"state_value": {"fcnet_hiddens": [4]}}},
            r"functions\['state_value'\]\['fcnet_hiddens'\]: expected settings of a head.*encoder of q.*Give it to q",
        ),
        (
            {"functions": {"state_value": {"head_fcnet_hiddens": [4]}}},
            r"functions\['state_value'\]: expected none, since dueling=False",
        ),
        (
            {"functions": {"value": {"fcnet_hiddens": [4]}}},
            r"functions\['value'\]: expected q or state_value or an",
        ),
        (
            {"noisy": True, "head_fcnet_kernel_initializer": "zeros_"},
            r"model_config\.head_fcnet_kernel_initializer: expected its default None, since noisy",
        ),
        (
            {"noisy": True, "functions": {"q": {"head_fcnet_bias_initializer": "ones_"}}},
            r"functions\['q'\]\['head_fcnet_bias_initializer'\]: expected its default",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DQNCatalog(BOX, THREE, settings)


def test_a_distribution_that_is_no_categorical_is_refused() -> None:
    class Loose(Bernoulli):
        @classmethod
        def required_input_dim(cls, space: Space) -> int:
            return 3

        @classmethod
        def check(cls, space: Space, path: str = "action_space") -> None:
            pass

        @classmethod
        def bind(cls, space: Space, *, path: str = "action_space") -> type[Distribution]:
            return cls

    with pytest.raises(ValueError, match=r"distribution of the actions of DQNCatalog: expected Categorical.*got Loose"):
        DQNCatalog(BOX, THREE, {"custom_action_dist": Loose})


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), spaces.Dict({"a": THREE})], ids=str
)
def test_actions_that_are_not_discrete_are_refused(space: Space) -> None:
    with pytest.raises(
        ValueError, match=r"action_space of DQN: expected a Discrete space.*Use PPO or SAC, which take Box"
    ):
        DQNCatalog(BOX, space)


@pytest.mark.parametrize("name", ["dueling", "num_atoms", "v_min", "v_max", "noisy", "sigma0"])
def test_other_catalogs_say_where_the_settings_belong(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown name '{name}'\. It is a setting of DQN's nets: DQNConfig\(\)"):
        PPOCatalog(BOX, THREE, {name: True})


def test_initializers_of_further_outputs_are_their_own_with_noisy_heads() -> None:
    functions = {"more": {"output_dim": 2, "head_fcnet_hiddens": [3], "head_fcnet_kernel_initializer": "zeros_"}}
    catalog = DQNCatalog(BOX, THREE, {"noisy": True, "functions": functions})
    outputs = catalog.build_extra_outputs()
    assert outputs is not None
    assert not next(outputs.heads.parameters()).any()


def test_memory_is_that_of_the_encoder() -> None:
    module = build({"use_lstm": True, "lstm_cell_size": 5})
    state = module.get_initial_state()
    assert state is not None
    assert {name: tuple(x.shape) for name, x in state.items()} == {"h": (1, 5), "c": (1, 5)}
    assert build().get_initial_state() is None
