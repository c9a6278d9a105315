"""Presets hold what was measured, and nothing else."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import catalog_rl
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.presets import Preset, find_preset
from algorithms.registry import ALGORITHMS, config_class
from benchmarks.learning import GOALS

DOCS = Path(catalog_rl.__file__).resolve().parent / "docs"
LEARNING = DOCS / "learning.md"
TABLES = ("", "-agents", "-Pong")
"""What follows the name of an algorithm in the names of its tables."""
EACH = [(name, env_id) for name in ALGORITHMS for env_id in config_class(name).presets]
WHAT = {
    **dict.fromkeys(("rlmodule.agents.cartpoles", "mpe2.simple_spread_v3"), " per agent"),
    "classic/connect_four-v3": " % of games won",
}
"""What a figure is, if it is no mean return."""
MEASURED = [(name, env_id) for name, env_id in EACH if config_class(name).presets[env_id].measured]


def page_of(algo: str) -> str:
    """The table of an algorithm, and what stands below it."""
    return LEARNING.read_text("utf-8").partition(f"<!-- {algo}: begin -->")[2].partition("<!-- ")[0]


def row_of(algo: str, env_id: str) -> dict[str, str]:
    """The line on an env in the table of an algorithm, by column."""
    for suffix in TABLES:
        table = [line for line in page_of(algo + suffix).splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
        for row in rows:
            if row[0] == env_id:
                return dict(zip(rows[0], row, strict=True))
    raise AssertionError(f"no row on {env_id}")


@pytest.mark.parametrize(("algo", "env_id"), MEASURED)
def test_a_preset_says_what_was_measured(algo: str, env_id: str) -> None:
    preset, row = config_class(algo).presets[env_id], row_of(algo, env_id)
    assert f"{preset.num_env_steps:,}" == row["budget"]
    # where there is a column for the last evaluation, the figure is the best one
    how = "at best" if "at the end" in row else "at the end"
    what = WHAT.get(env_id, "")
    seeds = len(row["all seeds"].split(", "))
    assert preset.reached == f"{row['figure']}{what} {how}, {f'median of {seeds} seeds' if seeds > 1 else 'one seed'}"
    pages = "".join(page_of(algo + suffix) for suffix in TABLES)
    stated = re.search(rf"^- {env_id}: (.*)$", pages, re.M)
    settings = ", ".join(f"`{name}={value!r}`" for name, value in preset.settings.items())
    assert settings == (stated[1] if stated else "")
    assert row["reached"] == "yes"


@pytest.mark.parametrize(("algo", "env_id"), EACH)
def test_a_preset_differs_from_the_defaults_only_where_it_says_so(algo: str, env_id: str) -> None:
    config, preset = config_class(algo).preset(env_id), config_class(algo).presets[env_id]
    config.validate()
    assert config.env == env_id
    defaults = config_class(algo)(env=env_id)
    differing = {name for name, value in vars(config).items() if value != vars(defaults)[name]}
    assert differing == preset.settings.keys()


def test_the_presets_are_what_is_measured() -> None:
    names = [name + suffix for name in ALGORITHMS for suffix in TABLES]
    goals = [goal for name in names for goal in GOALS.get(name, {}).values() if not goal.part]
    assert {(goal.algo, goal.env_id) for goal in goals} == {*MEASURED}
    for goal in goals:
        preset = config_class(goal.algo).presets[goal.env_id]
        assert (goal.budget, goal.settings) == (preset.num_env_steps, preset.settings)


def test_the_page_of_the_command_line_names_them() -> None:
    page = (DOCS / "command-line.md").read_text("utf-8")
    section = page.partition("### Presets\n")[2].partition("\n### ")[0]
    assert all(env_id in section for _, env_id in EACH)


def test_an_unknown_env_has_no_preset_and_is_told_the_closest() -> None:
    with pytest.raises(
        ValueError, match=r"PPOConfig.preset\(\): expected an env with a preset \(CartPole-v1.* mean 'CartPole-v1'\?"
    ):
        PPOConfig.preset("CartPole")


def test_a_config_of_a_preset_is_one_of_its_own() -> None:
    config = DQNConfig.preset("MountainCar-v0")
    assert isinstance(config.epsilon, list)
    config.epsilon[1][0] = 5
    assert DQNConfig.presets["MountainCar-v0"].settings["epsilon"] == [[0, 1.0], [24_000, 0.07]]
    with pytest.raises(FrozenInstanceError):
        DQNConfig.presets["MountainCar-v0"].num_env_steps = 1  # type: ignore[misc]
    assert Preset(1, "nothing").settings == {}


@given(st.from_regex(r"\A\w+-v\d\Z"), st.sampled_from(["", "ale_py:"]))
def test_a_pattern_is_for_all_it_fits_and_an_env_of_its_own_comes_first(name: str, module: str) -> None:
    all_games, one = Preset(1, "all"), Preset(2, "one")
    presets = {"CartPole-v1": one, "ALE/*": all_games, "ALE/Pong-v5": one}
    assert find_preset(presets, "ALE/Pong-v5") is find_preset(presets, "CartPole-v1") is one
    assert find_preset(presets, f"{module}ALE/{name}") is (one if name == "Pong-v5" and not module else all_games)
    assert find_preset(presets, f"X{name}") is None
    assert find_preset(presets, dict) is None
