"""explain() says which way the tree went, and why."""

import copy
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import nn

from algorithms.dqn import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOModule
from catalog import (
    ActionConverter,
    Catalog,
    Categorical,
    DefaultModelConfig,
    Distribution,
    MLPEncoderConfig,
    ModelConfig,
    ObservationNormalizer,
)
from catalog.base import Tree, as_encoder
from catalog.explain.explain import short_space
from rlmodule import RLModule, RLModuleSpec

VECTOR, TWO, TORQUES = spaces.Box(-1, 1, (4,)), spaces.Discrete(2), spaces.Box(-2, 2, (3,))


def says(text: str, *fragments: str) -> None:
    """Every fragment is in ``text``, blanks and line breaks aside."""
    flat = re.sub(r"\s+", " ", text)
    missing = [fragment for fragment in fragments if fragment not in flat]
    assert not missing, f"{missing} not in:\n{text}"


def test_rules_settings_config_widths_and_counts_are_shown() -> None:
    text = PPOCatalog(VECTOR, TORQUES, {"fcnet_hiddens": [32], "vf_share_layers": False}).explain()
    says(
        text,
        "PPOCatalog",
        "observation space Box(4) float32 in [-1, 1]",
        "encoder Box of rank 0 or 1 → MLP",
        "fcnet_hiddens = (32,) (set), fcnet_activation = 'tanh',",
        "config MLPEncoderConfig(input_dims=(4,), hidden_layer_dims=(32,), input_space=Box(4) float32 in [-1, 1])",
        "latent (32,), 160 parameters",
        "action distribution float Box → DiagGaussian",
        "decided by free_log_std = True",
        "class DiagGaussian, 6 inputs",
        "action converter float Box → stretch and clip to the bounds",
        "vf_share_layers = False",
        # 4·32 + 32 = 160; 32·3 + 3 + 3 log-stds = 102; 32 + 1 = 33; 160 + 160 + 102 + 33 = 455
        "actor encoder MLPEncoder 4 → 32 160",
        "critic encoder MLPEncoder 4 → 32 160",
        "policy head FreeLogStdMLPHead 32 → 3 102",
        "value head MLPHead 32 → 1 33",
        "all 455",
    )
    assert "overridden" not in text


def test_a_shared_encoder_counts_once() -> None:
    text = PPOCatalog(VECTOR, TWO, {"fcnet_hiddens": [32], "vf_share_layers": True}).explain()
    # 160 + 32·2 + 2 + 33 = 259
    says(text, "vf_share_layers = True (set)", "critic encoder the actor encoder shared", "all 259")


@pytest.mark.parametrize(
    ("action_space", "model_config", "expected"),
    [
        (TORQUES, {}, "by running mean and std: normalize_observations = True, PPO's default for Box actions"),
        (TWO, {}, "no: normalize_observations = False, PPO's default for Discrete actions"),
        (TWO, {"normalize_observations": True}, "by running mean and std: normalize_observations = True (set)"),
    ],
)
def test_an_open_setting_is_shown_with_its_reason(
    action_space: Space, model_config: dict[str, bool], expected: str
) -> None:
    says(PPOCatalog(VECTOR, action_space, model_config).explain(), f"standardised {expected}")


def test_a_custom_encoder_s_raw_observations_are_explained() -> None:
    says(MyEncoder(VECTOR, TORQUES).explain(), "False, since a custom encoder gets raw observations")


def test_a_space_that_cannot_be_standardised_is_said_to_be_so() -> None:
    says(PPOCatalog(TWO, TORQUES).explain(), "standardised no: normalize_observations = False, since there are no")


class MyEncoder(PPOCatalog):
    def build_encoder(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 6))


class MyConfig(PPOCatalog):
    def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
        return MLPEncoderConfig(input_dims=(4,), hidden_layer_dims=(9,))


class Twice(PPOCatalog):
    def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
        super()._get_encoder_config(observation_space, model_config)
        return super()._get_encoder_config(observation_space, model_config)


class MyInputs(PPOCatalog):
    def build_action_mask(self) -> None:
        return None

    def build_observation_normalizer(self) -> ObservationNormalizer:
        return ObservationNormalizer(self.observation_space, ("action_mask",))


class MyDist(PPOCatalog):
    def _get_dist_cls_from_action_space(self, action_space: Space) -> type[Distribution]:
        return Categorical


class MyHeads(PPOCatalog):
    def build_pi_head(self) -> nn.Module:
        return nn.Linear(self.latent_dims[0], 2)

    def build_vf_head(self) -> nn.Module:
        return super().build_vf_head()


class MyConverter(PPOCatalog):
    def build_action_converter(self) -> ActionConverter:
        return super().build_action_converter()


class Grandchild(MyConfig):
    pass


@pytest.mark.parametrize(
    ("catalog_cls", "expected"),
    [
        (
            MyEncoder,
            [
                "encoder MyEncoder.build_encoder(); the table alone says: Box of rank 0 or 1 → MLP latent (6,)",
                "actor encoder Sequential 4 → 10 → 6 116",
            ],
        ),
        (
            MyConfig,
            [
                "encoder MyConfig._get_encoder_config(); the table alone says: Box of rank 0 or 1 → MLP",
                "config MLPEncoderConfig(input_dims=(4,), hidden_layer_dims=(9,)) latent (9,)",
            ],
        ),
        (Grandchild, ["Grandchild", "MyConfig._get_encoder_config()"]),
        (
            MyDist,
            [
                "MyDist._get_dist_cls_from_action_space(); the table alone says: Discrete → Categorical",
                "class Categorical, 2 inputs",
            ],
        ),
        (
            MyHeads,
            [
                "MyHeads.build_pi_head() in place of PPOCatalog.build_pi_head()",
                "MyHeads.build_vf_head() in place of PPOCatalog.build_vf_head()",
                "policy head Linear 64 → 2 130",
            ],
        ),
        (MyConverter, ["MyConverter.build_action_converter(); the table alone says: Discrete → add start"]),
    ],
)
def test_overrides_are_named_with_what_they_replace(catalog_cls: type[Catalog], expected: list[str]) -> None:
    says(catalog_cls(VECTOR, TWO).explain(), *expected)


def test_a_part_is_shown_with_all_its_settings_and_a_net_of_several_streams_with_their_names() -> None:
    space = spaces.Dict(eye=spaces.Box(0, 255, (12, 12, 3), np.uint8), legs=spaces.Dict(left=VECTOR, right=VECTOR))
    settings: dict[str, Any] = {"conv_filters": [[4, 4, 4]], "fcnet_hiddens": [5], "fusionnet_hiddens": [6]}
    text = PPOCatalog(space, TWO, settings | {"lstm_use_prev_reward": True}).explain()
    says(text, "conv_padding = 'same', conv_channels = None, conv_activation = 'relu', conv_use_layernorm = False,")
    says(text, "fcnet_hiddens = (5,) (set), fcnet_activation = 'tanh', fcnet_use_layernorm = False,")
    # the latent of the observation is 6 wide, and the reward 1
    says(text, "actor encoder MultiStreamEncoder obs + prev_reward → 7 → 6")
    says(PPOCatalog(space, TWO, settings).explain(), "MultiStreamEncoder eye + legs → 518 → 6")  # 512 + 6


def test_a_hook_that_makes_another_mask_or_none_is_told_with_what_it_made() -> None:
    space = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(2))
    says(
        MyInputs(space, TWO).explain(),
        "action mask none: MyInputs.build_action_mask()",
        "standardised by running mean and std: MyInputs.build_observation_normalizer()",
    )
    says(
        PPOCatalog(space, TWO).explain(),
        "action mask observation_space['action_mask'] says which actions are allowed: action_mask_key = 'action_mask'",
        "standardised no: normalize_observations = False, PPO's default for Discrete actions",
    )


def test_a_hook_for_a_space_without_a_rule_is_explained_too() -> None:
    class Mine(Catalog):
        def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
            return Flat()

    class Flat(ModelConfig):
        output_dims = (3,)

        def build(self) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))

    text = Mine(spaces.Box(-1, 1, (1, 1, 1, 2, 3)), TWO).explain()
    says(
        text,
        "Mine._get_encoder_config(); the table has no rule for this space config Flat",
        "encoder Sequential 6 → 3 21",
    )


def test_the_parts_of_a_space_are_told_once_even_if_a_hook_asks_twice() -> None:
    lines = Twice(spaces.Dict(a=VECTOR, b=TWO), TWO).explain().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("      ") and line.split()[0] in "ab"] == ["a", "b"]


class Narrow(PPOCatalog):
    """Its tokenizers have other widths than the settings say."""

    def get_tokenizer_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
        return super().get_tokenizer_config(observation_space, dataclasses.replace(model_config, fcnet_hiddens=(7,)))


@pytest.mark.parametrize(
    ("space", "shown", "parts"),
    [(VECTOR, 1, [[(4, 7)]]), (spaces.Dict(a=VECTOR, b=TWO, c=TWO), 2, [[(4, 7)], [(2, 7)], [(2, 9)]])],
    ids=["vector", "dict"],
)
def test_settings_that_a_hook_passes_to_the_tree_are_those_of_all_parts_and_shown(
    space: Space, shown: int, parts: list[list[tuple[int, int]]]
) -> None:
    overrides = {"c": {"fcnet_hiddens": [9]}} if isinstance(space, spaces.Dict) else {}
    catalog = Narrow(space, TWO, {"use_gru": True, "leaf_overrides": overrides})
    tokenizer: Any = catalog.build_trunk().parts()[0]
    nets = tokenizer.parts() or [tokenizer]
    assert [[(layer.in_features, layer.out_features) for layer in net.linears] for net in nets] == parts
    text = catalog.explain()
    assert text.count("fcnet_hiddens = (7,) (set by a hook)") == shown
    assert text.count("fcnet_hiddens = (9,) (set at 'c')") == len(overrides)


def test_nothing_is_said_twice_and_lines_stay_short() -> None:
    wide = spaces.Box(np.arange(-200, 0, dtype=np.float32), np.arange(200, dtype=np.float32))
    text = MyHeads(wide, TWO).explain()
    lines = [line for line in text.splitlines() if "encoder  " not in line]
    assert len(lines) == len(set(lines))
    assert max(len(line) for line in text.splitlines()) <= 120
    assert len(text.splitlines()) < 30


def test_explaining_draws_nothing_and_changes_no_decision() -> None:
    catalog = PPOCatalog(VECTOR, TORQUES)
    before, decided = torch.random.get_rng_state(), (catalog.encoder_config, catalog.latent_dims, catalog.model_config)
    assert catalog.explain() == catalog.explain()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert decided == (catalog.encoder_config, catalog.latent_dims, catalog.model_config)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "Box(84, 84, 3) uint8 in [0, 255]"),
        (spaces.Box(-np.inf, np.inf, (17,)), "Box(17) float32 in [-inf, inf]"),
        (spaces.Box(np.float32([0, -1]), np.float32([1, 1])), "Box(2) float32 in [-1, 1], bounds differ"),
        (spaces.Box(-1, 1, ()), "Box() float32 in [-1, 1]"),
        (spaces.Discrete(4), "Discrete(4)"),
    ],
)
def test_spaces_are_short(space: Space, expected: str) -> None:
    assert short_space(space) == expected


def test_a_long_space_is_cut() -> None:
    assert len(short_space(spaces.MultiDiscrete(np.full(500, 7)))) <= 160


@pytest.mark.parametrize(
    ("module_class", "catalog_class", "name", "model_config"),
    [
        (PPOModule, PPOCatalog, "critic", {}),
        (PPOModule, PPOCatalog, "actor", {}),
        (DQNModule, DQNCatalog, "advantage", {"dueling": True}),
        (DQNModule, DQNCatalog, "state value", {"dueling": True}),
    ],
)
def test_a_further_output_hides_no_net_whatever_its_name(
    module_class: type[RLModule], catalog_class: type[Catalog], name: str, model_config: dict[str, bool]
) -> None:
    functions = {name: {"output_dim": 3, "trunk": "own", "fcnet_hiddens": [5]}}
    module = RLModuleSpec(module_class, VECTOR, TWO, {"functions": functions, **model_config}, catalog_class).build()
    text = module.catalog.explain()
    # 4·5 + 5 and 5·3 + 3
    says(text, f"for {name} Box", f"{name!r} encoder MLPEncoder 4 → 5 25", f"{name!r} head MLPHead 5 → 3 18")
    says(text, f"all {sum(p.numel() for p in module.parameters()):,}")


def test_settings_that_nothing_reads_are_named() -> None:
    settings = {"conv_filters": "nature", "conv_dense_dim": 7, "fcnet_hiddens": [32]}
    text = PPOCatalog(VECTOR, TWO, settings).explain()
    says(text, "without effect conv_filters = 'nature' (set), conv_dense_dim = 7 (set)")
    assert "without effect" not in PPOCatalog(spaces.Box(0, 1, (40, 40, 3)), TWO, {"conv_filters": "nature"}).explain()
    text = MyEncoder(VECTOR, TWO, settings | {"use_gru": True, "lstm_cell_size": 8}).explain()
    names = "conv_filters = 'nature' (set), conv_dense_dim = 7 (set)"
    says(text, f"left to it fcnet_hiddens = (32,) (set), {names}: no effect unless it reads them followed by")
    assert "without effect" not in text
    assert "left to it" not in MyEncoder(VECTOR, TWO, {"use_gru": True, "lstm_cell_size": 8}).explain()


def test_previous_actions_and_rewards_are_told() -> None:
    settings = {"use_gru": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    says(PPOCatalog(VECTOR, TWO, settings).explain(), "each step and the previous action and the previous reward")


# --- of a module ------------------------------------------------------------------------------------------------------


class OwnNets(RLModule):
    """One net of its own and a parameter in addition: 4·3 + 3 + 1."""

    def setup(self) -> None:
        self.both = nn.Linear(4, 3)
        self.temperature = nn.Parameter(torch.ones(()))

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return {"action_dist_inputs": self.both(batch["obs"])[..., :2]}


class MoreNets(PPOModule):
    """PPO's with another critic, 4·5 + 5, another head on it, 5 + 1, and a net in addition, 4·2 + 2."""

    def setup(self) -> None:
        super().setup()
        self.encoder.critic_encoder = as_encoder(nn.Linear(4, 5))
        self.vf_head = nn.Linear(5, 1)
        self.curiosity = nn.Linear(4, 2)


class NoEncoder(Catalog):
    def _determine_components_hook(self) -> None:
        self.action_dist_cls = self._get_dist_cls_from_action_space(self.action_space)


def of_module(module_class: type[RLModule], catalog_class: type[Catalog], **model_config: Any) -> tuple[RLModule, str]:
    module = RLModuleSpec(module_class, VECTOR, TWO, model_config, catalog_class).build()
    return module, module.explain()


def test_a_module_with_nets_of_its_own_is_explained_with_these() -> None:
    _, text = of_module(OwnNets, PPOCatalog)
    says(text, "module OwnNets", "encoder none by PPOCatalog.build_encoder(); the nets of OwnNets are listed below")
    says(text, "both Linear 4 → 3 15", "others 1", "all 16", "class Categorical, 2 inputs")
    assert "MLP" not in text
    assert "64" not in text


def test_a_changed_module_is_explained_as_it_is() -> None:
    module, text = of_module(MoreNets, PPOCatalog, fcnet_hiddens=[8])
    says(text, "module MoreNets", "latent (8,), 40 parameters", "actor encoder MLPEncoder 4 → 8 40")
    says(text, "critic encoder Linear 4 → 5 25", "value head Linear 5 → 1 6", "curiosity Linear 4 → 2 10")
    says(text, f"all {sum(p.numel() for p in module.parameters()):,}")


@pytest.mark.parametrize(
    ("module_class", "catalog_class", "model_config"),
    [
        (PPOModule, PPOCatalog, {}),
        (PPOModule, PPOCatalog, {"vf_share_layers": True, "use_lstm": True}),
        (PPOModule, PPOCatalog, {"functions": {"value": {"fcnet_hiddens": [5]}, "keys": {"output_dim": 2}}}),
        (DQNModule, DQNCatalog, {}),
        (DQNModule, DQNCatalog, {"dueling": True, "functions": {"more": {"output_dim": 2, "trunk": "own"}}}),
    ],
)
def test_an_algorithm_s_own_module_is_explained_as_its_catalog_says(
    module_class: type[RLModule], catalog_class: type[Catalog], model_config: dict[str, Any]
) -> None:
    module, text = of_module(module_class, catalog_class, **model_config)
    lines = text.splitlines()
    assert lines.pop(1).split() == ["module", module_class.__name__]
    assert lines == module.catalog.explain().splitlines()
    assert copy.deepcopy(module).explain() == text


def test_a_module_is_explained_without_building_anything() -> None:
    class Counted(PPOCatalog):
        built: ClassVar[list[str]] = []

        def build_encoder(self) -> nn.Module:
            self.built.append("encoder")
            return nn.Linear(4, 6)

        def build_pi_head(self) -> nn.Module:
            self.built.append("head")
            return super().build_pi_head()

    module, text = of_module(PPOModule, Counted)
    assert module.explain() == text
    assert Counted.built == ["encoder", "encoder", "head"]
    says(text, "encoder Counted.build_encoder(); the table alone", "actor encoder Linear 4 → 6 30")


def test_a_catalog_that_leaves_all_nets_to_the_module_works_and_is_explained() -> None:
    module, text = of_module(OwnNets, NoEncoder)
    message = "encoder none by NoEncoder._determine_components_hook(); the table alone says: Box of rank 0 or 1 → MLP"
    says(text, message, "both Linear 4 → 3 15", "all 16")
    decided = "action distribution NoEncoder._determine_components_hook(); the table alone says: Discrete → Categorical"
    says(text, decided, "class Categorical, 2 inputs", "action converter Discrete → add start")
    alone = module.catalog.explain()
    says(alone, message, decided)
    assert "parameters" not in alone
    for use in (module.catalog.build_encoder, lambda: module.catalog.latent_dims):
        with pytest.raises(
            RuntimeError, match=r"NoEncoder\..* Call super\(\)\._determine_components_hook\(\) too, set"
        ):
            use()


def test_hooks_are_said_to_be_asked_only_where_they_are() -> None:
    class Both(PPOCatalog):
        def get_tokenizer_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
            return super().get_tokenizer_config(observation_space, model_config)

        def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
            return super()._get_encoder_config(observation_space, model_config)

    asked = "asked first Both.{}(), which left it to the tree"
    plain, recurrent = Both(VECTOR, TWO).explain(), Both(VECTOR, TWO, {"use_gru": True}).explain()
    says(plain, asked.format("_get_encoder_config"))
    assert "asked first        Both.get_tokenizer_config()" not in plain
    says(recurrent, asked.format("get_tokenizer_config"), asked.format("_get_encoder_config"))
