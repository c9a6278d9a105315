"""``rlmodule plot``: what it draws, prints and refuses; the arithmetic is tested with algorithms.plotting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algorithms.cli import main
from algorithms.loggers.base import STEPS
from algorithms.run.plotting import EVALUATION_RETURN, SECONDS, TRAINING_RETURN


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of two seeds each, and one that has not finished an iteration, below the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, final in (("fast", 40), ("slow", 20)):
        for seed in (1, 2):
            folder = tmp_path / name / f"seed-{seed}"
            folder.mkdir(parents=True)
            rows = [
                {STEPS: at, SECONDS: at, EVALUATION_RETURN: value * seed, "learners/default_policy/entropy": 0.5}
                for at, value in ((100, 10), (200, final))
            ]
            (folder / "progress.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "slow/seed-3").mkdir()
    (tmp_path / "slow/seed-3/progress.jsonl").touch()


def test_it_writes_the_picture_and_tells_where_each_run_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "fast", "slow"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Drawn: mean episode return, evaluation",
        "      seeds  final, 95 % CI  highest  env steps  time",
        "fast      2      60.0 ± 254     60.0        200  3:20",
        "slow      2      30.0 ± 127     30.0        200  3:20",
        "Left out, as it has no value yet: slow/seed-3",
        "",
        "Wrote plot.png",
    ]
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")


def test_every_flag_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--by", "time", "--out", "here.svg", "--metric", "entropy", "--title", "T i t l e", "--labels", "one run"]
    assert main(["plot", "fast", *flags]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Drawn: learners/default_policy/entropy"
    assert printed[2].startswith("one run      2       0.500 ± 0")
    assert printed[-1] == "Wrote here.svg"
    drawn = Path("here.svg").read_text(encoding="utf-8")
    for text in ("T i t l e", "training time (min)", "learners/default_policy/entropy", "one run (2 seeds)"):
        assert f"<!-- {text} -->" in drawn


@pytest.mark.parametrize(("out", "begin"), [("curves", b"\x89PNG"), ("v1.5.SVG", b"<?xml"), ("c,d.pdf", b"%PDF")])
def test_the_picture_has_the_name_that_it_prints(out: str, begin: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "fast", "--out", out]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Wrote {out}"
    assert Path(out).read_bytes().startswith(begin)


def test_without_evaluations_of_all_it_says_what_is_drawn_instead(capsys: pytest.CaptureFixture[str]) -> None:
    row = {STEPS: 10, SECONDS: 1, TRAINING_RETURN: 3, EVALUATION_RETURN: 4}
    Path("once").mkdir()
    Path("once/progress.jsonl").write_text(json.dumps(row) + "\n")  # one evaluation, at the end
    assert main(["plot", "once"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Drawn: mean episode return, training, as not all runs have several evaluations")
    assert " 3.00 " in printed[2]


def test_runs_without_an_iteration_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "slow/seed-3", "fast", "--labels", "none", "some"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].startswith("some")
    assert printed[3] == "Left out, as it has no value yet: slow/seed-3"


def test_files_and_folders_that_are_no_runs_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("learning_curve.png").touch()
    Path("without_jsonl").mkdir()
    assert main(["plot", *sorted(map(str, Path().iterdir()))]) == 0  # as *, which the shell fills in
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[2:4]] == ["fast", "slow"]
    why = "Left out, as it has no value yet"
    assert printed[4:7] == [f"{why}: {path}" for path in ("learning_curve.png", "slow/seed-3", "without_jsonl")]


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        ([], 2, ["rlmodule plot: expected RUN ..., got nothing"]),
        (["fas"], 1, ["no such folder", "Did you mean 'fast'?"]),
        (["slow/seed-3"], 1, ["expected a run with finished iterations, or a folder of such runs, got none"]),
        (["fast", "--metric", "entropi"], 1, ["metric: expected", "Did you mean 'entropy'?"]),
        (["fast", "--out", "plot.txt"], 1, ["Format 'txt' is not supported"]),
        (["fast", "--out", "nowhere/plot.png"], 1, ["No such file or directory: 'nowhere/plot.png'"]),
        (["fast", "--labels", "a", "b"], 1, ["labels: expected one for each of 1 runs"]),
        (["fast", "--by", "tim"], 2, ["--by: expected", "Did you mean 'time'?"]),
        (["fast", "--metrik", "kl"], 2, ["Did you mean '--metric'?"]),
    ],
)
def test_a_mistake_is_told_in_one_line(
    args: list[str], code: int, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", *args]) == code
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert all(part in line for part in parts), line
    assert not list(Path().glob("*.png"))
