"""Every setting of every algorithm changes something, or is refused by name: none is silently without effect.

New settings and algorithms are covered as they are: values come from annotations and bounds, runs from
:mod:`tests.settings_act.search`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import AlgorithmConfig
from algorithms.ppo import PPO, PPOConfig, PPOTraining
from algorithms.registry import ALGORITHMS, config_class
from catalog.settings import Section, setting, settings_of
from tests.settings_act.search import Search

SHOWN_BY_FAULTS = {
    "ignore_env_runner_failures": "tests/rlmodule/groups/test_env_runner_group.py",
    "restart_failed_learners": "tests/faults/test_learner_faults.py",
}
"""Settings that act when processes fail, and the tests in which these do."""
ROOT = Path(__file__).resolve().parents[2]


def settings_to_show() -> list[tuple[str, str]]:
    """Return each setting with the first algorithm that has it."""
    first: dict[str, str] = {}
    for name in sorted(ALGORITHMS, key=lambda name: name != "PPO"):
        for known in settings_of(config_class(name)):
            first.setdefault(known, name)
    return [(algorithm, known) for known, algorithm in first.items() if known not in SHOWN_BY_FAULTS]


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A search for each config class, whose runs all settings share."""
    made: dict[type[AlgorithmConfig], Search] = {}
    with pytest.MonkeyPatch.context() as patch:

        def search_of(config: type[AlgorithmConfig]) -> Search:
            if config not in made:
                made[config] = Search(config, tmp_path_factory.mktemp("runs"), patch)
            return made[config]

        yield search_of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("algorithm", "name"), settings_to_show())
def test_a_setting_acts_or_is_refused(algorithm: str, name: str, searches: Any) -> None:
    witness = searches(config_class(algorithm)).witness(name)
    assert witness is not None, f"{algorithm}: no value of {name} changed anything, or was refused"


def test_settings_that_act_when_processes_fail_are_in_the_tests_of_that() -> None:
    for name, path in SHOWN_BY_FAULTS.items():
        assert name in (ROOT / path).read_text(encoding="utf-8")


def test_the_table_in_the_documentation_counts_every_setting() -> None:
    documented = (ROOT / "docs" / "tested.md").read_text(encoding="utf-8")
    rows = []
    for algorithm in ALGORITHMS:
        known = settings_of(config_class(algorithm)).values()
        when_processes_fail = sum(item.name in SHOWN_BY_FAULTS for item in known)
        for_new_runs = sum(item.for_new_runs for item in known)
        acting = len(known) - when_processes_fail
        rows.append(f"| {algorithm} | {len(known)} | {acting} | {when_processes_fail} | 0 | {for_new_runs} |\n")
    assert "".join(rows) in documented, f"docs/tested.md: expected\n{''.join(rows)}"


class PlantedTraining(PPOTraining):
    """Settings of which one does nothing, one only draws, and one acts."""

    unread: float = setting(1.0, "Is read by nothing.", ge=0)
    drawing: int = setting(0, "Random numbers to draw and to forget.", ge=0)
    doubled: bool = setting(False, "Whether the loss counts twice.")


class Planted(PPO):
    """Draws as many numbers as ``drawing`` says, from the stream of the learner."""

    def training_step(self) -> dict[str, Any]:
        config: Any = self.config
        learner = self.learner_group.learner  # type: ignore[attr-defined]
        torch.rand(config.drawing, generator=learner.generator)
        return super().training_step()


class PlantedConfig(PlantedTraining, PPOConfig):
    """PPO with the planted settings."""

    training = Section(PlantedTraining)
    algo_class = Planted


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["unread", "drawing"])
def test_a_setting_that_does_nothing_or_only_draws_is_found(name: str, searches: Any) -> None:
    assert searches(PlantedConfig).witness(name, ("plain", "two agents", "memory")) is None
