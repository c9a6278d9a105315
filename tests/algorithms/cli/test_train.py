"""``rlmodule train``: one run, what it prints and leaves, how it ends, and how it goes on."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import gymnasium as gym
import pytest

import catalog_rl
from algorithms import Algorithm
from algorithms.cli import main
from algorithms.cli.train import train_plan
from algorithms.presets import Preset
from algorithms.run.goal import Goal, read_goal

ROOT = Path(catalog_rl.__file__).resolve().parent
SMALL = [
    *("--num-envs-per-env-runner", "4", "--train-batch-size-per-learner", "64", "--minibatch-size", "32"),
    *("--num-epochs", "1", "--evaluation-duration", "2", "--seed", "1"),
]
PPO = ["train", "ppo", "CartPole-v1", *SMALL]

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

gymnasium.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)

def make_env(env_config):
    return TimeLimit(CartPoleEnv(), env_config["limit"])

def listen(algorithm, result):
    print("listened")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module ``envs_of_mine`` in the current folder, which is not on the path."""
    (here / "envs_of_mine.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(here))])
    registered = dict(gym.registry)
    yield
    sys.modules.pop("envs_of_mine", None)
    gym.registry.clear()
    gym.registry.update(registered)


def steps_logged(run: str) -> list[int]:
    """Env steps by iteration; the row of an evaluation at the end is not one."""
    rows = [json.loads(line) for line in Path(run, "progress.jsonl").read_text().splitlines()]
    return [row["env_runners/num_env_steps_sampled_lifetime"] for row in rows if "timers/env_step" in row]


def snippet_of(printed: str) -> str:
    return textwrap.dedent(printed.partition("in Python:\n")[2])


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_tilde_stands_for_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    assert main([*PPO, "--num-env-steps", "64", "--run-dir=~/mine"]) == 0
    assert (here / "home" / "mine" / "checkpoint").exists()
    assert not (here / "~").exists()


@pytest.mark.parametrize(
    "words",
    [["a2c"], ["impala", "--num-env-steps-per-iteration", "128"], ["appo", "--num-env-steps-per-iteration", "128"]],
    ids=["a2c", "impala", "appo"],
)
def test_actor_critics_train_and_go_on_from_the_shell(words: list[str]) -> None:
    algo, *more = words
    command = ["train", algo, "CartPole-v1", *SMALL, *more, "--preset", "none", "--run-dir", "run", "--quiet"]
    assert main([*command, "--num-env-steps", "128"]) == 0
    assert main(["train", "--load", "run", "--num-env-steps", "128", "--quiet"]) == 0
    assert steps_logged("run")[-1] == 256
    with Algorithm.from_checkpoint("run") as algorithm:
        assert type(algorithm).__name__ == algo.upper()


def test_train_tells_what_it_does_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PPO, "--num-env-steps", "200"]) == 0
    printed = capsys.readouterr().out
    (run,) = Path("runs").iterdir()
    assert re.fullmatch(r"ppo-CartPole-v1-\d{8}-\d{6}", run.name)
    assert printed.startswith(
        "PPO on CartPole-v1\n  starts from the preset of CartPole-v1: the defaults of PPO reached 500"
    )
    assert re.search(r"steps +200\n +seed +1\n +parameters +9,155\n +run dir +runs/ppo", printed)
    for name in ("checkpoint", "progress.jsonl", "learning_curve.png"):
        assert f"  {run / name}\n" in printed
        assert (run / name).exists()
    assert steps_logged(str(run)) == [64, 128, 192, 256]
    assert re.search(r"Evaluation: return [\d.]+ over 2 episodes, taking most likely actions", printed)
    assert f"  rlmodule evaluate {run}\n  rlmodule train --load {run}\n" in printed
    names: dict[str, Any] = {}
    exec(snippet_of(printed), names)
    assert names["action"] in (0, 1)
    names["env"].close()


def test_without_a_budget_that_of_the_preset_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("algorithms.run.session.TrainingSession.run", lambda session: pytest.fail(str(session.amount)))
    for env, args, steps in (
        ("CartPole-v1", [], 100_000),
        ("CartPole-v1", ["--preset", "none"], 200_000),
        ("MountainCar-v0", [], 200_000),
    ):
        with pytest.raises(pytest.fail.Exception, match=f"^{steps}$"):
            main(["train", "ppo", env, *args])
        assert f"steps       {steps:,}\n" in capsys.readouterr().out
    assert not list(Path("runs").iterdir())  # nothing was written, so no folder stays


def test_train_with_model_flags_env_config_and_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--fcnet-hiddens", "8", "--env-config", '{"sutton_barto_reward": true}', "--lr", "[[0,0.001],[1e3,0]]"]
    assert main([*PPO, *args, "--num-env-steps", "64", "--run-dir", "here"]) == 0
    printed = capsys.readouterr().out
    names: dict[str, Any] = {}
    exec(snippet_of(printed), names)
    assert names["env"].unwrapped._sutton_barto_reward
    with Algorithm.from_checkpoint("here/checkpoint") as algorithm:
        assert algorithm.config.env_config == {"sutton_barto_reward": True}
        assert algorithm.config.lr == [[0, 0.001], [1000, 0]]
        assert re.search(r"4 ?→ ?8", algorithm.explain())


@pytest.mark.usefixtures("mine")
def test_an_id_that_is_registered_beside_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "envs_of_mine:Mine-v0", *SMALL, "--num-env-steps", "64"]) == 0
    printed = capsys.readouterr().out
    assert "return 9.0" in printed
    assert ", allow=['envs_of_mine'])" in printed
    assert " --allow envs_of_mine\n" in printed
    assert [path.name.startswith("ppo-envs_of_mine-Mine-v0-") for path in Path("runs").iterdir()] == [True]


@pytest.mark.usefixtures("mine")
def test_a_factory_and_a_function_beside_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--env-config", '{"limit": 7}', "--on-train-result", "envs_of_mine:listen", "--run-dir", "run"]
    assert main(["train", "ppo", "envs_of_mine:make_env", *SMALL, *args, "--num-env-steps", "128"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("listened") == 2
    assert "return 7.0" in printed
    assert "  starts from the defaults of PPO\n" in printed
    names: dict[str, Any] = {}
    exec(snippet_of(printed), names)
    assert names["action"] in (0, 1)


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str], here: Path) -> None:
    args = ["--num-env-steps", "64", "--quiet", "--run-dir", "None", "--target-return", "-200"]
    assert main([*PPO, *args]) == 0
    assert capfd.readouterr() == ("", "")
    assert not list(here.iterdir())


def test_a_target_that_is_not_reached_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--num-env-steps", "64", "--target-return", "501", "--evaluation-interval", "1", "--run-dir", "run"]
    assert main([*PPO, *args]) == 1
    assert "The target return 501 was not reached.\n" in capsys.readouterr().err
    assert Path("run/checkpoint").exists()


def test_a_target_that_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--num-env-steps", "640", "--target-return", "2", "--evaluation-interval", "1", "--run-dir", "run"]
    assert main([*PPO, *args]) == 0
    printed = capsys.readouterr().out
    assert "The target return 2 was reached." in printed
    assert "  run/best_checkpoint\n" in printed
    assert steps_logged("run") == [64]


def test_no_evaluation_where_no_episode_ends(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--num-envs-per-env-runner", "4", "--train-batch-size-per-learner", "4", "--minibatch-size", "4"]
    args += ["--num-env-steps", "4", "--run-dir", "None"]
    assert main(["train", "ppo", "CartPole-v1", *args]) == 0
    printed = capsys.readouterr().out
    assert "No episode has ended yet" in printed
    assert "none: nothing will be written" in printed


SIGNALS = [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.faults)]


@pytest.mark.parametrize(("sent", "code"), SIGNALS)
def test_a_signal_ends_with_a_checkpoint(sent: signal.Signals, code: int) -> None:
    command = [*PPO, "--num-env-steps", "100000000", "--run-dir", "run"]
    # a process started in the background by a shell without job control ignores SIGINT
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from algorithms.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        progress, deadline = Path("run/progress.jsonl"), time.monotonic() + 300
        while not (progress.exists() and progress.stat().st_size):
            assert time.monotonic() < deadline, "no iteration was finished"
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        process.send_signal(sent)
        printed, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, printed
    assert "Traceback" not in printed
    assert f"Stopped by {'Ctrl-C' if sent is signal.SIGINT else 'SIGTERM'} after" in printed
    logged = steps_logged("run")
    assert Path("run/learning_curve.png").stat().st_size > 0
    with Algorithm.from_checkpoint("run/checkpoint") as resumed:
        assert resumed.env_steps == logged[-1] == 64 * len(logged)


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_of_128_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*PPO, "--num-env-steps", "128", "--fcnet-hiddens", "8", "--gamma", "0.9", "--run-dir", "run"]) == 0
    return folder / "run"


@pytest.fixture
def run(run_of_128_steps: Path, here: Path) -> Path:
    """The folder of a run of 128 steps, a copy for each test."""
    return Path(shutil.copytree(run_of_128_steps, here / "run"))


@pytest.mark.parametrize("path", ["run", "run/checkpoint"])
def test_a_run_goes_on_where_it_was_with_its_settings(run: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--load", path, "--num-env-steps", "64", "--lr", "1e-4"]) == 0
    printed = capsys.readouterr().out
    assert "  starts from run/checkpoint, at step 128\n  steps       64 more\n  seed        1\n" in printed
    assert "  run dir     run\n" in printed
    assert steps_logged("run") == [64, 128, 192]
    with Algorithm.from_checkpoint("run/checkpoint") as algorithm:
        assert algorithm.env_steps == 192
        assert (algorithm.config.lr, algorithm.config.gamma) == (1e-4, 0.9)


def test_a_run_goes_on_with_another_number_of_envs(run: Path) -> None:
    with Algorithm.from_checkpoint("run/checkpoint") as algorithm:
        envs = algorithm.config.num_envs_per_env_runner
    more = ["--num-env-steps", "64", "--num-envs-per-env-runner", str(2 * envs), "--quiet"]
    assert main(["train", "--load", "run", *more]) == 0
    assert steps_logged("run") == [64, 128, 192]
    with Algorithm.from_checkpoint("run/checkpoint") as algorithm:
        assert sorted(algorithm.env_runner_group.get_state(), key=int) == [str(env) for env in range(2 * envs)]


def test_a_run_that_goes_on_elsewhere_leaves_its_folder_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["train", "--load", "run", "--run-dir", "new", "--num-env-steps", "64"]) == 0
    assert (steps_logged("run"), steps_logged("new")) == ([64, 128], [192])
    # the folder counts where it is, not where it was made
    run.rename(run.with_name("moved"))
    assert main(["train", "--load", "moved", "--num-env-steps", "64", "--quiet"]) == 0
    assert steps_logged("moved") == [64, 128, 192]


def test_a_run_does_not_go_on_in_the_folder_of_another_with_its_seed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, "other")
    assert main(["train", "--load", "run", "--run-dir", "other", "--num-env-steps", "64"]) == 1
    error = "error: run_dir 'other': expected a folder without another run, got PPO with seed 1. Choose another; "
    assert capsys.readouterr().err.startswith(error)
    assert steps_logged("other") == [64, 128]
    assert main(["train", "--load", "run", "--run-dir", "../" + run.parent.name + "/run", "--num-env-steps", "64"]) == 0
    assert steps_logged("run") == [64, 128, 192]


def test_one_command_begins_a_run_and_resumes_it_until_all_steps_are_sampled(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    command = [*PPO, "--run-dir", "run", "--resume", "auto", "--keep-checkpoints", "2", "--checkpoint-interval", "1"]
    assert main([*command, "--num-env-steps", "128"]) == 0
    assert "starts from the preset of CartPole-v1" in capsys.readouterr().out
    os.truncate("run/checkpoint/checkpoint.json", 10)
    assert main([*command, "--num-env-steps", "256"]) == 0
    assert "starts from run/checkpoints/64, at step 64\n  steps       192 more\n" in capsys.readouterr().out
    (message,) = caplog.messages
    assert message.startswith("run/checkpoint is skipped: load('run/checkpoint'): expected a complete checkpoint")
    assert steps_logged("run") == [64, 128, 192, 256]
    assert main([*command, "--num-env-steps", "256"]) == 0
    assert capsys.readouterr().out == "run/checkpoint has sampled 256 env steps: nothing is left to do.\n"
    assert steps_logged("run") == [64, 128, 192, 256]


class Killed(BaseException):
    """Ends a command as SIGKILL does, but that files are closed."""


def kill(monkeypatch: pytest.MonkeyPatch, place: str, at: int = 1) -> None:
    """Let the next command be killed when it calls ``place`` the given time."""
    target, _, name = place.rpartition(".")
    owner, calls = resolve_name(target), itertools.count(1)
    inner = getattr(owner, name)

    def killing(*args: Any, **settings: Any) -> Any:
        if next(calls) == at:
            monkeypatch.setattr(owner, name, inner)
            raise Killed
        return inner(*args, **settings)

    monkeypatch.setattr(owner, name, killing)


TRAIN, EVALUATE = "algorithms.ppo.PPO.training_step", "algorithms.Algorithm.evaluate"


def evaluations_logged(run: str) -> list[int]:
    rows = [json.loads(line) for line in Path(run, "progress.jsonl").read_text().splitlines()]
    return [row["training_iteration"] for row in rows if "evaluation/env_runners/num_episodes" in row]


def test_a_run_killed_before_its_first_checkpoint_begins_again_in_its_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*PPO[:3], *SMALL[:-2], "--run-dir", "run", "--loggers", "jsonl", "csv", "--num-env-steps", "192"]
    kill(monkeypatch, TRAIN, 3)
    with pytest.raises(Killed):
        main([*command, "--resume", "auto"])
    assert steps_logged("run") == [64, 128]
    seed = json.loads(Path("run/run.json").read_text())["seed"]
    assert main(command) == 1  # only if it is asked for
    assert main([*command, "--resume", "auto", "--seed", str(seed + 1)]) == 1
    assert main(["train", "dqn", *command[2:7], "--run-dir", "run", "--resume", "auto"]) != 0
    assert steps_logged("run") == [64, 128]
    capsys.readouterr()
    assert main([*command, "--resume", "auto"]) == 0
    out = capsys.readouterr().out
    assert "run: the run there ended before its first checkpoint. It begins again.\nPPO on CartPole-v1\n" in out
    assert steps_logged("run") == [64, 128, 192]
    assert len(Path("run/progress.csv").read_text().splitlines()) == 5  # names, three iterations, an evaluation
    assert json.loads(Path("run/run.json").read_text())["seed"] == seed


def test_a_run_killed_in_its_evaluation_at_the_end_evaluates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*PPO, "--num-env-steps", "128", "--resume", "auto", "--target-return", "501"]
    assert main([*command, "--run-dir", "whole"]) == 1
    whole = Path("whole/progress.jsonl").read_text().splitlines()
    for place, at in ((EVALUATE, 1), ("algorithms.run.session.TrainingSession._save", 2)):
        run = f"run-{at}"
        kill(monkeypatch, place, at)
        with pytest.raises(Killed):
            main([*command, "--run-dir", run])
        capsys.readouterr()
        assert main([*command, "--run-dir", run]) == 1
        out, err = capsys.readouterr()
        assert re.search(r"at step 128\n  steps       0 more\n.*\nEvaluation: return [\d.]+ over 2 episodes", out, re.S)
        assert "Sampled" not in out
        assert err == "The target return 501 was not reached.\n"
        assert (steps_logged(run), evaluations_logged(run)) == ([64, 128], [2])
        last = [json.loads(lines[-1]) for lines in (whole, Path(run, "progress.jsonl").read_text().splitlines())]
        assert last[0].keys() == last[1].keys()
        assert (
            last[0]["evaluation/env_runners/episode_return_mean"]
            == last[1]["evaluation/env_runners/episode_return_mean"]
        )
        assert Path(run, "best_checkpoint").exists()


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize(
    "place",
    ["loggers.jsonl.JsonlLogger.log", "run.checkpoint_writer.CheckpointWriter.start"],
    ids=["row", "checkpoint"],
)
def test_a_run_killed_between_a_row_and_its_checkpoint_has_each_row_once(
    place: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = PPO
    if algorithm == "dqn":
        command = ["train", "dqn", "CartPole-v1", "--num-env-steps-per-iteration", "64", "--fcnet-hiddens", "8"]
        command += ["--seed", "1", "--preset", "none", "--evaluation-duration", "2", "--replay-capacity", "500"]
    command = [*command, "--run-dir", "run", "--num-env-steps", "320", "--checkpoint-interval", "1", "--resume", "auto"]
    kill(monkeypatch, f"algorithms.{place}", 4)
    with pytest.raises(Killed):
        main(command)
    assert main(command) == 0
    assert steps_logged("run") == [64, 128, 192, 256, 320]
    assert evaluations_logged("run") == [5]


@pytest.mark.parametrize(
    ("args", "code", "steps"),
    [
        (["--num-env-steps", "128", "--target-return", "501"], 1, [64, 128]),
        (["--num-env-steps", "640", "--target-return", "2"], 0, [64]),
        (["--num-env-steps", "640", "--target-return", "2", "--evaluation-interval", "2"], 0, [64, 128]),
        (["--num-env-steps", "640", "--on-train-result", "envs_of_mine:stop"], 0, [64]),
    ],
    ids=["missed", "reached in training", "reached in an evaluation", "stopped by a callback"],
)
@pytest.mark.usefixtures("mine")
def test_the_exit_code_of_a_run_that_is_over_is_its_verdict_and_it_does_not_train_on(
    args: list[str], code: int, steps: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("envs_of_mine.py").open("a") as file:
        file.write("\ndef stop(algorithm, result):\n    algorithm.stop_learning()\n")
    command = [*PPO, *args, "--run-dir", "run", "--resume", "auto", "--allow", "envs_of_mine"]
    kill(monkeypatch, "algorithms.run.run_folder.RunFolder.write_learning_curve")  # all is trained, and saved
    with pytest.raises(Killed):
        main(command)
    printed = []
    for _ in range(3):
        assert main(command) == code
        assert steps_logged("run") == steps
        assert len(evaluations_logged("run")) == 1
        printed.append(capsys.readouterr())
    assert printed[1] == printed[2]
    assert f"run/checkpoint has sampled {steps[-1]} env steps: nothing is left to do.\n" in printed[2].out


@pytest.mark.parametrize("how", ["--load", "--resume"])
def test_a_run_that_goes_on_keeps_its_goal(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(monkeypatch, TRAIN, 3)
    begin = [*PPO, "--run-dir", "run", "--checkpoint-interval", "1"]
    with pytest.raises(Killed):
        main([*begin, "--num-env-steps", "256", "--target-return", "501"])
    more = ["train", "--load", "run"] if how == "--load" else [*begin, "--resume", "auto"]
    kill(monkeypatch, TRAIN, 2)
    with pytest.raises(Killed):
        main(more)
    printed = "steps       128 more, what is left of the run's goal of 256 or a return of 501\n"
    assert printed in capsys.readouterr().out
    assert main(more) == 1
    assert "steps       64 more, what is left of the run's goal" in capsys.readouterr().out
    assert steps_logged("run") == [64, 128, 192, 256]


@pytest.mark.usefixtures("run")
def test_steps_that_are_typed_replace_the_goal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["train", "--load", "run"]
    assert main([*more, "--num-env-steps", "64"]) == 0
    assert json.loads(Path("run/run.json").read_text())["goal"] == {"num_env_steps": 192, "target_return": None}
    assert "steps       64 more\n" in capsys.readouterr().out
    monkeypatch.setattr("algorithms.cli.train.NO_PRESET", Preset(64, reached=""))
    assert main(more) == 0
    assert "steps       64 more, as the run's goal of 192 is reached\n" in capsys.readouterr().out
    assert steps_logged("run") == [64, 128, 192, 256]


@pytest.mark.parametrize(
    "goal",
    [
        '"all"',
        "7",
        '{"num_env_steps": 0, "target_return": null}',
        '{"num_env_steps": true, "target_return": null}',
        '{"num_env_steps": 1e9, "target_return": null}',
        '{"num_env_steps": 9, "target_return": "\\u001b[2J"}',
        '{"num_env_steps": 9, "target_return": Infinity}',
        '{"num_env_steps": 9}',
    ],
)
def test_a_goal_in_a_folder_is_checked(goal: str, here: Path) -> None:
    (here / "run.json").write_text(f'{{"algorithm": "PPO", "name": "", "seed": 1, "config": {{}}, "goal": {goal}}}')
    with pytest.raises(
        ValueError, match=r"run.json': expected a goal with num_env_steps, an int >= 1, and .+ Type --num"
    ):
        read_goal(here)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--load", "run", "--resume", "auto"], "--resume: expected no --load with it, got run"),
        (["ppo", "CartPole-v1", "--resume", "auto"], "--resume: expected one run in a folder, got no --run-dir"),
        (["ppo", "CartPole-v1", "--run-dir", "None", "--seed", "1,2"], "--run-dir: expected a folder for the runs of"),
        (["dqn", "CartPole-v1", "--resume", "auto", "--run-dir", "run"], "expected a run of DQN, got PPO in run/ch"),
        (["ppo", "--load", "run"], "rlmodule train: expected --load CKPT (no ALGO, no ENV), got ppo"),
        (
            ["ppo", "CartPole-v1", "--load", "run"],
            "rlmodule train: expected --load CKPT (no ALGO, no ENV), got ppo CartPole-v1",
        ),
        (["--load", "run", "--preset", "CartPole-v1"], "--load: expected neither --preset nor several seeds"),
        (["--load", "run", "--seed", "1..3"], "--load: expected neither --preset nor several seeds"),
    ],
)
def test_what_contradicts_the_run_to_go_on_with(
    run: Path, args: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *args]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.usefixtures("mine")
def test_a_run_resumes_in_its_own_env_alone(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SMALL, "--run-dir", "run", "--resume", "auto", "--allow", "envs_of_mine", "--num-env-steps"]
    assert main(["train", "ppo", "envs_of_mine:Mine-v0", *flags, "64"]) == 0
    assert main(["train", "ppo", "CartPole-v1", *flags, "128"]) == 2  # has the same spaces
    error = "error: --resume: expected a run in CartPole-v1, got envs_of_mine:Mine-v0 in run/checkpoint. Choose another"
    assert capsys.readouterr().err.startswith(error)
    assert main(["train", "ppo", "envs_of_mine:Mine-v0", *flags, "128"]) == 0
    assert steps_logged("run") == [64, 128]


@pytest.mark.usefixtures("mine")
def test_modules_of_a_checkpoint_are_imported_if_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    env = ["train", "ppo", "envs_of_mine:Mine-v0"]
    assert main([*env, *SMALL, "--num-env-steps", "64", "--run-dir", "run", "--quiet"]) == 0
    more = ["--load", "run", "--num-env-steps", "64", "--quiet"]
    assert main(["train", *more]) == 1
    assert "--allow" in capsys.readouterr().err
    assert main(["train", *more, "--allow", "envs_of_mine"]) == 0
    assert steps_logged("run") == [64, 128]


# --- settings in a file -----------------------------------------------------------------------------------------------


def weights(run: str) -> dict[str, Any]:
    with Algorithm.from_checkpoint(run) as algorithm:
        return algorithm.get_module().state_dict()


def test_a_run_is_repeated_to_the_bit_from_its_settings() -> None:
    steps = ["--num-env-steps", "256"]
    assert main([*PPO, *steps, "--run-dir", "first", "--fcnet-hiddens", "8"]) == 0
    assert main(["train", "--config", "first/run.json", *steps, "--run-dir", "again"]) == 0
    first, again = weights("first"), weights("again")
    assert all(first[name].equal(again[name]) for name in first)
    assert main(["train", "--config", "first/run.json", *steps, "--run-dir", "other", "--lr", "1e-3"]) == 0
    other = weights("other")
    assert not all(first[name].equal(other[name]) for name in first)


def test_a_run_is_repeated_with_the_seed_it_drew_and_its_goal(here: Path) -> None:
    goal = {"num_env_steps": 320, "target_return": 400.0}
    about = {"algorithm": "PPO", "name": "PPO on CartPole-v1", "seed": 7, "config": {"env": "CartPole-v1"}}
    (here / "run.json").write_text(json.dumps(about | {"goal": goal}))
    plan = train_plan(["--config", "run.json"])
    assert (plan.config.seed, plan.budget, plan.amount) == (7, "num_env_steps", 320)
    assert plan.kept == Goal(320, 400.0)
    plan = train_plan(["--config", "run.json", "--seed", "3", "--num-env-steps", "64"])
    assert (plan.config.seed, plan.amount, plan.kept) == (3, 64, None)
    plan = train_plan(["--config", "run.json", "--seed", "3,4", "--target-return", "5"])
    assert (plan.config.seed, plan.seeds, plan.kept) == (None, (3, 4), Goal(320, 5.0))
    (here / "run.json").rename("mine.json")  # the settings alone
    plan = train_plan(["--config", "mine.json"])
    assert (plan.config.seed, plan.amount, plan.kept) == (None, 200_000, None)


def test_the_seed_in_a_file_is_that_of_a_run_that_may_resume(here: Path) -> None:
    (here / "mine.json").write_text('{"algorithm": "PPO", "config": {"env": "CartPole-v1", "seed": 5}}')
    assert train_plan(["--config", "mine.json", "--resume", "auto", "--run-dir", "new"]).config.seed == 5


def test_several_seeds_of_the_settings_in_a_file(here: Path) -> None:
    settings = {"env": "CartPole-v1", "num_envs_per_env_runner": 4, "train_batch_size_per_learner": 64}
    (here / "mine.json").write_text(json.dumps({"algorithm": "ppo", "config": settings | {"minibatch_size": 32}}))
    words = ["--num-env-steps", "128", "--seed", "1,2", "--run-dir", "runs", "--evaluation-duration", "2"]
    assert main(["train", "--config", "mine.json", *words]) == 0
    for seed in (1, 2):
        about = json.loads((here / f"runs/seed-{seed}/run.json").read_text())
        assert about["config"]["minibatch_size"] == 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "expected a JSON file such as"),
        ("{", "JSONDecodeError"),
        ("[1]", "expected a JSON file such as"),
        ('{"algorithm": "PPO"}', "expected a JSON file such as"),
        ('{"algorithm": "PPOO", "config": {}}', "expected a run of a known algorithm"),
        ('{"algorithm": "PPO", "config": {"lrr": 1}}', "Did you mean 'lr'?"),
        ('{"algorithm": "PPO", "config": {"lr": "x"}}', "lr=): expected float"),
        ('{"algorithm": "PPO", "config": {"callbacks_class": {"__import__": "os:system"}}}', "--allow os"),
    ],
    ids=["none", "torn", "a list", "no config", "algorithm", "name", "value", "code"],
)
def test_a_file_without_settings_is_refused(
    text: str | None, expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (here / "mine.json").write_text(text)
    assert main(["train", "--config", "mine.json", "--run-dir", "None"]) > 0
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--load", "run"], ["--preset", "none"]])
def test_a_file_and_what_contradicts_it(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.json").write_text('{"algorithm": "PPO", "config": {"env": "CartPole-v1"}}')
    assert main(["train", "--config", "mine.json", *words]) > 0
    assert "error: " in capsys.readouterr().err
