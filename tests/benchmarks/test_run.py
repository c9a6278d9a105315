"""The table says what was measured, and goes where it belongs."""

from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.jobs import JOBS
from benchmarks.run import BEGIN, END, Row

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


def test_write_replaces_only_what_is_between_the_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(run, "README", readme)
    for _ in range(2):
        run.write("new")
        assert readme.read_text(encoding="utf-8") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    readme.write_text("no markers", encoding="utf-8")
    with pytest.raises(SystemExit, match="table: begin"):
        run.write("new")


def test_the_readme_has_the_markers_and_every_row() -> None:
    text = run.README.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    names = ["PPO CartPole", "peak memory", "PPO HalfCheetah", "PPO LSTM CartPole", "sampling: vector step", "import"]
    names += [f"catalog: {what}" for what in ("deciding", "building", "reading", "masking")]
    for name in names:
        assert name in text.partition(BEGIN)[0]


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


def test_each_ppo_job_runs_beside_the_loop_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def fake(*args: str) -> dict[str, float]:
        calls.append(args)
        return {"steps_per_s": 80.0 if "ours" in args[1] else 100.0, "peak_mb": 1.0}

    monkeypatch.setattr(run, "child", fake)
    (row,) = run.ppo_rows("lstm", 2, lambda text: None)
    assert [args[1:3] for args in calls] == [("benchmarks.ours_ppo", "lstm"), ("benchmarks.bare_lstm", "lstm")] * 2
    assert (row.ratios, row.floor, row.reached) == ([0.8, 0.8], 0.7, True)
    assert run.PPO_JOBS.keys() == JOBS.keys()
