"""The learning tables say what was measured, and each goes where it belongs."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from algorithms.registry import ALGORITHMS, config_class, name_of
from benchmarks import learning
from benchmarks.learning import DOC, GOALS, Goal, Row, Run, markdown, measure, train
from benchmarks.offline_values import SHORT_ROWS
from tests.benchmarks.fake_jobs import FakeJobs

CARTPOLE = Goal("PPO", "CartPole-v1", 5000, 475)


@pytest.fixture(autouse=True)
def _no_stored_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(learning, "RUNS", tmp_path / "learning.jsonl")
    monkeypatch.setattr(learning, "UNFINISHED", tmp_path / "unfinished")


def row(*figures: float, floor: float = 475, **others: Any) -> Row:
    goal = Goal("PPO", "CartPole-v1", 100_000, floor, **others)
    runs = [
        Run(
            "PPO CartPole-v1",
            seed,
            98_304,
            figure,
            figure - 20,
            figure - 50,
            30.0,
            [(50_000, figure - 30), (98_304, figure - 20)],
            f"2026-11-{20 + seed}, a machine",
        )
        for seed, figure in enumerate(figures)
    ]
    return Row(goal, runs)


def test_the_figure_is_the_median_of_the_seeds() -> None:
    assert row(500, 100, 480).reached
    assert not row(500, 100, 470).reached
    assert row(500, 100, 480).cells() == {
        "env": "CartPole-v1",
        "budget": "100,000",
        "figure": "480",
        "IQM, 95 % interval": "–",
        "all seeds": "500, 100, 480",
        "training window": "450, 50, 430",
        "floor": "≥ 475",
        "reached": "yes",
    }
    assert "| CartPole-v1 | 100,000 | 480 |" in markdown([row(500, 100, 480)], "PPO")
    assert (
        "Medians of 3 seeds, `python -m benchmarks.learning --algo PPO --seeds 3`. "
        "2026-11-20 to 2026-11-22, a machine." in markdown([row(500, 100, 480)], "PPO")
    )


def test_five_seeds_have_an_interquartile_mean_with_an_interval() -> None:
    # the middle three of 100, 470, 480, 490, 500
    figure = row(500, 100, 480, 470, 490).cells()["IQM, 95 % interval"]
    assert re.fullmatch(r"480 \((\d+) to (\d+)\)", figure)


def test_two_rows_are_compared_by_their_interquartile_means() -> None:
    # of three seeds none is left out; one of the 20 ways to split six seeds is as clear, and so is its opposite
    text = markdown([row(1, 2, 3, part="own"), row(4, 5, 7.5, part="central")], "central-critic")
    assert "IQMs: 5.5 with central and 2.0 with own; the difference is +3.5, p = 0.1: cannot tell.\n" in text
    five = markdown([row(1, 2, 3, 3, 4, part="own"), row(4, 5, 7.5, 8, 9, part="central")], "central-critic")
    assert "; the difference is +4.2, its 95 % interval +" in five


def test_where_the_best_evaluation_counts_the_last_one_stands_beside_it() -> None:
    table = markdown([row(500, 100, evaluate_every=5000)], "DQN")
    assert "| all seeds | at the end | training window |" in table
    assert "| 500, 100 | 480, 80 | 450, 50 |" in table


def test_where_the_last_evaluation_counts_the_others_stand_below_the_table() -> None:
    text = markdown([row(500, 100, 480, evaluate_every=50_000, best=False)], "PPO")
    assert "| all seeds | training window |" in text
    assert "\n\nMedians along the way:\n\n- CartPole-v1: 450.0 after 50,000\n\n" in text


def test_settings_that_are_no_defaults_are_stated() -> None:
    assert "Settings" not in markdown([row(500)], "PPO")
    text = markdown([row(500), row(500, settings={"lr": 1e-3, "n_step": 3})], "DQN")
    assert "\n\nSettings other than the defaults:\n\n- CartPole-v1: `lr=0.001`, `n_step=3`\n\nOne seed, " in text


def test_floors_below_zero() -> None:
    assert row(-150, -80, -85, floor=-90).reached
    assert not row(-95, -80, -95, floor=-90).reached


def test_a_run_in_a_process_of_its_own() -> None:
    goal = replace(CARTPOLE, budget=4000)
    (found,) = measure([goal], 1, 1, Console(quiet=True))
    (run,) = found.runs
    assert (run.goal, run.seed, run.env_steps) == ("PPO CartPole-v1", 0, 2048)  # a second batch would not fit
    assert 8 <= run.figure <= 500
    assert 8 <= run.window <= 500
    assert run.last == run.figure
    here = train(goal, 0)
    assert run.evaluations == [[*evaluation] for evaluation in here.evaluations]  # as JSON has them


def test_an_interrupted_run_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    goal, reported = replace(CARTPOLE, budget=6200, evaluate_every=2000, episodes=3), list[int]()
    monkeypatch.setattr(learning, "digest", lambda places: f"after {len(reported)}")

    def interrupt(steps: int, mean: float) -> None:
        reported.append(steps)
        if len(reported) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(goal, 0, interrupt)
    continued = train(goal, 0, interrupt)
    assert reported == [2048, 4096, 4096, 6144]
    assert [steps for steps, _ in continued.evaluations] == [2048, 4096, 6144]
    assert continued.code == "after 0"  # of the code that it began with
    assert not [*learning.UNFINISHED.iterdir()]
    whole = train(goal, 0)
    assert replace(continued, seconds=0.0) == replace(whole, seconds=0.0, code="after 0")


def test_a_run_that_fails_is_shown() -> None:
    nowhere = replace(CARTPOLE, env_id="Nothing-v0")
    with pytest.raises(RuntimeError, match=r"PPO Nothing-v0 seed 0 failed with exit status 1:[\s\S]*Nothing-v0"):
        measure([nowhere], 1, 1, Console(quiet=True))
    with pytest.raises(ValueError, match="at least one iteration of 2048, got 100"):
        train(replace(CARTPOLE, budget=100), 0)


class FakeRun:
    """A run of iterations of ten steps, each evaluation of which gives the next of `means`."""

    def __init__(self, means: list[float]) -> None:
        self.env_steps, self.means, self.evaluated = 0, means, []

    def __enter__(self) -> "FakeRun":
        return self

    def __exit__(self, *error: object) -> None: ...

    def train(self) -> dict[str, Any]:
        self.env_steps += 10
        return {"env_runners": {"episode_return_mean": float(self.env_steps)}, "time_total_s": 1.0}

    def evaluate(self) -> dict[str, Any]:
        self.evaluated.append(self.env_steps)
        return {"env_runners": {"episode_return_mean": self.means[len(self.evaluated) - 1]}}

    def save(self, path: Path) -> None: ...


@pytest.mark.parametrize(
    ("every", "at", "figure", "last"),
    [(30, [30, 60, 90], 7.0, 2.0), (25, [30, 50, 80, 100], 7.0, 4.0), (None, [100], 3.0, 3.0)],
)
def test_the_best_evaluation_counts(
    monkeypatch: pytest.MonkeyPatch, every: int | None, at: list[int], figure: float, last: float
) -> None:
    fake = FakeRun([3.0, 7.0, 2.0, 4.0])
    monkeypatch.setattr(config_class("PPO"), "build", lambda config: fake)
    budget = 99 if every == 30 else 100
    run = train(Goal("PPO", "CartPole-v1", budget, 0, evaluate_every=every), 0)
    assert (fake.evaluated, run.figure, run.last) == (at, figure, last)
    assert (run.env_steps, run.window) == (fake.env_steps, fake.env_steps)


def test_measure_sorts_runs_into_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(goal: Goal, seed: int) -> Run:
        return Run(str(goal), seed, goal.budget, float(seed), 0.0, 0.0, 0.0)

    monkeypatch.setattr(learning, "Jobs", FakeJobs(ended))
    goals = [GOALS["PPO"]["CartPole-v1"], GOALS["PPO"]["LunarLander-v3"], GOALS["DQN"]["CartPole-v1"]]
    goals += [GOALS["DQN-parts"]["noisy"], GOALS["DQN-parts"]["dueling"]]
    rows = measure(goals, 3, 2, Console(quiet=True))
    assert [found.goal for found in rows] == goals
    assert [[run.seed for run in found.runs] for found in rows] == [[0, 1, 2]] * 5
    assert [{run.goal for run in found.runs} for found in rows] == [{str(goal)} for goal in goals]


def test_a_run_that_has_ended_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[float, int]] = []

    def ended(goal: Goal, seed: int) -> Run | None:
        ran.append((goal.settings.get("lr", 0), seed))
        return None if seed == 2 else Run(str(goal), seed, goal.budget, float(seed), 0.0, 0.0, 0.0)

    monkeypatch.setattr(learning, "Jobs", FakeJobs(ended))
    with pytest.raises(RuntimeError, match="seed 2 failed"):
        measure([CARTPOLE], 3, 1, Console(quiet=True))
    with pytest.raises(RuntimeError, match="seed 2 failed"):
        measure([CARTPOLE], 4, 1, Console(quiet=True))
    assert ran == [(0, 0), (0, 1), (0, 2), (0, 2)]
    # another floor needs no other run, other settings do
    (shown,) = measure([replace(CARTPOLE, floor=100), replace(CARTPOLE, settings={"lr": 1})], 0, 1, Console(quiet=True))
    assert [run.seed for run in shown.runs] == [0, 1]
    measure([replace(CARTPOLE, settings={"lr": 1})], 1, 1, Console(quiet=True))
    assert ran[4:] == [(1, 0)]


def test_an_algorithm_without_goals_on_the_envs_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["learning.py", "--algo", "DQN", "--envs", "Pendulum-v1"])
    with pytest.raises(SystemExit) as ended:
        learning.main()
    assert ended.value.code == 2
    assert "DQN has no goal on Pendulum-v1" in capsys.readouterr().err


def test_every_goal_can_be_set_up_and_its_table_has_a_place() -> None:
    text = DOC.read_text(encoding="utf-8")
    sampling = {name for name in ALGORITHMS if config_class(name).can_sample}  # the others: benchmarks.offline
    measured = {goal.algo for goals in GOALS.values() for goal in goals.values()}
    from_data = {name_of(row.config()) for row in SHORT_ROWS}
    assert measured | from_data >= sampling >= measured
    for name, goals in GOALS.items():
        assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1
        assert len({str(goal) for goal in goals.values()}) == len(goals)
        for key, goal in goals.items():
            assert key in (goal.env_id, goal.part, goal.where)
            config_class(goal.algo)(**goal.settings).environment(goal.env_id).validate()


class Stacks:
    """Plays connect four: its middle column as long as it can, and then the first."""

    def act(self, obs: dict[str, Any], state: Any) -> tuple[dict[str, int], Any]:
        ((agent, seen),) = obs.items()
        return {agent: 3 if seen["action_mask"][3] else int(seen["action_mask"].argmax())}, state


def test_wins_of_connect_four_are_counted_for_each_seat() -> None:
    """A player that stacks wins most games against random moves, as the first player and as the second."""
    algorithm: Any = SimpleNamespace(policies=Stacks())
    rng = np.random.default_rng(1)
    first, second = (learning._wins(algorithm, f"player_{seat}", rng, 20) for seat in (0, 1))
    assert 10 < second <= first <= 20
