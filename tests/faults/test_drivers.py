"""Trainings that are ended from outside: what becomes of their env runners."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults import driver
from tests.faults.commanded import files_of
from tests.together import LOOPBACK
from tests.waiting import PATIENCE_S, is_running, wait_for


def start(folder: Path, num_env_steps: int) -> subprocess.Popen[str]:
    """A training, as a terminal would start it: in a process group of its own."""
    args = [sys.executable, driver.__file__, str(folder), str(num_env_steps)]
    (folder / "tmp").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {
        "TMPDIR": str(folder / "tmp"),
        "RAY_TMPDIR": "/tmp",
    }  # Ray's sockets need short paths
    return subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env
    )


def pids_of(folder: Path) -> dict[str, Any]:
    wait_for((folder / "pids.json").exists)
    return json.loads((folder / "pids.json").read_text())


def check_nothing_is_left(folder: Path, driver_pid: int) -> None:
    pids = pids_of(folder)
    assert len(pids["envs"]) == 2
    wait_for(lambda: not any(map(is_running, [pids["runner"], *pids["envs"]])))
    assert not [*files_of(driver_pid), *(folder / "tmp").glob("rlmodule-*")]


@pytest.mark.faults
def test_ctrl_c_at_a_terminal_ends_the_driver_alone(tmp_path: Path) -> None:
    process = start(tmp_path, 10_000_000)
    try:
        runner = pids_of(tmp_path)["runner"]
        os.killpg(process.pid, signal.SIGINT)  # which a terminal sends to all in the foreground
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["runner"], result["num_env_runner_restarts_lifetime"]) == (runner, 0)
    assert result["num_env_steps_lost_lifetime"] == 0
    assert "Stopped by Ctrl-C" in err
    assert "Traceback" not in err
    check_nothing_is_left(tmp_path, process.pid)


@pytest.mark.faults
def test_a_training_that_ends_says_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, 2_000)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")
    check_nothing_is_left(tmp_path, process.pid)


@pytest.mark.faults
def test_nothing_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, 10_000_000)
    try:
        pids_of(tmp_path)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    check_nothing_is_left(tmp_path, process.pid)


LISTENING = """
import json
from algorithms.ppo import PPOConfig
from tests.together import listening

config = PPOConfig(env="CartPole-v1", num_env_runners=1, num_learners=2, num_cpus_per_learner=0.1)
with config.build() as algorithm:
    algorithm.train()
    pids = algorithm.env_runner_group.workers.pids() + algorithm.learner_group.workers.pids()
    print(json.dumps([sorted(listening(pid)) for pid in pids]))
"""


@pytest.mark.faults
@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="the system does not tell who listens")
def test_workers_that_are_all_on_this_machine_listen_there_alone() -> None:
    """Also to Ray, which is started here and serves nobody else."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    assert all(places and {*places} <= LOOPBACK for places in found)
