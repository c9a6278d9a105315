"""The table says what was measured, and goes where it belongs."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.jobs import DQN_JOBS, JOBS, PONG_JOBS, SAC_JOBS, TD3_JOBS, TENSOR_JOBS
from benchmarks.run import REPLAY, Row

FASTER = Row(
    "speed", "steps/s", ours=[90.0, 200.0, 110.0], theirs=[100.0, 100.0, 100.0], floor=0.9, more_is_better=True
)


def test_ratio_is_the_median_of_pairs() -> None:
    assert FASTER.ratios == [0.9, 2.0, 1.1]
    assert FASTER.cells() == ("speed", "110 steps/s", "100 steps/s", "1.10 (0.90 – 2.00)", "≥ 0.90", "yes")


def test_floor_counts_in_its_direction() -> None:
    slower = Row("time", "s", ours=[1.5], theirs=[1.0], floor=1.15, more_is_better=False)
    assert not slower.reached
    assert slower.cells()[-2:] == ("≤ 1.15", "no")


def test_write_replaces_only_what_is_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    first, second = ("<!-- {0}: begin -->\n{1}\n<!-- {0}: end -->".format(name, "{}") for name in ("table", "DQN"))
    page.write_text(f"before\n{first.format('old')}\n{second.format('old')}\nafter\n", encoding="utf-8")
    for _ in range(2):
        run.write("new", page)
        assert page.read_text(encoding="utf-8") == (f"before\n{first.format('new')}\n{second.format('old')}\nafter\n")
    run.write("newer", page, "DQN")
    assert page.read_text(encoding="utf-8") == f"before\n{first.format('new')}\n{second.format('newer')}\nafter\n"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(SystemExit, match="table: begin"):
        run.write("new", page)


def test_the_readme_has_the_markers_and_every_row() -> None:
    text = run.README.read_text(encoding="utf-8")
    assert text.count("<!-- table: begin -->") == text.count("<!-- table: end -->") == 1
    names = [
        "PPO CartPole",
        "peak memory",
        "PPO HalfCheetah",
        "PPO LSTM CartPole",
        "DQN CartPole",
        "SAC Pendulum",
        "SAC HalfCheetah",
        "PPO Pong",
        "sampling: vector step",
    ]
    names += ["import", "replay: prioritized training step", "replay: a million of Atari"]
    names += [f"replay: {name}" for name, *_ in REPLAY]
    names += ["PPO CartPole, 2 learners, one process", "PPO CartPole, 2 learners, RLlib"]
    names += [f"workers: {what}" for what in ("sampling HalfCheetah", "weights to eight runners", "the driver's part")]
    names += [f"catalog: {what}" for what in ("deciding", "building", "reading", "masking")]
    for name in names:
        assert name in text.partition("<!-- table: begin -->")[0]


def test_a_child_that_fails_is_shown() -> None:
    assert run.child("-c", "print('noise'); print('{\"s\": 1}')") == {"s": 1}
    with pytest.raises(SystemExit, match=r"exit status 1:[\s\S]*ZeroDivisionError"):
        run.child("-c", "1 / 0")


def test_catalog_rows_take_the_slowest_case_and_pair_ours_with_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "building": {"a": {"tree_ms": 1.0, "module_ms": 60.0}, "b": {"tree_ms": 2.0, "module_ms": 3.0}},
        "reading": {"image": {"ours_ms": 11.0, "plain_ms": 10.0}},
        "masking": {"masked_us": 50.0, "plain_us": 40.0},
    }
    monkeypatch.setattr(run, "child", lambda *args: answers[args[-1]])
    reports: list[str] = []
    rows = run.catalog_rows(2, reports.append)
    assert len(reports) == 2 * run.ROWS["catalog"][1]
    assert [(row.name, row.ours, row.theirs, row.reached) for row in rows] == [
        ("catalog: deciding", [2.0, 2.0], [50.0, 50.0], True),
        ("catalog: building", [60.0, 60.0], [50.0, 50.0], False),
        ("catalog: reading, image", [11.0, 11.0], [10.0, 10.0], True),
        ("catalog: masking", [50.0, 50.0], [40.0, 40.0], True),
    ]
    assert rows[0].cells()[1] == "2.00 ms"


def test_each_job_runs_beside_the_loop_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def fake(*args: str) -> dict[str, float]:
        calls.append(args)
        return {"steps_per_s": 80.0 if "ours" in args[1] else 100.0, "peak_mb": 1.0}

    monkeypatch.setattr(run, "child", fake)
    (row,) = run.training_rows("lstm", 2, lambda text: None)
    assert [args[1:3] for args in calls] == [("benchmarks.ours_ppo", "lstm"), ("benchmarks.bare_lstm", "lstm")] * 2
    assert (row.ratios, row.floor, row.reached) == ([0.8, 0.8], 0.7, True)
    calls.clear()
    (row,) = run.training_rows("dqn", 1, lambda text: None)
    assert [args[1:3] for args in calls] == [("benchmarks.ours_dqn", "dqn"), ("benchmarks.bare_dqn", "dqn")]
    assert (row.name, row.floor, row.reached) == ("DQN CartPole", 0.9, False)
    jobs = JOBS | DQN_JOBS | SAC_JOBS | TD3_JOBS | PONG_JOBS | TENSOR_JOBS
    assert run.TRAININGS.keys() == jobs.keys()


@pytest.mark.parametrize("sb3", [True, False])
def test_replay_rows_stand_beside_what_can_be_imported(monkeypatch: pytest.MonkeyPatch, sb3: bool) -> None:
    other = {"sb3": 40.0} if sb3 else {}
    answers = {
        "adding": {"ours": 30.0, "ours_rollouts": 80.0, "bare": 100.0} | other,
        "sampling": {"ours": 90.0, "bare": 100.0} | other,
        "prioritized": {"ours": 18.0, "bare": 100.0} | other,
        "training": {"prioritized_ms": 3.0, "uniform_ms": 2.0},
        "memory": {"atari_gb": 7.5},
    }
    monkeypatch.setattr(run, "child", lambda *args: answers[args[-1]])
    reports: list[str] = []
    rows = run.replay_rows(2, reports.append)
    assert len(reports) == 2 * run.ROWS["replay"][1]
    found = {row.name.removeprefix("replay: "): (row.ratios[0], row.reached) for row in rows}
    assert found["adding steps, a bare ring"] == (0.3, True)
    assert found["prioritized training step"] == (1.5, True)
    assert found["a million of Atari"] == (7.5 / 8, True)
    compared = {name: value for name, value in found.items() if name.endswith("Stable-Baselines3")}
    assert compared == (
        {
            "adding steps, Stable-Baselines3": (0.75, False),
            "adding rollouts of 64, Stable-Baselines3": (2.0, True),
            "uniform batches, Stable-Baselines3": (2.25, True),
            "prioritized batches, Stable-Baselines3": (0.45, True),
        }
        if sb3
        else {}
    )
    assert rows[-1].cells()[1:3] == ("7.50 GB", "8.00 GB")


def test_figures_that_are_kept_make_both_tables() -> None:
    rows = [asdict(FASTER), asdict(replace(FASTER, name="PPO CartPole"))]
    kept = {"cartpole": {"machine": "here", "repeats": 3, "rows": rows}}
    table = run.markdown(kept)
    assert "| PPO CartPole | 110 steps/s | 100 steps/s | 1.10 (0.90 – 2.00) | ≥ 0.90 | yes |" in table
    assert table.endswith("Medians of 3 alternating runs; a ratio is the median of those of neighbours. here.")
    assert run.summary(kept).splitlines()[2:] == ["| PPO CartPole, 8 envs × 128 steps, steps/s | 1.10 × |"]


def test_the_pages_have_what_was_kept() -> None:
    kept = json.loads(run.KEPT.read_text(encoding="utf-8"))
    assert run.markdown(kept) in run.README.read_text(encoding="utf-8")
    assert run.summary(kept) in run.SUMMARY_PAGE.read_text(encoding="utf-8")
