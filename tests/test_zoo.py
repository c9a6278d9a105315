"""The policies of the zoo: they load and act, score what their cards say, and are small and no part of the package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from algorithms.cli import main
from zoo.policies import COMMANDS, EPISODES, SEED_OF_EPISODES, evaluate_command

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "zoo"
MOST_BYTES = 5_000_000


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def played(name: str, episodes: int, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*evaluate_command(name).split(), "--episodes", str(episodes), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)["env_runners"]


def score_of(name: str) -> dict[str, Any]:
    return json.loads((ZOO / name / "evaluation.json").read_text(encoding="utf-8"))["env_runners"]


def files() -> Iterator[Path]:
    for name in COMMANDS:
        yield from (path for path in (ZOO / name).rglob("*") if path.is_file())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_policy_loads_and_acts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    score = score_of(name)
    result = played(name, 2, capsys, "--num-envs", "2")
    assert result["num_episodes"] == 2
    # Far from the mean of its card, it has loaded other weights than those that played there.
    assert abs(result["episode_return_mean"] - score["episode_return_mean"]) <= 5 * score["episode_return_std"] + 1e-9


@pytest.mark.parametrize("name", ["ppo-cartpole", "ppo-taxi"])
def test_the_episodes_of_a_card_can_be_played_again(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(name, EPISODES, capsys) == score_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_policy_scores_what_its_card_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    score, result = score_of(name), played(name, EPISODES, capsys)
    three_errors = 3 * score["episode_return_std"] / EPISODES**0.5
    assert result["episode_return_mean"] == pytest.approx(score["episode_return_mean"], abs=three_errors)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_card_is_complete(name: str) -> None:
    card, score = (ZOO / name / "README.md").read_text(encoding="utf-8"), score_of(name)
    mean, spread = score["episode_return_mean"], score["episode_return_std"]
    assert f"| Return | {mean:.2f} +/- {spread:.2f} over {EPISODES} episodes |" in card
    assert f"rlmodule {COMMANDS[name]} --seed 1 " in card
    assert f"--seed {SEED_OF_EPISODES}" in card
    for label in ("Env", "Seeds tried", "Training", "Versions"):
        assert f"| {label} | " in card
    picture = card.rpartition("![An episode](")[2].partition(")")[0]
    assert 0 < (ZOO / name / picture).stat().st_size <= 200_000


def test_every_folder_has_a_command() -> None:
    assert {path.parent.name for path in ZOO.glob("*/README.md")} == COMMANDS.keys()


def test_the_zoo_is_small_and_runs_no_code() -> None:
    assert sum(path.stat().st_size for path in files()) <= MOST_BYTES
    assert {path.suffix for path in files()} <= {".json", ".safetensors", ".md", ".gif", ".png"}
    assert not [path for path in files() if path.read_bytes()[:1] == b"\x80"]  # with which pickles begin


def test_the_package_leaves_the_zoo_out(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info", "--egg-base", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    # All that the source distribution has, of which the wheel is made.
    listed = (tmp_path / "catalog_rl.egg-info" / "SOURCES.txt").read_text(encoding="utf-8").splitlines()
    packed = {Path(name) for name in listed}
    assert Path("algorithms/cli/evaluate.py") in packed
    assert not [path for path in packed if "zoo" in path.parts]
