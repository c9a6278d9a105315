"""What a shell prints about mistakes: one line on stderr, and an exit code."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import catalog_rl
from algorithms.cli import main
from algorithms.cli.exits import exit_code_of
from algorithms.ppo import PPOConfig

ROOT = Path(catalog_rl.__file__).resolve().parent
PPO = ["train", "ppo", "CartPole-v1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        (["tran"], 2, ["Did you mean 'train'?"]),
        (["train"], 2, ["ALGO first, got nothing"]),
        (["train", "--lr", "3"], 2, ["ALGO first", "rlmodule --help"]),
        (["train", "ppp", "CartPole-v1"], 2, ["'ppp'", "Did you mean 'PPO'?"]),
        (["train", "ppo"], 2, ["rlmodule train ppo: expected ENV, got nothing"]),
        (["train", "ppo", "--loggers", "csv", "CartPole-v1"], 2, ["ENV"]),  # it is taken for a logger
        ([*PPO, "again"], 2, ["expected ENV, got CartPole-v1 again."]),
        ([*PPO, "--use-kl-loss", "True"], 2, ["got CartPole-v1 True.", "takes no value: --x or --no-x."]),
        ([*PPO, "--vf-share-layers=false"], 2, ["--vf-share-layers: expected no value, got one.", "--no-x"]),
        ([*PPO, "--fcnet-hiddens", "[64,64]"], 2, ["got '[64,64]'.", "one word per item of a list"]),
        ([*PPO, "--loggers", '["csv", "jsonl"]'], 2, ["one word per item of a list"]),
        (
            [*PPO, "--num-env-steps", "10k"],
            2,
            ["--num-env-steps: expected int | None, got '10k'.", "all digits of a number"],
        ),
        ([*PPO, "--gamma", "1", "--lr", "1", "--gamma=0.9"], 2, ["--gamma: expected once, got it again."]),
        ([*PPO, "--use-kl-loss", "--no-use_kl_loss"], 2, ["--use-kl-loss: expected once, got it again."]),
        (
            ["evaluate", "a", "--allow", "b", "--allow", "c"],
            2,
            ["--allow: expected once", "all its words after one"],
        ),
        ([*PPO, "--lr"], 2, ["--lr: expected a value, got none"]),
        ([*PPO, "--lr", "--gamma", "1"], 2, ["--lr: expected a value, got none"]),
        ([*PPO, "--run-dir", "-x"], 2, ["--run-dir: expected a value, got none"]),
        ([*PPO, "--num-epoch", "3"], 2, ["'--num-epoch'", "Did you mean '--num-epochs'?"]),
        ([*PPO, "--train-batch-size", "64"], 2, ["Use --train-batch-size-per-learner."]),
        ([*PPO, "--target-retrun=3"], 2, ["Did you mean '--target-return'?"]),
        ([*PPO, "--fcnet-hidden", "3"], 2, ["Did you mean '--fcnet-hiddens'?"]),
        ([*PPO, "--no-lr"], 2, ["'--no-lr'"]),
        ([*PPO, "--help", "trainin"], 2, ["Did you mean 'training'?"]),
        ([*PPO, "--preset", "CartPole"], 2, ["auto, none, CartPole-v1", "Did you mean 'CartPole-v1'?"]),
        ([*PPO, "--num-epochs", "x"], 2, ["--num-epochs: expected int, got 'x'"]),
        ([*PPO, "--num-env-steps", "1.5e0"], 2, ["--num-env-steps: expected int | None, got '1.5e0'"]),
        ([*PPO, "--target-return", "high"], 2, ["--target-return: expected float | None, got 'high'"]),
        ([*PPO, "--lr", "fast"], 2, ["--lr: expected float | [[0, value], ", "got 'fast'"]),
        (
            [*PPO, "--env-config", "{a: 1}"],
            2,
            ["--env-config: expected dict[str, Any], got '{a: 1}'", "JSON in 'single quotes'"],
        ),
        ([*PPO, "--gym-env-vectorize-mode", "snc"], 2, ["'sync' | 'async'", "Did you mean 'sync'?"]),
        ([*PPO, "--learner-class", "PPOLearner"], 2, ["type[Learner] | None, got 'PPOLearner'", "my_module:Name"]),
        ([*PPO, "--learner-class", "algorithms.ppo:PPOLerner"], 2, ["Did you mean 'PPOLearner'?"]),
        ([*PPO, "--learner-class", "algorithms.ppo:PPOConfig"], 2, ["--learner-class: expected type[Learner]"]),
        ([*PPO, "--catalog-class", "algorithms.ppo:PPO"], 2, ["--catalog-class: expected type[Catalog] | None"]),
        ([*PPO, "--loggers", "jsnl"], 1, ["loggers: expected one of", "Did you mean 'jsonl'?"]),
        ([*PPO, "--seed", "5..1"], 2, ["--seed: expected a whole number", "'5..1'"]),
        ([*PPO, "--seed", "-1"], 2, ["--seed: expected a whole number"]),
        ([*PPO, "--seed", "1,2,1"], 2, ["several that differ"]),
        ([*PPO, "--seed", "1,2", "--jobs", "0"], 2, ["--jobs: expected finite int, >= 1, got 0"]),
        ([*PPO, "--jobs", "2"], 2, ["--jobs: expected several seeds", "--seed 1..5"]),
        ([*PPO, "--seed", "3", "--jobs", "2"], 2, ["--jobs: expected several seeds"]),
        ([*PPO, "--allow", "my_nets"], 2, ["--allow: expected a checkpoint to load"]),
        ([*PPO, "--load", "nowhere"], 1, ["checkpoint 'nowhere': expected a checkpoint or a run"]),
        ([*PPO, "--gamma", "2"], 2, ["--gamma: expected", "<= 1, got 2.0"]),
        ([*PPO, "--gamma", "-1e3"], 2, ["--gamma: expected", "<= 1, got -1000.0"]),
        ([*PPO, "--lr", "[[5,1],[6,1]]"], 2, ["--lr: expected a schedule"]),
        ([*PPO, "--env-config", "[1]"], 2, ["--env-config: expected dict"]),
        ([*PPO, "--fcnet-hiddens", "0"], 2, ["--fcnet-hiddens: expected finite tuple[int, ...], >= 1, got 0 in [0]"]),
        ([*PPO, "--minibatch-size", "9999"], 1, ["error: --minibatch-size: expected at most"]),
        ([*PPO, "--num-updates", "9"], 1, ["got num_updates=9.", "Type --num-env-steps 9."]),
        ([*PPO, "--run-dir", "None", "--checkpoint-interval", "2"], 1, ["Set one: --run-dir runs/mine."]),
        (["train", "bc", "CartPole-v1", "--run-dir", "None"], 1, ["Name it: --data my_data, or"]),
        (["tune", "ppo", "CartPole-v1"], 1, ["error: --search: expected NAME=LOW..HIGH"]),
        ([*PPO, "--num-env-steps", "0"], 2, ["--num-env-steps: expected finite int | None, >= 1, got 0"]),
        ([*PPO, "--target-return", "nan"], 2, ["--target-return: expected finite float"]),
        ([*PPO, "--n-envs", "4"], 2, ["Use --num-envs-per-env-runner."]),
        (["train", "CartPole-v1"], 2, ["expected one of A2C, ", ", got 'CartPole-v1'."]),
        (["train", "--load"], 2, ["--load: expected a value, got none"]),
        ([*PPO, "--load"], 2, ["--load: expected a value, got none"]),
        (["train", "ppo", "CartPol-v1"], 1, ["Did you mean 'CartPole-v1'?"]),
        (["train", "ppo", "CartPol-v1", "--seed", "1,2"], 1, ["Did you mean 'CartPole-v1'?"]),
        (["train", "ppo", "no_such_module:Env"], 2, ["ENV: expected a module to import", "ModuleNotFoundError"]),
        (["explain"], 2, ["rlmodule explain: expected ENV, got nothing"]),
        (["explain", "--fcnet-hiddens", "32", "--use-gru"], 2, ["rlmodule explain: expected ENV, got nothing"]),
        (["evaluate", "--render"], 2, ["rlmodule evaluate: expected CKPT, got nothing"]),
        (["plot"], 2, ["rlmodule plot: expected RUN ..., got nothing"]),
        (["explain", "CartPol-v1"], 1, ["Did you mean 'CartPole-v1'?"]),
        (["explain", "CartPole-v1", "--algo", "ppp"], 2, ["Did you mean 'PPO'?"]),
        (["explain", "CartPole-v1", "--fcnet-hidens", "3"], 2, ["Did you mean '--fcnet-hiddens'?"]),
        (["explain", "CartPole-v1", "--num-epochs", "3"], 2, ["'--num-epochs'", "rlmodule explain --help"]),
        (["list", "preset"], 2, ["Did you mean 'presets'?"]),
    ],
)
def test_a_mistake_is_told_in_one_line(
    args: list[str], code: int, parts: list[str], capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    assert main(args) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert ": expected " in line
    assert all(part in line for part in parts), line
    assert not list(here.glob("runs/*"))


def test_a_folder_that_cannot_be_written_to(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "file").touch()
    assert main([*PPO, "--run-dir", "file/run"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: run_dir 'file/run': expected a folder to write to")


def test_a_path_with_a_space_is_quoted_in_the_command_to_type(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "my run/checkpoint").mkdir(parents=True)
    assert main([*PPO, "--run-dir", "my run"]) == 1
    assert capsys.readouterr().err.endswith("continue it with rlmodule train --load 'my run/checkpoint'.\n")


@pytest.mark.parametrize("seeds", [["--seed", "1"], ["--seed", "1,2"]])
def test_a_folder_with_a_run_is_told_before_anything_else(
    seeds: list[str], capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    run = here / "runs" if seeds[-1] == "1" else here / "runs/seed-2"
    (run / "checkpoint").mkdir(parents=True)
    assert main([*PPO, *seeds, "--run-dir", "runs"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith(f"continue it with rlmodule train --load {run.relative_to(here)}/checkpoint.\n")


def test_several_seeds_do_not_begin_in_the_folder_of_a_run(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("algorithms.cli.train.train_seeds", lambda plan, args: 0)
    (here / "mine").mkdir()
    (here / "mine/run.json").write_text('{"algorithm": "PPO", "name": "PPO on CartPole-v1", "seed": 7, "config": {}}')
    assert main([*PPO, "--seed", "1,2", "--run-dir", "mine"]) == 1
    assert capsys.readouterr().err == (
        "error: run_dir 'mine': expected a folder for the runs of several seeds, got PPO with seed 7. Choose another.\n"
    )
    assert [path.name for path in (here / "mine").iterdir()] == ["run.json"]
    assert main([*PPO, "--seed", "1,2", "--run-dir", "new"]) == 0


def test_a_working_directory_that_was_deleted(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir("gone")
    (here / "gone").rmdir()
    assert main(["--version"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: working directory: expected a folder, got one that was deleted.")


def test_a_package_that_is_missing_is_told_with_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "mujoco" or "envs.mujoco" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    assert main(["train", "ppo", "HalfCheetah-v5"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('Run: pip install "catalog-rl[mujoco]"')


def test_ctrl_c_during_the_imports_is_one_line() -> None:
    script = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from algorithms.shell import shell
shell()
"""
    command = [sys.executable, "-c", script, "list"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nInterrupted.\n")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "CartPol-v1", "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_error_that_is_not_ours_says_its_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: PPOConfig) -> None:
        raise KeyError("left\nover")

    monkeypatch.setattr(PPOConfig, "build", broken)
    assert main(PPO) == 1
    printed = capsys.readouterr().err
    assert re.fullmatch(
        r"error: KeyError: 'left\\nover', in .+test_mistakes.py:\d+, broken \(--debug shows the traceback\)\n", printed
    )


def test_an_error_in_a_net_of_the_users_says_where_it_is(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "wide_nets.py").write_text(
        "from algorithms.ppo import PPOCatalog\n\n\nclass MyCatalog(PPOCatalog):\n"
        "    def build_encoder(self):\n        return {}['wide']\n"
    )
    monkeypatch.syspath_prepend(str(here))
    spec = replace(PPOConfig().default_rl_module_spec(), catalog_class=import_module("wide_nets").MyCatalog)
    monkeypatch.setattr(PPOConfig, "default_rl_module_spec", lambda self: spec)
    assert main([*PPO, "--run-dir", "None"]) == 1
    expected = "error: KeyError: 'wide', in wide_nets.py:6, build_encoder (--debug shows the traceback)\n"
    assert capsys.readouterr().err == expected


def test_a_pipe_between_processes_that_breaks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(self: PPOConfig) -> None:
        raise BrokenPipeError("a worker is gone")

    monkeypatch.setattr(PPOConfig, "build", broken)
    assert main(PPO) == 1
    assert "a worker is gone" in capfd.readouterr().err


def test_a_terminal_that_is_closed_leaves_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> int:
        raise SystemExit(129)

    window, stdout = os.openpty()
    os.close(window)
    with io.TextIOWrapper(open(stdout, "wb", buffering=0), write_through=True) as closed:  # as of PYTHONUNBUFFERED
        monkeypatch.setattr(sys, "stdout", closed)
        code = exit_code_of(stopped, debug=False)
        monkeypatch.undo()
    assert code == 129


def test_stdout_may_be_closed() -> None:
    command = f"{shlex.quote(sys.executable)} -m algorithms.cli --version >&-"
    done = subprocess.run(command, shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.end_to_end)])
def test_a_reader_that_has_seen_enough_is_no_error(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "algorithms.cli", "list"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
