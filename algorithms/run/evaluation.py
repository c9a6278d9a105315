"""Evaluation: episodes played on the side, in environments of their own, to measure the policy."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from algorithms.run.callbacks import CallbackCaller, FinishedEpisode, finished_episodes
from algorithms.run.metrics import episode_summary
from algorithms.run.progress import display
from algorithms.run.video import LIMIT, never_ends, record_videos
from algorithms.run.wrong_calls import already_stopped
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.seeding import int_seed

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig

FRAGMENT = 64
"""Steps of each env per call of the runner; where episodes are counted, a few are played in vain at the end."""

Told = Callable[[int, int], None]
"""Told how much is played, and in how many steps."""


@dataclass(frozen=True)
class EvaluationPlan:
    """What to play.

    Attributes:
        count: How much.
        in_episodes: Whether it counts episodes, or steps of all envs together.
        explore: Whether actions are sampled.
        num_videos: Further episodes to record.
        video_dir: Where the videos go; None below ``run_dir``.
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
            ValueError: If both lengths are given, one is less than 1, ``explore`` is no bool, videos have no folder, or
                their folder no videos.
        """
        given = {"num_episodes": num_episodes, "num_env_steps": num_env_steps}
        if None not in given.values():
            raise _bad_plan("num_episodes=, num_env_steps=", "one of the two", str(given), "Leave one of them out.")
        for name, value in given.items():
            _check_number(name, value, least=1)
        _check_number("num_videos", num_videos, least=0)
        if explore is not None and not isinstance(explore, bool):
            remedy = "Pass explore=True to sample actions."
            raise _bad_plan("explore=", "a bool or None", repr(explore), remedy)
        videos = config.evaluation_num_videos if num_videos is None else int(num_videos)
        if videos and video_dir is None and config.run_dir is None:
            raise _bad_plan("video_dir=", "a folder for the videos", "None", "Pass video_dir='videos', for example.")
        if not videos and video_dir is not None:
            remedy = "Pass num_videos=1, for example, or no video_dir."
            raise _bad_plan("num_videos=", f"videos for video_dir={os.fspath(video_dir)!r}", "none", remedy)
        count, unit = config.evaluation_duration, config.evaluation_duration_unit
        if num_episodes is not None:
            count, unit = num_episodes, "episodes"
        elif num_env_steps is not None:
            count, unit = num_env_steps, "timesteps"
        return cls(
            count=int(count),
            in_episodes=unit == "episodes",
            explore=config.evaluation_explore if explore is None else explore,
            num_videos=videos,
            video_dir=None if video_dir is None else Path(video_dir),
        )


def _check_number(name: str, value: object, least: int) -> None:
    # bool is an int to Python, but never a number of anything
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least):
        raise _bad_plan(f"{name}=", f"an int >= {least}", repr(value), f"Pass {name}=5, for example.")


def _bad_plan(arguments: str, expected: str, got: str, remedy: str) -> ValueError:
    return ValueError(f"evaluate({arguments}): expected {expected}, got {got}. {remedy}")


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
                self._made = EnvRunnerGroup.create(
                    algorithm.config.for_evaluation(),
                    run_seed=algorithm.run_seed,
                    role="evaluation_env",
                    on_env=self._callbacks.on_env(in_evaluation=True),
                )
                self._made.build_modules(algorithm.module_spec, algorithm.get_module())
        return self._made

    def run(self, plan: EvaluationPlan, progress: bool) -> dict[str, Any]:
        """Record and play what ``plan`` says.

        Returns:
            See :meth:`algorithms.Algorithm.evaluate`.
        """
        if self._algorithm.is_stopped:
            raise already_stopped(self._algorithm, "evaluate")
        metrics, unit = self._algorithm.metrics, "episodes" if plan.in_episodes else "steps"
        play = self._episodes if plan.in_episodes else self._timesteps
        waiting = f"evaluating {plan.count:,} {unit}"
        with metrics.logging_apart():
            # videos come first: it is they that may fail
            videos = self._record(plan, progress) if plan.num_videos else []
            with display(plan.count, enabled=progress, lines=False, waiting=waiting) as show:

                def told(done: int, steps: int) -> None:
                    also = f", {steps:,} steps" if plan.in_episodes else ""  # an episode may be long
                    show(done, f"evaluated {done:,}/{plan.count:,} {unit}{also}")

                played = play(plan.count, plan.explore, told)
            evaluation: dict[str, Any] = {"env_runners": played} | ({"videos": videos} if videos else {})
            evaluation |= metrics.logged_means()
            self._callbacks.call("on_evaluate_end", algorithm=self._algorithm, evaluation=evaluation)
            metrics.add_logged(evaluation)
        return evaluation

    def _record(self, plan: EvaluationPlan, progress: bool) -> list[dict[str, Any]]:
        algorithm = self._algorithm
        folder = plan.video_dir
        if folder is None:
            assert algorithm.config.run_dir is not None
            folder = Path(algorithm.config.run_dir) / "videos" / f"step-{algorithm.env_steps:010d}"
        with display(plan.num_videos, enabled=progress, lines=False, waiting="recording") as show:
            videos = record_videos(
                algorithm.policy,
                algorithm.config.for_evaluation(),
                num_episodes=plan.num_videos,
                seed=int_seed(algorithm.run_seed, "video", algorithm.env_steps),
                folder=folder,
                explore=plan.explore,
                show=lambda done: show(done, f"recorded {done}/{plan.num_videos} episodes"),
            )
        return [
            {"path": str(one.path), "episode_return": one.episode_return, "episode_len": one.length} for one in videos
        ]

    def _episodes(self, count: int, explore: bool, show: Told) -> dict[str, float]:
        """Play ``count`` episodes.

        Every env plays an equal share of them, its first ones, so that short episodes are not counted more often than
        long ones.

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
            steps += rollout.num_env_steps
            since_end += FRAGMENT
            for episode in finished_episodes(rollout, in_evaluation=True):
                if wanted[episode.env_index]:
                    wanted[episode.env_index] -= 1
                    counted.append(episode)
                    since_end = 0  # where an episode never ends, those of other envs may do so all the time
            if since_end > LIMIT:
                got = f"none that counts in the last {LIMIT:,} steps of each of {envs} envs"
                raise never_ends("evaluate()", got, "evaluate a number of steps: evaluation_duration_unit='timesteps'")
            show(len(counted), steps)
        return self._summary(counted, steps)

    def _timesteps(self, count: int, explore: bool, show: Told) -> dict[str, float]:
        """Play ``count`` steps of all envs together, rounded up to whole steps of each; the episodes that end within
        them count."""
        runner = self._group.local_runner
        runner.reset()
        counted: list[FinishedEpisode] = []
        steps = 0
        while steps < count:  # a vector env that resets in a step of its own takes more rows
            rows = -(-(count - steps) // runner.num_envs)
            rollout = runner.sample(min(rows, FRAGMENT), explore=explore)
            steps += rollout.num_env_steps
            counted += finished_episodes(rollout, in_evaluation=True)
            show(min(steps, count), steps)
        return self._summary(counted, steps)

    def _summary(self, counted: list[FinishedEpisode], steps: int) -> dict[str, float]:
        if self._callbacks.listens("on_episode_end"):
            for episode in counted:
                self._callbacks.call("on_episode_end", algorithm=self._algorithm, episode=episode)
        summary = episode_summary([e.episode_return for e in counted], [e.length for e in counted])
        return summary | {"num_episodes": len(counted), "num_env_steps": steps}

    def get_state(self) -> dict[str, Any] | None:
        """State of the env runners; None if there are none yet."""
        if self._made is None:
            return None
        return self._made.get_state()

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Restore what :meth:`get_state` gave, also of another number of envs."""
        if state is not None:
            self._group.set_state(state)
        elif self._made is not None:
            self._made.stop()
            self._made = None

    def stop(self) -> None:
        """Close its envs."""
        if self._made is not None:
            self._made.stop()
