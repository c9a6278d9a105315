"""A policy acts the same wherever it is: in a run, in batches, loaded from its files, and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree

from rlmodule import Policy
from tests.algorithms.dqn import matrix as dqn
from tests.algorithms.ppo import matrix as ppo
from tests.deploy.parity import Episodes, acted, compare, digest_of, in_a_fresh_process, module_of, played

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
SAMPLED = CELLS[0], CELLS[7], CELLS[10]
"""Cells that are exported with noise, too."""
MATRIX = [case for case in (*ppo.cases(), *dqn.cases()) if case not in CELLS]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
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


def same_to_the_last_bit(actions: Any, episodes: Episodes) -> None:
    tree.map_structure(np.testing.assert_array_equal, actions, episodes.actions)


def test_policies_act_the_same_in_a_fresh_process(tmp_path: Path) -> None:
    """Which imports no Ray, no env, and nothing of algorithms but the modules."""
    check_fresh(CELLS, tmp_path)


def check_fresh(cells: list[Any], tmp_path: Path) -> None:
    saved, expected = [], []
    for number, cell in enumerate(cells):
        module = module_of(cell.config())
        episodes = played(cell.config(), module, 2)
        saved.append((Policy(module).save(tmp_path / str(number)), episodes))
        expected.append(digest_of(episodes.actions))
    digests, modules = in_a_fresh_process(saved)
    assert digests == expected
    own = {name for name in modules if name.split(".")[0] == "algorithms"}
    assert own <= {"algorithms", "algorithms.ppo", "algorithms.ppo.module", "algorithms.dqn", "algorithms.dqn.module"}
    assert not {name.split(".")[0] for name in modules} & {"ray", "tests", "matplotlib", "rich", "onnx", "onnxruntime"}
    assert not {
        name for name in modules if name.startswith(("rlmodule.envs", "rlmodule.sampling", "rlmodule.learning"))
    }


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(MATRIX), 8))
def test_the_feature_matrix(start: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    cells = MATRIX[start : start + 8]
    for cell in cells:
        test_a_graph_and_batches_act_as_the_runner(cell, tmp_path)
        for file in tmp_path.iterdir():
            file.unlink()
    check_fresh(cells, tmp_path)
