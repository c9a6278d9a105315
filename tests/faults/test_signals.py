"""Signals to the process that trains with others: what is saved, how it ends, who is left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from algorithms import Algorithm
from rlmodule.checkpoint import load_checkpoint
from tests.waiting import PATIENCE_S, is_running, wait_for

ROOT = Path(__file__).parents[2]


def descendants(pid: int) -> list[int]:
    found = list[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


class Driver:
    """The script, in a process group of its own as a shell would start it."""

    def __init__(self, folder: Path, num_epochs: int) -> None:
        self.folder = folder
        self.log = (folder / "log").open("wb")
        command = [sys.executable, "-m", "tests.faults.script", str(folder), str(num_epochs)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.others: list[int] = []

    def message(self, what: str) -> dict[str, Any]:
        return json.loads((self.folder / what).read_text())

    def wait_for(self, what: str) -> dict[str, Any]:
        wait_for(lambda: (self.folder / what).exists() or self.process.poll() is not None)
        assert (self.folder / what).exists(), (self.folder / "log").read_text()
        return self.message(what)

    def wait_until_it_trains(self) -> list[int]:
        """The processes of its workers."""
        pids = self.wait_for("built")["pids"]
        assert len(pids) == 3
        assert all(is_running(pid) for pid in pids)
        self.wait_for_iterations(2)
        self.others = descendants(self.process.pid)
        assert {*pids} <= {*self.others}
        return pids

    def wait_for_iterations(self, count: int) -> None:
        first = self.wait_for("iteration")["iterations"]
        wait_for(lambda: self.message("iteration")["iterations"] >= first + count)

    def close(self) -> None:
        for pid in [self.process.pid, *self.others, *descendants(self.process.pid)]:
            if is_running(pid):  # ours: they descend from what was started here
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        self.log.close()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with closing(Driver(tmp_path_factory.mktemp("quick"), 2)) as made:
        yield made


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """It takes a second for each iteration, in which it waits for the learner."""
    with closing(Driver(tmp_path_factory.mktemp("slow"), 200)) as made:
        yield made


@pytest.fixture
def foreground(tmp_path: Path) -> Iterator[Driver]:
    with closing(Driver(tmp_path, 2)) as made:
        yield made


def checkpoint(driver: Driver) -> dict[str, Any]:
    content = load_checkpoint(driver.folder / "run" / "checkpoint")
    assert content["state"]["learners"]["num_updates"] == 8 * content["state"]["metrics"]["iterations"]
    return content["state"]


@pytest.mark.faults
@pytest.mark.usefixtures("ray_started")
def test_ctrl_c_saves_and_the_script_goes_on_and_sigterm_saves_and_ends_it(quick: Driver) -> None:
    driver = quick
    pids = driver.wait_until_it_trains()
    driver.process.send_signal(signal.SIGINT)
    message = driver.wait_for("saved")
    assert checkpoint(driver)["metrics"]["iterations"] == message["iterations"]
    assert all(is_running(pid) for pid in pids)
    driver.wait_for_iterations(2)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(PATIENCE_S) == 143  # and not -6, by Ray's own handler
    wait_for(lambda: not any(map(is_running, pids)))
    log = (driver.folder / "log").read_text()
    assert "Stopped by Ctrl-C after" in log
    assert "Stopped by SIGTERM after" in log
    assert "Traceback" not in log
    assert "SIGABRT" not in log
    assert checkpoint(driver)["metrics"]["iterations"] > message["iterations"]
    saved = driver.folder / "run" / "checkpoint"
    with Algorithm.from_checkpoint(saved, num_env_runners=2, run_dir=None) as algorithm:
        updates = algorithm.learner_group.num_updates
        algorithm.train()
        assert algorithm.learner_group.num_updates == updates + 8


@pytest.mark.faults
def test_a_second_ctrl_c_interrupts_at_once_and_nobody_outlives_a_killed_driver(slow: Driver) -> None:
    driver = slow
    pids = driver.wait_until_it_trains()
    driver.wait_for_iterations(1)
    os.killpg(driver.process.pid, signal.SIGINT)  # which a terminal sends to all in the foreground
    wait_for(lambda: "Finishing this iteration" in (driver.folder / "log").read_text())
    os.killpg(driver.process.pid, signal.SIGINT)
    driver.wait_for("interrupted")
    assert all(is_running(pid) for pid in pids), (driver.folder / "log").read_text()  # to them it means nothing
    driver.wait_for_iterations(2)  # it can go on from there
    driver.process.kill()
    wait_for(lambda: not any(map(is_running, pids)))


@pytest.mark.faults
def test_a_terminal_that_closes_ends_no_process_of_ray_before_the_run_is_saved(foreground: Driver) -> None:
    driver = foreground
    pids = driver.wait_until_it_trains()
    os.killpg(driver.process.pid, signal.SIGHUP)  # which a terminal sends to all in the foreground
    assert driver.process.wait(PATIENCE_S) == 129, (driver.folder / "log").read_text()
    assert checkpoint(driver)["metrics"]["iterations"] > driver.message("built")["iterations"]
    wait_for(lambda: not any(map(is_running, pids)))
