"""The recipe for two machines, on two of our own, and what becomes of a run whose other machine is gone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.machines import Machine, can_be_made, connect
from tests.faults.two_machines import CPUS, FIRST
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
HEAD, OTHER = "10.77.0.1", "10.77.0.2"
SHELL = f"export PATH={Path(sys.executable).parent}:$PATH; cd {ROOT};"
TOKEN = {"RAY_AUTH_MODE": "token"}
CLUSTER = {**TOKEN, "RAY_ADDRESS": f"{HEAD}:6379"}

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not can_be_made(), reason="machines of your own need Linux, root and its network tools"),
]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two that are one cluster, by the commands of docs/laptop-to-cluster.md."""
    with Machine(tmp_path, "first", HEAD) as first, Machine(tmp_path, "second", OTHER) as second:
        connect(first, second)
        first.run(f"{SHELL} ray get-auth-token --generate", **TOKEN)
        ray_start(first, f"--head --node-ip-address={HEAD} --port=6379 --include-dashboard=false")
        join(first, second)
        yield first, second


def ray_start(machine: Machine, how: str) -> None:
    machine.run(f"{SHELL} ray start {how} --num-cpus={CPUS} --object-store-memory=150000000", **TOKEN)


def join(first: Machine, second: Machine) -> None:
    token = second.home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_bytes((first.home / ".ray" / "auth_token").read_bytes())
    token.chmod(0o600)
    ray_start(second, f"--address={HEAD}:6379")


@contextmanager
def training(machine: Machine, folder: Path, how: str, **env: str) -> Iterator["subprocess.Popen[str]"]:
    """One that has done its first iterations."""
    folder.mkdir()
    driver = machine.start(f"{SHELL} exec python -m tests.faults.two_machines {folder} {how}", **env)
    began = lambda: (folder / "message").exists() and len(message(folder)["weights"]) == FIRST  # noqa: E731
    try:
        wait_for(lambda: driver.poll() is not None or began())
        yield driver
    finally:
        driver.kill()
        driver.communicate()


def message(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "message").read_text())


def end(driver: "subprocess.Popen[str]", folder: Path) -> str:
    """Let it end by itself; returns what it said on its way.

    Without torch's remark, at each connection of learners, that nobody here knows names of addresses.
    """
    (folder / "end").touch()
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 0, err
    assert "Traceback" not in err
    return "".join(line for line in err.splitlines(keepends=True) if "[c10d]" not in line)


def test_two_machines_come_to_the_weights_of_one(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    first, _ = machines
    wait_for(lambda: first.run(f"{SHELL} ray status", **TOKEN).count(" node_") == 2)
    found = []
    for name, env in (("two", CLUSTER), ("one", {})):
        with training(first, tmp_path / name, "learners", **env) as driver:
            said = end(driver, tmp_path / name)
        assert name == "one" or said == ""  # alone, Ray begins there and then, and says so
        found.append(message(tmp_path / name))
    assert [sorted(group) for group in found[0]["where"]] == [[HEAD, OTHER]] * 2
    assert found[0]["weights"] == found[1]["weights"]


@pytest.mark.parametrize("how", ["runners", "learners"])
def test_a_machine_that_is_cut_off_is_lived_without_and_replaced(
    machines: tuple[Machine, Machine], tmp_path: Path, how: str
) -> None:
    first, second = machines
    folder = tmp_path / "run"
    with training(first, folder, how, **CLUSTER) as driver:
        assert [sorted(group) for group in message(folder)["where"]] == [[HEAD, OTHER]] * (1 + (how == "learners"))
        second.cut_off()
        if how == "runners":  # the other one goes on
            wait_for(lambda: message(folder)["workers"]["num_healthy_env_runners"] == 1)
        second.close()
        before = message(folder)["iterations"]
        with Machine(tmp_path, "third", OTHER) as third:
            connect(first, third)
            join(first, third)
            is_whole = lambda now: now["workers"]["num_healthy_env_runners"] == 2  # noqa: E731
            wait_for(lambda: is_whole(message(folder)) and message(folder)["iterations"] > before + 3)
            said = end(driver, folder)
    workers = message(folder)["workers"]
    (lost,) = workers["num_env_steps_lost_by_cause"].values()
    assert lost == workers["num_env_steps_lost_lifetime"] == (128 if how == "runners" else 256)  # one fragment
    if how == "learners":
        assert workers["num_env_steps_dropped_lifetime"] == 0  # the update was done again
        assert "all learners restart and continue from where they were" in said
