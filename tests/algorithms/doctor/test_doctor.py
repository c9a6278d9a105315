"""The doctor names each planted fault, and leaves healthy envs alone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest

from algorithms.cli.main import main
from algorithms.doctor.examination import Examination
from algorithms.doctor.findings import REMEDIES, Finding, findings_in
from algorithms.doctor.page import write_page
from algorithms.ppo import PPOConfig
from tests.algorithms.doctor import faulty_envs, walk
from tests.algorithms.doctor.table import FAULTS, GYMNASIUM, PETTINGZOO, Planted, drawn

ROOT = Path(__file__).resolve().parents[3]
# A process that keeps freed memory, as learners let it, does not grow at once.
NOT_IN_THIS_PROCESS = ("KillsProcess", "HangsInReset", "does_not_import:ENV", "GrowingMemory")
QUICK = (
    "WrongShape",
    "NanAtCorners",
    "LeaksState",
    "NoEffect",
    "Prints",
    "ForbidsAll",
    "VaryingAgents",
    "NeedsDisplay",
)
FOLDER = "tests.algorithms.doctor"


def examined(env: Any, seconds: float, **settings: Any) -> list[Finding]:
    config = PPOConfig(env=env, seed=1, torch_num_threads=1, train_batch_size_per_learner=256, num_epochs=1, **settings)
    examination = Examination(seconds)
    with mock.patch("algorithms.doctor.examination.PATIENCE", 60.0):  # other tests may run next to it
        examination.run(lambda: config)
    return [*findings_in(examination.found)]


def serious(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.severity != "note"]


def command(*args: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "algorithms.cli", "doctor", *args]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180)


def named(planted: Planted, seconds: float) -> None:
    with mock.patch.dict(os.environ):  # an env changes it
        findings = examined(getattr(faulty_envs, planted.env), seconds)
    assert planted.finding in [finding.name for finding in findings]
    assert planted.is_fault == any(finding.severity == "fault" for finding in findings)


@pytest.mark.parametrize("planted", [row for row in FAULTS if row.env in QUICK], ids=lambda row: row.env)
def test_faults_are_named(planted: Planted) -> None:
    named(planted, seconds=1)


@pytest.mark.matrix
@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "planted", [row for row in FAULTS if row.env not in NOT_IN_THIS_PROCESS], ids=lambda row: row.env
)
def test_all_faults_are_named(planted: Planted) -> None:
    named(planted, seconds=5)


@pytest.mark.parametrize("env", [walk.Walk, walk.PushedWalk, walk.MaskedWalk, walk.Walks])
def test_the_same_envs_without_a_fault_are_healthy(env: type) -> None:
    assert not serious(examined(env, seconds=1))


@pytest.mark.parametrize("corner", [-1.0, 1.0])
def test_a_simulation_that_breaks_at_a_bound_alone_is_named(corner: float) -> None:
    class Fragile(walk.PushedWalk):
        def moved(self, action: Any) -> float:
            return float("nan") if action[0] == corner else super().moved(action)

    (fault,) = examined(Fragile, seconds=1)
    assert (fault.name, fault.severity) == ("nan", "fault")
    assert fault.found.startswith("after")  # and not in the training, whose actions are clipped to the bounds


@pytest.mark.parametrize("space", [gym.spaces.Discrete(3), gym.spaces.MultiDiscrete(np.array([3, 2]))])
def test_random_play_takes_no_masked_action(space: gym.Space) -> None:
    size = gym.spaces.flatdim(space)

    class Strict(walk.MaskedWalk):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space
            self.observation_space = gym.spaces.Dict(
                walk=gym.spaces.Box(-1, 1, (2,), np.float32), action_mask=gym.spaces.MultiBinary(size)
            )

        def allowed(self) -> Any:
            return np.append(super().allowed(), [np.int8(0), np.int8(1)])[:size]

        def step(self, action: Any) -> Any:
            move, *rest = np.ravel(action)
            assert self.allowed()[move]
            assert rest in ([], [1])
            return super().step(move)

    assert not serious(examined(Strict, seconds=1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_training_ends_although_python_ignores_what_is_raised_in_a_del() -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(0.001)

    class Deletes(walk.Walk):
        def step(self, action: Any) -> Any:
            Slow()
            return super().step(action)

    assert not serious(examined(Deletes, seconds=1))


def test_an_env_whose_first_reset_outlasts_the_play_has_no_fault() -> None:
    class StartsSimulator(walk.Walk):
        def reset(self, **kwargs: Any) -> Any:
            time.sleep(0.3)
            return super().reset(**kwargs)

    names = serious(examined(StartsSimulator, seconds=1))
    assert "reset-cost" in names
    assert "contract" not in names


def test_a_slow_env_takes_half_of_the_time_in_each_step_of_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    now, begun = 0.0, list[float]()

    class Slow(walk.Walk):
        def step(self, action: Any) -> Any:
            nonlocal now
            now += 0.05
            return super().step(action)

    def clock() -> float:
        return now

    def begin(self: Examination, what: str) -> None:
        begun.append(now)

    monkeypatch.setattr("algorithms.doctor.play.perf_counter", clock)
    monkeypatch.setattr(Examination, "_begin", begin)
    assert serious(examined(Slow, seconds=2)) == ["no-end"]
    assert len(begun) == 5  # making, the same seed, at random, extreme actions, training
    assert max(np.diff(begun)) < 1 + 4 * 0.05 + 1e-9  # each of up to four plays ends after its last step


@pytest.mark.parametrize("restarts", [False, True])
def test_an_env_that_raises_is_named(restarts: bool) -> None:
    class Raises(walk.Walk):
        def step(self, action: Any) -> Any:
            raise ImportError("no simulator")

    findings = examined(Raises, seconds=1, restart_failed_sub_environments=restarts)
    assert "raises" in [finding.name for finding in findings if finding.severity == "fault"]


def test_what_the_class_counts_for_all_envs_is_in_a_remedy() -> None:
    class Harder(walk.Walk):
        episodes: ClassVar[Any] = itertools.count()

        def reset(self, **kwargs: Any) -> Any:
            super().reset(**kwargs)
            self.position = min(0.9, next(self.episodes) / 1000)
            return self.observed(), {}

    (warning,) = (finding for finding in examined(Harder, seconds=1) if finding.severity == "warning")
    assert "on the class" in warning.remedy


def test_an_unknown_id_is_a_name_to_correct() -> None:
    assert [finding.name for finding in examined("CartPol-v1", seconds=1)] == ["import"]


def test_a_space_without_a_net_is_named() -> None:
    class Speaks(walk.Walk):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Text(5)

    assert [finding.name for finding in examined(Speaks, seconds=1)] == ["spaces"]


def test_a_ready_vector_env_is_only_trained_on() -> None:
    findings = examined(lambda config: gym.make_vec("CartPole-v1", 8, "vector_entry_point"), seconds=1)
    assert [finding.name for finding in findings] == ["time", "learning"]


@pytest.mark.filterwarnings("error")
def test_the_picture_of_a_training_alone_has_one_part(tmp_path: Path) -> None:
    write_page(tmp_path, "text", Examination(1, curve=[(0, float("nan")), (8, 1.0)]))
    assert (tmp_path / "doctor.png").stat().st_size > 5_000


def test_a_wrong_command_line_is_no_fault_of_the_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2
    assert main(["doctor", "CartPole-v1", "--second", "5"]) == 2
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.faults
def test_ctrl_c_is_one_line() -> None:
    script = """
import signal, sys
from algorithms.cli.main import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(["doctor", "tests.algorithms.doctor.faulty_envs:HangsInReset"]))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, stderr=pipe, text=True, start_new_session=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "making the env and the nets ...\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "Interrupted.\n")


@pytest.mark.matrix
@pytest.mark.end_to_end
def test_an_env_that_ends_its_process_is_named() -> None:
    done = command(f"{FOLDER}.faulty_envs:KillsProcess", "--json", "--seconds", "1")
    (finding,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["name"], finding["severity"]) == (1, "crash", "fault")
    assert "code 1" in finding["found"]


@pytest.mark.matrix
@pytest.mark.end_to_end
def test_an_env_that_hangs_or_does_not_import_is_named() -> None:
    done = command(f"{FOLDER}.faulty_envs:HangsInReset", "--seconds", "1")
    assert done.returncode == 1
    assert "fault, hang: no answer for 20 s" in done.stdout
    assert "faulty_envs.py" in done.stderr  # where it waits
    done = command(f"{FOLDER}.does_not_import:ENV")
    assert done.returncode == 1
    assert "fault, import" in done.stdout
    assert "simulator_that_is_not_installed" in done.stdout


@pytest.mark.matrix
@pytest.mark.end_to_end
def test_an_env_that_grows_is_named() -> None:
    done = command(f"{FOLDER}.faulty_envs:GrowingMemory", "--json", "--seconds", "15")
    names = {finding["name"]: finding["severity"] for finding in json.loads(done.stdout)["findings"]}
    assert names["memory"] == "warning"


@pytest.mark.matrix
@pytest.mark.end_to_end
def test_code_in_a_remedy_stays_code() -> None:
    done = command(f"{FOLDER}.faulty_envs:IgnoresSeed", "--seconds", "1")
    assert f"→ {REMEDIES['warning']['seed']}" in done.stdout  # reset(seed=seed) is no flag


@pytest.mark.matrix
@pytest.mark.end_to_end
def test_the_page_shows_the_findings_and_a_picture(tmp_path: Path) -> None:
    done = command(f"{FOLDER}.faulty_envs:Prints", "--seconds", "2", "--run-dir", str(tmp_path / "page"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page" / "doctor.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {done.stdout.strip()}")  # nothing that the env prints
    assert "warning, prints" in page
    assert "doctor.png" in page
    assert (tmp_path / "page" / "doctor.png").stat().st_size > 10_000


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("env", [*GYMNASIUM, *PETTINGZOO])
def test_healthy_envs_have_no_fault_and_at_most_one_warning(env: str) -> None:
    done = command(env, "--json")
    names = [finding["severity"] for finding in json.loads(done.stdout)["findings"]]
    assert done.returncode == 0, done.stdout
    assert names.count("warning") <= 1, done.stdout


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("planted", drawn()[0], ids=lambda row: row.env)
def test_faults_in_reserve_are_named(planted: Planted) -> None:
    done = command(f"{FOLDER}.faulty_envs:{planted.env}", "--json", "--seconds", "10")
    assert planted.finding in [finding["name"] for finding in json.loads(done.stdout)["findings"]]
    assert done.returncode == planted.is_fault


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("env", drawn()[1])
def test_envs_in_reserve_are_healthy(env: str) -> None:
    test_healthy_envs_have_no_fault_and_at_most_one_warning(env)


def test_the_docs_explain_every_finding() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = [f"| {severity} | `{name}` |" for severity, remedies in REMEDIES.items() for name in remedies]
    assert not [row for row in rows if row not in page]
