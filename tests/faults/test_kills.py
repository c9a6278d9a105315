"""A command that is killed at any moment and given again, in a loop until it exits, is the command that was not killed.

``KILLS=30 python -m pytest -m faults tests/faults/test_kills.py`` kills each command 30 times.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import catalog_rl
from algorithms import Algorithm
from tests.algorithms.test_resume import fingerprint
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(catalog_rl.__file__).resolve().parent
KILLS = int(os.environ.get("KILLS", "6"))
WALL_TIME = ("timers/", "time_total_s", "env_runners/num_env_steps_per_second")
# Two checkpoints for each evaluation. PPO misses its target and exits with code 1, DQN has none and exits with 0.
COMMON = ["--preset", "none", "--fcnet-hiddens", "16", "--seed", "3", "--checkpoint-interval", "1", "--quiet"]
COMMON += ["--evaluation-interval", "3", "--evaluation-duration", "20", "--keep-checkpoints", "2"]
ALGORITHMS = {
    "ppo": [
        *("--num-env-steps", "10240", "--train-batch-size-per-learner", "512", "--minibatch-size", "128"),
        *("--num-epochs", "4", "--target-return", "500"),
    ],
    "dqn": [
        *("--num-env-steps", "4000", "--num-env-steps-per-iteration", "200", "--training-intensity", "64"),
        *("--num-steps-sampled-before-learning-starts", "500", "--replay-capacity", "2000"),
    ],
}


def start(algorithm: str, run: Path) -> subprocess.Popen[bytes]:
    """The command, in a process group of its own."""
    words = ["train", algorithm, "CartPole-v1", *COMMON, *ALGORITHMS[algorithm]]
    with (run.parent / f"{run.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "algorithms.cli", *words, "--run-dir", str(run), "--resume", "auto"],
            cwd=run.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_until_it_trains(run: Path, process: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: (run / "progress.jsonl").exists() or process.poll() is not None)


def is_killed(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the command was still going on after so many seconds, and was killed."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL  # it may have exited in between
    return False


def outcome(run: Path, exit_code: int) -> dict[str, Any]:
    """What a command leaves, but for what depends on the time that it took."""
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    left: dict[str, Any] = {"exit code": exit_code}
    left["rows"] = [{name: row[name] for name in row if not name.startswith(WALL_TIME)} for row in rows]
    for name in ("checkpoint", "best_checkpoint"):
        with Algorithm.from_checkpoint(run / name, run_dir=None, loggers=None, checkpoint_interval=None) as algorithm:
            left[name] = fingerprint(algorithm)
    return left


@pytest.mark.faults
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_killed_command_given_again_until_it_exits_leaves_what_it_would_have_left(
    algorithm: str, tmp_path: Path
) -> None:
    began, process = time.monotonic(), start(algorithm, tmp_path / "whole")
    wait_until_it_trains(tmp_path / "whole", process)
    starting = time.monotonic() - began
    exit_code = process.wait(PATIENCE_S)
    duration = time.monotonic() - began
    whole = outcome(tmp_path / "whole", exit_code)
    assert exit_code == (1 if algorithm == "ppo" else 0), (tmp_path / "whole.log").read_text()
    iterations = [row["training_iteration"] for row in whole["rows"]]
    assert iterations == [*range(1, 21), 20]  # the last row is the evaluation at the end
    assert "evaluation/env_runners/episode_return_mean" in whole["rows"][-1]
    drawn, killed_after, attempts = random.Random(algorithm), list[int](), itertools.count()
    while len(killed_after) < KILLS:
        run = tmp_path / f"run-{next(attempts)}"
        moment = (len(killed_after) + drawn.random()) / KILLS * duration
        began, process = time.monotonic(), start(algorithm, run)
        if moment > starting:  # imports take longer on a machine that is busier
            wait_until_it_trains(run, process)
            began = time.monotonic() - starting
        if not is_killed(process, began + moment - time.monotonic()):
            duration = time.monotonic() - began  # the machine is less busy than before, and the command had exited
            continue
        log = run / "progress.jsonl"
        killed_after.append(len(log.read_bytes().splitlines()) if log.exists() else 0)
        exit_code = -signal.SIGKILL
        while exit_code == -signal.SIGKILL:  # as the loop of a shell
            exit_code = start(algorithm, run).wait(PATIENCE_S)
        message = (tmp_path / f"{run.name}.log").read_text()
        assert outcome(run, exit_code) == whole, f"killed after {killed_after[-1]} rows: {message}"
    print(f"{algorithm}: {KILLS} kills within {duration:.1f} s, after so many rows: {killed_after}")
