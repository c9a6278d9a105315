"""``rlmodule compare``: what it says of folders of runs, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from algorithms.cli.main import main
from algorithms.loggers.base import STEPS
from algorithms.run.comparison import ranges_of
from algorithms.run.plotting import EVALUATION_RETURN, TRAINING_RETURN


def write_runs(folder: Path, returns: Sequence[float], env: str = "CartPole-v1", *, evaluated: bool = True) -> Path:
    """Write a run for each of ``returns`` that ends with that mean return, after an earlier one."""
    for seed, value in enumerate(returns):
        run = folder / f"{env}-seed-{seed}"
        run.mkdir(parents=True)
        (run / "run.json").write_text(
            json.dumps({"algorithm": "PPO", "name": f"PPO on {env}", "seed": seed, "config": {}})
        )
        rows = []
        for steps, score in ((100, 0.0), (200, value)):
            row: dict[str, float] = {STEPS: steps, "time_total_s": 1.0}
            row[TRAINING_RETURN] = score + 1
            if evaluated:
                row[EVALUATION_RETURN] = score
            rows.append(json.dumps(row))
        (run / "progress.jsonl").write_text("\n".join(rows) + "\n")
    return folder


Says = Callable[..., str]


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    def run(*args: object, code: int = 0) -> str:
        assert main(["compare", *map(str, args)]) == code
        out, err = capsys.readouterr()
        return " ".join((out if code == 0 else err).split())

    return run


def test_better_worse_and_too_few(tmp_path: Path, says: Says) -> None:
    low = write_runs(tmp_path / "low", [1, 2, 3, 4, 5])
    high = write_runs(tmp_path / "high", [11, 12, 13, 14, 15])
    few = write_runs(tmp_path / "few", [11, 12])
    text = says(low, high, few)
    assert f"{high} is better than {low}: the IQM differs by 10.0 (95 % interval" in text
    assert "IQM of the mean episode return, evaluation" in text
    assert f"{low} 5 3.00" in text
    assert "where they ended" not in text
    assert f"cannot tell whether {few} is better than {low}" in text
    assert "of each would decide" in text
    assert f"{low} is worse than {high}" in says(high, low)


def test_runs_that_were_not_evaluated_are_compared_in_training(tmp_path: Path, says: Says) -> None:
    first = write_runs(tmp_path / "a", [1, 2, 3])
    second = write_runs(tmp_path / "b", [1, 2, 3], evaluated=False)
    assert "IQM of the mean episode return, training" in says(first, second)


def test_several_envs_are_averaged_on_one_scale(tmp_path: Path, says: Says) -> None:
    for name, shift in (("a", 0.0), ("b", 0.5)):
        write_runs(tmp_path / name, [shift, 0.1 + shift, 0.2 + shift, 0.3 + shift])
        write_runs(tmp_path / name, [-1000 * (1 - shift)] * 4, "Pendulum-v1")
    ranges = ["--normalize", "CartPole-v1=0..1", "Pendulum-v1=-1000..0"]
    text = says(tmp_path / "a", tmp_path / "b", *ranges)
    assert "is better than" in text
    assert "4 + 4" in text
    assert "expected a range for each of 2 envs" in says(tmp_path / "a", tmp_path / "b", code=1)


def test_mistakes_are_told(tmp_path: Path, says: Says) -> None:
    first = write_runs(tmp_path / "a", [1, 2, 3])
    other = write_runs(tmp_path / "b", [1, 2, 3], "Pendulum-v1")
    (tmp_path / "empty").mkdir()
    assert "expected RUN RUN ..." in says(first, code=2)
    assert "expected runs of CartPole-v1" in says(first, other, code=1)
    assert "expected a folder with runs, got none" in says(first, tmp_path / "empty", code=1)
    assert "no such folder" in says(first, tmp_path / "nowhere", code=1)
    assert "metric: expected one of" in says(first, other, "--metric", "loss", code=1)
    assert "expected ENV=LOW..HIGH" in says(first, first, "--normalize", "CartPole-v1", code=1)
    assert "expected two folders of runs or more, each once" in says(first, first, code=1)
    (tmp_path / "link").symlink_to(first)
    for same in (f"{other}/../a", tmp_path / "link"):
        assert "expected two folders of runs or more, each once" in says(first, same, code=1)
    near = write_runs(tmp_path / "near", [1, 2, 3])
    assert "Did you mean 'CartPole-v1'?" in says(first, near, "--normalize", "Cartpole-v1=0..1", code=1)
    evaluated = write_runs(tmp_path / "evaluated", [1, 2, 3], evaluated=False)
    got = says(first, evaluated, "--metric", EVALUATION_RETURN, code=1)
    assert f"expected a value of {EVALUATION_RETURN}, got none" in got


def test_a_metric_is_named_by_its_end_as_in_plot(tmp_path: Path, says: Says) -> None:
    first, second = (write_runs(tmp_path / name, [1, 2, 3]) for name in "ab")
    for run in tmp_path.glob("*/*"):
        row = {STEPS: 300, "time_total_s": 1.0, "learners/default_policy/entropy": 0.5}
        with (run / "progress.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    text = says(first, second, "--metric", "entropy")
    assert "IQM of the learners/default_policy/entropy" in text
    assert f"{first} 3 0.500" in text


def test_runs_that_ended_at_other_steps_are_seen(tmp_path: Path, says: Says) -> None:
    first, second = (write_runs(tmp_path / name, [1, 2, 3]) for name in "ab")
    log = second / "CartPole-v1-seed-1" / "progress.jsonl"
    log.write_text(log.read_text().splitlines()[0] + "\n")  # the run is not finished
    text = says(first, second)
    assert f"{second} 3 1.33" in text
    assert "The runs are compared where they ended, after 100 to 200 env steps." in text


def test_runs_that_differ_in_more_than_their_seed_are_no_sample(tmp_path: Path, says: Says) -> None:
    first, second = (write_runs(tmp_path / name, [1, 2, 3, 4]) for name in "ab")
    write_runs(first, [1, 2, 3, 4], "Pendulum-v1")
    write_runs(second, [1, 2, 3, 4], "Pendulum-v1")
    ranges = ["--normalize", "CartPole-v1=0..1", "Pendulum-v1=0..1"]
    assert "cannot tell" in says(first, second, *ranges)
    file = second / "CartPole-v1-seed-1" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"config": {"lr": 0.1}}))
    got = says(first, second, *ranges, code=1)
    assert f"'{second}': expected runs that differ in their seed alone" in got
    assert "got runs that differ: lr." in got


def test_the_env_of_a_run_without_its_json_is_unknown(tmp_path: Path, says: Says) -> None:
    first, second = (write_runs(tmp_path / name, [1, 2, 3]) for name in "ab")
    for file in second.glob("*/run.json"):
        file.unlink()
    got = says(first, second, code=1)
    assert f"expected runs of CartPole-v1, as in '{first}', got those of an unknown env (no run.json)." in got


@pytest.mark.parametrize("text", ["CartPole-v1=1..1", "=0..1", "CartPole-v1=a..b", "CartPole-v1=1e..2"])
def test_ranges_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected ENV=LOW"):
        ranges_of([text])


def test_ranges_may_be_negative_and_envs_may_have_equals_signs() -> None:
    assert ranges_of(["a=b=-1.5..2e3"]) == {"a=b": (-1.5, 2000.0)}
