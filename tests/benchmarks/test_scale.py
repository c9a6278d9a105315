"""The model says what it should by hand, and every measurement runs and is printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import run, scale, workers
from benchmarks.run import Row
from benchmarks.scale import FRAGMENT, SIZES, SLEEP_S, carried_on, limits, model_of, tables

RESULTS: dict[str, Any] = {
    "runners": [
        {"runners": 1, "wall_s": 0.5, "runner_s": 0.4, "driver_cpu_s": 0.005, "rollout_bytes": 5000},
        {"runners": 32, "wall_s": 0.64, "runner_s": 0.4, "driver_cpu_s": 0.098, "rollout_bytes": 5000},
    ],
    "stream": [
        {"runners": 1, "wall_s": 0.4, "driver_cpu_s": 0.004},
        {"runners": 32, "wall_s": 0.5, "driver_cpu_s": 0.096},
    ],
    "weights": [
        {"runners": size} | {f"ms {n}": n / 1e4 * size for n in SIZES} | {f"bytes {n}": 4 * n for n in SIZES}
        for size in (1, 32)
    ],
    "learners": {f"ms {n}": n / 1e5 for n in SIZES},
    "constants": {"call_s": 0.0005, "take_s": 0.001, "learn_s": 0.004},
    "machine": "somewhere",
}


def test_the_model_adds_the_driver_to_the_runners() -> None:
    found = {"sampling_s": 0.39, "once_s": 0.01, "call_s": 0.002, "take_s": 0.001}
    assert carried_on(found, 1) == pytest.approx(FRAGMENT / 0.403)
    assert carried_on(found, 200) == pytest.approx(200 * FRAGMENT / 1.0)
    assert carried_on(found, 200, fragments=4) == pytest.approx(800 * FRAGMENT / (1.56 + 0.01 + 0.4 + 0.8))
    assert carried_on(found, 200, per_gatherer=20) == pytest.approx(200 * FRAGMENT / (0.4 + 0.02 + 0.2))
    assert carried_on(found, 200, per_gatherer=20, keeps_rows=False) == pytest.approx(200 * FRAGMENT / 0.42)


def test_in_a_stream_the_slower_of_driver_and_runners_sets_the_pace() -> None:
    found = {"sampling_s": 0.39, "once_s": 0.01, "call_s": 0.002, "take_s": 0.001}
    assert carried_on(found, 100, waits=False) == pytest.approx(100 * FRAGMENT / 0.39)
    assert carried_on(found, 200, waits=False) == pytest.approx(200 * FRAGMENT / 0.61)


def test_constants_come_from_what_was_measured() -> None:
    found = model_of(RESULTS)
    assert found["sampling_s"] == 0.4
    assert found["once_s"] == pytest.approx(0.002)  # the driver took 2 ms, and 3 ms more for each runner
    assert found["call_s"] == pytest.approx(0.002)  # of which 1 ms for its rows
    assert found["weight_bytes"] == 40_000
    idle = {**RESULTS, "constants": {**RESULTS["constants"], "call_s": 0.01}}
    assert model_of(idle)["call_s"] == 0.01  # no call is cheaper than one without content


def test_the_first_limit_is_the_one_that_the_fewest_runners_reach() -> None:
    first, second, *rest = limits(model_of(RESULTS))
    assert first == ("one learner in one process, 4 epochs", 0.004, pytest.approx(100))
    assert second[0].startswith("the driver: calls")
    assert second[2] == pytest.approx(200)
    assert [what.split(":")[0] for what, _, _ in rest[1:]] == [
        "the driver's link of 10 Gb/s",
        "the same",
    ]
    assert rest[1][2] == pytest.approx(0.4 * scale.LINK / 5000)


def test_tables_have_the_shares_of_the_ideal() -> None:
    made = tables(RESULTS)
    *_, last = made["runners"].splitlines()
    share = f"{carried_on(model_of(RESULTS), 32) / 32 * SLEEP_S:.2f}"
    assert last == f"| 32 | 3,200 | 0.50 | 0.80 | {share} | 3.06 ms |"
    *_, last = made["stream"].splitlines()
    share = f"{carried_on(model_of(RESULTS), 32, waits=False) / 32 * SLEEP_S:.2f}"
    assert last == f"| 32 | 4,096 | 0.64 | {share} | 3.00 ms |"
    assert "| 1,000,000 | 4.00 MB | 100.0 ms | 3200.0 ms | 10.00 ms |" in made["weights"]
    assert made["paper"].splitlines()[0].endswith("| 32 | 100 | 300 | 1,000 |")
    assert made["machine"] == "Medians. somewhere."


def test_tables_go_where_they_are_read(tmp_path: Path) -> None:
    page, readme = tmp_path / "scale.md", tmp_path / "README.md"
    page.write_text(scale.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    readme.write_text(scale.README.read_text(encoding="utf-8"), encoding="utf-8")
    scale.put(RESULTS, tmp_path / "scale.json", page, readme)
    made = tables(RESULTS)
    assert all(text in page.read_text(encoding="utf-8") for text in made.values())
    assert made["runners"] in readme.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "scale.json").read_text(encoding="utf-8")) == RESULTS


def test_everything_is_measured_in_processes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(scale, "child", lambda *args: asked.append(args[2:]) or {"got": len(asked)})
    results = scale.measured((1, 2, 8))
    runners = [(what, size) for what in ("runners", "stream") for size in "128"]
    assert asked == [*runners, ("weights", "1"), ("weights", "8"), ("learners",), ("constants",)]
    assert [one["got"] for one in results["weights"]] == [7, 8]


@pytest.mark.parametrize("size", SIZES)
def test_modules_have_about_the_size_asked_for(size: int) -> None:
    module = workers.spec_of_size(size).build(inference_only=True)
    assert sum(p.numel() for p in module.parameters()) == pytest.approx(size, rel=0.02)


@pytest.mark.slow  # starts Ray
def test_every_measurement_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(workers, "LONG_FRAGMENT", 16)
    monkeypatch.setattr(scale, "SIZES", SIZES[:1])
    monkeypatch.setattr(scale, "SLEEP_S", 0.001)
    found = [
        workers.sampling(repeats=1),
        workers.syncing(repeats=1, num_parameters=1000, num_workers=1),
        workers.driver(repeats=1),
        scale.runners(1, iterations=1),
        scale.stream(1, iterations=1),
        scale.weights(1, repeats=1),
        scale.learners(repeats=1),
        scale.constants(num_workers=1, repeats=1),
    ]
    assert [sorted(numbers) for numbers in found] == [
        ["local", "ray"],
        ["sync_ms"],
        ["concat_ms", "driver_ms"],
        ["driver_cpu_s", "rollout_bytes", "runner_s", "runners", "wall_s"],
        ["driver_cpu_s", "runners", "wall_s"],
        ["bytes 10000", "ms 10000", "runners"],
        ["ms 10000"],
        ["call_s", "learn_s", "take_s"],
    ]
    assert all(number > 0 for numbers in found for number in numbers.values())


def test_a_row_without_a_floor_has_no_verdict() -> None:
    row = Row("compared", "steps/s", [50.0], [100.0], None, True)
    assert row.reached
    assert row.cells()[-3:] == ("0.50 (0.50 – 0.50)", "–", "–")


@pytest.mark.parametrize("rllib", ["/its/python", None])
def test_two_learners_stand_beside_one_process_and_rllib_where_it_is(
    monkeypatch: pytest.MonkeyPatch, rllib: str | None
) -> None:
    speeds = {("benchmarks.ours_ppo", "learners"): 80.0, ("benchmarks.ours_ppo", "cartpole"): 100.0}
    speeds["benchmarks.peers.rllib", "learners"] = 20.0
    pythons: set[tuple[str, str]] = set()

    def fake(*args: str, python: str) -> dict[str, float]:
        pythons.add((args[1], python))
        return {"steps_per_s": speeds[args[1], args[2]]}

    monkeypatch.setattr(run, "child", fake)
    monkeypatch.setattr(run, "rllib_python", lambda: rllib)
    rows = run.learner_rows(2, lambda text: None)
    assert [(row.name, row.ratios, row.floor) for row in rows] == [
        ("PPO CartPole, 2 learners, one process", [0.8, 0.8], None),
        ("PPO CartPole, 2 learners, RLlib", [4.0, 4.0], 3.0),
    ][: 2 if rllib else 1]
    assert (("benchmarks.peers.rllib", "/its/python") in pythons) == (rllib is not None)


def test_rllib_is_left_out_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, status in (("with", 0), ("without", 1)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("RLLIB_PYTHON", str(tmp_path / "with"))
    assert run.rllib_python() == str(tmp_path / "with")
    monkeypatch.setenv("RLLIB_PYTHON", str(tmp_path / "without"))
    assert run.rllib_python() is None


def test_rows_of_workers_hold_ray_against_one_process_and_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "sampling": {"ray": 170.0, "local": 100.0},
        "syncing": {"sync_ms": 60.0},
        "driver": {"driver_ms": 2.5, "concat_ms": 1.0},
    }
    monkeypatch.setattr(run, "child", lambda *args: answers[args[-1]])
    reports: list[str] = []
    rows = run.worker_rows(2, reports.append)
    assert len(reports) == 2 * run.ROWS["workers"][1]
    assert [(row.name, row.ratios, row.reached) for row in rows] == [
        ("workers: sampling HalfCheetah", [1.7, 1.7], True),
        ("workers: weights to eight runners", [2.0, 2.0], False),
        ("workers: the driver's part", [0.5, 0.5], True),
    ]
