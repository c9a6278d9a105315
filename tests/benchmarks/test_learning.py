"""The learning table says what was measured, and goes where it belongs."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import learning
from benchmarks.learning import DOC, GOALS, Goal, Row, Run, markdown, measure, train_apart, write
from benchmarks.run import BEGIN, END


def row(*figures: float, floor: float = 475) -> Row:
    runs = [Run("CartPole-v1", seed, 98_304, figure, figure - 50, 30.0) for seed, figure in enumerate(figures)]
    return Row(Goal("CartPole-v1", 100_000, floor), runs)


def test_the_figure_is_the_median_of_the_seeds() -> None:
    assert row(500, 100, 480).reached
    assert not row(500, 100, 470).reached
    cells = row(500, 100, 480).cells()
    assert cells == ("CartPole-v1", "100,000", "480", "500, 100, 480", "450, 50, 430", "≥ 475", "yes")
    assert "| CartPole-v1 | 100,000 | 480 |" in markdown([row(500, 100, 480)])
    assert "Medians of 3 seeds" in markdown([row(500, 100, 480)])


def test_floors_below_zero() -> None:
    assert row(-150, -80, -85, floor=-90).reached
    assert not row(-95, -80, -95, floor=-90).reached


def test_a_run_apart_reports_as_it_goes() -> None:
    reports: list[int] = []
    run = train_apart("CartPole-v1", 5000, 3, lambda steps, mean: reports.append(steps))
    assert reports == [2048, 4096]  # a third batch would not fit
    assert (run.env_id, run.seed, run.env_steps) == ("CartPole-v1", 3, 4096)
    assert 8 <= run.figure <= 500
    assert 8 <= run.window <= 500


def test_a_run_that_fails_is_shown() -> None:
    with pytest.raises(RuntimeError, match=r"Nothing-v0, seed 0 failed with exit status 1:[\s\S]*Nothing-v0"):
        train_apart("Nothing-v0", 5000, 0)
    with pytest.raises(RuntimeError, match="at least one batch"):
        train_apart("CartPole-v1", 100, 0)


def test_measure_sorts_runs_into_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(env_id: str, budget: int, seed: int, report: object) -> Run:
        return Run(env_id, seed, budget, float(seed), 0.0, 0.0)

    monkeypatch.setattr(learning, "train_apart", fake)
    goals = [GOALS["CartPole-v1"], GOALS["LunarLander-v3"]]
    rows = measure(goals, 3, 2, Console(quiet=True))
    assert [found.goal for found in rows] == goals
    assert [[run.seed for run in found.runs] for found in rows] == [[0, 1, 2]] * 2
    assert {run.env_id for run in rows[1].runs} == {"LunarLander-v3"}


def test_write_replaces_only_what_is_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "learning.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        write("new", page)
        assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(SystemExit, match="table: begin"):
        write("new", page)


def test_the_page_has_the_markers() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
