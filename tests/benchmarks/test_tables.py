"""Rows of tables say when the code that measured them has changed."""

import json
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from rich.console import Console

from algorithms.bc import BCConfig
from benchmarks import learning, offline, offline_values, run, scale, tables
from benchmarks.learning import GOALS, Goal, Run
from benchmarks.peers import run as peers
from benchmarks.peers import scores
from tests.benchmarks.fake_jobs import FakeJobs

NAMES = {"PPO": "PPO: PPO CartPole-v1", "DQN": "DQN: DQN CartPole-v1", "A2C": "A2C: A2C CartPole-v1"}
BC = offline_values.SHORT_ROWS[0]
CODE = [*tables.SPEED, *tables.AGENTS, "algorithms", "benchmarks"]


def goal_of(algo: str) -> Goal:
    return GOALS[algo]["CartPole-v1"]


def ended(goal: Goal, seed: int, code: str | None) -> Run:
    return Run(str(goal), seed, goal.budget, 500.0, 500.0, 490.0, 10.0, [(goal.budget, 500.0)], "a machine", code)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code, whose digests count. PPO, DQN, A2C and BC have been measured with it, and nothing else."""
    for folder in CODE:
        shutil.copytree(tables.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    kept = [(learning, "RUNS"), (offline, "SCORES"), (run, "KEPT"), (peers, "KEPT"), (scores, "RUNS_KEPT")]
    for number, (module, name) in enumerate(kept):
        monkeypatch.setattr(module, name, tmp_path / f"kept {number}")
    code = tables.Code(tmp_path)
    (tmp_path / "scale.json").write_text(json.dumps({"code": code.digest(tables.SPEED)}))
    monkeypatch.setattr(scale, "DATA", tmp_path / "scale.json")
    for goal in map(goal_of, NAMES):
        learning.store(goal, ended(goal, 0, code.digest(learning.sources(goal))))
    of_bc = code.digest(offline.sources(BC.config()))
    offline.keep(BC.key() | {"seed": 1, "score": -600.0, "cpu_seconds": 2, "code": of_bc})
    return tmp_path


def named(state: str) -> set[str]:
    """The measured rows in a state, by their algorithm."""
    of_name = {name: algo for algo, name in NAMES.items()} | {f"{BC.name}, {BC.data}": "BC"}
    return {of_name[row.name] for row in tables.rows() if row.name in of_name and row.state == state}


ALL = {*NAMES, "BC"}


def test_the_scale_study_is_stale_once_sampling_changes(tree: Path) -> None:
    (scale_row,) = (row for row in tables.rows() if row.name == "scale")
    assert scale_row.state == tables.FRESH
    runner = tree / "rlmodule" / "sampling" / "env_runner.py"
    runner.write_text(runner.read_text() + "\nCHANGED = True\n")
    (scale_row,) = (row for row in tables.rows() if row.name == "scale")
    assert scale_row.state == tables.STALE


def test_a_changed_loss_makes_the_rows_of_its_algorithm_stale_alone(tree: Path) -> None:
    assert named(tables.FRESH) == ALL
    learner = tree / "algorithms" / "dqn" / "learner.py"
    text = learner.read_text()
    changed = text.replace("losses = losses * batch", "losses = losses / batch")
    assert changed != text
    learner.write_text(changed)
    assert named(tables.STALE) == {"DQN"}
    assert named(tables.FRESH) == ALL - {"DQN"}
    assert (
        f"{tables.STALE}: 1 row\n  python -m benchmarks.learning --algo DQN --envs CartPole-v1 --stale\n"
        f"    {NAMES['DQN']}\n{tables.UNDATED}: "
    ) in tables.text_of(tables.rows())


NEEDED_BY = {
    "algorithms/ppo/learner.py": {"PPO"},
    "algorithms/ppo/module.py": {"PPO", "A2C", "BC"},
    "algorithms/ops/distributional.py": {"DQN"},
    "algorithms/run/evaluation.py": ALL,
    "rlmodule/sampling/env_runner.py": ALL,
    "catalog/encoders/mlp.py": ALL,
    # what an env with several agents needs, what surrounds a run, and settings that a run is known by
    "rlmodule/agents/runner.py": set(),
    "algorithms/loggers/base.py": set(),
    "algorithms/ppo/presets.py": set(),
}


def test_a_row_depends_on_what_its_algorithm_needs(tree: Path) -> None:
    found = dict[str, set[str]]()
    for file in NEEDED_BY:
        source = tree / file
        text = source.read_text()
        source.write_text(f"{text}\nNEW = 1\n")
        found[file] = named(tables.STALE)
        source.write_text(text)
    assert found == NEEDED_BY


def test_comments_docstrings_layout_and_types_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    source = tmp_path / "algorithms" / "old.py"
    source.parent.mkdir()
    text = '"""Old."""\n\n\ndef half(x):\n    """Old."""\n    return x / 2\n\n\nHALF = half(1)\n"""Old."""\n'
    source.write_text(text)
    first = tables.digest(["algorithms"])
    for same in (
        text.replace("Old", "New"),
        text.replace('    """Old."""\n', ""),
        text.replace("x / 2", "(\n        x / 2\n    )  # new"),
        text + "if TYPE_CHECKING:\n    from algorithms.new import New\n",
    ):
        assert same != text
        source.write_text(same)
        assert tables.digest(["algorithms"]) == first
    for other in (text.replace("x / 2", "x / 3"), text.replace("x / 2", "2 / x"), text.replace("half", "third")):
        source.write_text(other)
        assert tables.digest(["algorithms"]) != first
    source.write_text(text)
    source.rename(source.with_name("new.py"))
    assert tables.digest(["algorithms"]) != first


def test_a_row_without_a_digest_is_named(tree: Path) -> None:
    lines = [json.loads(line) for line in learning.RUNS.read_text().splitlines()]
    del lines[0]["run"]["code"], lines[0]["command"]
    learning.RUNS.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert (named(tables.UNDATED), named(tables.STALE)) == ({"PPO"}, set())
    _, undated = tables.text_of(tables.rows()).split(f"{tables.UNDATED}: ")
    assert f"  python -m benchmarks.learning --algo PPO --envs CartPole-v1 --stale\n    {NAMES['PPO']}\n" in undated
    # a seed of other code says more than one of unknown code
    learning.store(goal_of("PPO"), ended(goal_of("PPO"), 1, "other"))
    assert named(tables.STALE) == {"PPO"}


def test_a_run_without_a_digest_counts_as_run_and_can_be_made_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[int]()

    def run_again(goal: Goal, seed: int) -> Run:
        ran.append(seed)
        return ended(goal, seed, tables.digest(learning.sources(goal)))

    monkeypatch.setattr(learning, "Jobs", FakeJobs(run_again))
    goal = goal_of("PPO")
    learning.RUNS.unlink()
    for seed, code in ((0, None), (1, "other"), (2, tables.digest(learning.sources(goal)))):
        learning.store(goal, ended(goal, seed, code))
    learning.measure([goal], 3, 1, Console(quiet=True))
    assert ran == []
    (row,) = learning.measure([goal], 5, 1, Console(quiet=True), stale=True)
    assert ran == [0, 1]  # and neither 3 nor 4, which were never run
    assert [found.seed for found in row.runs] == [0, 1, 2]
    assert named(tables.FRESH) == {"PPO", "BC"}
    assert all(json.loads(line)["command"].startswith("python ") for line in learning.RUNS.read_text().splitlines())


class FakeBC:
    """A config, and an algorithm that learns nothing."""

    learned: list[int]

    def __init__(self, learned: list[int]) -> None:
        self.learned = learned

    def build(self) -> "FakeBC":
        return self

    def __enter__(self) -> "FakeBC":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Change nothing."""

    def learn(self, num_updates: int, progress: bool) -> None:
        self.learned.append(num_updates)

    def evaluate(self, num_episodes: int) -> dict[str, Any]:
        return {"env_runners": {"episode_return_mean": -500.0}}


class FakeData:
    """The data of a row, which is not read here."""

    env, digest = None, "of the data"

    @property
    def dataset(self) -> "FakeData":
        return self


def test_a_score_without_a_digest_counts_as_found_and_can_be_found_again(tree: Path) -> None:
    learned, data = list[int](), FakeData()
    row = offline_values.Row(BC.data, BC.name, lambda **given: FakeBC(learned) if given else BCConfig())
    offline.SCORES.write_text(json.dumps(row.key() | {"seed": 1, "score": -600.0, "digest": "of the data"}) + "\n")
    assert named(tables.UNDATED) == {"BC"}
    found = [*offline_values.scores_of(row, data, 1)]  # pyright: ignore[reportArgumentType]
    assert ([score["score"] for score in found], learned) == ([-600.0], [])
    found = [*offline_values.scores_of(row, data, 2, stale=True)]  # pyright: ignore[reportArgumentType]
    assert ([score["score"] for score in found], learned) == ([-500.0], [10_000])
    assert {"digest": "of the data", "seed": 1}.items() <= found[0].items()
    assert named(tables.FRESH) == ALL


def test_figures_of_speed_are_kept_with_their_digest(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tree / "page.md"
    page.write_text("".join(f"<!-- {name}: begin --><!-- {name}: end -->" for name in ("table", "speed", "peers")))
    for module, names in ((run, ("README", "SUMMARY_PAGE")), (peers, ("README", "PICTURE"))):
        for name in names:
            monkeypatch.setattr(module, name, page)
    figures = run.Row("PPO LSTM CartPole", "steps/s", [2.0] * 5, [1.0] * 5, 0.7, True)
    monkeypatch.setitem(run.ROWS, "lstm", (lambda repeats, report: [figures], 2))
    monkeypatch.setattr(sys, "argv", ["run.py", "--jobs", "lstm", "--write"])
    run.main()
    monkeypatch.setattr(peers, "python_of", lambda peer, console: None)
    monkeypatch.setattr(peers, "measure", lambda *args: {"ours": [2.0] * 5, "bare": [1.0] * 5})
    monkeypatch.setattr(peers, "draw", lambda kept: None)
    peers.main()
    fresh = [row for row in tables.rows() if row.name == "PPO LSTM CartPole" and row.state == tables.FRESH]
    commands = [row.command for row in fresh]
    assert commands == [f"python -m benchmarks.{name} --jobs lstm --write" for name in ("run", "peers.run")]
    (tree / "benchmarks" / "peers" / "requirements" / "sb3.txt").write_text("stable-baselines3==99\n")
    assert [row.command for row in tables.rows() if row.state == tables.STALE] == commands[1:]
    with (tree / "benchmarks" / "bare_lstm.py").open("a") as source:
        source.write("\nNEW = 1\n")
    assert [row.command for row in tables.rows() if row.state == tables.STALE] == commands


def test_every_row_that_can_be_measured_has_a_digest() -> None:
    code = tables.Code(tables.ROOT)
    sources = [learning.sources(goal) for goals in GOALS.values() for goal in goals.values()]
    sources += [offline.sources(config()) for _, config, *_ in offline.ROWS.values()]
    sources += [offline.sources(row.config()) for row in offline_values.SHORT_ROWS + offline_values.LONG_ROWS]
    sources += [run.sources(job) for job in run.ROWS] + [peers.sources(job) for job in peers.CONTESTS]
    sources += [scores.sources(job) for job in scores.COURSES]
    digests = {places: code.digest(places) for places in sources}
    assert len(set(digests.values())) == len(digests)
    with pytest.raises(FileNotFoundError, match="got 'algorithms/nothing'"):
        code.digest(["algorithms/nothing"])
