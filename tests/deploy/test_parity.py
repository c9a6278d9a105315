"""A policy acts the same wherever it is: in a run, in batches, loaded from its files, and exported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree

from algorithms.ppo import PPOConfig
from rlmodule import Policy
from rlmodule.agents import MultiAgentPolicy, PolicyMap
from tests.algorithms.dqn import matrix as dqn
from tests.algorithms.ppo import matrix as ppo
from tests.algorithms.sac import matrix as sac
from tests.algorithms.td3 import matrix as td3
from tests.deploy.parity import (
    Episodes,
    acted,
    compare,
    digest_of,
    episodes_of,
    in_a_fresh_process,
    module_of,
    played,
)
from tests.deploy.teams import AGENTS, TEAMS, TeamCell

pytestmark = pytest.mark.filterwarnings("ignore:.*")  # of onnx and of torch's exporters

CELLS: list[Any] = [
    ppo.Case("Dict of vectors", "Discrete", "LSTM, previous action and reward", "shared", "mask"),
    ppo.Case("Box, rank 1, float64, unbounded", "Box, bounded", "no memory", "separate", "no mask"),
    ppo.Case("Box, rank 3, bytes, channels last", "MultiDiscrete with starts, rank 2", "GRU", "shared", "mask"),
    ppo.Case("Tuple", "Dict and Tuple nested", "no memory, previous action and reward", "separate", "mask"),
    ppo.Case("Box, rank 1", "Box, SquashedGaussian", "attention", "shared", "no mask"),
    ppo.Case("Discrete, embedded", ppo.DESCRIBED, "LSTM", "separate", "mask"),
    ppo.Case("MultiBinary", "MultiDiscrete, each part knowing those before it", "no memory", "shared", "no mask"),
    ppo.Case("MultiDiscrete with starts", "Box, Beta", "GRU, previous action and reward", "separate", "no mask"),
    ppo.Case("Box, rank 3, depths of 16 bits", "Box, rank 2, float64", "no memory", "shared", "no mask"),
    dqn.Case("Box, rank 1", "Discrete with a start", "no memory", "all", "uniform", "mask"),
    dqn.Case("Discrete, embedded", ppo.DESCRIBED, "LSTM, previous action and reward", "dueling", "uniform", "no mask"),
    dqn.Case("Box, rank 3, bytes, channels last", "Discrete", "no memory", "distributional", "uniform", "no mask"),
]
AT_LENGTH = CELLS[1], CELLS[2], CELLS[5], CELLS[8], CELLS[9]
"""Cells that are exported with the whole matrix alone: others have the same spaces or nets."""
SAMPLED = CELLS[0], CELLS[7], CELLS[10]
"""Cells that are exported with noise, too."""
RAINBOW = dqn.FACTORS | {"net": ("all",), "replay": ("prioritized, 3 steps",)}
"""The matrix of DQN with all parts of Rainbow."""
TD3_PAIRS = {name: td3.FACTORS[name] for name in ("action", "memory", "sharing")}
MATRIX: dict[str, tuple[Any, ...]] = {
    "PPO": ppo.cases(),
    "DQN": dqn.cases(),
    "Rainbow": tuple(dqn.Case(**levels) for levels in ppo.covering(RAINBOW, ppo.is_sensible)),
    "SAC": sac.cases(),
    "TD3": tuple(td3.Case(**levels) for levels in ppo.covering(td3.FACTORS, ppo.is_sensible, TD3_PAIRS)),
}
"""The cells of each algorithm; they hold every pair of levels of its feature matrix."""
FURTHER = [
    pytest.param(cell, id=f"{algorithm} | {cell.name}")
    for algorithm, cells in MATRIX.items()
    for cell in cells
    if cell not in CELLS
]
OWN = ["algorithms", *(f"algorithms.{name}{end}" for name in ("ppo", "dqn", "sac", "td3") for end in ("", ".module"))]


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, marks=pytest.mark.slow if cell in AT_LENGTH else ()) for cell in CELLS],
    ids=lambda cell: cell.name,
)
def test_a_graph_and_batches_act_as_the_runner(cell: Any, tmp_path: Path) -> None:
    module = module_of(cell.config())
    path = Policy(module).export(tmp_path / "x.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["x.onnx"]
    for num in (1, 2, 7):
        episodes = played(cell.config(), module, num)
        same_to_the_last_bit(acted(Policy(module), episodes), episodes)
        compare(path, module, episodes)
    if cell in SAMPLED:
        compare(Policy(module).export(tmp_path / "x.onnx", explore=True), module, episodes, explore=True)


def close(actions: np.ndarray, others: np.ndarray) -> None:
    np.testing.assert_allclose(actions, others, rtol=1e-5, atol=1e-5)


def same_to_the_last_bit(actions: Any, episodes: Episodes) -> None:
    tree.map_structure(np.testing.assert_array_equal, actions, episodes.actions)


def test_policies_act_the_same_in_a_fresh_process(tmp_path: Path) -> None:
    """Which imports no Ray, no env, and nothing of algorithms but the modules."""
    check_fresh(CELLS, tmp_path)


def test_a_policy_of_a_run_acts_from_its_files_as_in_the_run(tmp_path: Path) -> None:
    """To the last bit in batches. One by one, torch rounds by where in memory the weights are, which a run keeps in one
    tensor."""
    config = PPOConfig().environment("Pendulum-v1").rl_module(model_config={"fcnet_hiddens": [7, 5]})
    obs = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    with config.debugging(seed=1).build() as algo:
        loaded = Policy.load(algo.policy.save(tmp_path / "policy"))
        policies = algo.policy, loaded
        in_run, from_files = (policy.act_batch(obs)[0] for policy in policies)
        np.testing.assert_array_equal(from_files, in_run)
        in_run, from_files = (np.stack([policy.act(one)[0] for one in obs]) for policy in policies)
        np.testing.assert_allclose(from_files, in_run, rtol=1e-6, atol=1e-6)


def check_fresh(cells: Sequence[Any], tmp_path: Path) -> None:
    saved, expected = [], []
    for number, cell in enumerate(cells):
        module = module_of(cell.config())
        episodes = played(cell.config(), module, 2)
        saved.append((str(Policy(module).save(tmp_path / str(number))), episodes))
        expected.append(digest_of(episodes.actions))
    compare_fresh(saved, expected)


def compare_fresh(saved: list[tuple[str, Episodes]], expected: list[str]) -> None:
    digests, modules = in_a_fresh_process(saved)
    assert digests == expected
    assert {name for name in modules if name.split(".")[0] == "algorithms"} <= {*OWN}
    assert not {name.split(".")[0] for name in modules} & {"ray", "tests", "matplotlib", "rich", "onnx", "onnxruntime"}
    assert not {
        name for name in modules if name.startswith(("rlmodule.envs", "rlmodule.sampling", "rlmodule.learning"))
    }


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, marks=pytest.mark.slow if number else ()) for number, cell in enumerate(TEAMS)],
    ids=lambda cell: f"several agents | {cell.name}",
)
def test_several_agents(cell: TeamCell, tmp_path: Path) -> None:
    """The runner, act_batch, policies loaded in a fresh process, and a graph for each policy; and one env alone."""
    modules = cell.modules()
    policies = MultiAgentPolicy(modules, AGENTS, PolicyMap(AGENTS, [*modules], cell.mapping))
    files = policies.export(tmp_path / "graphs")
    folder, saved, expected = policies.save(tmp_path / "team"), [], []
    for num in (1, 2, 7):
        rollouts = cell.sampled(modules, num)
        for name, module in modules.items():
            episodes = episodes_of(module, rollouts[name])
            actions = acted(Policy(module), episodes)
            if len(modules) < len(AGENTS):
                same_to_the_last_bit(actions, episodes)
            else:  # the runner may compute all policies in one pass
                tree.map_structure(close, actions, episodes.actions)
            compare(files[name], module, episodes)
            if num == 2:
                saved.append((f"{folder}@{name}", episodes))
                expected.append(digest_of(actions))
    compare_fresh(saved, expected)
    loaded = MultiAgentPolicy.load(folder)
    (state, rewards), ours = (None, None), cell.env()
    obs, _ = ours.reset(seed=0)
    memory: dict[Any, Any] = {}
    for _ in range(3):
        actions, state = loaded.act(obs, state, rewards=rewards)
        for agent, seen in obs.items():
            reward = None if rewards is None else rewards[agent]
            alone, memory[agent] = policies[cell.mapping[agent]].act(seen, memory.get(agent), reward=reward)
            tree.map_structure(np.testing.assert_array_equal, actions[agent], alone)
        obs, rewards, *_ = ours.step(actions)


@pytest.mark.slow
@pytest.mark.parametrize("cell", TEAMS, ids=lambda cell: f"several agents | {cell.name}")
def test_several_agents_with_given_noise(cell: TeamCell, tmp_path: Path) -> None:
    modules = cell.modules()
    policies = MultiAgentPolicy(modules, AGENTS, PolicyMap(AGENTS, [*modules], cell.mapping))
    files = policies.export(tmp_path, explore=True)
    for num in (1, 2, 7):
        rollouts = cell.sampled(modules, num)
        for name, module in modules.items():
            compare(files[name], module, episodes_of(module, rollouts[name]), explore=True)


@pytest.mark.slow
@pytest.mark.parametrize("cell", FURTHER)
def test_the_feature_matrix(cell: Any, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    test_a_graph_and_batches_act_as_the_runner(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cell", FURTHER)
def test_the_feature_matrix_with_given_noise(cell: Any, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    module = module_of(cell.config())
    if vars(cell).get("net") in ("noisy", "all"):
        with pytest.raises(ValueError, match="expected actions that are sampled from noise"):
            Policy(module).export(tmp_path / "x.onnx", explore=True)
        return
    path = Policy(module).export(tmp_path / "x.onnx", explore=True)
    for num in (1, 2, 7):
        compare(path, module, played(cell.config(), module, num), explore=True)


def test_the_docs_have_the_numbers_of_cells() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    for name, cells in {**MATRIX, "several agents, PPO": TEAMS}.items():
        assert f"| {name} | {len(cells)} |" in page


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", MATRIX)
def test_the_feature_matrix_in_a_fresh_process(algorithm: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    check_fresh(MATRIX[algorithm], tmp_path)
