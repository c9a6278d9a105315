"""A run that was trained for a moment, for what looks at runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from algorithms.ppo import PPOConfig
from algorithms.run.plotting import Rows


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a PPO run on CartPole-v1, 128 env steps in 2 iterations, each with an evaluation."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    config = (
        PPOConfig(env="CartPole-v1", seed=1, run_dir=str(folder), on_train_result=lambda algorithm, result: None)
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_interval=1, evaluation_duration=2)
    )
    with config.build() as algorithm:
        algorithm.learn(num_env_steps=128)
    return folder


@pytest.fixture
def checkpoint(trained: Path, tmp_path: Path) -> Path:
    """A copy of its last checkpoint, to be damaged."""
    return Path(shutil.copytree(trained / "checkpoint", tmp_path / "copy"))


@pytest.fixture(autouse=True)
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures of runs blank: `tests/algorithms/run` looks at them, and each takes a sixth of a second."""

    def touch(rows: Rows, out: Path, title: str, target_return: float | None = None) -> None:
        out.write_text("blank")

    monkeypatch.setattr("algorithms.run.run_folder.draw_run", touch)
