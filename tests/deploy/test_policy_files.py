"""Policies as folders: what is in them, what is refused, and that a stranger's runs nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from catalog import DiagGaussian
from rlmodule import MultiRLModuleSpec, Policy, RLModuleSpec
from rlmodule.sealed_folder import read_folder, write_folder
from rlmodule.testing.data import differences

OBS = spaces.Dict({"arm": spaces.Box(-1, 1, (3,)), "mode": spaces.Discrete(2)})


class Own(PPOModule):
    """A module that another program has to allow."""


class Wide(DiagGaussian):
    """A distribution that another program has to allow."""


class Net(nn.Linear):
    """A net with an option that is no size of a layer."""

    def __init__(self, space: spaces.Box, num_steps: int) -> None:
        super().__init__(space.shape[0], 4)
        self.num_steps = num_steps


def policy_of(cls: type[PPOModule] = PPOModule, obs: spaces.Space = OBS, **model: Any) -> Policy:
    settings = {"fcnet_hiddens": [8], **model}
    return Policy(
        cls(
            observation_space=obs, action_space=spaces.Box(-2, 3, (2,)), model_config=settings, catalog_class=PPOCatalog
        )
    )


def rewritten(folder: Path, content: Any) -> None:
    """Replace ``policy.json``, and seal the folder again."""
    files = {name: bytes(file) for name, file in read_folder(folder, "policy").items()}
    write_folder(folder, "policy", {**files, "policy.json": json.dumps(content).encode()})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return policy_of().save(tmp_path / "policy")


def test_a_policy_is_loaded_without_what_only_learning_needs(tmp_path: Path) -> None:
    policy = policy_of(functions={"value": {"fcnet_hiddens": [64]}}, normalize_values=True)
    loaded = Policy.load(policy.save(tmp_path / "policy"))
    assert type(loaded.module) is PPOModule
    assert loaded.module.inference_only
    assert differences(policy.module.get_state(inference_only=True), loaded.module.get_state()) == []
    assert loaded.module.observation_space == OBS
    again = Policy.load(loaded.save(tmp_path / "again"))
    obs = {"arm": np.ones(3, np.float32), "mode": 1}
    for one in (loaded, again):
        assert np.array_equal(policy.act(obs)[0], one.act(obs)[0])


def test_building_leaves_the_global_generator_alone(folder: Path) -> None:
    before = torch.random.get_rng_state()
    Policy.load(folder)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_checkpoints_and_runs_are_loaded_with_their_weights(tmp_path: Path) -> None:
    config = PPOConfig(env="CartPole-v1", seed=1).training(train_batch_size_per_learner=16, minibatch_size=8)
    with config.rl_module(model_config={"fcnet_hiddens": [8]}).build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "run" / "checkpoint")
        state = {name: x.clone() for name, x in algorithm.get_module().get_state(inference_only=True).items()}
        for path in (tmp_path / "run", tmp_path / "run" / "checkpoint"):
            assert differences(Policy.load(path).module.get_state(), state) == []
        with pytest.raises(ValueError, match=r"one of its modules, 'default_policy', got 'other'\. Pass module_id="):
            Policy.load(tmp_path / "run", module_id="other")
        algorithm.get_module().state_dict()["pi_head.linears.0.bias"].add_(1)
        algorithm.save(tmp_path / "run" / "best_checkpoint")
        assert differences(Policy.load(tmp_path / "run").module.get_state(), state)


@pytest.mark.parametrize("change", [{"cls": Own}, {"custom_action_dist": Wide}])
def test_code_of_others_is_allowed_or_refused_by_name(change: dict[str, Any], tmp_path: Path) -> None:
    policy = policy_of(**change).save(tmp_path / "policy")
    with pytest.raises(ValueError, match=rf"got code of {__name__}\. If you trust it, pass allow=\['{__name__}'\]"):
        Policy.load(policy)
    Policy.load(policy, allow=[__name__])


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    class Hidden(DiagGaussian):
        """Of this function alone."""

    with pytest.raises(TypeError, match=r"save\(.*\): expected settings made of plain values.*Hidden"):
        policy_of(custom_action_dist=Hidden).save(tmp_path / "policy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="expected a new folder, an empty one or an earlier policy"):
        policy_of().save(tmp_path / "mine")
    clone = policy_of().save(tmp_path / "clone")
    (clone / ".git").mkdir()
    with pytest.raises(FileExistsError, match="expected a new folder, an empty one or an earlier policy"):
        policy_of().save(clone)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["clone", "mine"]
    assert (clone / ".git").exists()


def test_an_earlier_policy_is_replaced(folder: Path) -> None:
    policy = policy_of(fcnet_hiddens=[4])
    assert policy.save(folder) == folder
    assert differences(Policy.load(folder).module.get_state(), policy.module.get_state(inference_only=True)) == []


def flip(file: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / file).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / file).write_bytes(content)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *map(flip, ["policy.json", "policy.safetensors", "manifest.json"]),
        lambda folder: (folder / "policy.safetensors").unlink(),
        lambda folder: (folder / "pickle.pkl").touch(),
    ],
)
def test_a_damaged_folder_is_refused(damage: Callable[[Path], None], folder: Path) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=r"Policy\.load\(.*\): expected a folder that policy\.save"):
        Policy.load(folder)


def test_nothing_to_load_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Policy\.load\(.*\): expected a folder .* with one, got none"):
        Policy.load(tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"__import__": "os:system"}, "got code of os"),
        ({"__dataclass__": "subprocess:Popen", "fields": {"args": "true"}}, "got code of subprocess"),
        ({"__dataclass__": "catalog.past:PastView", "fields": {}}, "catalog.past"),
        (7, "expected the description of a module, got 7"),
        ({"__dataclass__": "rlmodule.modules.spec:RLModuleSpec", "fields": {}}, "got None for module_class"),
    ],
)
def test_a_strangers_folder_runs_nothing(spec: Any, message: str, folder: Path) -> None:
    files = {name: bytes(file) for name, file in read_folder(folder, "policy").items()}
    weights = {name: bytes(content) for name, content in files.items()}
    write_folder(folder, "policy", weights | {"policy.json": json.dumps({"spec": spec}).encode()})
    with pytest.raises(ValueError, match=message):
        Policy.load(folder)


def bound_spec(**settings: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["spec"]["fields"]["model_config"]["fields"].update(settings)


TOO_MUCH: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "units": (bound_spec(fcnet_hiddens=[10**9]), "expected model_config of at most 10,000, got 1,000,000,000"),
    "cells": (bound_spec(use_lstm=True, lstm_cell_size=10**9), "expected model_config of at most 10,000, got 1,000,"),
    "layers": (bound_spec(fcnet_hiddens=[9_999] * 9), "expected nets as large as those in the file, got more with "),
    "negative units": (bound_spec(fcnet_hiddens=[-1]), "expected"),
    "a text for units": (bound_spec(fcnet_hiddens=["1"]), "expected"),
    "an activation that is none": (bound_spec(fcnet_activation="missing"), "expected"),
    "a stack of frames": (bound_spec(lstm_use_prev_action=10**9), "expected"),
    "no space": (lambda content: content["spec"]["fields"].update(observation_space=None), "observation_space"),
    "another space": (
        lambda content: content["spec"]["fields"].update(
            observation_space={"__space__": "Discrete", "n": 4, "start": 0, "dtype": "int64"}
        ),
        "a state that differs at ",
    ),
}


@pytest.mark.parametrize("demand", TOO_MUCH)
def test_a_file_cannot_ask_for_more_than_it_holds(demand: str, tmp_path: Path) -> None:
    """Each error names the folder."""
    folder = policy_of(obs=spaces.Box(-1, 1, (3,))).save(tmp_path / "policy")
    change, expected = TOO_MUCH[demand]
    content = json.loads((folder / "policy.json").read_text())
    change(content)
    rewritten(folder, content)
    with pytest.raises(ValueError, match="expected") as raised:
        Policy.load(folder)
    assert str(raised.value).startswith(f"Policy.load({str(folder)!r})")
    assert expected in str(raised.value)


def test_a_policy_of_an_earlier_gymnasium_is_loaded(folder: Path) -> None:
    """In its release 1.2, a Discrete had no dtype, and a Dict did not say whether it sorts its keys."""
    content = json.loads((folder / "policy.json").read_text())
    space = content["spec"]["fields"]["observation_space"]
    space.pop("sort_keys", None)
    _, (_, mode) = space["spaces"]
    mode.pop("dtype", None)
    rewritten(folder, content)
    assert Policy.load(folder).module.observation_space == OBS


def test_numbers_of_your_own_options_may_be_large(tmp_path: Path) -> None:
    options = {"custom_model": Net, "custom_model_config": {"num_steps": 10**6}}
    policy = policy_of(obs=spaces.Box(-1, 1, (3,)), **options)
    Policy.load(policy.save(tmp_path / "policy"), allow=[__name__])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    policy = policy_of()
    with torch.no_grad():
        next(policy.module.parameters()).fill_(value)
    folder = policy.save(tmp_path / "broken")
    with pytest.raises(ValueError, match=r"expected finite weights, got NaN or infinite ones in encoder\.") as raised:
        Policy.load(folder)
    assert str(raised.value).startswith(f"Policy.load({str(folder)!r}): ")


def test_weights_of_another_net_are_refused(folder: Path, tmp_path: Path) -> None:
    files = read_folder(policy_of(fcnet_hiddens=[4]).save(tmp_path / "other"), "policy")
    own = read_folder(folder, "policy")["policy.json"]
    write_folder(
        folder, "policy", {"policy.json": bytes(own), "policy.safetensors": bytes(files["policy.safetensors"])}
    )
    with pytest.raises(ValueError, match="a state that differs at"):
        Policy.load(folder)


def test_a_spec_of_a_module_builds_another_like_it() -> None:
    module = policy_of(functions={"value": {"fcnet_hiddens": [4]}}, vf_share_layers=False).module
    again = RLModuleSpec.of(module).build()
    again.set_state(module.get_state())
    assert MultiRLModuleSpec({"a": RLModuleSpec.of(again)}).build()["a"].explain() == module.explain()
