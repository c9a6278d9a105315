"""Curves next to those of another library: the scores of both sides."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import scores
from benchmarks.run import README, machine


def test_a_score_is_the_mean_of_the_second_half() -> None:
    assert scores.score(([10, 50, 60, 100], [1.0, 2.0, 3.0, 7.0]), budget=100) == 5.0


def test_scores_are_alike_within_two_standard_errors() -> None:
    verdict = scores.Verdict([80.0, 100.0, 100.0, 80.0], [100.0, 140.0, 100.0, 140.0])
    assert verdict.difference == -30.0
    assert verdict.standard_error == pytest.approx((400 / 3 / 4 + 1600 / 3 / 4) ** 0.5)
    assert not verdict.alike  # 30 > 2 × 12.9
    assert scores.Verdict([80.0, 120.0], [100.0, 140.0]).alike  # 20 < 2 × 28.3


def curves(offset: float, seeds: int) -> list[scores.Curve]:
    return [([20_000, 200_000, 400_000], [0.0, offset, offset + seed]) for seed in range(seeds)]


def test_the_table_and_the_picture_tell_of_all_jobs(tmp_path: Path) -> None:
    kept = {"cheetah": {"ours": curves(100.0, 5), "sb3": curves(500.0, 5)}}
    row = scores.table(kept, "here").splitlines()[2]
    assert row == "| HalfCheetah-v5 | 400,000 | 102 ± 2 | 502 ± 2 | -400 ± 1 | no |"
    scores.draw(kept, tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 5000


def test_fewer_than_five_seeds_are_shown_one_by_one() -> None:
    row, *_, note = scores.table({"cheetah": {"ours": curves(100.0, 5), "sb3": curves(500.0, 2)}}, "here").splitlines()[
        2:
    ]
    assert row == "| HalfCheetah-v5 | 400,000 | 100, 101, 102, 103, 104 | 500, 501 | -398 | – |"
    assert "standard deviation of 2 or 5 seeds, of fewer than 5 each one;" in note


def test_every_table_has_its_place_and_its_jobs() -> None:
    page = README.read_text(encoding="utf-8")
    assert [job for jobs in scores.TABLES.values() for job in jobs] == [*scores.COURSES]
    for name in scores.TABLES:
        assert f"<!-- {name}: begin -->" in page
        assert f"<!-- {name}: end -->" in page


def test_every_run_of_both_sides_is_made_once_in_its_own_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[tuple[str, ...]] = []

    def child(*args: str, python: str) -> dict[str, Any]:
        called.append((python, *args[3:]))
        return {"steps": [1, 2], "returns": [float(args[-1]), 0.0]}

    monkeypatch.setattr(scores, "child", child)
    monkeypatch.setattr(scores, "RUNS_KEPT", tmp_path / "curves.jsonl")
    found = scores.measure(["cartpole"], 2, 1, "/theirs", lambda: None)
    theirs = [args[1:] for args in called if args[0] == "/theirs"]
    assert theirs == [("sb3", "cartpole", "0"), ("sb3", "cartpole", "1")]
    assert len(called) == 4
    assert found["cartpole"]["sb3"][1] == ([1, 2], [1.0, 0.0])
    assert scores.measure(["cartpole"], 2, 1, "/theirs", lambda: None) == found
    assert len(called) == 4
    assert scores.machines(["cartpole"]) == machine()
    assert not scores.machines(["pendulum"])


def test_a_run_of_ours_notes_the_mean_return_of_every_iteration() -> None:
    course = scores.Course("CartPole-v1", scores.JOBS["cartpole"], budget=3000)
    steps, returns = scores.ours(course, seed=0)
    assert steps == [1024, 2048, 3072]
    assert all(8 < message < 100 for message in returns)
