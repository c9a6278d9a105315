"""``rlmodule train --seed 1..3``: a run for each, side by side or not, and what they come to together."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import catalog_rl
from algorithms import Algorithm
from algorithms.cli import main
from algorithms.cli.seeds import _draw, _of_a_seed, _print_line, seeds_of, table
from algorithms.cli.train import train_plan
from algorithms.run.jobs import Job
from algorithms.run.results import RunResult
from algorithms.run.text import return_text

ROOT = Path(catalog_rl.__file__).resolve().parent
PPO = [
    *("train", "ppo", "CartPole-v1", "--num-envs-per-env-runner", "4", "--train-batch-size-per-learner", "64"),
    *("--minibatch-size", "32", "--num-epochs", "1", "--evaluation-duration", "2"),
]


TROUBLE = """
def fail(algorithm, result):
    assert algorithm.run_seed != 1, 'expected'
    assert algorithm.num_threads == 1  # though the net is large, since the runs share the cores
"""
LARGE_NET = ["--fcnet-hiddens", "1024", "1024"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "seeds"), [(None, ()), ("7", (7,)), ("1..4", (1, 2, 3, 4)), ("1,3,7", (1, 3, 7)), ("0..1,9", (0, 1, 9))]
)
def test_seeds_are_listed_or_a_range(text: str | None, seeds: tuple[int, ...]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize(
    "words",
    [
        ["ppo", "CartPole-v1", "--seed", "1..2", "--loggers", "csv"],
        ["ppo", "--run_dir=all", "--loggers", "csv", "--", "CartPole-v1"],
        ["ppo", "CartPole-v1", "--seed=1..2", "--no_hints", "--loggers", "csv"],
        ["--config", "mine.json", "--jobs", "2", "--loggers", "csv", "--"],
    ],
)
def test_the_process_of_a_seed_gets_its_flags_before_the_end_of_flags(words: list[str], here: Path) -> None:
    (here / "mine.json").write_text('{"algorithm": "PPO", "config": {"env": "CartPole-v1"}}')
    plan = train_plan(_of_a_seed(words, ["--seed=2", "--run-dir=all/seed-2", "--no-hints"]))
    config = plan.config
    assert (config.env, config.seed, config.run_dir, config.loggers) == ("CartPole-v1", 2, "all/seed-2", ["csv"])
    assert (plan.flags.hints, plan.flags.jobs) == (False, 1)


@pytest.mark.end_to_end
def test_a_seed_is_a_run_of_its_own_and_goes_on_though_another_fails(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "trouble.py").write_text(TROUBLE)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    failing = [*LARGE_NET, "--on-train-result", "trouble:fail", "--seed", "1,7", "--jobs", "2"]
    assert main([*PPO, *failing, "--num-env-steps", "256", "--run-dir", "runs"]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("PPO on CartPole-v1, seeds 1, 7, 2 side by side\n")
    assert re.search(r"^ +1  failed \(exit code 1\)$", out, re.M)
    assert "\n[seed 1] error: " in f"\n{err}"
    assert json.loads(Path("runs/seed-7/run.json").read_text())["seed"] == 7
    (final,) = re.findall(r"^ +7 +([\d.]+) +256 +\d+:\d\d$", out, re.M)
    assert f"[seed 7] Evaluation: return {final} over" in err
    assert main([*PPO, *LARGE_NET, "--seed", "7", "--num-env-steps", "256", "--run-dir", "alone"]) == 0
    assert f"Evaluation: return {final} over" in capfd.readouterr().out  # as among others
    assert "\nNext:\n\n  rlmodule plot runs\n  rlmodule evaluate runs --allow trouble\n" in out


@pytest.mark.faults
def test_every_seed_is_a_run_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*PPO, "--seed", "5,7", "--jobs", "2", "--num-env-steps", "256", "--run-dir", "runs"]) == 0
    out, err = capfd.readouterr()
    assert sorted(path.name for path in Path("runs").iterdir()) == ["learning_curve.png", "seed-5", "seed-7"]
    finals = {}
    for seed in (5, 7):
        assert json.loads(Path(f"runs/seed-{seed}/run.json").read_text())["seed"] == seed
        with Algorithm.from_checkpoint(f"runs/seed-{seed}/checkpoint") as algorithm:
            assert algorithm.env_steps == 256
        (line,) = re.findall(rf"^ +{seed} +([\d.]+) +256 +\d+:\d\d$", out, re.M)
        finals[seed] = float(line)
    mean, deviation = re.findall(r"^  mean +([\d.]+) ± ([\d.]+)", out, re.M)[0]
    assert float(mean) == pytest.approx(sum(finals.values()) / 2, abs=1.1)
    assert float(deviation) == pytest.approx(statistics.stdev(finals.values()), abs=1.1)
    for seed, final in finals.items():
        assert f"[seed {seed}] Evaluation: return {return_text(final)} over" in err
    assert main([*PPO, "--seed", "7", "--num-env-steps", "256", "--run-dir", "alone"]) == 0
    assert f"Evaluation: return {return_text(finals[7])} over" in capfd.readouterr().out  # as among others
    assert finals[5] != finals[7]
    assert "\nNext:\n\n  rlmodule plot runs\n  rlmodule evaluate runs\n" in out
    assert out.startswith("PPO on CartPole-v1, seeds 5, 7, 2 side by side\n")


@pytest.mark.end_to_end
def test_seeds_resume_and_equal_those_that_ran_through(here: Path) -> None:
    seeds = ["--seed", "5,7", "--jobs", "2"]
    assert main([*PPO, *seeds, "--num-env-steps", "128", "--run-dir", "runs"]) == 0
    shutil.rmtree("runs/seed-7")  # as if it had not begun
    for checkpoint in ("checkpoint", "best_checkpoint"):  # as if it had been killed before it saved one
        shutil.rmtree(f"runs/seed-5/{checkpoint}", ignore_errors=True)
    assert main([*PPO, *seeds, "--num-env-steps", "256", "--run-dir", "runs", "--resume", "auto"]) == 0
    assert main([*PPO, "--seed", "5,7", "--num-env-steps", "256", "--run-dir", "through"]) == 0
    for seed in (5, 7):
        digests = [
            hashlib.sha256(Path(runs, f"seed-{seed}/checkpoint/tensors.safetensors").read_bytes()).hexdigest()
            for runs in ("runs", "through")
        ]
        assert digests[0] == digests[1]


@pytest.mark.faults
def test_a_run_that_fails_or_misses_is_told_and_the_others_go_on(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "trouble.py").write_text(TROUBLE)
    monkeypatch.syspath_prepend(here)
    args = [
        "--on-train-result",
        "trouble:fail",
        "--seed",
        "1,2",
        "--jobs",
        "1",
        "--num-env-steps",
        "64",
        "--target-return",
        "501",
        "--run-dir",
        "runs",
    ]
    assert main([*PPO, *args]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("PPO on CartPole-v1, seeds 1, 2, one by one\n")
    assert "\nThe target return 501 was not reached.\n" in f"\n{err}"
    assert "\nerror: " in f"\n{err}"
    assert re.search(r"^ +1  failed \(exit code 1\)$", out, re.M)
    assert re.search(r"^ +2 +[\d.]+ +64 +\d:\d\d  target missed$", out, re.M)
    assert "mean" not in out


def test_the_table_of_runs_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = {
        "seed-3": RunResult(490.0, 100_352, 0, ""),
        "seed-1": RunResult(480.0, 100_352, 0, ""),
        "seed-2": RunResult(math.nan, 0, 4, ""),
        "seed-4": RunResult(470.0, 64, 0, ""),
    }
    monkeypatch.setattr("algorithms.cli.seeds.read_result", lambda run: reached[run.name])
    plan = train_plan([*PPO[1:], "--seed", "1..5", "--target-return", "485"])
    ended = {}
    for seed, exit_code, seconds in ((3, 1, 61.4), (1, 0, 59.6), (2, 0, 0.1), (4, -9, 7.0)):
        process: Any = SimpleNamespace(returncode=exit_code)
        ended[seed] = Job("", process, seconds=seconds)
    assert list(table(plan, Path(), ended)) == [
        "\n  seed      return         steps      time",
        "     1         480       100,352      1:00",
        "     2           –             4      0:00",
        "     3         490       100,352      1:01  target missed",
        "     4  killed by SIGKILL",
        "     5  not started",
        "  mean         485 ± 7.07 (standard deviation of 2 seeds)",
    ]


@pytest.mark.parametrize(
    ("folder", "words"),
    [(".", ["--config", "run.json"]), ("runs/seed-1", [*PPO[1:3], "--run-dir", "runs", "--resume", "auto"])],
)
def test_runs_that_are_repeated_or_resume_may_miss_the_target_of_their_file(
    folder: str, words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"algorithm": "PPO", "name": "PPO on CartPole-v1", "seed": 7, "config": {"env": "CartPole-v1"}}
    goal = {"num_env_steps": 100, "target_return": 485.0}
    (here / folder).mkdir(parents=True, exist_ok=True)
    (here / folder / "run.json").write_text(json.dumps(about | {"goal": goal}))
    monkeypatch.setattr("algorithms.cli.seeds.read_result", lambda run: RunResult(480.0, 128, 0, ""))
    plan = train_plan([*words, "--seed", "1,2"])
    assert plan.amount == 100
    process: Any = SimpleNamespace(returncode=1)
    _, line, _ = table(plan, Path(), {1: Job("", process)})
    assert line == "     1         480           128      0:00  target missed"


@pytest.mark.parametrize("hints", [True, False])
def test_what_to_do_next_is_printed_unless_it_is_not_wanted(
    hints: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("algorithms.cli.seeds.plot_runs", lambda runs, out: [])
    _draw(here, train_plan([*PPO[1:], "--seed", "1,2", "--hints" if hints else "--no-hints"]))
    assert ("rlmodule plot" in capsys.readouterr().out) == hints


class Unread(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_nobody_has_to_read_what_a_run_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Unread())
    _print_line("seed 1", "half done")  # an error would end the thread that reports the end of the run


# --- signals ----------------------------------------------------------------------------------------------------------

SCRIPT = """
import signal, sys
from algorithms.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
"""


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def started(here: Path, jobs: str) -> subprocess.Popen[str]:
    """Endless runs, each of which that has begun has finished an iteration."""
    (here / "script.py").write_text(SCRIPT)
    command = [*PPO, "--seed", "1..3", "--jobs", jobs, "--num-env-steps", "100_000_000", "--run-dir", "runs"]
    process = subprocess.Popen(
        [sys.executable, "script.py", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    logs = [Path(f"runs/seed-{seed + 1}/progress.jsonl") for seed in range(int(jobs))]
    until(lambda: all(log.exists() and log.stat().st_size for log in logs), process)
    return process


ENDINGS = [("2", signal.SIGINT, 130), ("1", signal.SIGTERM, 143), ("1", signal.SIGHUP, 129)]


@pytest.mark.faults
@pytest.mark.parametrize(("jobs", "sent", "code"), ENDINGS)
def test_a_signal_stops_all_runs_with_a_checkpoint(here: Path, jobs: str, sent: signal.Signals, code: int) -> None:
    process = started(here, jobs)
    try:
        # as a terminal does: to all processes; those of the runs leave it to us
        os.killpg(process.pid, sent) if sent is signal.SIGINT else process.send_signal(sent)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert out.count("stopped, and saved") == int(jobs)
    assert out.count("not started") == 3 - int(jobs)
    assert err.count("Ctrl-C again stops at once") == (sent is signal.SIGINT)
    for seed in range(1, 4):
        assert Path(f"runs/seed-{seed}/checkpoint").exists() is (seed <= int(jobs))  # no further run was begun


@pytest.mark.faults
def test_runs_save_and_end_when_the_one_that_started_them_is_killed(here: Path) -> None:
    process = started(here, "2")
    process.kill()
    process.communicate(timeout=300)
    deadline = time.monotonic() + 300
    while not all(Path(f"runs/seed-{seed}/learning_curve.png").exists() for seed in (1, 2)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert all(Path(f"runs/seed-{seed}/checkpoint/checkpoint.json").exists() for seed in (1, 2))
