"""Checkpoints that somebody else wrote: whatever they name, nothing of it is run, and an error names the place."""

import dataclasses
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import algorithms
import catalog
import rlmodule
from algorithms import Algorithm
from algorithms.cli.main import main
from algorithms.loggers import Logger
from algorithms.ppo import PPOConfig
from algorithms.run.callbacks import Callbacks
from catalog import Catalog, DefaultModelConfig, Distribution
from rlmodule import RLModuleSpec
from tests.algorithms.settings.test_config import reads_well
from tests.checkpoints import rewrite

TINY: dict[str, Any] = {"num_envs_per_env_runner": 1, "train_batch_size_per_learner": 4, "minibatch_size": 4, "seed": 1}


def own_callables() -> Iterator[tuple[str, Any]]:
    """Every class and function that our packages define, and methods of each class, by import path."""
    for package in (catalog, rlmodule, algorithms):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for thing in vars(importlib.import_module(found.name)).values():
                if isinstance(thing, type | FunctionType) and thing.__module__ == found.name:
                    yield f"{found.name}:{thing.__qualname__}", thing
                    methods = vars(thing).items() if isinstance(thing, type) else ()
                    for name, method in [each for each in methods if isinstance(each[1], FunctionType)][:1]:
                        yield f"{found.name}:{thing.__qualname__}.{name}", method


OWN = dict(own_callables())


def spec(**fields: Any) -> dict[str, Any]:
    return {"rl_module_spec": {"__dataclass__": "rlmodule.modules.spec:RLModuleSpec", "fields": fields}}


def net(name: str, value: Any) -> Callable[..., dict[str, Any]]:
    return lambda form: {"model_config": {name: form if value is None else value(form)}}


# Where a file may put an object: the config with it, the setting as errors name it, and the kind that is meant.
PLACES: dict[str, tuple[Callable[[Any], dict[str, Any]], type | None]] = {
    "env": (lambda form: {"env": form}, None),
    "env_config.x": (lambda form: {"env_config": {"x": form}}, None),
    "learner_class": (lambda form: {"learner_class": form}, rlmodule.Learner),
    "callbacks_class": (lambda form: {"callbacks_class": form}, Callbacks),
    "on_train_result": (lambda form: {"on_train_result": form}, None),
    "loggers": (lambda form: {"loggers": [form]}, Logger),
    "lr": (lambda form: {"lr": form}, None),
    "model_config": (lambda form: {"model_config": form}, None),
    "model_config.fcnet_activation": (net("fcnet_activation", None), None),
    "model_config.fcnet_kernel_initializer": (net("fcnet_kernel_initializer", None), None),
    "model_config.custom_model": (net("custom_model", None), None),
    "model_config.custom_model_config.x": (net("custom_model_config", lambda form: {"x": form}), None),
    "model_config.custom_action_dist": (net("custom_action_dist", None), Distribution),
    "model_config.custom_action_dist.a": (net("custom_action_dist", lambda form: {"a": form}), Distribution),
    "model_config.leaf_overrides.a.conv_activation": (
        net("leaf_overrides", lambda form: {"__items__": [["a", {"conv_activation": form}]]}),
        None,
    ),
    "rl_module_spec": (lambda form: {"rl_module_spec": form}, None),
    "rl_module_spec.module_class": (lambda form: spec(module_class=form), rlmodule.RLModule),
    "rl_module_spec.catalog_class": (lambda form: spec(catalog_class=form), Catalog),
    "rl_module_spec.observation_space": (lambda form: spec(observation_space=form), None),
    "rl_module_spec.model_config.custom_model": (lambda form: spec(model_config={"custom_model": form}), None),
}
DATACLASSES: dict[str, type] = {"model_config": DefaultModelConfig, "rl_module_spec": RLModuleSpec}
READING = (
    "rlmodule/encoding.py",
    "algorithms/settings/base.py",
    "catalog/settings.py",
    "algorithms/config.py",
    "algorithms/multi_agent_config.py",
)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_ours_is_neither_called_nor_kept_where_another_kind_is_meant(place: str) -> None:
    config_with, kind = PLACES[place]
    PPOConfig.from_dict({}, allow=[])
    roots = tuple(f"{package.__path__[0]}/" for package in (catalog, rlmodule, algorithms))
    called: set[tuple[str, str]] = set()
    kept: list[str] = []
    vague: list[str] = []
    sys.setprofile(lambda frame, event, _: called.add((frame.f_code.co_filename, frame.f_code.co_name)))
    try:
        for path, thing in OWN.items():
            forms: list[tuple[dict[str, Any], type | None]] = [({"__import__": path}, kind)]
            if dataclasses.is_dataclass(thing):
                forms.append(({"__dataclass__": path, "fields": {}}, DATACLASSES.get(place)))
            for form, meant in forms:
                if isinstance(thing, type) and meant is not None and issubclass(thing, meant):
                    continue
                try:
                    PPOConfig.from_dict(config_with(form), allow=[])
                    kept.append(path)
                except ValueError as error:
                    if not str(error).startswith(f"PPOConfig.{place}: expected "):
                        vague.append(str(error))
    finally:
        sys.setprofile(None)
    assert (kept, vague) == ([], [])
    ours = {(file, name) for file, name in called if file.startswith(roots) and not file.endswith(READING)}
    assert ours <= {
        (f"{catalog.__path__[0]}/hooks.py", "explain_unknown"),  # when the class is looked at
        (f"{catalog.__path__[0]}/checks.py", "union_members"),  # of the annotation of a setting
    }


KINDS = {place: kind for place, (_, kind) in PLACES.items() if kind is not None}


@pytest.mark.parametrize("place", KINDS)
def test_what_is_allowed_has_to_be_of_the_kind_that_is_meant_too(place: str) -> None:
    with pytest.raises(ValueError, match=rf"PPOConfig\.{place}: expected a class derived from") as caught:
        PPOConfig.from_dict(PLACES[place][0]({"__import__": f"{__name__}:Called"}), allow=[__name__])
    assert reads_well(caught.value)


class Called:
    """Of no kind, and must not be called."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("called")


@pytest.mark.parametrize("name", ["env", "loggers", "model_config.fcnet_activation", "model_config.custom_model"])
def test_an_allowed_class_of_another_kind_is_refused_before_it_is_called(name: str) -> None:
    with pytest.raises(ValueError, match=rf"PPOConfig\.{name}: expected a class derived from"):
        PPOConfig.from_dict(PLACES[name][0]({"__import__": f"{__name__}:Called"}), allow=[__name__])


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A checkpoint whose env is the command line itself, with arguments that would make a file."""
    monkeypatch.chdir(tmp_path)
    with PPOConfig(env="CartPole-v1", **TINY).build() as algorithm:
        algorithm.save("c")
    made = tmp_path / "made"
    words = {"train": 0, "ppo": 0, "subprocess:check_call": 0, "--env-config": 0}
    words[json.dumps({"touch": 0, str(made): 0})] = 0
    settings = {"env": {"__import__": "algorithms.cli.main:main"}, "env_config": words}
    rewrite(Path("c"), lambda content: content["config"].update(settings))
    yield "c", made
    assert not made.exists()


def test_a_checkpoint_runs_no_program(hostile: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = hostile
    with pytest.raises(
        ValueError, match=r"PPOConfig\.env: expected an import path that you allow, got 'algorithms\.cli"
    ):
        Algorithm.from_checkpoint(path)
    for command in (["evaluate", path], ["train", "--load", path]):
        assert main(command) == 1
        assert "PPOConfig.env: expected an import path that you allow" in capsys.readouterr().err
    assert main(["inspect", path]) == 0
    with Algorithm.from_checkpoint(path, env="CartPole-v1", env_config={}) as algorithm:
        assert algorithm.config.env == "CartPole-v1"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of a module that leaves a trace if it, or a package around it, is imported."""
    trace = tmp_path / "trace"
    for folder in ("downloads", "downloads/team"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(f"open({str(trace)!r}, 'a').close()")
    (tmp_path / "downloads" / "team" / "planted.py").write_text(f"open({str(trace)!r}, 'a').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "downloads.team.planted"
    for module in [name for name in sys.modules if name.startswith("downloads")]:
        del sys.modules[module]  # so that the next test would import it again
    assert not trace.exists()


@pytest.mark.parametrize("env", ["{}", "{}:Env-v0", "{}.missing", "mpe2.{}_v0", "pettingzoo.utils.env", "json.tool"])
def test_an_env_that_a_file_names_is_not_imported(
    planted: str, env: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with PPOConfig(env="CartPole-v1", **TINY).build() as algorithm:
        algorithm.save("c")
    name = env.format(planted)
    rewrite(Path("c"), lambda content: content["config"].update(env=name))
    loaded = {*sys.modules}
    policies = {"policies": ["a"], "policy_mapping_fn": {"x": "a"}}
    for given in ({}, {"env_config": {"x": 1}}, policies):
        with pytest.raises(ValueError, match=r"PPOConfig\.env: expected an import path that you allow") as caught:
            Algorithm.from_checkpoint("c", **given)
        assert repr(name.partition(":")[0]) in str(caught.value)  # in allow=[...]
    for command in (["evaluate", "c"], ["train", "--load", "c"], ["export", "c", "c.onnx"]):
        main(command)
    assert not [module for module in {*sys.modules} - loaded if module.startswith(("downloads", "mpe2", "json.tool"))]


@pytest.mark.parametrize("part", ["fcnet_activation", "custom_model_config", "leaf_overrides"])
def test_a_distribution_is_not_imported_for_a_part_of_the_actions_that_is_called_like_a_setting(
    planted: str, part: str
) -> None:
    """A policy's file names the parts of its action space, too."""
    data = {"model_config": {"custom_action_dist": {part: f"{planted}:Distribution"}}}
    place = rf"PPOConfig\.model_config\.custom_action_dist\.{part}"
    with pytest.raises(ValueError, match=f"{place}: expected an import path that you allow"):
        PPOConfig.from_dict(data, allow=[])


def test_wording_an_error_of_an_unknown_env_imports_nothing(planted: str) -> None:
    """Also if the script itself names the env."""
    with pytest.raises(ValueError, match="expected a registered id, got an unknown one"):
        PPOConfig(env=planted).build()


@pytest.mark.parametrize("env", ["CartPole-v1", "mpe2.simple_spread_v3", "pettingzoo.classic.rps_v2", "classic/rps-v2"])
def test_a_file_may_name_registered_envs(env: str) -> None:
    assert PPOConfig.from_dict({"env": env}, allow=[]).env == env


def test_a_file_chooses_no_path_that_an_env_would_open() -> None:
    """MuJoCo opens ``xml_file``, for example. An env that the caller allows may do with its settings what it likes."""
    data = {"env": "HalfCheetah-v5", "env_config": {"xml_file": "/secret/model.xml", "ctrl_cost_weight": 0.1}}
    with pytest.raises(ValueError, match=r"expected a file path that you allow, got '/secret/model\.xml'") as caught:
        PPOConfig.from_dict(data, allow=[])
    assert "allow=['/secret/model.xml']" in str(caught.value)
    assert PPOConfig.from_dict(data, allow=["/secret/model.xml"]).env_config["xml_file"] == "/secret/model.xml"
    assert PPOConfig.from_dict({**data, "env": "mine:Env-v0"}, allow=["mine"]).env == "mine:Env-v0"
    for path in ("model.xml", "4x4"):
        assert PPOConfig.from_dict({**data, "env_config": {"xml_file": path}}, allow=[]).env_config["xml_file"] == path
    for path in ("../model.xml", "~model.xml", "..\\model.xml", "https://a.b/model.xml"):
        with pytest.raises(ValueError, match="expected a file path that you allow"):
            PPOConfig.from_dict({**data, "evaluation_env_config": {"deep": [path]}}, allow=["/secret/model.xml"])


def test_a_checkpoint_makes_no_folder_outside_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on in the run's folder that it lies in, wherever that was moved; in another only if asked to."""
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {"checkpoint_interval": 1, "evaluation_num_videos": 1, "loggers": ["jsonl"]}
    with PPOConfig(env="CartPole-v1", run_dir="run", **settings, **TINY).build() as algorithm:
        algorithm.config = algorithm.config.copy().update({"evaluation_num_videos": 0})
        algorithm.train()
        algorithm.config = algorithm.config.copy().update(settings)
        algorithm.save("alone")
    Path("run").rename("moved")
    with Algorithm.from_checkpoint("moved") as algorithm:
        assert algorithm.config.run_dir == str(tmp_path / "moved")
        algorithm.train()
    assert not caplog.messages
    before = sorted(tmp_path.rglob("*"))
    with Algorithm.from_checkpoint("alone") as algorithm:
        algorithm.evaluate(num_env_steps=2)
        assert not caplog.messages  # to act, no folder is missed
        algorithm.train()
        algorithm.train()
        algorithm.evaluate(num_env_steps=2)
    assert sorted(tmp_path.rglob("*")) == before
    (message,) = caplog.messages
    run = str(tmp_path / "run")
    assert message.startswith(f"alone names the run_dir {run!r}, but is not in it. Nothing is written there unless")
    with pytest.raises(ValueError, match=r"checkpoint_interval: expected None, since there is no run_dir .* got 3"):
        Algorithm.from_checkpoint("alone", checkpoint_interval=3)
    with Algorithm.from_checkpoint("moved", run_dir=None) as algorithm:
        algorithm.train()
    assert sorted(tmp_path.rglob("*")) == before
    with Algorithm.from_checkpoint("alone", run_dir="other", evaluation_num_videos=0) as algorithm:
        algorithm.train()
    assert sorted(path.name for path in Path("other").iterdir()) == [
        ".lock",
        "checkpoint",
        "progress.jsonl",
        "run.json",
    ]
