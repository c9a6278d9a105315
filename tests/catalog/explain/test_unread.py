"""Settings without effect: named in one warning and by explain(), whatever they are about."""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from torch import nn

from algorithms.dqn import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOModule
from algorithms.sac import SACCatalog
from catalog import DefaultModelConfig, ModelConfig, encoder_rules
from catalog.explain import unread
from catalog.explain.unread import unread_settings
from catalog.rules import Node

VECTOR, TWO = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
IMAGE, ARM = spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Box(-1, 1, (2,), np.float32)
BOTH = spaces.Dict({"eye": IMAGE, "legs": VECTOR})


@pytest.fixture(autouse=True)
def _nothing_told_yet() -> None:
    unread.warn_once.cache_clear()


UNREAD: dict[str, tuple[Space, Space, dict[str, Any]]] = {
    "conv_dense_dim": (VECTOR, TWO, {"conv_dense_dim": 8}),
    "conv_filters": (VECTOR, TWO, {"conv_filters": "nature"}),
    "fusionnet_hiddens": (VECTOR, TWO, {"fusionnet_hiddens": [8]}),
    "discrete_embedding_dim": (VECTOR, TWO, {"discrete_embedding_dim": 3}),
    "fcnet_kernel_initializer_kwargs": (IMAGE, TWO, {"fcnet_kernel_initializer_kwargs": {"gain": 1.0}}),
    "max_seq_len": (VECTOR, TWO, {"max_seq_len": 4}),
    "lstm_cell_size": (VECTOR, TWO, {"lstm_cell_size": 8}),
    "lstm_num_layers": (VECTOR, TWO, {"use_attention": True, "lstm_num_layers": 2}),
    "attention_dim": (VECTOR, TWO, {"use_gru": True, "attention_dim": 8}),
    "autoregressive_hiddens": (VECTOR, TWO, {"autoregressive_hiddens": [8]}),
    "free_log_std": (VECTOR, TWO, {"free_log_std": False}),
    "log_std_clip_param": (VECTOR, ARM, {"log_std_clip_param": 2.0}),
    "head_fcnet_activation": (VECTOR, TWO, {"head_fcnet_activation": "relu"}),
    "normalize_actions": (VECTOR, TWO, {"normalize_actions": False}),
    "functions['value']['lstm_cell_size']": (VECTOR, TWO, {"functions": {"value": {"lstm_cell_size": 8}}}),
    "leaf_overrides['legs']['conv_dense_dim']": (BOTH, TWO, {"leaf_overrides": {"legs": {"conv_dense_dim": 8}}}),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_setting_without_effect_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    observation, action, settings = UNREAD[name]
    with caplog.at_level(logging.WARNING, "catalog"):
        module = PPOModule(
            observation_space=observation, action_space=action, model_config=settings, catalog_class=PPOCatalog
        )
    assert [record.message.partition(" = ")[0] for record in caplog.records] == [
        f"model_config: no effect with these spaces and settings: {name}"
    ]
    assert f"without effect {name} = " in " ".join(module.catalog.explain().split())


READ: list[tuple[Space, Space, dict[str, Any]]] = [
    (VECTOR, TWO, {"lstm_cell_size": 64, "conv_dense_dim": 512}),  # which is what they are anyway
    (IMAGE, TWO, {"conv_filters": [[4, 4, 2]], "conv_dense_dim": 8}),
    (VECTOR, TWO, {"use_gru": True, "lstm_cell_size": 8, "max_seq_len": 4, "lstm_use_prev_action": True}),
    (VECTOR, TWO, {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "fusionnet_hiddens": [8]}),
    (VECTOR, TWO, {"use_gru": True, "lstm_cell_size": 8, "functions": {"policy": {"use_gru": False}}}),
    (VECTOR, ARM, {"free_log_std": False, "log_std_clip_param": 2.0, "normalize_actions": False}),
    (VECTOR, TWO, {"functions": {"value": {"head_fcnet_hiddens": [4]}}, "head_fcnet_activation": "relu"}),
    (BOTH, TWO, {"fusionnet_hiddens": [8], "leaf_overrides": {"eye": {"conv_dense_dim": 8}}}),
    (spaces.Box(-1, 1, (3, 4)), TWO, {"matrix_observations": "sequence", "lstm_kernel_initializer": None}),
]


@pytest.mark.parametrize(("observation", "action", "settings"), READ)
def test_a_setting_with_an_effect_is_not(observation: Space, action: Space, settings: dict[str, Any]) -> None:
    assert unread_settings(PPOCatalog(observation, action, settings)) == {}


class Late(ModelConfig):
    """Reads a setting only when it builds its net."""

    output_dims = (3,)  # type: ignore[assignment]

    def __init__(self, model_config: DefaultModelConfig) -> None:
        self.model_config = model_config

    def build(self) -> nn.Module:
        return nn.Linear(4, self.model_config.custom_model_config["width"])


@pytest.mark.usefixtures("tables")
def test_what_a_rule_reads_is_recorded_even_if_its_config_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    @encoder_rules.register(spaces.Box, name="late")
    def _(space: Space, model_config: DefaultModelConfig, node: Node) -> ModelConfig:
        return Late(model_config)

    settings = {"custom_model_config": {"width": 3}, "fcnet_hiddens": [8]}
    module = PPOModule(observation_space=VECTOR, action_space=TWO, model_config=settings, catalog_class=PPOCatalog)
    assert module.catalog.encoder_node.reads == ["custom_model_config"]
    assert [record.message for record in caplog.records] == [
        "model_config: no effect with these spaces and settings: fcnet_hiddens = (8,)"
    ]


def test_a_config_that_records_is_like_the_one_it_was_made_from() -> None:
    reads: list[str] = []
    config = DefaultModelConfig(fcnet_hiddens=(8,))
    recorded = config.recording(reads)
    assert recorded == config
    assert repr(recorded) == repr(config)
    reads.clear()
    assert (recorded.lstm_cell_size, recorded.is_recurrent, recorded.lstm_cell_size) == (64, False, 64)
    assert reads == ["lstm_cell_size", "use_lstm", "use_gru", "use_attention"]
    assert dataclasses.replace(recorded, lstm_cell_size=8).lstm_cell_size == 8
    assert config.lstm_num_layers == 1
    assert "lstm_num_layers" in reads, "a replaced copy may read any setting"


@pytest.fixture
def tables() -> Iterator[None]:
    """Rules registered in the test are forgotten after it."""
    kept = [*encoder_rules._rules]
    yield
    encoder_rules._rules[:] = kept


def test_only_ppo_standardises_returns() -> None:
    settings = {"normalize_values": False}
    assert unread_settings(PPOCatalog(VECTOR, TWO, settings)) == {}
    for catalog in (DQNCatalog(VECTOR, TWO, settings), SACCatalog(VECTOR, ARM, settings)):
        assert unread_settings(catalog) == settings


def test_a_hook_of_ones_own_may_read_any_setting_of_its_part() -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Linear(4, 8)

    settings = {"conv_dense_dim": 8, "lstm_cell_size": 8, "normalize_actions": False}
    assert list(unread_settings(Mine(VECTOR, TWO, settings))) == ["normalize_actions"]


@pytest.mark.parametrize(
    ("action", "settings", "warns"),
    [
        (ARM, {}, True),
        (ARM, {"normalize_observations": False}, False),
        (ARM, {"normalize_observations": True}, False),
        (TWO, {}, False),  # not standardised with the default encoder either
    ],
)
def test_an_encoder_of_ones_own_that_turns_standardisation_off_is_told_once(
    action: Space, settings: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Mine(PPOCatalog):
        def build_encoder(self) -> nn.Module:
            return nn.Linear(4, 8)

    for _ in range(2):
        PPOModule(observation_space=VECTOR, action_space=action, model_config=settings, catalog_class=Mine)
    expected = (
        "model_config: normalize_observations = False, since a custom encoder gets raw observations. "
        "Set it to True or False to say which."
    )
    assert [record.message for record in caplog.records] == [expected] * warns


def test_a_grid_over_a_memory_keeps_its_settings(caplog: pytest.LogCaptureFixture) -> None:
    for memory in (True, False, False):  # logged once, though a run builds several
        DQNModule(
            observation_space=VECTOR,
            action_space=TWO,
            model_config={"use_lstm": memory, "lstm_cell_size": 8},
            catalog_class=DQNCatalog,
        )
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["lstm_cell_size = 8"]
