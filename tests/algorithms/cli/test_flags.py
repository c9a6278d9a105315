"""Every setting is a flag: what is typed arrives, and the help describes it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import gymnasium as gym
import pytest
import torch
from gymnasium import spaces

from algorithms import League
from algorithms.cli import main
from algorithms.cli.exits import UsageError
from algorithms.cli.flags import SpecFlags, hint_for
from algorithms.cli.main import COMMANDS, function_of
from algorithms.cli.one_run import TrainFlags
from algorithms.cli.train import train_plan
from algorithms.cli.values import environment, read
from algorithms.config import AlgorithmConfig
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.run.callbacks import CALLBACKS
from catalog import DefaultModelConfig
from catalog.checks import Bounds, is_schedule
from catalog.settings import settings_of
from catalog_rl import remedies
from rlmodule import RLModuleSpec

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from algorithms import loggers, ppo
from algorithms.run import callbacks

gymnasium.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
gymnasium.register("Both", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
class Both(CartPoleEnv): ...
class Env(CartPoleEnv): ...
class Learner(ppo.PPOLearner): ...
class Catalog(ppo.PPOCatalog): ...
class Module(ppo.PPOModule): ...
class Listener(callbacks.Callbacks): ...
class Factories:
    @staticmethod
    def env(env_config): return CartPoleEnv()
def log(run): ...
def listen(**arguments): ...
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module ``things_of_mine``, in the current folder of a shell."""
    (tmp_path / "things_of_mine.py").write_text(MODULE)
    (tmp_path / "broken_one.py").write_text("raise KeyError('of mine')")
    registered = dict(gym.registry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("things_of_mine")
    del sys.modules["things_of_mine"]
    gym.registry.clear()
    gym.registry.update(registered)


def config_of(*args: str) -> AlgorithmConfig:
    return train_plan(args).config


def flag(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")


def another(hint: Any, bounds: Bounds, default: Any) -> Any:
    """A value that fits ``hint`` and is not the default; None if it is none of numbers, texts and containers."""
    if is_schedule(hint):
        return [[0, 0.5], [1000, 0.25]]
    if get_origin(hint) is Literal:
        return next((choice for choice in get_args(hint) if choice != default), None)
    if get_origin(hint) in (dict, list, tuple) or "Mapping" in str(get_origin(hint)):
        return {dict: {"gain": 2}, list: [7, 8], tuple: (7, 8)}.get(get_origin(hint), {"gain": 2})
    if get_args(hint):
        inner = [another(part, bounds, default) for part in get_args(hint) if part is not NoneType]
        return next((value for value in inner if value is not None), None)
    if not isinstance(hint, type):
        return None
    candidates = {bool: [True, False], int: [2, 3, 0, 1], float: [0.5, 0.25], str: ["some/text"]}.get(hint, [])
    return next((value for value in candidates if value != default and (hint in (bool, str) or value in bounds)), None)


def typed(name: str, value: Any) -> list[str]:
    """A value as a user types it."""
    if isinstance(value, bool):
        return [flag(name) if value else flag(f"no-{name}")]
    if isinstance(value, tuple) and not isinstance(value[0], tuple) and name != "n_step":
        return [flag(name), *map(str, value)]
    return [flag(name), json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)]


# --- settings ---------------------------------------------------------------------------------------------------------

IMPORTED = {
    "learner_class": "Learner",
    "callbacks_class": "Listener",
    **dict.fromkeys(CALLBACKS, "listen"),
    "her_reward_fn": "listen",
    **dict.fromkeys(("policy_mapping_fn", "evaluation_policy_mapping_fn", "policies_to_train"), "listen"),
}
"""Settings that are code → a name in ``things_of_mine`` that fits."""


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_every_setting_can_be_given_and_arrives(algo: str, mine: Any) -> None:
    config_type = config_class(algo)
    default, args, expected = config_type(), [], {}
    for name, known in settings_of(config_type).items():
        value: Any = another(known.hint, known.bounds, vars(default)[name])
        if name == "policy_overrides":
            value = {"a": {"gamma": 0.5}}
        if name == "shared_parts":
            value = {"trunk": "encoder"}
        if name == "loggers":
            args, value = [*args, "--loggers", "csv", "things_of_mine:log"], ["csv", mine.log]
        elif name in IMPORTED:
            args, value = [*args, flag(name), f"things_of_mine:{IMPORTED[name]}"], vars(mine)[IMPORTED[name]]
        elif name not in ("env", "model_config", "rl_module_spec", "league"):
            assert value is not None, name
            args += typed(name, value)
        if name not in ("env", "model_config", "rl_module_spec"):
            expected[name] = value
    expected["league"], args = League(every=2), [*args, "--league", '{"every": 2}']
    assert {"lr", "seed", "run_dir", "env_config", "grad_clip", "evaluation_explore", "on_checkpoint"} <= {*expected}
    if algo == "DQN":  # what derives from PPOLearner is a Learner, and that is all that the setting asks
        assert expected["prioritized_replay"] is True
    config = config_of(algo, "CartPole-v1", "--preset", "none", *args)
    assert {name: vars(config)[name] for name in expected} == expected
    untouched = settings_of(config_type).keys() - expected.keys() - {"env"}
    assert {name: vars(config)[name] for name in untouched} == {name: vars(default)[name] for name in untouched}


NAMES: dict[str, Any] = {  # what a model setting accepts cannot be distinguished from `str` and `Mapping`
    "fcnet_hiddens": (8, 8),  # which residual blocks need
    "fcnet_norm": "layer",
    "fcnet_dropout": 0.25,
    "leaf_overrides": {"camera": {"conv_filters": "nature"}},
    "conv_filters": ((8, 4, 2, "valid"), (16, 3, 1)),
    "functions": {"value": {"fcnet_hiddens": [9, 9]}},
    "custom_action_dist": "SquashedGaussian",
    "action_mask_key": "legal",
    "critic_only_keys": ("state", "goal"),
    "custom_model": "torch.nn:Identity",
    "custom_model_config": {"width": 3},
}
BY_ENDING = {"_activation": "relu", "_initializer": "uniform_", "_initializer_kwargs": {"a": 0.5}}


@pytest.mark.parametrize("memory", ["lstm", "attention"])
def test_every_model_setting_can_be_given_and_arrives(memory: str) -> None:
    hints, default, args, expected = get_type_hints(DefaultModelConfig), DefaultModelConfig(), [], {}
    memories = {f"use_{name}": name == memory for name in ("lstm", "gru", "attention")}
    left_out = ("lstm_cell", "lstm_num", "lstm_kernel", "lstm_bias") if memory == "attention" else ("attention_",)
    for item in dataclasses.fields(DefaultModelConfig):
        if item.name.startswith(left_out):  # which the other memory reads
            expected[item.name] = vars(default)[item.name]
            continue
        hint, before = hints[item.name], vars(default)[item.name]
        value = not before if bool in (hint, *get_args(hint)) else another(hint, Bounds(), before)
        value = next((known for ending, known in BY_ENDING.items() if item.name.endswith(ending)), value)
        value = {**NAMES, **memories}.get(item.name, value)
        assert value is not None, item.name
        args += typed(item.name, value)
        expected[item.name] = value
    config = config_of("ppo", "CartPole-v1", *args)
    expected["custom_model"] = torch.nn.Identity
    assert len(expected) > 45
    assert isinstance(config.model_config, DefaultModelConfig)
    assert {name: getattr(config.model_config, name) for name in expected} == expected


def test_the_classes_of_the_module_are_flags(mine: Any) -> None:
    args = ["--catalog-class", "things_of_mine:Catalog", "--module-class", "things_of_mine:Module"]
    spec = RLModuleSpec(module_class=mine.Module, catalog_class=mine.Catalog)
    assert config_of("ppo", "CartPole-v1", *args).rl_module_spec == spec
    assert config_of("ppo", "CartPole-v1", *args[:2]).rl_module_spec == RLModuleSpec(catalog_class=mine.Catalog)
    assert config_of("ppo", "CartPole-v1").rl_module_spec is None


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["--lr", "1e-3"], "lr", 1e-3),
        (["--lr", ".5"], "lr", 0.5),
        (["--lr=[[0,3e-4],[1e6,0]]"], "lr", [[0.0, 3e-4], [1e6, 0.0]]),
        (["--lr", "[[0, 3e-4], [1_000_000, 0]]"], "lr", [[0.0, 3e-4], [1e6, 0.0]]),
        (["--env-config", '{"steps_1_0": 1_0, "id": "a_\\"1_0"}'], "env_config", {"steps_1_0": 10, "id": 'a_"1_0'}),
        (["--grad-clip", "None"], "grad_clip", None),
        (["--minibatch_size", "16"], "minibatch_size", 16),
        (["--train-batch-size-per-learner", "1_024"], "train_batch_size_per_learner", 1024),
        (["--lambda", "0.9"], "lambda_", 0.9),
        (["--env-config", '{"continuous": true}'], "env_config", {"continuous": True}),
        (["--no-use-kl-loss"], "use_kl_loss", False),
        (["--run-dir", "None"], "run_dir", None),
        (["--seed", "7"], "seed", 7),
        (["--train-batch-size-per-learner", "1e3"], "train_batch_size_per_learner", 1000),
        (["--loggers", "csv", "--quiet"], "loggers", ["csv"]),
        (["--policies", "own"], "policies", "own"),
        (["--policies", "left", "right"], "policies", ["left", "right"]),
        (["--policies", '["left", "right"]'], "policies", ["left", "right"]),
        (["--policies-to-train", "left"], "policies_to_train", ["left"]),
        (["--policies-to-train", "left", "right"], "policies_to_train", ["left", "right"]),
        (["--loggers", "None"], "loggers", None),
        (["--loggers", "csv", "jsonl"], "loggers", ["csv", "jsonl"]),
    ],
)
def test_spellings(args: list[str], name: str, value: Any) -> None:
    assert vars(config_of("ppo", "CartPole-v1", *args))[name] == value


@pytest.mark.parametrize("text", ["-150", "-1.5e2", "-.15e3"])
def test_a_value_may_be_a_negative_number(text: str) -> None:
    assert train_plan(["ppo", "Pendulum-v1", "--target-return", text]).flags.target_return == -150.0
    assert train_plan(["ppo", "Pendulum-v1", f"--target-return={text}"]).flags.target_return == -150.0


def test_a_value_after_an_equals_sign_may_begin_like_a_flag() -> None:
    assert train_plan(["ppo", "Pendulum-v1", "--run_dir=--my_runs"]).config.run_dir == "--my_runs"


def test_two_dashes_end_a_list() -> None:
    config = config_of("ppo", "--loggers", "csv", "--", "CartPole-v1")
    assert (config.loggers, config.env) == (["csv"], "CartPole-v1")


def test_model_flags_build_the_model_config() -> None:
    config = config_of("ppo", "CartPole-v1", "--fcnet-hiddens", "32", "16", "--no-vf-share-layers")
    assert config.model_config == DefaultModelConfig(fcnet_hiddens=(32, 16), vf_share_layers=False)


def test_the_nets_of_an_algorithm_keep_its_own_defaults() -> None:
    config = config_of("dqn", "CartPole-v1", "--fcnet-use-layernorm", "--dueling")
    model_config = config.get_rl_module_spec(spaces.Box(-1, 1, (4,)), spaces.Discrete(2)).model_config
    assert (model_config.fcnet_use_layernorm, model_config.dueling) == (True, True)
    assert (model_config.fcnet_hiddens, model_config.fcnet_activation) == ((256, 256), "relu")
    assert model_config.fcnet_kernel_initializer is None
    other = config_of("ppo", "CartPole-v1", "--fcnet-use-layernorm")
    assert DefaultModelConfig.from_any(other.model_config).fcnet_hiddens == (64, 64)


def test_hints_to_users_of_other_libraries_name_flags_there_are() -> None:
    known = {
        flag(name)
        for config in map(config_class, ALGORITHMS)
        for name in (
            *settings_of(config),
            *(item.name for item in dataclasses.fields(DefaultModelConfig)),
            *settings_of(TrainFlags),
        )
    }
    for name in {*remedies()["setting"], *remedies()["flag"]} - {*settings_of(SpecFlags)}:
        hint = hint_for(flag(name), known)
        assert hint, name
        assert "=..." not in hint
        assert {*re.findall(r"--[a-z][a-z-]*", hint)} <= known, hint
    assert hint_for("--n-envs", known) == " Use --num-envs-per-env-runner."
    assert hint_for("--total-timesteps", known) == " Use --num-env-steps."
    assert hint_for("--gama", known) == " Did you mean '--gamma'?"
    assert hint_for("--zzz", known) == hint_for("--x", known) == ""
    assert hint_for("--n-envs", ["--episodes"]) == ""


# --- presets ----------------------------------------------------------------------------------------------------------


def test_without_flags_the_config_is_the_default() -> None:
    plan = train_plan(["PPO", "MountainCar-v0"])
    assert plan.config.update({"run_dir": None}) == PPOConfig().environment("MountainCar-v0")
    assert (plan.amount, plan.flags.target_return, plan.seeds) == (200_000, None, ())
    assert plan.begun_with == "the defaults of PPO"


def test_the_preset_of_the_env_is_what_flags_begin_with() -> None:
    preset = DQNConfig.presets["MountainCar-v0"]
    plan = train_plan(["dqn", "MountainCar-v0"])
    assert plan.config.update({"run_dir": None}) == DQNConfig.preset("MountainCar-v0")
    assert plan.amount == preset.num_env_steps == 150_000
    assert plan.begun_with.startswith("the preset of MountainCar-v0: 10 settings of its own reached -99")
    # 3 is the default of n_step, and still wins over the preset's 1 where it is typed
    plan = train_plan(["dqn", "--n-step", "3", "--num-env-steps", "9_000", "MountainCar-v0"])
    assert plan.config.update({"run_dir": None}) == DQNConfig.preset("MountainCar-v0").training(n_step=3)
    assert plan.amount == 9000


def test_a_preset_can_be_chosen_or_left_out() -> None:
    plan = train_plan(["dqn", "MountainCar-v0", "--preset", "none"])
    assert plan.config.update({"run_dir": None}) == DQNConfig().environment("MountainCar-v0")
    assert (plan.amount, plan.begun_with) == (200_000, "the defaults of DQN")
    plan = train_plan(["dqn", "Acrobot-v1", "--preset", "MountainCar-v0"])
    expected = DQNConfig.preset("MountainCar-v0").environment("Acrobot-v1")
    assert plan.config.update({"run_dir": None}) == expected


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "texts", "value"),
    [
        (int | None, ["None"], None),
        (int | tuple[int, int], ["[1, 5]"], [1, 5]),
        (int | tuple[int, int], ["5"], 5),
        (str | list[list[int]], ["nature"], "nature"),
        (str | list[list[int]], ["[[1, 2]]"], [[1, 2]]),
        (Literal["a", "b"] | None, ["b"], "b"),
        (list[int], [], []),
        (dict[str, Any], ['{"a": null}'], {"a": None}),
        (Callable[..., Any] | None, ["math:sqrt"], __import__("math").sqrt),
        (str | Callable[..., Any], ["math:sqrt"], __import__("math").sqrt),
        (str, ["math:sqrt"], "math:sqrt"),
    ],
)
def test_a_value_is_read_as_its_annotation_says(hint: Any, texts: Sequence[str], value: Any) -> None:
    found = read("--flag", hint, texts)
    assert found == value
    assert type(found) is type(value)


def test_an_env_is_an_id_a_class_or_a_factory(mine: Any) -> None:
    assert environment("CartPole-v1") == "CartPole-v1"
    assert environment("ALE/Pong-v5") == "ALE/Pong-v5"
    assert environment("things_of_mine:Mine-v0") == "things_of_mine:Mine-v0"
    assert (
        environment("things_of_mine:Both") == "things_of_mine:Both"
    )  # an id without a version; the class bears its name
    assert environment("things_of_mine:Env") is mine.Env
    assert environment("things_of_mine:Factories.env") is mine.Factories.env
    with pytest.raises(UsageError, match=r"got 'things_of_mine:Envv'.* Did you mean 'Env'\?"):
        environment("things_of_mine:Envv")
    with pytest.raises(UsageError, match="'nowhere_at_all', which raises ModuleNotFoundError"):
        environment("nowhere_at_all:Env-v0")
    with pytest.raises(UsageError, match=r"got './things_of_mine\.py', .* Type my_module:name, without \.py;"):
        environment("./things_of_mine.py:Env")
    with pytest.raises(UsageError, match="'broken_one', which raises KeyError: 'of mine'"):
        environment("broken_one:Env")


# --- help -------------------------------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a command prints, without line ends."""
    assert main(args) == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_shows_the_flags_of_the_command_and_names_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "ppo", "--help")
    own, settings = text.split("Settings are flags, too")
    names = ["num-env-steps", "target-return", "seed", "jobs", "run-dir", "preset", "load", "allow", "quiet", "debug"]
    assert [name for name in names if flag(name) not in own] == []
    assert "None takes those of the preset, or 200,000 without one. (>= 1) (default: None)" in own
    for name in (*settings_of(PPOConfig), *(item.name for item in dataclasses.fields(DefaultModelConfig))):
        if name not in ("env", "model_config", "rl_module_spec", "seed", "run_dir"):
            assert f"{flag(name)} " in f"{settings} ", name
    assert "GAE" not in text


def test_help_about_a_section_explains_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "ppo", "CartPole-v1", "--help", "training")
    assert "Lambda of GAE" in text
    assert "(>= 0 and <= 1) (default: 0.99)" in text
    assert "--fcnet-hiddens" not in text
    assert "--catalog-class type[Catalog] | None" in shown(capsys, "train", "dqn", "--help", "rl_module")


def test_help_about_all_shows_every_flag_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "ppo", "--help", "all")
    for name, known in settings_of(PPOConfig).items():
        if name not in ("env", "model_config", "rl_module_spec", "seed", "run_dir"):
            assert f"{flag(name)} " in text or f"{flag(name)}, " in text, name
            assert " ".join(known.doc.split()[:5]) in text
    for item in dataclasses.fields(DefaultModelConfig):
        assert f"{flag(item.name)} " in text or f"{flag(item.name)}, " in text
    for section in ("environment", "env-runners", "training", "evaluation", "reporting", "rl-module", "model"):
        assert f"{section} options" in text


@pytest.mark.parametrize("args", [["--help"], ["-h"]])
def test_overview_lists_commands_and_algorithms(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 0
    text = capsys.readouterr().out
    for name, (arguments, purpose, _) in COMMANDS.items():
        assert f"  rlmodule {name} {arguments}\n      {purpose}\n" in text
        assert callable(function_of(name))
    assert "impala, iql, marwil, ppo" in text
    assert max(map(len, text.splitlines())) <= 80


def test_help_without_an_algorithm_says_whose_settings_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "--help")
    assert "--num-env-steps int | None Steps to sample" in text
    assert "`rlmodule train dqn --help`" in text


def test_help_explains_one_setting(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["ppo", "--help", "lr"], ["ppo", "CartPole-v1", "--help", "--lr"]):
        text = shown(capsys, "train", *args)
        assert "--lr float | [[0, value], [env_step, value], ...] Learning rate" in text
        assert "(>= 0) (default: 0.0003)" in text
        assert "--gamma" not in text
    assert "--use-kl-loss Whether" in (text := shown(capsys, "train", "ppo", "--help", "use_kl_loss"))
    assert text.endswith("(default: False) --no-use-kl-loss")
    assert "(double Q-learning)" in shown(capsys, "train", "dqn", "--help", "double_q")
    assert "--fcnet-hiddens [int ...]" in shown(capsys, "explain", "--help", "fcnet-hiddens")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--version").startswith(f"catalog-rl {version('catalog-rl')}, Python ")


def test_without_a_command_the_overview_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "rlmodule train ALGO ENV" in capsys.readouterr().out
