"""What a short seeded run leaves behind, in numbers that two equal runs have in common."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree

from algorithms import Algorithm
from rlmodule.data.dataset import Dataset
from rlmodule.data.episode import Episode
from rlmodule.distributed.ray_workers import RayWorkers
from tests.settings_act.steady import steady_draws

CLOCKS = ("timers", "seconds", "time", "per_s", "date")
"""Parts of the names of numbers that depend on a clock."""
CALLS: Counter[str] = Counter()
"""How often functions were called that a setting names."""


class WorkersAsked(BaseException):
    """Ends a run that asks for workers on Ray, with what it asked for."""


class Track(gym.Env[Any, Any]):
    """A track of cells. Its rewards have both signs and several sizes, its episodes end in both ways, and it draws."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Box(-2.0, 9.0, (3,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(3)

    def __init__(self, length: int = 5, render_mode: str | None = None, fails_at: int = 0) -> None:
        self.length, self.render_mode, self.fails_at = length, render_mode, fails_at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.place = 0, float(self.np_random.integers(3))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.t == self.fails_at:
            raise ArithmeticError("planned")
        move = float(np.mean(action)) if isinstance(self.action_space, gym.spaces.Box) else float(action) - 1.0
        self.place += move + 0.1 * float(self.np_random.normal())
        over = self.t >= self.length
        return self._obs(), 3.0 * move - 1.0, abs(self.place) > 2.0, over, {"place": self.place}

    def _obs(self) -> Any:
        return np.clip(np.array([self.place, self.t, self.length], np.float32), -2.0, 9.0)

    def render(self) -> Any:
        return np.full((16, 16, 3), self.t, np.uint8)


class Slope(Track):
    """The same with continuous actions."""

    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def recorded(env_class: type[Track]) -> Dataset:
    """Return a data set of random steps in an env."""
    env, rng = env_class(), np.random.default_rng(1)
    episodes = []
    for seed in range(20):
        episode = Episode()
        episode.add_reset(env.reset(seed=seed)[0])
        while not episode.is_finished:
            action = rng.integers(3) if env_class is Track else rng.uniform(-1, 1, 2).astype(np.float32)
            obs, reward, terminated, truncated, _ = env.step(action)
            episode.add_step(action, obs, reward, terminated, truncated)
        episodes.append(episode)
    return Dataset.from_episodes(episodes, observation_space=env.observation_space, action_space=env.action_space)


class Goals(Slope):
    """A slope with a goal, which is a place on it."""

    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(-9.0, 9.0, (1,), np.float32) for name in ("achieved_goal", "desired_goal")}
    )

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, _, over, info = super().step(action)
        return obs, float(self.compute_reward(*obs.values(), {})), False, over, info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return the rewards for goals ``[..., 1]``."""
        return -np.abs(achieved_goal - desired_goal)[..., 0]

    def _obs(self) -> Any:
        return {
            "achieved_goal": np.clip(np.array([self.place], np.float32), -9.0, 9.0),
            "desired_goal": np.array([self.length - 4.0], np.float32),
        }


SMALL: dict[str, Any] = {
    "lr": 0.01,
    "num_envs_per_env_runner": 2,
    "train_batch_size_per_learner": 16,
    "minibatch_size": 8,
    "num_epochs": 2,
    "num_steps_sampled_before_learning_starts": 32,
    "num_env_steps_per_iteration": 16,
    "training_intensity": 4.0,
    "replay_capacity": 64,
    "evaluation_duration": 3,
    "seed": 1,
}
"""Settings of a run that takes a tenth of a second, as far as an algorithm has them."""


def digest(value: Any) -> str:
    """Return a hash of the numbers and texts in ``value``."""
    text = hashlib.sha256()
    for path, leaf in tree.flatten_with_path(value):
        if any(clock in str(part) for part in path for clock in CLOCKS):
            continue
        text.update(repr(path).encode())
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu().numpy()
        text.update(leaf.tobytes() if isinstance(leaf, np.ndarray) else repr(leaf).encode())
    return text.hexdigest()[:16]


def footprint(make: Callable[[], Algorithm], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run what ``make`` makes for three iterations, an evaluation and a save, and return what can be seen of it.

    A run that is refused leaves the text of its error.
    """
    CALLS.clear()
    seen: dict[str, Any] = {}
    threads = torch.get_num_threads()
    try:
        with steady_draws(monkeypatch), monkeypatch.context() as patch:
            count(patch)
            patch.chdir(folder)
            with make() as algorithm:
                observe(algorithm, folder, seen)
    except WorkersAsked as asked:
        seen["workers"] = str(asked)
    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    finally:
        torch.set_num_threads(threads)
    seen["calls"] = dict(CALLS)
    return seen


def observe(algorithm: Algorithm, folder: Path, seen: dict[str, Any]) -> None:
    """Train ``algorithm``, and enter what it does into ``seen``."""
    rollouts: list[str] = []
    sample = algorithm.env_runner_group.sample

    def recorded(*args: Any, **kwargs: Any) -> Any:
        sampled = sample(*args, **kwargs)
        rollouts.extend(digest(getattr(rollout, "columns", None) or _columns(rollout)) for rollout in sampled)
        return sampled

    algorithm.env_runner_group.sample = recorded  # type: ignore[method-assign]
    seen["nets"] = str(algorithm.learner_group.module)
    results = []
    for _ in range(3):
        results.append(plain(algorithm.train()))
    seen["threads"] = torch.get_num_threads()
    seen["processes"] = len(multiprocessing.active_children())
    seen["data"] = rollouts
    seen["results"] = [digest(result) for result in results]
    seen["names"] = sorted(
        {"/".join(map(str, path)) for result in results for path, _ in tree.flatten_with_path(result)}
    )
    seen["evaluation"] = digest(plain(algorithm.evaluate()))
    saved = algorithm.save(folder / "saved")
    seen["saved"] = sorted(path.name for path in saved.iterdir())
    state = algorithm.get_state()
    seen["state"] = digest({name: part for name, part in state.items() if name != "metrics"})
    seen["files"] = sorted(
        f"{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file() and "events" not in path.name
    )
    seen["checkpoints"] = [json.loads(path.read_text())["about"] for path in sorted(folder.rglob("manifest.json"))]


def _columns(rollout: Any) -> dict[str, Any]:
    return {module_id: part.columns for module_id, part in rollout.modules.items()}


def plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of ``result``."""
    return {name: plain(part) if isinstance(part, Mapping) else part for name, part in result.items()}


def count(patch: pytest.MonkeyPatch) -> None:
    """Count calls of what compiles, and end runs that ask for workers on Ray."""

    def counting(name: str, function: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            CALLS[name] += 1
            return function(*args, **kwargs)

        return counted

    def ask(self: RayWorkers, name: str, size: int, factory: Any, **how: Any) -> None:
        raise WorkersAsked(f"{size} {name}s: {how}")

    patch.setattr(RayWorkers, "__init__", ask)
    patch.setattr(torch, "compile", counting("torch.compile", lambda function, **_: function))
