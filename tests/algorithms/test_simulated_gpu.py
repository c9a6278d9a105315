"""Every algorithm learns on a GPU what it learns on the CPU, goes on from there, and waits for nothing on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import Algorithm, AlgorithmConfig
from algorithms.dqn import DQNConfig
from algorithms.off_policy import ReplayConfig
from algorithms.sac import SACConfig
from rlmodule.groups.learner_group import LearnerGroup
from rlmodule.learning.learner import Learner
from tests.algorithms.offline.data import cartpole
from tests.algorithms.test_changed_settings import FROM_DATA, REPLAY, RUNS
from tests.rlmodule.agents.envs import CartPoles
from tests.simulated_gpu import SimulatedGPU, simulated_gpu

__all__ = ["simulated_gpu"]

pytestmark = pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
ONE_ROLLOUT = 2
"""Env steps of a rollout. Weights return from a GPU once per iteration, so an iteration of one rollout is the same on
both."""
MORE: dict[str, AlgorithmConfig] = {
    "several critics": SACConfig(**REPLAY, num_critics=3, target_critics=2).environment("Pendulum-v1"),
    "choices": SACConfig(**REPLAY, cql_alpha=1.0, normalize_rewards=True).environment("CartPole-v1"),
    "several agents": DQNConfig(**REPLAY).environment(CartPoles).multi_agent(policies="own"),
}


def weights(algo: Algorithm) -> dict[str, Tensor]:
    modules = algo.learner_group.module.items()
    return {f"{name}.{key}": x for name, module in modules for key, x in module.state_dict().items()}


def run_of(name: str) -> Any:
    config: Any = (RUNS | MORE)[name].copy()
    if name in FROM_DATA:
        config.offline(data=cartpole(4))
    if isinstance(config, ReplayConfig):
        config.reporting(num_env_steps_per_iteration=ONE_ROLLOUT).training(training_intensity=None)
    return config


def learned(config: AlgorithmConfig, num_gpus: int, path: Path) -> dict[str, Tensor]:
    """Return the weights after some iterations, and save the run at ``path``."""
    with config.copy().learners(num_gpus_per_learner=num_gpus).build() as algo:
        for _ in range(25 if isinstance(config, ReplayConfig) else 2):
            algo.train()
        algo.save(path)
        return weights(algo)


def continued(path: Path, data: Any, num_gpus: int) -> dict[str, Tensor]:
    """Return the weights after one iteration more of the run saved at ``path``."""
    given = {"num_gpus_per_learner": num_gpus} | ({"data": data} if data is not None else {})
    with Algorithm.from_checkpoint(path, allow=["tests"], **given) as algo:
        algo.train()
        return weights(algo)


@pytest.mark.parametrize("name", [*RUNS, *MORE])
def test_it_learns_on_a_gpu_what_it_learns_on_the_cpu(
    name: str, simulated_gpu: SimulatedGPU, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with simulated_gpu.watched():
                return method(*args, **kwargs)

        return call

    monkeypatch.setattr(Learner, "gradient_step", watched(Learner.gradient_step))
    monkeypatch.setattr(LearnerGroup, "step_on_batch", watched(LearnerGroup.step_on_batch))
    config = run_of(name)
    expected = learned(config, 0, tmp_path / "cpu")
    got = learned(config, 1, tmp_path / "gpu")
    assert simulated_gpu.waits == []
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    data = config.data if name in FROM_DATA else None
    expected = continued(tmp_path / "cpu", data, 0)
    for saved, num_gpus in (("gpu", 0), ("cpu", 1)):
        torch.testing.assert_close(continued(tmp_path / saved, data, num_gpus), expected, rtol=0, atol=1e-6)
