"""For each setting of an algorithm, find a run that the setting changes.

A setting acts if two runs that differ by it alone leave different footprints, or if it is refused by name. Where that
is not so in a plain run, runs with another setting changed, or in one of :data:`SCENES`, are tried.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from algorithms import Algorithm, AlgorithmConfig
from catalog.settings import settings_of
from rlmodule.agents.cartpoles import CartPoles
from tests.settings_act.candidates import candidates
from tests.settings_act.footprint import SMALL, Goals, Slope, Track, footprint, recorded

DATA = recorded(Track)
SCENES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a run folder": {"run_dir": "run", "evaluation_interval": 1, "checkpoint_interval": 1},
    "two agents": {"env": CartPoles, "env_config": {"num_agents": 2}, "policies": "shared"},
    "two policies": {"env": CartPoles, "env_config": {"num_agents": 2}, "policies": "own"},
    "memory": {"model_config": {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4], "max_seq_len": 4}},
    "goals": {"env": Goals, "her_ratio": 0.5, "n_step": 1},
    "goals alone": {"env": Goals},
    "data": {"data": DATA, "num_offline_updates": 4, "num_updates_per_iteration": 3},
    "atoms": {"num_atoms": 3, "v_min": -9.0, "v_max": 9.0},
    "env runners on Ray": {"num_env_runners": 1},
    "learners on Ray": {"num_learners": 2},
}
"""Settings without which others can do nothing."""
FAILING: dict[str, dict[str, Any]] = {
    "an env that fails": {"env_config": {"fails_at": 3}},
    "an update that diverges": {"lr": 1e30},
}
"""Settings that end a run with an error, unless another setting lets it go on."""
HINTS: dict[str, str] = json.loads((Path(__file__).parent / "hints.json").read_text())
"""The scene in which each setting acted last, to try first. Any scene may be missing or wrong."""
MOST_VALUES = 4
"""Values to try of a setting in each scene."""


@dataclass(frozen=True)
class Witness:
    """Two runs that show what a setting does.

    Attributes:
        setting: Name of the setting.
        scene: Settings of both runs that differ from the base, by name.
        value: Value of the setting in the second run.
        by: What differs, or the error that refuses the value.
        acts: Whether the runs differ; False if the value is refused.
    """

    setting: str
    scene: str
    value: str
    by: tuple[str, ...]
    acts: bool = True


class Search:
    """Runs an algorithm with many settings, each run once.

    Args:
        config: Config class of the algorithm.
        folder: Folder for the runs.
        monkeypatch: For runs with steady draws.

    Attributes:
        base: Settings of every run, if a scene does not change them.
    """

    only_related: ClassVar[bool] = False
    """Whether to try, of other settings, only the hint and those whose names have a word in common with the setting."""

    def __init__(self, config: type[AlgorithmConfig], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = config
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._known: dict[str, dict[str, Any]] = {}
        self.num_runs = 0
        self.base = self._find_base()

    def _find_base(self) -> dict[str, Any]:
        """Return small settings, with the first env whose actions suit the algorithm."""
        known = settings_of(self.config)
        small = {name: value for name, value in SMALL.items() if name in known}
        errors = []
        for env in (Track, Slope):
            base = {**small, "env": env, "model_config": {"fcnet_hiddens": [6]}}
            if not self.config.can_sample:
                base |= {"data": DATA if env is Track else recorded(env), "num_updates_per_iteration": 3}
            error = self.run(base).get("error")
            if error is None:
                return base
            errors.append(error)
        raise AssertionError(f"{self.config.__name__}: no base to begin with: {errors}")

    def run(self, settings: Mapping[str, Any], **given: Any) -> dict[str, Any]:
        """Return the footprint of a run with ``settings``, in which those in ``given`` replace others."""
        key = repr([sorted(part.items(), key=lambda item: item[0]) for part in (settings, given)])
        if key not in self._known:
            self._known[key] = footprint(partial(self.make, settings, given), self.new_folder(), self._monkeypatch)
        return self._known[key]

    def make(self, settings: Mapping[str, Any], given: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm to observe. The working directory is a new folder."""
        return self.config(**{**settings, **given}).build()

    def new_folder(self) -> Path:
        """Return a new folder for a run."""
        folder = self._folder / f"{self.config.__name__}-{self.num_runs}"
        folder.mkdir(parents=True)
        self.num_runs += 1
        return folder

    def witness(self, setting: str, scenes: Collection[str] = ()) -> Witness | None:
        """Return the first pair of runs that shows that ``setting`` acts, or else one that refuses it; None if the
        setting is dead. Try only ``scenes``, unless that is empty."""
        refusal = None
        for scene_name, scene in self._scenes(setting):
            if scenes and scene_name not in scenes:
                continue
            before = self.run({**self.base, **scene})
            fails = "error" in before
            if fails and scene_name not in FAILING:
                continue
            values = candidates(settings_of(self.config)[setting], self.config)
            for value in values if scene_name == "plain" else values[:MOST_VALUES]:
                after = self.run({**self.base, **scene}, **{setting: value})
                if "error" in after:
                    if setting in after["error"] and refusal is None:
                        refusal = Witness(setting, scene_name, repr(value), (after["error"],), acts=False)
                elif fails:
                    return Witness(setting, scene_name, repr(value), ("error",))
                else:
                    by = tuple(name for name, part in before.items() if after.get(name) != part)
                    if by:
                        return Witness(setting, scene_name, repr(value), by)
        return refusal

    def _scenes(self, setting: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield scenes by name: the hint first, then those above, then values of other settings of the same section,
        those first whose names have a word in common with ``setting``."""
        known, hint = settings_of(self.config), HINTS.get(setting, "plain")
        scenes = {name: scene for name, scene in (SCENES | FAILING).items() if scene.keys() <= known.keys()}
        words = {*setting.split("_")}
        neighbours = [
            item for item in known.values() if item.section == known[setting].section and item.name != setting
        ]
        for item in sorted(neighbours, key=lambda item: -len(words & {*item.name.split("_")})):
            is_related = not self.only_related or words & {*item.name.split("_")}
            for value in candidates(item, self.config)[:MOST_VALUES]:
                if is_related or hint == f"{item.name}={value!r}":
                    scenes[f"{item.name}={value!r}"] = {item.name: value}
        yield from sorted(scenes.items(), key=lambda scene: scene[0] != hint)
