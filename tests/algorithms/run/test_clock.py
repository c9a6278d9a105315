"""The clock of a run: env steps, and updates from data alone. A run without env steps has rows, schedules, checkpoints
and a resume of its own, and goes on with env steps without a jump."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import tree

from algorithms import Algorithm, register_algorithm
from algorithms.cli import main
from algorithms.dqn import DQN, DQNConfig, DQNTraining
from algorithms.loggers.base import CLOCK, STEPS, clock_of
from algorithms.loggers.csv import read_table
from algorithms.loggers.jsonl import read_rows
from algorithms.ppo import PPOConfig
from algorithms.registry import ALGORITHMS
from algorithms.run.checkpoints import read_checkpoint
from algorithms.run.goal import Budget, read_goal
from algorithms.run.plotting import draw_run, plot_runs, table_of
from catalog.settings import Section, setting
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID
from tests.checkpoints import rewrite

UPDATES = 5
"""Updates from data in an iteration."""
ROOT = Path(__file__).resolve().parents[3]


class FromDataTraining(DQNTraining):
    """Settings of :class:`FromData`."""

    updates_before_steps: int = setting(1_000_000, "Updates from data before the first env step.", ge=0)


class FromDataConfig(FromDataTraining, DQNConfig):
    """DQN whose replay buffer is full from the start."""

    training = Section(FromDataTraining)

    @property
    def algo_class(self) -> type[FromData]:
        return FromData


class FromData(DQN):
    """Learns from steps that are in the replay buffer before the run begins. After ``updates_before_steps``, it samples
    env steps as DQN does."""

    config: Any

    def __init__(self, config: FromDataConfig) -> None:
        super().__init__(config)
        for _ in range(16):  # not sample_rollouts(), which counts
            self._store(self.env_runner_group.sample(4), 0)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        return ("num_updates", "num_env_steps")

    def training_step(self) -> dict[str, dict[str, Any]]:
        if self.metrics.updates >= self.config.updates_before_steps:
            return super().training_step()
        history, seconds = [], {"update": 0.0}
        for _ in range(UPDATES):
            history.append(self._update(DEFAULT_MODULE_ID, seconds))
            self.metrics.updates += 1
        return {"learners": self.learner_group.summarize_updates(history), "timers": seconds}


def config(**settings: Any) -> FromDataConfig:
    made = FromDataConfig(
        env="CartPole-v1",
        num_envs_per_env_runner=4,
        model_config={"fcnet_hiddens": [8]},
        train_batch_size_per_learner=16,
        num_steps_sampled_before_learning_starts=16,
        num_env_steps_per_iteration=40,
        training_intensity=4.0,
        replay_capacity=1000,
        target_network_update_freq=4,
        lr=[[0, 0.01], [30, 0.001]],
        prioritized_replay=True,
        prioritized_replay_beta=[[0, 0.4], [30, 1.0]],
        evaluation_duration=2,
        metrics_num_episodes_for_smoothing=5,
        torch_num_threads=1,
        seed=1,
    )
    return made.update(settings)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own; what a test registers is undone."""
    monkeypatch.chdir(tmp_path)
    known = dict(ALGORITHMS)
    register_algorithm("FromData", FromDataConfig)
    yield tmp_path
    ALGORITHMS.clear()
    ALGORITHMS.update(known)


def sha_of(algorithm: Algorithm) -> str:
    """SHA-256 of the whole state, without the seconds."""
    state = algorithm.get_state()
    state["metrics"] = {name: value for name, value in state["metrics"].items() if name != "seconds"}
    text = hashlib.sha256()
    for path, leaf in tree.flatten_with_path(state):
        data = leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf
        text.update(repr(path).encode() + (data.tobytes() if hasattr(data, "tobytes") else repr(data).encode()))
    return text.hexdigest()


def numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what a clock on the wall decides."""
    return {name: value for name, value in row.items() if not re.search(r"time|per_second", name)}


# --- a run without env steps ------------------------------------------------------------------------------------------


def test_schedules_target_nets_and_rows_follow_the_updates() -> None:
    with config(run_dir="run", loggers=["jsonl", "csv"]).build() as algorithm:
        result = algorithm.learn(num_updates=30)
        assert (algorithm.env_steps, algorithm.metrics.updates, algorithm.clock) == (0, 30, 30)
        assert repr(algorithm).startswith("<FromData on CartPole-v1, seed 1, 30 updates from data>\n")
        assert algorithm.learner_group.num_updates == 30
    assert (result["clock"], result["stopped_by"]) == (30, "steps")
    rows = read_rows(Path("run/progress.jsonl"))
    assert [row[CLOCK] for row in rows] == [5, 10, 15, 20, 25, 30]
    assert {row[STEPS] for row in rows} == {0}
    learner = f"learners/{DEFAULT_MODULE_ID}"
    rates = [row[f"{learner}/learning_rate"] for row in rows]
    assert rates == pytest.approx([0.01 - 0.009 * (clock - 1) / 30 for clock in (5, 10, 15, 20, 25, 30)])
    assert [row[f"{learner}/num_target_updates"] for row in rows] == [1, 2, 3, 4, 6, 7]
    columns, table = read_table(Path("run/progress.csv"))
    assert CLOCK in columns
    assert [clock_of(row) for row in table] == ["5", "10", "15", "20", "25", "30"]


def test_checkpoints_and_videos_do_not_collide() -> None:
    pytest.importorskip("imageio_ffmpeg")
    settings = {"keep_checkpoints": 4, "checkpoint_interval": 1, "evaluation_interval": 3, "evaluation_num_videos": 1}
    with config(run_dir="run", **settings).build() as algorithm:
        algorithm.learn(num_updates=30)
    assert sorted(os.listdir("run/checkpoints")) == ["15", "20", "25"]
    for name in ("15", "20", "25"):
        assert read_checkpoint(Path("run/checkpoints", name))["state"]["metrics"]["updates"] == int(name)
    assert sorted(os.listdir("run/videos")) == ["step-0000000015", "step-0000000030"]


DRIVER = """
import os, signal, sys
from tests.algorithms.run.test_clock import config, FromDataConfig
from algorithms import register_algorithm

def die(algorithm, result):
    if result["training_iteration"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)

register_algorithm("FromData", FromDataConfig)
settings = {"checkpoint_interval": 2, "evaluation_interval": 2}
config(run_dir="killed", on_train_result=die, **settings).build().learn(num_updates=45)
"""


def test_killed_and_resumed_is_not_killed() -> None:
    settings = {"checkpoint_interval": 2, "evaluation_interval": 2}
    with config(run_dir="whole", **settings).build() as whole:
        whole.learn(num_updates=45)
        expected = sha_of(whole)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    killed = subprocess.run([sys.executable, "-c", DRIVER], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    # A row after the checkpoint, as of a run that was killed between the two.
    with open("killed/progress.jsonl", "a") as file:
        file.write(json.dumps({CLOCK: 25, STEPS: 0, "time_total_s": 0.0}) + "\n")
    with Algorithm.from_checkpoint("killed", on_train_result=None) as algorithm:
        assert algorithm.clock == 20
        algorithm.learn(num_updates=25)
        assert sha_of(algorithm) == expected
    rows = {name: [numbers(row) for row in read_rows(Path(name, "progress.jsonl"))] for name in ("whole", "killed")}
    assert rows["killed"] == rows["whole"]
    assert [row[CLOCK] for row in rows["whole"]] == [*range(5, 50, 5)]


def test_a_run_that_resumes_is_not_taken_for_a_new_one() -> None:
    with config(run_dir="run").build() as algorithm:
        algorithm.learn(num_updates=10)
    with config(run_dir="run").build() as other, pytest.raises(FileExistsError, match=r"got FromData with seed 1"):
        other.learn(num_updates=10)
    with Algorithm.from_checkpoint("run") as resumed:
        resumed.learn(num_updates=10)
    assert [row[CLOCK] for row in read_rows(Path("run/progress.jsonl"))] == [5, 10, 15, 20]


def test_a_run_without_envs_loads_its_checkpoint() -> None:
    with config().build() as algorithm:
        algorithm.learn(num_updates=5)
        path = algorithm.save("saved")
    rewrite(path, lambda content: content["state"].update(env_runners={}))
    with Algorithm.from_checkpoint(path) as resumed:
        assert resumed.clock == 5
    rewrite(path, lambda content: content["config"].update(num_envs_per_env_runner=10**6))
    with pytest.raises(ValueError, match=r"expected num_envs_per_env_runner of at most 10,000, got 1,000,000"):
        Algorithm.from_checkpoint(path)


def test_plots_are_against_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = []
    picture = draw_run.__globals__["_picture"]

    def noted(title: str, xlabel: str, ylabel: str) -> Any:
        labels.append(xlabel)
        return picture(title, xlabel, ylabel)

    monkeypatch.setitem(draw_run.__globals__, "_picture", noted)
    with config(run_dir="run", evaluation_interval=1).build() as algorithm:
        algorithm.learn(num_updates=15)
    (curve,) = plot_runs([Path("run")], Path("curve.png"))
    assert curve.x.tolist() == [5, 10, 15]
    assert labels == ["updates", "updates"]
    assert re.search(r"highest +updates +time\n.* 15 ", table_of([curve]))
    assert main(["plot", "run", "--out", "again.png"]) == 0
    for name in ("run/learning_curve.png", "curve.png", "again.png"):
        assert Path(name).read_bytes().startswith(b"\x89PNG")


# --- from data to env steps -------------------------------------------------------------------------------------------


def test_the_clock_goes_on_with_env_steps_without_a_jump() -> None:
    with config(run_dir="run", updates_before_steps=10).build() as algorithm:
        algorithm.learn(num_updates=10)
        algorithm.learn(num_env_steps=80)
        assert (algorithm.env_steps, algorithm.metrics.updates, algorithm.clock) == (80, 10, 90)
        assert "10 updates from data and 80 env steps>\n" in repr(algorithm)
    rows = read_rows(Path("run/progress.jsonl"))
    assert [(row[CLOCK], row[STEPS]) for row in rows] == [(5, 0), (10, 0), (50, 40), (90, 80)]


def test_env_steps_are_counted_alone_while_data_come_first() -> None:
    with config(updates_before_steps=10).build() as algorithm:
        algorithm.learn(num_env_steps=40)
        assert (algorithm.env_steps, algorithm.metrics.updates) == (40, 10)


def test_a_run_from_env_steps_has_no_clock_of_its_own() -> None:
    small: dict[str, Any] = {"num_envs_per_env_runner": 2, "train_batch_size_per_learner": 32, "minibatch_size": 16}
    with PPOConfig(env="CartPole-v1", run_dir="run", **small).build() as algorithm:
        result = algorithm.learn(num_env_steps=64)
        assert algorithm.clock == algorithm.env_steps == 64
    assert "clock" not in result
    assert all(CLOCK not in row and clock_of(row) == row[STEPS] for row in read_rows(Path("run/progress.jsonl")))


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "FromData.learn(): expected num_updates or num_env_steps, got nothing. Call learn(num_updates=...)."),
        (
            {"num_env_steps": 8, "num_updates": 9},
            "FromData.learn(): expected num_updates or num_env_steps, got num_env_steps=8 and num_updates=9. Call",
        ),
        ({"num_updates": 0}, "learn(num_updates=): expected finite int, >= 1, got 0"),
        ({"num_updates": 1.5}, "learn(num_updates=): expected int, >= 1, got 1.5"),
    ],
)
def test_exactly_one_budget_is_expected(given: dict[str, Any], message: str) -> None:
    with config().build() as algorithm, pytest.raises((ValueError, TypeError), match=re.escape(message)):
        algorithm.learn(**given)


@pytest.mark.parametrize("kind", [PPOConfig, DQNConfig])
def test_an_algorithm_that_learns_from_env_steps_takes_no_updates(kind: type[Any]) -> None:
    name = kind.__name__.removesuffix("Config")
    expected = f"{name}.learn(): expected num_env_steps, got num_updates=9. {name} learns from env steps alone. Call "
    with kind(env="CartPole-v1").build() as algorithm:
        with pytest.raises(ValueError, match=re.escape(f"{expected}learn(num_env_steps=9).")):
            algorithm.learn(num_updates=9)
        assert algorithm.clock == 0


def test_an_iteration_without_an_update_is_refused() -> None:
    with config(updates_before_steps=10).build() as algorithm, pytest.raises(RuntimeError, match=r"takes updates from"):
        algorithm.learn(num_updates=15)


def test_the_goal_of_a_run_is_kept_and_gone_on_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("algorithms.run.progress.SECONDS_BEFORE_LINE", 0.0)
    with config(run_dir="run").build() as algorithm:
        algorithm.learn(num_updates=10, progress=True)
        assert "10/10 updates" in capsys.readouterr().err
    about = json.loads(Path("run/run.json").read_text())
    assert about["goal"] == {"num_updates": 10, "target_return": None}
    about["goal"]["num_updates"] = 20
    Path("run/run.json").write_text(json.dumps(about))
    goal = read_goal(Path("run"))
    assert goal is not None
    assert (goal.amount, goal.budget) == (20, "num_updates")
    assert main(["train", "--load", "run"]) == 0
    shown = capsys.readouterr()
    assert "at step 10\n  updates     10 more, what is left of the run's goal of 20\n" in shown.out
    assert "\nTook 10 updates in " in shown.out
    assert "Evaluation: return " in shown.out
    assert [row[CLOCK] for row in read_rows(Path("run/progress.jsonl"))] == [5, 10, 15, 20, 20]
