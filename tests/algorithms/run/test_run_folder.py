"""What a run folder keeps: the last checkpoint, that of the best evaluation, and what belongs to one run only."""

import errno
import gc
import json
import math
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import catalog_rl
from algorithms import Algorithm
from algorithms.dqn import DQNConfig
from algorithms.loggers import csv, jsonl
from algorithms.loggers.csv import read_table
from algorithms.loggers.jsonl import read_rows
from algorithms.ppo import PPO, PPOConfig
from algorithms.run.run_folder import best_return_in, lock_folder
from rlmodule import checkpoint
from rlmodule.checkpoint import load_checkpoint
from rlmodule.seeding import int_seed


class Script:
    """What the evaluations of a test come to, one after the other."""

    returns: Iterator[float] = iter(())


STARTS = {int_seed(3, "evaluation_env", 0, number) for number in range(99)}
"""The seeds with which evaluations begin."""


class Scripted(gym.Env):
    """Episodes of one step. An evaluation's is worth what the script says; where that is NaN, no episode ends."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)  # type: ignore[assignment]

    def __init__(self, scripted: bool = False) -> None:
        self.scripted = scripted

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.scripted and seed in STARTS:
            self.reward = next(Script.returns)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if not self.scripted:
            return np.zeros(2, np.float32), 0.0, True, False, {}
        never = math.isnan(self.reward)
        return np.zeros(2, np.float32), 0.0 if never else self.reward, not never, False, {}


def build(run_dir: Path, evaluations: list[float], **settings: Any) -> PPO:
    Script.returns = iter(evaluations)
    small: dict[str, Any] = {
        "num_envs_per_env_runner": 1,
        "train_batch_size_per_learner": 8,
        "minibatch_size": 8,
        "num_epochs": 1,
    }
    small |= {"model_config": {"fcnet_hiddens": [4]}, "seed": 3, "loggers": ["jsonl"]}
    if evaluations:
        small |= {"evaluation_interval": 1, "evaluation_env_config": {"scripted": True}}
        small |= {"evaluation_duration": 2, "evaluation_duration_unit": "timesteps"}
    algorithm = PPOConfig(env=Scripted, run_dir=str(run_dir), **small | settings).build()
    assert isinstance(algorithm, PPO)
    return algorithm


def iterations_in(checkpoint: Path) -> int | None:
    """How many iterations the run had done when a checkpoint was written; None if there is none."""
    return load_checkpoint(checkpoint)["state"]["metrics"]["iterations"] if checkpoint.exists() else None


NAN = math.nan


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([3.0], [1]),
        ([1.0, 3.0, 2.0], [1, 2, 2]),
        ([3.0, 3.0, 3.5, 3.5], [1, 2, 3, 4]),  # of equal ones the last
        ([-5.0, -7.0, -4.0], [1, 1, 3]),
        ([NAN, -4.0, NAN, -4.5], [None, 2, 2, 2]),
        ([0.0, NAN], [1, 1]),
    ],
)
def test_the_best_evaluation_keeps_its_weights(
    evaluations: list[float], best: list[int | None], tmp_path: Path
) -> None:
    with build(tmp_path, evaluations) as algorithm:
        for mean, iteration in zip(evaluations, best, strict=True):
            result = algorithm.train()["evaluation"]["env_runners"]["episode_return_mean"]
            assert result == pytest.approx(mean, nan_ok=True)
            assert iterations_in(tmp_path / "best_checkpoint") == iteration
    assert iterations_in(tmp_path / "checkpoint") is None


def test_a_resumed_run_knows_what_was_best(tmp_path: Path) -> None:
    with build(tmp_path, [2.0, 5.0]) as first:
        first.learn(num_env_steps=16)
    assert iterations_in(tmp_path / "best_checkpoint") == 2
    Script.returns = iter([4.0, 5.0, 4.5])
    with Algorithm.from_checkpoint(tmp_path / "checkpoint", allow=[__name__]) as resumed:
        for best in (2, 4, 4):
            resumed.train()
            assert iterations_in(tmp_path / "best_checkpoint") == best


def test_in_another_folder_the_best_is_that_of_the_folder(tmp_path: Path) -> None:
    with build(tmp_path / "one", [9.0]) as first:
        first.learn(num_env_steps=8)
    Script.returns = iter([1.0, 2.0, 1.5])
    loaded = Algorithm.from_checkpoint(tmp_path / "one" / "checkpoint", allow=[__name__], run_dir=str(tmp_path / "two"))
    with loaded as resumed:
        for best in (2, 3, 3):
            resumed.train()
            assert iterations_in(tmp_path / "two" / "best_checkpoint") == best
    assert iterations_in(tmp_path / "one" / "best_checkpoint") == 1


def test_the_best_is_not_kept_if_it_shall_not_be(tmp_path: Path) -> None:
    with build(tmp_path, [1.0, 2.0], keep_best_checkpoint=False) as algorithm:
        algorithm.learn(num_env_steps=16)
    assert not (tmp_path / "best_checkpoint").exists()
    assert (tmp_path / "checkpoint").exists()


def test_checkpoints_between(tmp_path: Path) -> None:
    expected_text: list[Path] = []

    def note(algorithm: Algorithm, path: Path) -> None:
        expected_text.append(path)

    with build(tmp_path, [], checkpoint_interval=2, on_checkpoint=note) as algorithm:
        seen = []
        for _ in range(5):
            algorithm.train()
            seen.append(iterations_in(tmp_path / "checkpoint"))
        assert seen == [None, 2, 2, 4, 4]
        algorithm.learn(num_env_steps=8)
    assert iterations_in(tmp_path / "checkpoint") == 6
    assert (
        expected_text == [tmp_path / "checkpoint"] * 3
    )  # of the sixth iteration, which is also the last, there is one


def test_a_checkpoint_that_fails_is_told_and_three_in_a_row_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = iter([True, True, False, True, True, True])

    def write(*args: Any) -> None:
        if next(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_in_full(*args)

    write_in_full = checkpoint.write_folder
    monkeypatch.setattr(checkpoint, "write_folder", write)
    with build(tmp_path, [], checkpoint_interval=1) as algorithm:
        assert [algorithm.train()["num_checkpoints_failed"] for _ in range(5)] == [1, 2, 2, 3, 4]
        assert len(caplog.messages) == 4
        expected_text = rf"A checkpoint was not written. save\('{tmp_path}/checkpoint'\): expected a folder to "
        expected_text += (
            r"write to, got No space left on device \(0\.0 MB to write, [\d,.]+ MB free\)\. Choose another path, or "
        )
        assert all(re.match(expected_text, message) for message in caplog.messages)
        with pytest.raises(OSError, match="No space left"):
            algorithm.train()
    assert iterations_in(tmp_path / "checkpoint") == 3
    lines = (tmp_path / "progress.jsonl").read_text().splitlines()
    # a row is written before its checkpoint, and has those that failed before it
    assert [json.loads(line).get("num_checkpoints_failed") for line in lines] == [None, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("full", [["progress.jsonl"], ["progress.csv"], ["progress.jsonl", "progress.csv"]])
@pytest.mark.parametrize("killed_at", [2, 3, 4])
def test_a_row_that_waits_for_space_survives_in_the_checkpoint(
    full: list[str], killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 2 and 3 cannot be written, their checkpoints can, and row 4 is written before its checkpoint fails."""
    write_folder = checkpoint.write_folder

    def failing(function: Callable[[Path, Any], None]) -> Callable[[Path, Any], None]:
        def write_unless_full(path: Path, data: Any) -> None:
            if path.name in full and algorithm.metrics.iterations in (2, 3):
                raise OSError(errno.ENOSPC, "No space left on device")
            function(path, data)

        return write_unless_full

    def write(*args: Any) -> None:
        if algorithm.metrics.iterations == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_folder(*args)

    for module, name in ((jsonl, "append_whole"), (csv, "append_whole"), (csv, "replace_file")):
        monkeypatch.setattr(module, name, failing(getattr(module, name)))
    monkeypatch.setattr(checkpoint, "write_folder", write)
    loggers = ["jsonl", "csv"]
    with build(tmp_path / "run", [], checkpoint_interval=1, loggers=loggers) as algorithm:
        assert algorithm.report  # before its files cannot be written
        results = [algorithm.train() for _ in range(killed_at)]
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
        monkeypatch.undo()
    with Algorithm.from_checkpoint(tmp_path / "killed", allow=[__name__]) as resumed:
        assert resumed.metrics.iterations == min(killed_at, 3)
        results = results[: resumed.metrics.iterations] + [resumed.train() for _ in range(2)]
    rows = read_rows(tmp_path / "killed" / "progress.jsonl")
    assert [row["training_iteration"] for row in rows] == [*range(1, len(results) + 1)]
    assert [row["time_total_s"] for row in rows] == [result["time_total_s"] for result in results]
    _, table = read_table(tmp_path / "killed" / "progress.csv")
    assert [float(row["time_total_s"]) for row in table] == [result["time_total_s"] for result in results]


def test_a_run_goes_on_from_a_checkpoint_between_and_drops_what_came_after(tmp_path: Path) -> None:
    with build(tmp_path, [], checkpoint_interval=2) as algorithm:
        for _ in range(3):
            algorithm.train()
    with Algorithm.from_checkpoint(tmp_path / "checkpoint", allow=[__name__]) as resumed:
        resumed.learn(num_env_steps=16)
    rows = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4]


def test_run_json_tells_what_ran(tmp_path: Path) -> None:
    with build(tmp_path, []) as algorithm:
        algorithm.train()
        config = algorithm.config.to_dict()
    about = json.loads((tmp_path / "run.json").read_text())
    assert {name: about[name] for name in ("algorithm", "name", "seed")} == {
        "algorithm": "PPO",
        "name": "PPO on Scripted",
        "seed": 3,
    }
    assert about["config"] == json.loads(json.dumps(config))


def test_the_folder_of_several_seeds_takes_no_other_run(tmp_path: Path) -> None:
    for seed in (1, 2):
        with build(tmp_path / f"seed-{seed}", []) as algorithm:
            algorithm.train()
    with build(tmp_path, []) as again, pytest.raises(FileExistsError, match=r"several seeds \(seed-1, seed-2\)"):
        again.train()
    assert not (tmp_path / "progress.jsonl").exists()


def test_the_folder_of_a_study_takes_no_run(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    text = "expected a folder without another run, got the trials of a study. Choose another."
    with build(tmp_path, []) as algorithm, pytest.raises(FileExistsError, match=re.escape(text)):
        algorithm.train()
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["study.json"]


def test_a_folder_with_a_run_is_not_begun_anew(tmp_path: Path) -> None:
    with build(tmp_path, []) as algorithm:
        algorithm.train()
    before = (tmp_path / "progress.jsonl").read_text()
    with (
        build(tmp_path, []) as again,
        pytest.raises(FileExistsError, match=r"Choose another; to train there again, delete the folder"),
    ):
        again.train()
    with build(tmp_path / "other", []) as algorithm:
        algorithm.learn(num_env_steps=8)
    with (
        build(tmp_path / "other", []) as again,
        pytest.raises(FileExistsError, match=r"continue it with Algorithm.from_checkpoint\('.+other/checkpoint'\)"),
    ):
        again.train()
    assert (tmp_path / "progress.jsonl").read_text() == before


@pytest.mark.parametrize("other", ["seed", "algorithm", "settings"])
def test_a_run_does_not_go_on_in_the_folder_of_another(other: str, tmp_path: Path) -> None:
    with build(tmp_path / "one", []) as algorithm:
        algorithm.learn(num_env_steps=8)
    if other != "algorithm":
        with build(tmp_path / "two", [], **({"seed": 4} if other == "seed" else {"lr": 0.1})) as algorithm:
            algorithm.train()
    else:
        config = DQNConfig(env=Scripted, seed=3, run_dir=str(tmp_path / "two"), replay_capacity=500)
        with config.update({"num_env_steps_per_iteration": 8}).build() as algorithm:
            algorithm.train()
    before = (tmp_path / "two" / "progress.jsonl").read_text()
    loaded = Algorithm.from_checkpoint(tmp_path / "one" / "checkpoint", allow=[__name__], run_dir=str(tmp_path / "two"))
    with (
        loaded as resumed,
        pytest.raises(FileExistsError, match=r"without another run, got (PPO|DQN) with seed"),
    ):
        resumed.train()
    assert (tmp_path / "two" / "progress.jsonl").read_text() == before


def test_a_run_goes_on_in_its_folder_from_a_checkpoint_that_is_kept_outside(tmp_path: Path) -> None:
    with build(tmp_path / "run", []) as algorithm:
        algorithm.learn(num_env_steps=8)
        algorithm.save(tmp_path / "kept")
        algorithm.learn(num_env_steps=8)
    loaded = Algorithm.from_checkpoint(tmp_path / "kept", allow=[__name__], run_dir=str(tmp_path / "run"))
    with loaded as resumed:
        resumed.train()
    assert [row["training_iteration"] for row in read_rows(tmp_path / "run" / "progress.jsonl")] == [1, 2]


def test_a_folder_is_as_it_was_if_its_run_could_not_begin(tmp_path: Path) -> None:
    def missing(run: Any) -> Any:
        raise ImportError("no such service")

    def begin(run_dir: Path) -> None:
        with build(run_dir, [], loggers=["csv", "jsonl", "tensorboard", missing]) as algorithm:
            with pytest.raises(ImportError, match="no such service"):
                algorithm.train()
            assert algorithm.env_steps == 0

    begin(tmp_path / "deep" / "er" / "run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("why")
    begin(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]
    with build(tmp_path / "mine", []) as algorithm:
        assert algorithm.train()["training_iteration"] == 1


@pytest.mark.parametrize(("loggers", "name"), [([], "run.json"), (["jsonl"], "progress.jsonl")])
def test_a_run_that_begins_on_a_full_disk_names_the_file(
    loggers: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(*paths: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", replace)
    text = rf"^'{tmp_path}/run/{name}': expected a file to write to, got No space left on device\. Free disk space"
    with build(tmp_path / "run", [], loggers=loggers) as algorithm, pytest.raises(OSError, match=text):
        algorithm.train()


def test_a_folder_whose_run_failed_in_its_first_iteration_is_used_again(tmp_path: Path) -> None:
    def failing(algorithm: Any, result: Any) -> None:
        raise RuntimeError("no number")

    with build(tmp_path, [], on_train_result=failing) as algorithm, pytest.raises(RuntimeError, match="no number"):
        algorithm.train()
    assert (tmp_path / "run.json").exists()
    (tmp_path / "best_checkpoint").mkdir()  # of an iteration whose loggers failed: not to be lost
    with build(tmp_path, []) as again, pytest.raises(FileExistsError, match="delete the folder"):
        again.train()
    (tmp_path / "best_checkpoint").rmdir()
    with build(tmp_path, [], seed=4) as again:
        again.train()
    assert len((tmp_path / "progress.jsonl").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 4


def test_a_run_that_could_not_go_on_keeps_its_files(tmp_path: Path) -> None:
    def missing(run: Any) -> Any:
        raise ImportError("no such service")

    with build(tmp_path, []) as algorithm:
        algorithm.learn(num_env_steps=16)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    loaded = Algorithm.from_checkpoint(
        tmp_path / "checkpoint", allow=[__name__], loggers=["jsonl", "tensorboard", missing]
    )
    with loaded as resumed, pytest.raises(ImportError, match="no such service"):
        resumed.train()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# --- one run at a time ------------------------------------------------------------------------------------------------

TRAINS = """
import sys, time
from algorithms.ppo import PPOConfig

config = PPOConfig(env="CartPole-v1", num_envs_per_env_runner=1, train_batch_size_per_learner=8, minibatch_size=8)
algorithm = config.update({"seed": 3, "run_dir": sys.argv[1]}).build()
algorithm.learn(num_env_steps=8)
print("trained", flush=True)
sys.stdin.readline()
"""


@contextmanager
def another_process(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """One that trains in ``run_dir``, and waits there until it is killed."""
    root = str(Path(catalog_rl.__file__).resolve().parent)
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(run_dir)],
        env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "trained\n"
            yield process
        finally:
            process.kill()


def test_a_folder_in_which_another_process_trains_is_refused_until_that_is_killed(tmp_path: Path) -> None:
    with another_process(tmp_path) as process:
        before = (tmp_path / "progress.jsonl").read_bytes()
        refused = (
            rf"run_dir '{tmp_path}': expected .+, got one where a run is training \(process {process.pid}\)\. Choose"
        )
        with build(tmp_path, []) as new, pytest.raises(BlockingIOError, match=refused):
            new.train()
        with Algorithm.from_checkpoint(tmp_path / "checkpoint") as resumed:
            with pytest.raises(BlockingIOError, match=refused):
                resumed.learn(num_env_steps=8)
            assert (tmp_path / "progress.jsonl").read_bytes() == before
            process.kill()
            process.wait()
            assert resumed.train()["training_iteration"] == 2


def test_in_one_process_a_folder_belongs_to_the_algorithm_that_lives(tmp_path: Path) -> None:
    with build(tmp_path, []) as first:
        first.learn(num_env_steps=8)
        resumed = Algorithm.from_checkpoint(tmp_path / "checkpoint", allow=[__name__])
        refused = rf"\(process {os.getpid()}\)\. Choose another, or call stop\(\) on the algorithm of this process"
        with pytest.raises(BlockingIOError, match=refused):
            resumed.train()
        first.stop()
        with resumed:
            assert resumed.train()["training_iteration"] == 2
            first.stop()  # again, and without effect on who has the folder now
            with build(tmp_path, []) as third, pytest.raises(BlockingIOError, match=refused):
                third.train()


def test_an_algorithm_that_nobody_stopped_lets_the_folder_go_when_it_is_collected(tmp_path: Path) -> None:
    build(tmp_path, []).learn(num_env_steps=8)
    gc.collect()
    with Algorithm.from_checkpoint(tmp_path / "checkpoint", allow=[__name__]) as resumed:
        assert resumed.train()["training_iteration"] == 2


@pytest.mark.parametrize("name", [".lock", "progress.jsonl", ".progress.jsonl-new", "run.json", "learning_curve.png"])
def test_nothing_is_written_through_a_link_to_a_file(tmp_path: Path, name: str) -> None:
    remote = tmp_path / "remote"
    remote.write_text("years of work")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / name).symlink_to(remote)
    expected_text = (
        rf"^run_dir '{run_dir}': expected a folder to write to, got one in which {name} is a link to a file\. Choose"
    )
    with build(run_dir, []) as algorithm, pytest.raises(OSError, match=expected_text):
        algorithm.train()
    assert remote.read_text() == "years of work"
    assert os.listdir(run_dir) == [name]


def test_a_run_folder_may_be_reached_through_a_link_and_link_to_other_folders(tmp_path: Path) -> None:
    for name in ("disk", "films"):
        (tmp_path / name).mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "videos").symlink_to(tmp_path / "films")
    with build(tmp_path / "run", [], checkpoint_interval=1) as algorithm:
        algorithm.train()
    with Algorithm.from_checkpoint(tmp_path / "run", allow=[__name__]) as resumed:
        assert resumed.train()["training_iteration"] == 2
    assert iterations_in(tmp_path / "disk" / "checkpoint") == 2


def test_a_lock_survives_that_a_fork_of_its_process_ends(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in processes with threads; this one ends at once
        child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(BlockingIOError):
        lock_folder(tmp_path)
    lock.release()
    lock_folder(tmp_path).release()


def test_nothing_is_refused_where_the_file_system_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*args: Any) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with build(tmp_path, []) as algorithm:
        assert algorithm.train()["training_iteration"] == 1


def test_the_best_checkpoint_itself_says_what_is_to_be_beaten(tmp_path: Path) -> None:
    """A resumed run from before its best evaluation does not replace what it is worse than."""
    means = iter([100.0, 500.0, 150.0, 600.0])

    def evaluate(self: Algorithm, **_: Any) -> dict[str, Any]:
        return {"env_runners": {"episode_return_mean": next(means)}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Algorithm, "evaluate", evaluate)
        with build(tmp_path, [], evaluation_interval=1) as algorithm:
            algorithm.train()
            algorithm.save(tmp_path / "checkpoint")
            algorithm.train()
        with Algorithm.from_checkpoint(tmp_path / "checkpoint", allow=[__name__]) as resumed:
            resumed.train()
            assert best_return_in(tmp_path / "best_checkpoint") == 500
            resumed.train()
    assert best_return_in(tmp_path / "best_checkpoint") == 600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"algorithm": "PPO"}'])
def test_a_damaged_run_json_does_not_keep_a_run_from_going_on(tmp_path: Path, text: str) -> None:
    with build(tmp_path, []) as algorithm:
        algorithm.learn(num_env_steps=8)
    (tmp_path / "run.json").write_text(text)
    with Algorithm.from_checkpoint(tmp_path / "checkpoint", allow=[__name__]) as resumed:
        resumed.learn(num_env_steps=8)
    assert json.loads((tmp_path / "run.json").read_text())["algorithm"] == "PPO"
