"""The table says what was measured, and goes where it belongs."""

from pathlib import Path

import pytest

from benchmarks import run
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
    for name in ("PPO CartPole", "peak memory", "PPO HalfCheetah", "sampling: vector step", "import catalog"):
        assert name in text.partition(BEGIN)[0]


def test_a_child_that_fails_is_shown() -> None:
    assert run.child("-c", "print('noise'); print('{\"s\": 1}')") == {"s": 1}
    with pytest.raises(SystemExit, match=r"exit status 1:[\s\S]*ZeroDivisionError"):
        run.child("-c", "1 / 0")
