"""A training session: when it ends, what it shows, what it leaves behind."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from algorithms import Algorithm
from algorithms.loggers.base import flatten
from algorithms.loggers.csv import read_table
from algorithms.ppo import PPOConfig
from algorithms.run import progress as progress_module
from algorithms.run.goal import Goal
from algorithms.run.plotting import plot_runs
from algorithms.run.run_folder import RunFolder, env_name, new_run_dir
from algorithms.run.session import TrainingSession
from algorithms.run.text import duration_text
from rlmodule.checkpoint import load_checkpoint

Make = Callable[..., Algorithm]
PNG = b"\x89PNG\r\n\x1a\n"
BATCH = 64


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds small algorithms and closes them."""
    made: list[Algorithm] = []

    def build(**settings: Any) -> Algorithm:
        config = PPOConfig(
            env="CartPole-v1",
            num_envs_per_env_runner=4,
            train_batch_size_per_learner=BATCH,
            minibatch_size=32,
            num_epochs=1,
            evaluation_duration=2,
            seed=1,
        )
        made.append(config.update(settings).build())
        return made[-1]

    yield build
    for algorithm in made:
        algorithm.stop()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(path: Path | str) -> list[dict[str, Any]]:
    """Lines of progress.jsonl as a strict reader takes them: NaN and Infinity are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = (Path(path) / "progress.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def signal_during(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, *numbers: int, iteration: int = 2) -> None:
    """Let signals arrive in the middle of an iteration."""
    train = algorithm.train

    def interrupted() -> dict[str, Any]:
        if algorithm.metrics.iterations == iteration - 1:
            for number in numbers:
                signal.raise_signal(signal.Signals(number))
        return train()

    monkeypatch.setattr(algorithm, "train", interrupted)


# --- when it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "sampled"), [(1, 64), (64, 64), (65, 128), (np.int64(130), 192)])
def test_samples_at_least_as_many_steps_as_asked(make: Make, asked: int, sampled: int) -> None:
    algorithm = make()
    result = algorithm.learn(num_env_steps=asked)
    assert algorithm.env_steps == sampled
    assert result["training_iteration"] == sampled // BATCH
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] == sampled


def test_steps_are_counted_from_now_on(make: Make) -> None:
    algorithm = make()
    algorithm.learn(num_env_steps=100)
    algorithm.learn(num_env_steps=100)
    assert algorithm.env_steps == 256


def test_without_evaluation_the_training_return_ends_it(make: Make) -> None:
    algorithm = make()
    session = TrainingSession(algorithm, Goal(10_000, 5))
    result = session.run()
    assert session.reached
    assert algorithm.env_steps < 10_000
    assert result["env_runners"]["episode_return_mean"] >= 5


def test_with_evaluation_only_its_return_ends_it(make: Make) -> None:
    algorithm = make(evaluation_interval=4)
    session = TrainingSession(algorithm, Goal(10_000, 5))
    result = session.run()
    assert session.reached
    assert result["training_iteration"] == 4
    assert result["evaluation"]["env_runners"]["episode_return_mean"] >= 5


def test_a_target_out_of_reach_is_not_reached(make: Make) -> None:
    session = TrainingSession(make(evaluation_interval=1), Goal(128, 501))
    session.run()
    assert not session.reached


def test_no_episode_is_no_target_reached(make: Make) -> None:
    session = TrainingSession(make(train_batch_size_per_learner=4, minibatch_size=4), Goal(8, -1000))
    assert math.isnan(session.run()["env_runners"]["episode_return_mean"])
    assert not session.reached


def test_a_run_says_what_ended_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[str | None] = []

    def watch(algorithm: Algorithm, result: dict[str, Any]) -> None:
        during.append(algorithm.stopped_by)
        if algorithm.metrics.iterations == 5:
            algorithm.stop_learning()
        if algorithm.metrics.iterations == 6:
            raise ZeroDivisionError

    algorithm = make(on_train_result=watch)
    assert algorithm.stopped_by is None
    assert algorithm.learn(num_env_steps=128)["stopped_by"] == algorithm.stopped_by == "steps"
    assert algorithm.learn(num_env_steps=128, target_return=1)["stopped_by"] == algorithm.stopped_by == "target"
    assert algorithm.learn(num_env_steps=256)["stopped_by"] == algorithm.stopped_by == "callback"
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        algorithm.learn(num_env_steps=128)
    assert algorithm.stopped_by is None
    assert during == [None] * 6


@pytest.mark.parametrize("wrong", [0, -5, 1e5, True, "100", math.nan])
def test_a_wrong_number_of_steps_raises(make: Make, wrong: Any) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=r"learn\(num_env_steps=\): expected (finite )?int, >= 1, got .+\."
    ):
        make().learn(num_env_steps=wrong)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "475", True])
def test_a_wrong_target_raises(make: Make, wrong: Any) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=r"learn\(target_return=\): expected (finite )?float \| None, got"
    ):
        make().learn(num_env_steps=1, target_return=wrong)


# --- what it leaves behind --------------------------------------------------------------------------------------------


def test_without_run_dir_nothing_is_written(make: Make, here: Path) -> None:
    make().learn(num_env_steps=64)
    assert not list(here.iterdir())


def test_the_run_folder(make: Make) -> None:
    algorithm = make(run_dir="deep/run", evaluation_interval=2)
    result = algorithm.learn(num_env_steps=256, target_return=501)
    algorithm.stop()
    names = sorted(path.name for path in Path("deep/run").iterdir())
    assert [name for name in names if "tfevents" not in name] == [
        ".lock",
        "best_checkpoint",
        "checkpoint",
        "learning_curve.png",
        "progress.jsonl",
        "run.json",
    ]
    assert len(names) == 7
    printed = rows("deep/run")
    assert [row["env_runners/num_env_steps_sampled_lifetime"] for row in printed] == [64, 128, 192, 256]
    assert printed[-1]["env_runners/episode_return_mean"] == result["env_runners"]["episode_return_mean"]
    assert printed[-1]["learners/default_policy/policy_loss"] == result["learners"]["default_policy"]["policy_loss"]
    assert ["evaluation/env_runners/episode_return_mean" in row for row in printed] == [False, True, False, True]
    picture = Path("deep/run/learning_curve.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 5_000


def test_nan_is_written_as_null(make: Make) -> None:
    # 4 envs of 1 step each: no episode of CartPole is that short
    make(run_dir="run", train_batch_size_per_learner=4, minibatch_size=4).learn(num_env_steps=4)
    (row,) = rows("run")
    assert row["env_runners/episode_return_mean"] is None
    assert Path("run/learning_curve.png").read_bytes().startswith(PNG)


def test_a_run_goes_on_from_its_checkpoint(make: Make) -> None:
    first = make(run_dir="run")
    first.learn(num_env_steps=128)
    first.stop()
    with Algorithm.from_checkpoint("run/checkpoint") as resumed:
        assert resumed.env_steps == 128
        for mine, saved in zip(resumed.get_module().parameters(), first.get_module().parameters(), strict=True):
            assert torch.equal(mine, saved)
        resumed.learn(num_env_steps=128)
    assert [row["training_iteration"] for row in rows("run")] == [1, 2, 3, 4]
    with Algorithm.from_checkpoint("run/checkpoint") as again:
        assert again.env_steps == 256


def test_lines_that_the_checkpoint_has_not_seen_are_dropped(make: Make) -> None:
    with make(run_dir="run") as first:
        first.learn(num_env_steps=128)
    with Algorithm.from_checkpoint("run/checkpoint") as crashing:
        crashing.train()
    assert len(rows("run")) == 3
    progress = Path("run/progress.jsonl")
    progress.write_text(progress.read_text() + '{"training_iteration": 4, "env_run')
    with Algorithm.from_checkpoint("run/checkpoint") as resumed:
        resumed.learn(num_env_steps=64)
    assert [row["training_iteration"] for row in rows("run")] == [1, 2, 3]


def test_a_new_run_does_not_mix_with_an_earlier_one(make: Make) -> None:
    with make(run_dir="run") as first:
        first.learn(num_env_steps=64)
    before = Path("run/progress.jsonl").read_text()
    with pytest.raises(
        FileExistsError, match=r"run_dir 'run': expected a folder without another run, .+ Algorithm.from_check"
    ):
        make(run_dir="run").learn(num_env_steps=64)
    assert Path("run/progress.jsonl").read_text() == before


def test_a_run_dir_that_cannot_be_written_raises_before_training(make: Make) -> None:
    Path("file").write_text("")
    for run_dir in ("file", "file/run"):
        algorithm = make(run_dir=run_dir)
        with pytest.raises(OSError, match=rf"run_dir '{run_dir}': expected a folder to write to, got .+\. Choose"):
            algorithm.learn(num_env_steps=64)
        assert algorithm.env_steps == 0


def test_what_was_told_stays_if_an_iteration_raises(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(run_dir="run")
    step = algorithm.training_step

    def failing() -> Any:
        if algorithm.metrics.iterations == 2:
            raise RuntimeError("no more")
        return step()

    monkeypatch.setattr(algorithm, "training_step", failing)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="no more"):
        algorithm.learn(num_env_steps=1000)
    assert len(rows("run")) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_flatten() -> None:
    nested = {"a": {"b": {"c": 1}, "d": math.inf}, "e": np.float32(0.5), "f": np.float64("nan"), "g": "text"}
    assert dict(flatten(nested)) == {"a/b/c": 1, "a/d": None, "e": 0.5, "f": None, "g": "text"}


def make_env(env_config: dict[str, Any]) -> None:
    """A factory to be named."""


def test_new_run_dirs_differ_and_have_plain_names() -> None:
    made = [new_run_dir("PPO", env) for env in ("ALE/Pong-v5", "ALE/Pong-v5", "my_envs:MyEnv-v0", lambda config: None)]
    assert len(set(made)) == 4
    assert all(re.fullmatch(r"ppo-[\w-]+-\d{8}-\d{6}(-\d)?", path.name) for path in made)
    assert [env_name(env) for env in ("CartPole-v1", make_env, PPOConfig, PPOConfig())] == [
        "CartPole-v1",
        "make_env",
        "PPOConfig",
        "PPOConfig",
    ]


class Moving(CartPoleEnv):
    """Changes the working directory of its process, as simulators do."""

    def __init__(self, folder: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.folder = folder
        os.chdir(folder)

    def reset(self, **settings: Any) -> Any:
        os.chdir(self.folder)
        return super().reset(**settings)


@pytest.fixture
def moving(here: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("of the env")
    yield {"env": Moving, "env_config": {"folder": str(folder)}}
    assert not list(folder.iterdir())


def test_an_env_that_changes_the_working_directory_takes_no_file_of_the_run_with_it(
    make: Make, here: Path, moving: dict[str, Any]
) -> None:
    algorithm = make(run_dir="run", checkpoint_interval=1, evaluation_interval=2, **moving)
    assert algorithm.config.run_dir == str(here / "run")
    TrainingSession(algorithm, Goal(192), evaluate_at_end=True).run()
    assert len(rows(here / "run")) == 4
    assert {"checkpoint", "best_checkpoint", "learning_curve.png"} <= {path.name for path in (here / "run").iterdir()}


def test_videos_are_where_the_caller_was_if_an_env_changes_the_working_directory(
    make: Make, here: Path, moving: dict[str, Any]
) -> None:
    algorithm = make(run_dir="run", **moving)
    os.chdir(here)
    algorithm.evaluate(num_episodes=1, num_videos=1, video_dir="videos")
    algorithm.evaluate(num_episodes=1, num_videos=1)
    assert len([*here.glob("videos/*.mp4")]) == len([*here.glob("run/videos/step-0000000000/*.mp4")]) == 1


def test_ctrl_c_saves_where_the_run_was_built(
    make: Make, here: Path, moving: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make(**moving)
    signal_during(algorithm, monkeypatch, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        algorithm.learn(num_env_steps=10_000)
    assert len([*here.glob("runs/*/checkpoint")]) == 1


# --- the evaluation at the end ----------------------------------------------------------------------------------------


def test_an_evaluation_at_the_end_is_logged_and_may_be_the_best(make: Make) -> None:
    saved: list[str] = []
    algorithm = make(
        run_dir="run",
        loggers=["jsonl", "csv", "tensorboard"],
        on_checkpoint=lambda algorithm, path: saved.append(path.name),
    )
    session = TrainingSession(algorithm, Goal(128), evaluate_at_end=True)
    result = session.run()
    assert session.evaluation is not None
    assert "evaluation" not in result
    mean = session.evaluation["env_runners"]["episode_return_mean"]
    *iterations, last = rows("run")
    assert [row["training_iteration"] for row in iterations] == [1, 2]
    assert not any("evaluation/env_runners/episode_return_mean" in row for row in iterations)
    assert last["training_iteration"] == 2
    assert last["env_runners/num_env_steps_sampled_lifetime"] == 128
    assert last["evaluation/env_runners/episode_return_mean"] == mean
    assert last["time_total_s"] > iterations[-1]["time_total_s"]
    _, table = read_table(Path("run/progress.csv"))
    assert [row["evaluation/env_runners/episode_return_mean"] for row in table] == ["", "", str(mean)]
    assert saved == ["checkpoint", "best_checkpoint", "checkpoint"]
    for name in ("checkpoint", "best_checkpoint"):
        metrics = load_checkpoint(f"run/{name}")["state"]["metrics"]
        assert (metrics["iterations"], metrics["best_evaluation"], metrics["seconds"]) == (
            2,
            mean,
            last["time_total_s"],
        )
    (curve,) = plot_runs([Path("run")], Path("plot.png"), metric="evaluation/env_runners/episode_return_mean")
    assert (curve.x.tolist(), curve.mean.tolist()) == ([128.0], [mean])


def test_a_run_that_goes_on_keeps_the_row_of_the_evaluation(make: Make) -> None:
    with make(run_dir="run") as first:
        TrainingSession(first, Goal(64), evaluate_at_end=True).run()
    with Algorithm.from_checkpoint("run/checkpoint") as resumed:
        TrainingSession(resumed, Goal(128), evaluate_at_end=True).run()
    printed = [(row["training_iteration"], "evaluation/env_runners/num_episodes" in row) for row in rows("run")]
    assert printed == [(1, False), (1, True), (2, False), (2, True)]


def test_the_evaluation_of_the_last_iteration_is_that_of_the_end(make: Make) -> None:
    session = TrainingSession(make(run_dir="run", evaluation_interval=2), Goal(128), evaluate_at_end=True)
    assert session.run()["evaluation"] is session.evaluation is not None
    assert len(rows("run")) == 2


def test_no_evaluation_at_the_end_where_no_episode_ends_or_a_signal_came(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = TrainingSession(make(train_batch_size_per_learner=4, minibatch_size=4), Goal(4), evaluate_at_end=True)
    short.run()
    assert short.evaluation is None
    algorithm = make(run_dir="run")
    signal_during(algorithm, monkeypatch, signal.SIGINT)
    stopped = TrainingSession(algorithm, Goal(10_000), evaluate_at_end=True)
    stopped.run()
    assert stopped.evaluation is None
    assert len(rows("run")) == 2


def test_an_evaluation_that_fails_at_the_end_does_not_lose_the_run(make: Make) -> None:
    def failing(algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
        raise OSError("no more")

    algorithm = make(run_dir="run", on_evaluate_end=failing)
    with pytest.raises(RuntimeError, match="no more"):
        TrainingSession(algorithm, Goal(64), evaluate_at_end=True).run()
    assert load_checkpoint("run/checkpoint")["state"]["metrics"]["iterations"] == 1
    assert Path("run/learning_curve.png").exists()


# --- signals ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_finishes_the_iteration_and_saves(
    make: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    algorithm = make(run_dir="run")
    signal_during(algorithm, monkeypatch, signal.SIGINT)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match=rf"^saved {Path('run/checkpoint').absolute()}$"):
        algorithm.learn(num_env_steps=10_000)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert algorithm.stopped_by == "signal"
    assert [row["training_iteration"] for row in rows("run")] == [1, 2]
    assert Path("run/learning_curve.png").exists()
    with Algorithm.from_checkpoint("run/checkpoint") as resumed:
        assert resumed.env_steps == 128
    printed = capfd.readouterr().err
    assert "Ctrl-C again stops at once" in printed
    assert f"Stopped by Ctrl-C after 128 env steps; saved {Path('run/checkpoint').absolute()}\n" in printed


def test_ctrl_c_saves_also_if_it_ended_the_reader_of_stderr(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(file: int, data: bytes) -> int:
        if file == 2:
            raise BrokenPipeError  # as after `2>&1 | tee`, which Ctrl-C ends, too
        return write(file, data)

    write = os.write
    monkeypatch.setattr(os, "write", unread)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=lambda text: unread(2, b""), flush=lambda: None))
    algorithm = make(run_dir="run")
    signal_during(algorithm, monkeypatch, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"^saved "):
        algorithm.learn(num_env_steps=10_000)
    assert Path("run/checkpoint").exists()


@pytest.mark.parametrize("name", ["on_train_result", "on_sample_end"])
def test_ctrl_c_saves_also_if_it_ended_the_reader_of_what_a_callback_prints(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def prints(algorithm: Algorithm, **_: Any) -> None:
        if algorithm.metrics.env_steps >= 128:
            raise BrokenPipeError

    algorithm = make(run_dir="run", **{name: prints})
    signal_during(algorithm, monkeypatch, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"^saved "):
        algorithm.learn(num_env_steps=10_000)
    assert algorithm.stopped_by == "signal"
    algorithm.stop()
    silent: dict[str, Any] = {name: None}
    with Algorithm.from_checkpoint("run/checkpoint", **silent) as resumed:
        assert resumed.env_steps == 128
        assert resumed.train()["env_runners"]["num_env_steps_sampled_lifetime"] == 192


def test_a_callback_that_fails_without_a_signal_ends_the_run(make: Make) -> None:
    def prints(algorithm: Algorithm, result: dict[str, Any]) -> None:
        raise BrokenPipeError

    with pytest.raises(RuntimeError, match=r"on_train_result .* got BrokenPipeError"):
        make(run_dir="run", on_train_result=prints).learn(num_env_steps=128)
    assert not Path("run/checkpoint").exists()


def test_the_second_ctrl_c_interrupts_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(run_dir="run")
    signal_during(algorithm, monkeypatch, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        algorithm.learn(num_env_steps=10_000)
    assert (algorithm.metrics.iterations, algorithm.stopped_by) == (1, "signal")
    assert not Path("run/checkpoint").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_after_the_checkpoint_says_that_it_is_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make(run_dir="run")
    signal_during(algorithm, monkeypatch, signal.SIGINT)
    draw = RunFolder.write_learning_curve

    def interrupted(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        draw(*args)

    monkeypatch.setattr(RunFolder, "write_learning_curve", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"saved .*checkpoint"):
        algorithm.learn(num_env_steps=10_000)
    assert Path("run/checkpoint").exists()


def test_ctrl_c_without_run_dir_still_saves(
    make: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    algorithm = make()
    signal_during(algorithm, monkeypatch, signal.SIGINT)
    session = TrainingSession(algorithm, Goal(10_000))
    session.run()
    assert session.signal is signal.SIGINT
    assert session.checkpoint is not None
    assert re.fullmatch(r"ppo-CartPole-v1-\d{8}-\d{6}", session.checkpoint.parent.name)
    assert str(session.checkpoint) in capfd.readouterr().err
    with Algorithm.from_checkpoint(session.checkpoint) as resumed:
        assert resumed.env_steps == 128


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_and_a_closed_terminal_save_once_and_exit_even_if_sent_twice(
    make: Make, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    algorithm = make(run_dir="run")
    signal_during(algorithm, monkeypatch, number, number)
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    try:
        with pytest.raises(SystemExit) as ended:
            algorithm.learn(num_env_steps=10_000)
    finally:
        signal.signal(number, before)
    assert (ended.value.code, algorithm.stopped_by) == (code, "signal")
    with Algorithm.from_checkpoint("run/checkpoint") as resumed:
        assert resumed.env_steps == 128


def test_ctrl_c_ends_a_loop_over_settings(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scores: dict[float, int] = {}

    def search() -> None:
        for lr in (1e-4, 1e-3, 3e-3):
            algorithm = make(lr=lr)
            if lr == 1e-3:
                signal_during(algorithm, monkeypatch, signal.SIGINT)
            algorithm.learn(num_env_steps=256)
            scores[lr] = algorithm.env_steps

    with pytest.raises(KeyboardInterrupt):
        search()
    assert scores == {1e-4: 256}


def test_ctrl_c_ends_an_optuna_study(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")

    def objective(trial: Any) -> float:
        algorithm = make(lr=trial.suggest_float("lr", 1e-4, 1e-2))
        if trial.number == 1:
            signal_during(algorithm, monkeypatch, signal.SIGINT)
        return algorithm.learn(num_env_steps=128)["env_runners"]["episode_return_mean"]

    study = optuna.create_study()
    with pytest.raises(KeyboardInterrupt):
        study.optimize(objective, n_trials=3)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["in the background", "under nohup"])
def test_an_ignored_signal_stays_ignored(make: Make, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    algorithm = make()
    signal_during(algorithm, monkeypatch, number)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert algorithm.learn(num_env_steps=192)["training_iteration"] == 3
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_learns_in_another_thread(make: Make) -> None:
    algorithm, results = make(), []
    thread = threading.Thread(target=lambda: results.append(algorithm.learn(num_env_steps=64)))
    thread.start()
    thread.join(60)
    assert results[0]["training_iteration"] == 1


# --- what it shows ----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quiet_by_default(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    make().learn(num_env_steps=128)
    assert capfd.readouterr() == ("", "")


def test_the_facts_of_plain_lines(
    make: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    algorithm = make(evaluation_interval=2)
    monkeypatch.setattr(progress_module, "SECONDS_BEFORE_LINE", 0.0)
    algorithm.learn(num_env_steps=192, progress=True)
    *_, last = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"0:0\d  192/192 steps  [\d,]+/s  return [\d.]+  evaluation [\d.]+  0:00 left", last)


def test_a_bar_on_a_terminal(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_REDRAWS", 0.0)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(os.environ, "TERM", "xterm")
    make().learn(num_env_steps=192, progress=True)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "first iteration" in shown
    for steps in ("64/192 steps", "128/192 steps", "192/192 steps"):
        assert steps in shown
    assert "━" in shown


def test_a_terminal_that_is_closed_ends_no_run(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(text: str) -> int:
        if algorithm.metrics.iterations:
            raise OSError(errno.EIO, "Input/output error")
        return len(text)

    terminal = Terminal()
    monkeypatch.setattr(terminal, "write", write)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_REDRAWS", 0.0)
    monkeypatch.setitem(os.environ, "TERM", "xterm")
    algorithm = make(run_dir="run")
    assert algorithm.learn(num_env_steps=192, progress=True)["training_iteration"] == 3
    assert Path("run/checkpoint").exists()


def test_durations_read_like_a_clock() -> None:
    assert [duration_text(seconds) for seconds in (0, 59.6, 3599, 7322)] == [
        "0:00",
        "1:00",
        "59:59",
        "2:02:02",
    ]
