"""Policies of several agents as files: one folder for all, from a checkpoint, and one graph for each."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms.ppo import PPOCatalog, PPOModule
from rlmodule import Policy
from rlmodule.agents import MultiAgentPolicy
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.sealed_folder import read_folder, write_folder
from rlmodule.testing.data import differences
from tests.algorithms.test_multi_agent import MAPPING, config, mapping_fn, tags

AGENTS = [1, "b", "late"]
OBS = {1: np.ones(2, np.float32), "b": np.full(2, 5, np.float32), "late": np.full(3, 9, np.float32)}


def module_of(width: int, **model: Any) -> PPOModule:
    obs, settings = spaces.Box(-1, 100, (width,)), {"fcnet_hiddens": [8], **model}
    return PPOModule(
        observation_space=obs, action_space=spaces.Discrete(2), model_config=settings, catalog_class=PPOCatalog
    )


def team(mapping: Any = MAPPING, **model: Any) -> MultiAgentPolicy:
    modules = MultiRLModule({"pair": module_of(2, **model), "late": module_of(3)})
    return MultiAgentPolicy(modules, AGENTS, PolicyMap(AGENTS, [*modules], mapping))


def acts_alike(one: MultiAgentPolicy, other: MultiAgentPolicy) -> None:
    state = others = None
    for _ in range(3):
        (actions, state), (theirs, others) = one.act(OBS, state), other.act(OBS, others)
        assert actions == theirs
        assert all(differences([*state[agent]], [*others[agent]]) == [] for agent in OBS)


def test_observations_come_by_agent() -> None:
    with pytest.raises(TypeError, match=r"MultiAgentPolicy\.act\(obs\): expected a dict by agent, got ndarray"):
        team().act(OBS[1])


@pytest.mark.parametrize("mapping", [MAPPING, mapping_fn])
def test_all_policies_are_in_one_folder(mapping: Any, tmp_path: Path) -> None:
    policies = team(mapping, use_gru=True, lstm_cell_size=8)
    folder = policies.save(tmp_path / "team")
    assert {file.name for file in folder.iterdir()} == {"policy.json", "policy.safetensors", "manifest.json"}
    if mapping is mapping_fn:
        with pytest.raises(
            ValueError, match=rf"policy_mapping_fn: expected an import path .*allow=\['{mapping_fn.__module__}'\]"
        ):
            MultiAgentPolicy.load(folder)
    loaded = MultiAgentPolicy.load(folder, allow=[mapping_fn.__module__] if mapping is mapping_fn else [])
    assert all(policy.module.inference_only for policy in loaded.values())
    acts_alike(policies, loaded)
    one = Policy.load(folder, module_id="pair")
    assert one.act(OBS[1])[0] == policies["pair"].act(OBS[1])[0]
    with pytest.raises(ValueError, match=r"the id of one of its modules, 'pair', 'late', got None\. Pass module_id="):
        Policy.load(folder)


def test_ids_that_contain_each_other_stay_apart(tmp_path: Path) -> None:
    modules = MultiRLModule({"a": module_of(2), "a/b": module_of(2)})
    policies = MultiAgentPolicy(modules, ["x", "y"], PolicyMap(["x", "y"], [*modules], {"x": "a", "y": "a/b"}))
    loaded = MultiAgentPolicy.load(policies.save(tmp_path / "team"))
    for name in ("a", "a/b"):
        assert differences(loaded[name].module.get_state(), modules[name].get_state(inference_only=True)) == []


def test_a_checkpoint_of_several_agents_is_loaded(tmp_path: Path) -> None:
    with tags().build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "run" / "checkpoint")
        policies: Any = algorithm.policies
        acts_alike(policies, MultiAgentPolicy.load(tmp_path / "run"))
        late = Policy.load(tmp_path / "run", module_id="late")
        assert late.act(OBS["late"]) == policies["late"].act(OBS["late"])


@pytest.mark.parametrize("league", [None, {"every": 1}])
def test_a_checkpoint_with_added_policies_is_loaded_with_its_mapping(league: Any, tmp_path: Path) -> None:
    with config(policies="shared", league=league).build() as algorithm:
        if league is None:
            algorithm.add_policy("old", copy_of="default_policy")
        algorithm.save(tmp_path / "checkpoint")
        policies: Any = algorithm.policies
    loaded = MultiAgentPolicy.load(tmp_path / "checkpoint")
    assert loaded.policy_map.static is not None
    assert loaded.policy_map.static == policies.policy_map.static


def test_a_function_that_a_file_cannot_hold_is_passed_again(tmp_path: Path) -> None:
    with config(policies=["x", "y"], policy_mapping_fn=lambda agent, episode: "y").build() as algorithm:
        policies: Any = algorithm.policies
        for folder in (algorithm.save(tmp_path / "checkpoint"), policies.save(tmp_path / "team")):
            with pytest.raises(ValueError, match=r"policy_mapping_fn: expected the object itself.*licy_mapping_fn=\."):
                MultiAgentPolicy.load(folder)
            loaded = MultiAgentPolicy.load(folder, policy_mapping_fn=lambda agent, episode: "y")
            obs = dict.fromkeys([f"cart_{i}" for i in range(4)], np.full(4, 0.1, np.float32))
            assert loaded.act(obs)[0] == policies.act(obs)[0]


def test_the_policy_of_one_agent_is_no_team(tmp_path: Path) -> None:
    folder = Policy(module_of(2)).save(tmp_path / "policy")
    with pytest.raises(
        ValueError, match=r"expected policies of several agents, got default_policy without agents\. Ca"
    ):
        MultiAgentPolicy.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": 7}, "expected policies of several agents"),
        ({"agents": [["x"]]}, "expected policies of several agents"),
        ({"modules": [7]}, "cannot be read"),
        ({"state": {"pair": {}}}, "cannot be read"),
        ({"state": {"pair": 7, "late": {}}}, "cannot be read"),
        ({"state": {"pair": {"x": {"__tensor__": "none"}}, "late": {}}}, "the tensor 'none' is missing"),
        ({"policy_mapping_fn": 7}, "expected a function or ids by agent, got 7"),
        ({"policy_mapping_fn": {"__import__": "os:system"}}, "expected an import path that you allow, got 'os:system'"),
        ({"policy_mapping_fn": {"b": "other"}}, "policy_mapping_fn"),
    ],
)
def test_a_strangers_folder_runs_nothing(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = {name: bytes(content) for name, content in read_folder(team().save(tmp_path / "x"), "policy").items()}
    content = json.loads(files["policy.json"]) | change
    write_folder(tmp_path / "x", "policy", files | {"policy.json": json.dumps(content).encode()})
    with pytest.raises(ValueError, match=message):
        MultiAgentPolicy.load(tmp_path / "x")


@pytest.mark.filterwarnings("ignore:.*")
def test_each_policy_is_exported_as_a_graph(tmp_path: Path) -> None:
    modules = MultiRLModule({"a/b": module_of(2), "late": module_of(3)})
    policies = MultiAgentPolicy(modules, ["x", "y"], PolicyMap(["x", "y"], [*modules], {"x": "a/b", "y": "late"}))
    files = policies.export(tmp_path / "graphs", suffix=".pt2")
    assert {file.name for file in (tmp_path / "graphs").iterdir()} == {"a%2Fb.pt2", "late.pt2"}
    action, _ = torch.export.load(files["late"]).module()(torch.from_numpy(OBS["late"][None]))
    assert int(action) == policies["late"].act(OBS["late"])[0]
