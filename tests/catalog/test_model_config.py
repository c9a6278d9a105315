"""Model settings: partial dicts, and mistakes that are found where they are made."""

import copy
import dataclasses
import math
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from catalog import DefaultModelConfig
from catalog.activations import Init, Initializer, activation_by_name, initializer_by_name
from catalog.settings import setting, settings_of


def test_a_partial_dict_is_filled_with_defaults() -> None:
    config = DefaultModelConfig.from_any({"fcnet_hiddens": [32], "vf_share_layers": True})
    assert config == DefaultModelConfig(fcnet_hiddens=(32,), vf_share_layers=True)
    assert DefaultModelConfig.from_any(None) == DefaultModelConfig.from_any({}) == DefaultModelConfig()
    assert DefaultModelConfig.from_any(config) is config


def test_an_unknown_key_names_the_closest() -> None:
    with pytest.raises(ValueError, match=r"model_config\['fcnet_hidens'\].*Did you mean 'fcnet_hiddens'\?"):
        DefaultModelConfig.from_any({"fcnet_hidens": [64]})


@pytest.mark.parametrize("value", [3, [64, 64], "fcnet_hiddens"])
def test_another_kind_of_config_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="model_config: expected a DefaultModelConfig or a dict"):
        DefaultModelConfig.from_any(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fcnet_hiddens", 64),
        ("fcnet_hiddens", [64, 0]),
        ("fcnet_hiddens", [64, 1.5]),
        ("fcnet_hiddens", [True]),
        ("head_fcnet_hiddens", "64"),
        ("fcnet_activation", None),
        ("fcnet_activation", "rellu"),
        ("head_fcnet_activation", "GLU"),
        ("fcnet_use_layernorm", 1),
        ("fcnet_kernel_initializer", 3),
        ("fcnet_kernel_initializer", "orthogonal"),
        ("fcnet_kernel_initializer_kwargs", [1]),
        ("fcnet_bias_initializer", "zero_"),
        ("free_log_std", None),
        ("log_std_clip_param", 0),
        ("log_std_clip_param", math.nan),
        ("log_std_clip_param", math.inf),
        ("log_std_clip_param", True),
        ("vf_share_layers", "yes"),
        ("normalize_observations", 1),
        ("normalize_values", None),
        ("normalize_actions", "no"),
    ],
)
def test_a_wrong_value_names_its_setting(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"model_config\.{name}: expected .*, got "):
        DefaultModelConfig(**{name: value})


def test_keywords_without_an_initializer_are_not_ignored() -> None:
    with pytest.raises(ValueError, match=r"model_config\.fcnet_kernel_initializer_kwargs: expected no keywords"):
        DefaultModelConfig(fcnet_kernel_initializer=None, fcnet_kernel_initializer_kwargs={"gain": 2.0})


def test_settings_cannot_be_changed_in_place() -> None:
    config = DefaultModelConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.free_log_std = False  # type: ignore[misc]
    widths = [8]
    config = DefaultModelConfig(fcnet_hiddens=widths)  # type: ignore[arg-type]
    widths.append(9)
    assert config.fcnet_hiddens == (8,)


def test_every_setting_says_what_it_is() -> None:
    assert all(item.doc for item in settings_of(DefaultModelConfig).values())


@pytest.mark.parametrize(
    "initializer", ["xavier_uniform_", "kaiming_normal_", "normal_", "zeros_", None, nn.init.ones_]
)
def test_any_initializer_works_without_keywords(initializer: Any) -> None:
    config = DefaultModelConfig(fcnet_kernel_initializer=initializer)
    Init.of("fcnet", config).apply(nn.Linear(4, 4))


def test_the_default_start_is_orthogonal_with_gain_root_two_and_no_bias() -> None:
    layer = nn.Linear(5, 3)
    Init.of("fcnet", DefaultModelConfig()).apply(layer)
    # rows are orthogonal, of squared length 2
    torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * torch.eye(3), atol=1e-5, rtol=0)
    assert layer.bias.tolist() == [0, 0, 0]


def test_keywords_reach_the_initializer() -> None:
    layer = nn.Linear(2, 2)
    settings = {"fcnet_kernel_initializer": "constant_", "fcnet_kernel_initializer_kwargs": {"val": 0.5}}
    settings |= {"fcnet_bias_initializer": "constant_", "fcnet_bias_initializer_kwargs": {"val": -1.0}}
    Init.of("fcnet", DefaultModelConfig.from_any(settings)).apply(layer)
    assert layer.weight.unique().tolist() == [0.5]
    assert layer.bias.tolist() == [-1, -1]


@pytest.mark.parametrize("name", ["relu", "Tanh", "swish", "SiLU", "LeakyReLU", "Softplus", "Softmax"])
def test_activations_have_torch_s_values(name: str) -> None:
    x = torch.linspace(-2, 2, 30).reshape(2, 3, 5)
    module = {"relu": nn.ReLU, "swish": nn.SiLU, "Softmax": lambda: nn.Softmax(-1)}.get(name) or getattr(nn, name)
    function = activation_by_name(name)
    assert function is not None
    torch.testing.assert_close(function(x), module()(x))


def test_linear_is_no_activation_and_none_no_initializer() -> None:
    assert activation_by_name("linear") is None
    assert initializer_by_name(None) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"use_gru": True, "functions": {"x": {"output_dim": 1, "trunk": "own", "lstm_cell_size": 3}}},
            "has no memory",
        ),
        ({"use_gru": True, "leaf_overrides": {"a": {"lstm_cell_size": 8}}}, "It cannot differ by part or function"),
    ],
)
def test_settings_of_a_memory_are_refused_where_there_can_be_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DefaultModelConfig(**given)


XAVIER = {"lstm_kernel_initializer": "xavier_uniform_", "lstm_kernel_initializer_kwargs": {"gain": 2.0}}
ROWS = {"matrix_observations": "sequence", "lstm_bias_initializer": None, **XAVIER}


def test_the_start_of_recurrent_weights_is_also_that_of_a_net_of_rows() -> None:
    DefaultModelConfig(leaf_overrides={"a": ROWS}, functions={"x": {"output_dim": 1, "trunk": "own", **ROWS}})
    behind = DefaultModelConfig(matrix_observations="sequence", use_gru=True, leaf_overrides={"a": XAVIER})
    assert behind.at_leaf("a").lstm_kernel_initializer == "xavier_uniform_"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"use_gru": True, "leaf_overrides": {"a": XAVIER}}, "It cannot differ by part or function"),
        ({**ROWS, "leaf_overrides": {"a": {"matrix_observations": "image", **XAVIER}}}, "It cannot differ by part"),
        ({**ROWS, "leaf_overrides": {"a": {"lstm_cell_size": 3}}}, "It cannot differ by part or function"),
    ],
)
def test_only_the_start_is_and_only_there(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DefaultModelConfig(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"functions": {"x": {"fcnet_dropout": 2}}},
            "functions['x'], fcnet_dropout: expected finite float, >= 0 and < 1, got 2.0.",
        ),
        (
            {"leaf_overrides": {"a.b": {"fcnet_activation": "rellu"}}},
            "leaf_overrides['a.b'], fcnet_activation: expected 'linear', or",
        ),
        ({"functions": {"x": {"use_lstm": True, "use_gru": True}}}, "functions['x'], use_gru: expected False, since "),
        (
            {"functions": {"x": {"leaf_overrides": {"a": {"fcnet_hiddens": 3}}}}},
            "functions['x'], leaf_overrides['a'], fcnet_hiddens: expected tuple[int, ...], >= 1, got 3",
        ),
    ],
)
def test_a_wrong_value_for_a_part_or_a_function_is_told_with_its_path(given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(f'model_config.{message}')}"):
        DefaultModelConfig(**given)


def test_a_function_may_turn_the_memory_off() -> None:
    whole = DefaultModelConfig(use_lstm=True, functions={"policy": {"use_lstm": False}})
    assert whole.for_function("policy") == whole.without_memory() == DefaultModelConfig()
    assert whole.for_function("value") == whole


class Wide(DefaultModelConfig):
    """Another default of a setting that does nothing alone."""

    lstm_cell_size = 128


def test_only_what_an_instance_was_given_is_taken_over() -> None:
    given = DefaultModelConfig(lstm_cell_size=64, lstm_num_layers=2)
    for config in (given, copy.deepcopy(given), pickle.loads(pickle.dumps(given)), given.given()):
        wide = Wide.from_any(config)
        assert (wide.lstm_cell_size, wide.lstm_num_layers) == (64, 2)
    assert Wide.from_any(DefaultModelConfig()).lstm_cell_size == 128
    assert Wide.from_any(dataclasses.replace(DefaultModelConfig(), lstm_num_layers=2)).lstm_cell_size == 128


class Plain(DefaultModelConfig):
    """Other defaults, and fields of its own of which nothing is said."""

    fcnet_hiddens: tuple[int, ...] = (128,)
    use_lstm = True
    gate_initializer: str | None = None
    gate_activation: str | None = None


def test_another_default_leaves_a_setting_what_it_is() -> None:
    config = Plain(functions={"value": {"fcnet_hiddens": [16]}}, leaf_overrides={"a": {"fcnet_hiddens": [8]}})
    assert config.for_function("value").fcnet_hiddens == (16,)
    assert config.at_leaf("a").encoder_settings()["fcnet_hiddens"] == (8,)
    for given in ({"use_lstm": "no"}, {"fcnet_hiddens": 3}, {"functions": {"value": {"fcnet_hiddens": 3}}}):
        with pytest.raises(TypeError, match=r"(use_lstm|fcnet_hiddens): expected (bool|tuple\[int, ...\], >= 1), got"):
            Plain(**given)


def test_plain_fields_of_ones_own_may_be_called_anything_and_hold_anything() -> None:
    assert Plain().gate_initializer is Plain().gate_activation is None
    assert Plain(gate_initializer="mine", gate_activation="mine").gate_activation == "mine"


class Gated(DefaultModelConfig):
    """Settings of its own."""

    gate_start: Initializer = setting(None, "Start of the gate.")
    gate_start_kwargs: dict[str, Any] | None = setting(None, "Keywords for gate_start; None means none.")


def test_settings_of_ones_own_are_checked_like_the_others() -> None:
    assert Gated(gate_start="zeros_", gate_start_kwargs={"a": 1}).gate_start_kwargs == {"a": 1}
    with pytest.raises(ValueError, match=r"gate_start: expected the name of an in-place .* Did you mean 'zeros_'\?"):
        Gated(gate_start="zero_")
    with pytest.raises(ValueError, match="gate_start_kwargs: expected no keywords, since gate_start is None, got"):
        Gated(gate_start_kwargs={"a": 1})


SCRIPT = """
from __future__ import annotations

import subprocess
import sys
from typing import Literal

import cloudpickle

from catalog import DefaultModelConfig
from catalog.settings import setting


class Twisted(DefaultModelConfig):
    way: Literal["left", "right"] = setting("left", "Which way to twist.")


read = "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)))"
subprocess.run([sys.executable, "-c", read], input=cloudpickle.dumps(Twisted(way="right")), check=True)
"""


def test_settings_of_a_script_are_known_where_they_are_sent() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "Twisted(way='right')", done.stderr
