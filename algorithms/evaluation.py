"""Evaluation: episodes played on the side, in environments of their own, to measure the policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from algorithms.callbacks import CallbackCaller, FinishedEpisode
from algorithms.films import film
from algorithms.progress import display
from catalog.errors import explain_error
from rlmodule import EnvRunnerGroup, Rollout
from rlmodule.metrics import episode_summary
from rlmodule.randomness import int_seed

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig

FRAGMENT = 64
"""Steps per call of the runner while evaluating; a few may be played in vain at the end."""
LIMIT = 200_000
"""Steps per env without the end of an episode after which an evaluation gives up."""

Show = Callable[[int], None]
"""Told how much is played."""


@dataclass(frozen=True)
class EvaluationPlan:
    """What to play.

    Attributes:
        count: How much.
        in_episodes: Whether it counts episodes, or steps of all envs together.
        explore: Whether actions are sampled.
        num_videos: Further episodes to film.
        video_dir: Where the films go; None below ``run_dir``.
    """

    count: int
    in_episodes: bool
    explore: bool
    num_videos: int
    video_dir: Path | None

    @classmethod
    def of(
        cls,
        config: AlgorithmConfig,
        num_episodes: int | None,
        num_env_steps: int | None,
        explore: bool | None,
        num_videos: int | None,
        video_dir: str | os.PathLike[str] | None,
    ) -> EvaluationPlan:
        """The arguments of :meth:`algorithms.Algorithm.evaluate`, filled up from the settings.

        Raises:
            ValueError: If both lengths are given, a number is less than 1, or films have no folder.
        """
        given = {"num_episodes": num_episodes, "num_env_steps": num_env_steps}
        if None not in given.values():
            raise _bad_plan("num_episodes=, num_env_steps=", "one of the two", str(given), "Leave one of them out.")
        for name, value in {**given, "num_videos": num_videos}.items():
            least = 0 if name == "num_videos" else 1
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise _bad_plan(f"{name}=", f"an int >= {least}", repr(value), f"Pass {name}={least + 1}, for example.")
        in_episodes = num_env_steps is None and (
            num_episodes is not None or config.evaluation_duration_unit == "episodes"
        )
        videos = config.evaluation_num_videos if num_videos is None else num_videos
        if videos and video_dir is None and config.run_dir is None:
            raise _bad_plan("video_dir=", "a folder for the films", "None", "Pass video_dir='films', for example.")
        return cls(
            num_episodes or num_env_steps or config.evaluation_duration,
            in_episodes,
            config.evaluation_explore if explore is None else explore,
            videos,
            None if video_dir is None else Path(video_dir),
        )


def _bad_plan(arguments: str, expected: str, got: str, remedy: str) -> ValueError:
    return ValueError(explain_error(f"evaluate({arguments})", expected=expected, got=got, remedy=remedy))


class Evaluation:
    """Plays with an algorithm's current weights. Its environments are made when they are first needed.

    Args:
        algorithm: Whose policy it measures.
        callbacks: Told of the environments and of every episode.
    """

    def __init__(self, algorithm: Algorithm, callbacks: CallbackCaller) -> None:
        self._algorithm, self._callbacks = algorithm, callbacks
        self._made: EnvRunnerGroup | None = None

    @property
    def _group(self) -> EnvRunnerGroup:
        if self._made is None:
            algorithm = self._algorithm
            with torch.random.fork_rng(devices=[]):
                self._made = EnvRunnerGroup(
                    algorithm.config.for_evaluation(),
                    run_seed=algorithm.run_seed,
                    role="evaluation_env",
                    on_env=lambda env: self._callbacks.call("on_environment_created", env=env, in_evaluation=True),
                )
                self._made.build_modules(algorithm.module_spec, algorithm.get_module())
        return self._made

    def run(self, plan: EvaluationPlan, progress: bool) -> dict[str, Any]:
        """Play what ``plan`` says, then film.

        Returns:
            See :meth:`algorithms.Algorithm.evaluate`.
        """
        unit = "episodes" if plan.in_episodes else "steps"
        play = self._episodes if plan.in_episodes else self._timesteps
        with display(plan.count, enabled=progress, lines=False, waiting=f"evaluating {plan.count:,} {unit}") as show:
            played = play(
                plan.count, plan.explore, lambda done: show(done, f"evaluated {done:,}/{plan.count:,} {unit}")
            )
        evaluation: dict[str, Any] = {"env_runners": played}
        if plan.num_videos:
            evaluation["videos"] = self._film(plan, progress)
        return evaluation | self._algorithm.metrics.take_logged()

    def _film(self, plan: EvaluationPlan, progress: bool) -> list[dict[str, Any]]:
        algorithm = self._algorithm
        folder = plan.video_dir
        if folder is None:
            assert algorithm.config.run_dir is not None
            folder = Path(algorithm.config.run_dir) / "videos" / f"step-{algorithm.env_steps:010d}"
        with display(plan.num_videos, enabled=progress, lines=False, waiting="filming") as show:
            films = film(
                algorithm.policy,
                algorithm.config.for_evaluation(),
                num_episodes=plan.num_videos,
                seed=int_seed(algorithm.run_seed, "film", algorithm.env_steps),
                folder=folder,
                explore=plan.explore,
                show=lambda done: show(done, f"filmed {done}/{plan.num_videos} episodes"),
            )
        return [
            {"path": str(one.path), "episode_return": one.episode_return, "episode_len": one.length} for one in films
        ]

    def _episodes(self, count: int, explore: bool, show: Show) -> dict[str, float]:
        """Play ``count`` episodes, each on a fresh seed.

        Every env plays an equal share of them, so that short episodes are not counted more often than long ones.

        Raises:
            RuntimeError: If episodes do not end.
        """
        runner = self._group.local_runner
        runner.reset()
        envs = runner.num_envs
        wanted = [count // envs + (slot < count % envs) for slot in range(envs)]
        counted: list[FinishedEpisode] = []
        steps = since_end = 0
        while any(wanted):
            rollout = runner.sample(FRAGMENT, explore=explore)
            finished = finished_episodes(rollout, in_evaluation=True)
            steps += rollout.num_env_steps
            since_end = 0 if finished else since_end + FRAGMENT
            if since_end > LIMIT:
                raise RuntimeError(
                    explain_error(
                        "evaluate()",
                        expected="episodes that end",
                        got=f"none that did in the last {LIMIT:,} steps of {envs} envs",
                        remedy="Limit their length: gymnasium.wrappers.TimeLimit, or max_episode_steps; or evaluate a "
                        "number of steps: evaluation_duration_unit='timesteps'.",
                    )
                )
            for episode in finished:
                if wanted[episode.env_index]:
                    wanted[episode.env_index] -= 1
                    counted.append(episode)
            show(len(counted))
        return self._summary(counted, steps)

    def _timesteps(self, count: int, explore: bool, show: Show) -> dict[str, float]:
        """Play ``count`` steps of all envs together, rounded up to whole steps of each; the episodes that end within
        them count."""
        runner = self._group.local_runner
        runner.reset()
        counted: list[FinishedEpisode] = []
        rows, steps = -(-count // runner.num_envs), 0
        while rows > 0:
            rollout = runner.sample(min(rows, FRAGMENT), explore=explore)
            rows -= len(rollout.valid)
            steps += rollout.num_env_steps
            counted += finished_episodes(rollout, in_evaluation=True)
            show(min(steps, count))
        return self._summary(counted, steps)

    def _summary(self, counted: list[FinishedEpisode], steps: int) -> dict[str, float]:
        if self._callbacks.listens("on_episode_end"):
            for episode in counted:
                self._callbacks.call("on_episode_end", algorithm=self._algorithm, episode=episode)
        summary = episode_summary([e.episode_return for e in counted], [e.length for e in counted])
        return summary | {"num_episodes": len(counted), "num_env_steps": steps}

    def get_state(self) -> dict[str, Any] | None:
        """State of the env runners; None if there are none yet."""
        return None if self._made is None else self._made.get_state()

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Restore what :meth:`get_state` gave."""
        if state is not None:
            self._group.set_state(state)

    def stop(self) -> None:
        """Close its envs."""
        if self._made is not None:
            self._made.stop()


def finished_episodes(rollout: Rollout, *, in_evaluation: bool) -> list[FinishedEpisode]:
    """The episodes that ended in ``rollout``, in order of time; with ``info`` if its runner recorded it."""
    stats = rollout.stats
    returns, lengths, slots = (stats[name].tolist() for name in ("episode_returns", "episode_lengths", "episode_slots"))
    infos = stats.get("episode_infos", [{}] * len(returns))
    return [
        FinishedEpisode(episode_return, length, slot, info, in_evaluation)
        for episode_return, length, slot, info in zip(returns, lengths, slots, infos, strict=True)
    ]
