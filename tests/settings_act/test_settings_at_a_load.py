"""Every setting that is given to ``from_checkpoint()`` acts on the run that continues, is refused by name, or is
declared for new runs only. A warning names it then.

Two runs continue from one checkpoint, one of them with another value of the setting. What they leave behind differs if
and only if the setting is not for new runs only.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from algorithms import Algorithm, AlgorithmConfig
from algorithms.ppo import PPO, PPOConfig, PPOTraining
from algorithms.registry import config_class
from catalog.model_config import DefaultModelConfig
from catalog.settings import Section, Setting, setting, settings_of
from tests.settings_act.footprint import CALLS
from tests.settings_act.search import FAILING, SCENES, Search
from tests.settings_act.test_every_setting_acts import SHOWN_BY_FAULTS

ALGORITHMS = ("PPO", "DQN", "SAC", "TD3", "APPO")
ALLOW = ["tests.settings_act", __name__]
QUIET = ("plain", "two agents", "memory", "noisy=True")
"""Scenes in which to see that a setting does nothing."""


class SearchAtLoads(Search):
    """Runs that continue from a checkpoint: saved with the settings of a scene, loaded with the setting to show."""

    only_related = True  # what acts has been shown without a load

    def __init__(self, *args: Any) -> None:
        self.base: dict[str, Any] = {}
        self._saved: dict[str, Path] = {}
        super().__init__(*args)

    def make(self, settings: Mapping[str, Any], given: Mapping[str, Any]) -> Algorithm:
        # A run that needs workers or fails is saved without what makes it so, which it gets when it is loaded.
        scenes = [SCENES["env runners on Ray"], SCENES["learners on Ray"], *FAILING.values()]
        late = {name for scene in scenes if scene.items() <= settings.items() for name in scene}
        kept = {name: value for name, value in settings.items() if name not in late} | {
            name: self.base[name] for name in late & self.base.keys()
        }
        key = repr(sorted(kept.items()))
        if key not in self._saved:
            self._saved[key] = self._save(kept)
        # If it is a run folder, the run goes on in it. Its best checkpoint would hide whether the run writes one.
        shutil.copytree(self._saved[key], "run", ignore=shutil.ignore_patterns("best_checkpoint"))
        CALLS.clear()
        return Algorithm.from_checkpoint("run", allow=ALLOW, **{name: settings[name] for name in late}, **given)

    def _save(self, settings: dict[str, Any]) -> Path:
        """Save a run with ``settings`` after an iteration, and return its run folder, or else its checkpoint."""
        folder = self.new_folder()
        if "run_dir" in settings:
            settings["run_dir"] = str(folder / "run")
        with self.config(**settings).build() as algorithm:
            algorithm.train()
            return folder / "run" if "run_dir" in settings else algorithm.save(folder / "saved")


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A search for each config class, whose runs all settings share."""
    made: dict[type[AlgorithmConfig], SearchAtLoads] = {}
    with pytest.MonkeyPatch.context() as patch:

        def search_of(config: type[AlgorithmConfig]) -> SearchAtLoads:
            if config not in made:
                made[config] = SearchAtLoads(config, tmp_path_factory.mktemp("loads"), patch)
            return made[config]

        yield search_of


def settings_to_show() -> dict[str, tuple[str, Setting]]:
    """Return each setting by name, with the first algorithm that has it."""
    shown: dict[str, tuple[str, Setting]] = {}
    for algorithm in ALGORITHMS:
        for name, item in settings_of(config_class(algorithm)).items():
            shown.setdefault(name, (algorithm, item))
    return {name: found for name, found in shown.items() if name not in SHOWN_BY_FAULTS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, (_, item) in settings_to_show().items() if not item.for_new_runs])
def test_a_setting_that_is_given_acts_or_is_refused(name: str, searches: Any) -> None:
    algorithm, _ = settings_to_show()[name]
    witness = searches(config_class(algorithm)).witness(name)
    assert witness is not None, f"{algorithm}: {name} changed nothing at a load. Declare it with for_new_runs=True."


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, (_, item) in settings_to_show().items() if item.for_new_runs])
def test_a_setting_for_new_runs_does_nothing_and_is_named(
    name: str, searches: Any, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm, _ = settings_to_show()[name]
    witness = searches(config_class(algorithm)).witness(name, QUIET)
    assert witness is None or not witness.acts
    assert f"{name} of 'default_policy' without effect" in caplog.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in settings_of(DefaultModelConfig)
        if name.startswith(("fcnet_", "lstm_")) and name.endswith("izer")
    ],
)
def test_an_initialiser_does_nothing_and_is_named(name: str, searches: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert settings_of(DefaultModelConfig)[name].for_new_runs
    search = searches(PPOConfig)
    saved = {**search.base, **SCENES["memory"]}
    given = {"model_config": saved["model_config"] | {name: "ones_"}}
    with caplog.at_level(logging.WARNING):
        assert search.run(saved, **given) == search.run(saved)
    assert f"model_config.{name} of 'default_policy' without effect" in caplog.text


class PlantedTraining(PPOTraining):
    """Settings of which the saved state hides one, and one is declared as hidden and is not."""

    level: float = setting(1.0, "Where the level of a run begins.", ge=0)
    unhidden: float = setting(1.0, "A number that each result has.", ge=0, for_new_runs=True)


class Planted(PPO):
    """Keeps a level in its state."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.level = config.level

    def training_step(self) -> dict[str, Any]:
        config: Any = self.config
        return super().training_step() | {"planted": {"level": self.level, "unhidden": config.unhidden}}

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"level": self.level}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.level = state["level"]


class PlantedConfig(PlantedTraining, PPOConfig):
    """PPO with the planted settings."""

    training = Section(PlantedTraining)

    @property
    def algo_class(self) -> type[Planted]:
        return Planted


@pytest.mark.filterwarnings("ignore")
def test_a_setting_that_the_state_hides_is_found(searches: Any) -> None:
    assert searches(PlantedConfig).witness("level", QUIET) is None


@pytest.mark.filterwarnings("ignore")
def test_a_setting_that_is_wrongly_said_to_be_for_new_runs_is_found(searches: Any) -> None:
    witness = searches(PlantedConfig).witness("unhidden", QUIET)
    assert witness is not None
    assert witness.acts
