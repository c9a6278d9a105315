"""Evaluation: play episodes in separate environments, to measure the policy."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces

from algorithms.run.callbacks import CallbackCaller, FinishedEpisode, finished_episodes
from algorithms.run.metrics import Result, episode_summary
from algorithms.run.progress import display
from algorithms.run.video import LIMIT, never_ends, player_of, record_videos
from algorithms.run.wrong_calls import already_stopped
from catalog.explain.explain import short_space
from catalog.settings import settings_of
from catalog.spaces import map_spaces
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.sealed_folder import StrPath
from rlmodule.seeding import int_seed

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig
    from rlmodule.sampling.env_runner import EnvRunner

FRAGMENT = 64
"""Steps per env in one call of the env runner. An evaluation of episodes wastes fewer steps per env than this."""


def evaluation_config(
    config: AlgorithmConfig,
    num_episodes: int | None,
    num_env_steps: int | None,
    explore: bool | None,
    num_videos: int | None,
    video_dir: StrPath | None,
) -> AlgorithmConfig:
    """Return a copy of ``config`` in which the arguments of :meth:`algorithms.Algorithm.evaluate` that are not None
    replace the evaluation settings.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, ``num_episodes`` and ``num_env_steps`` are both given, or
            one of ``num_videos`` and a folder for the videos is given without the other.
    """
    changed = config.copy()
    if num_episodes is not None and num_env_steps is not None:
        raise ValueError(
            f"evaluate(): expected one of num_episodes and num_env_steps, got {num_episodes} and {num_env_steps}. "
            "Leave one of them out."
        )
    for argument, value, name in (
        ("num_episodes", num_episodes, "evaluation_duration"),
        ("num_env_steps", num_env_steps, "evaluation_duration"),
        ("explore", explore, "evaluation_explore"),
        ("num_videos", num_videos, "evaluation_num_videos"),
    ):
        if value is not None:
            settings_of(type(config))[name].check(value, f"evaluate({argument}=)")
            changed.update({name: value})
    if num_episodes is not None or num_env_steps is not None:
        changed.evaluation_duration_unit = "timesteps" if num_episodes is None else "episodes"
    if changed.evaluation_num_videos and video_dir is None and config.run_dir is None:
        raise ValueError(
            "evaluate(video_dir=): expected a folder for the videos, got None. Pass video_dir='videos', for example."
        )
    if not changed.evaluation_num_videos and video_dir is not None:
        raise ValueError(
            f"evaluate(num_videos=): expected videos for video_dir={os.fspath(video_dir)!r}, got none. Pass "
            "num_videos=1, for example, or no video_dir."
        )
    return changed


class Evaluation:
    """Plays episodes with an algorithm's current weights. Makes its environments when it first needs them.

    Args:
        algorithm: The algorithm whose policy it measures.
        callbacks: Called for new environments and finished episodes.

    Attributes:
        made: The group of env runners; None before the first evaluation.
    """

    def __init__(self, algorithm: Algorithm, callbacks: CallbackCaller) -> None:
        self._algorithm, self._callbacks = algorithm, callbacks
        self.made: EnvRunnerGroup | None = None

    @property
    def _group(self) -> EnvRunnerGroup:
        if self.made is None:
            algorithm = self._algorithm
            if algorithm.config.env is None:
                raise ValueError(
                    "evaluate(): expected a run with an env, got one that learns from data alone. Name it: "
                    ".environment('CartPole-v1'), or from_checkpoint(path, env='CartPole-v1')."
                )
            with torch.random.fork_rng(devices=[]), ExitStack() as undo:
                made = EnvRunnerGroup.create(
                    algorithm.config.for_evaluation(),
                    run_seed=algorithm.run_seed,
                    role="evaluation_env",
                    on_env=self._callbacks.on_env(in_evaluation=True),
                )
                undo.callback(made.stop)
                if not algorithm.config.is_multi_agent:  # with several agents, the runner compares those of each
                    _check_spaces(algorithm.env_runner_group, made)
                algorithm.build_modules_of(made)
                undo.pop_all()
            self.made = made
        return self.made

    def run(self, config: AlgorithmConfig, video_dir: StrPath | None, progress: bool) -> dict[str, Any]:
        """Record videos and play episodes, as ``config`` asks.

        The arguments and the result are those of :meth:`algorithms.Algorithm.evaluate`.
        """
        algorithm = self._algorithm
        if algorithm.is_stopped:
            raise already_stopped(algorithm, "evaluate")
        with algorithm.metrics.logging_apart():
            # videos first, as they may fail, and playing takes long
            videos = self._record(config, video_dir, progress) if config.evaluation_num_videos else []
            evaluation = Result(env_runners=Result(self._play(config, progress)))
            if videos:
                evaluation["videos"] = videos
            with algorithm.metrics.reporting_logged(evaluation):
                self._callbacks.call("on_evaluate_end", algorithm=algorithm, evaluation=evaluation)
        return evaluation

    def _record(self, config: AlgorithmConfig, folder: StrPath | None, progress: bool) -> list[dict[str, Any]]:
        algorithm, count = self._algorithm, config.evaluation_num_videos
        if folder is None:
            assert config.run_dir is not None
            folder = Path(config.run_dir, "videos", f"step-{algorithm.clock:010d}")
        with display(count, enabled=progress, waiting="recording") as show:
            return record_videos(
                player_of(algorithm),
                config.for_evaluation(),
                num_episodes=count,
                seed=int_seed(algorithm.run_seed, "video", algorithm.clock),
                folder=Path(folder),
                explore=config.evaluation_explore,
                show=lambda done: show(done, f"recorded {done}/{count} episodes"),
            )

    def _play(self, config: AlgorithmConfig, progress: bool) -> dict[str, Any]:
        """Play the episodes or steps that ``config`` asks for. Call ``on_episode_end`` for each episode that
        :func:`play` counts, and return a summary of these episodes."""
        in_episodes = config.evaluation_duration_unit == "episodes"
        runner, count, explore = self._group.local_runner, config.evaluation_duration, config.evaluation_explore
        counted, summary = play(runner, count, in_episodes=in_episodes, explore=explore, progress=progress)
        for episode in counted:
            self._callbacks.call("on_episode_end", algorithm=self._algorithm, episode=episode)
        # The return of an episode is the sum over its agents, which in a game of two sides says nothing about either.
        by_agent, by_module = defaultdict[Any, list[float]](list), defaultdict[str, list[float]](list)
        for episode in counted:
            for finished in [] if episode.multi_agent is None else episode.multi_agent.finished:
                by_agent[finished.agent].append(finished.episode_return)
                by_module[finished.policy].append(finished.episode_return)
        if by_agent:
            summary["agent_episode_returns_mean"] = {agent: fmean(values) for agent, values in by_agent.items()}
            summary["module_episode_returns_mean"] = {module: fmean(values) for module, values in by_module.items()}
        return summary

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the env runners, or None if no evaluation has made them."""
        return None if self.made is None else self.made.get_state()

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Restore a state from :meth:`get_state`, even with a different number of envs. For None, close the env
        runners, so that the next evaluation makes new ones."""
        if state is not None:
            self._group.set_state(state)
        else:
            self.stop()
            self.made = None

    def stop(self) -> None:
        """Close the envs, if an evaluation has made any."""
        if self.made is not None:
            self.made.stop()


def _check_spaces(trained: EnvRunnerGroup, made: EnvRunnerGroup) -> None:
    """Raise ValueError if the envs in ``made`` have other spaces than those in ``trained``, except for bounds."""

    def without_bounds(leaf: spaces.Space) -> object:
        return (leaf.shape, leaf.dtype) if isinstance(leaf, spaces.Box) else leaf

    expected = spaces.Tuple((trained.observation_space, trained.action_space))
    got = spaces.Tuple((made.observation_space, made.action_space))
    if map_spaces(without_bounds, expected) != map_spaces(without_bounds, got):
        raise ValueError(
            f"evaluation_env_config: expected an env with the spaces of training, {short_space(expected)}, got "
            f"{short_space(got)}. Leave out what changes them."
        )


def evaluation_summary(returns: Sequence[float], lengths: Sequence[float], num_env_steps: int) -> dict[str, Any]:
    """Return the content of the section ``env_runners`` for an evaluation of ``num_env_steps`` steps, in which episodes
    with these returns and lengths ended: :func:`episode_summary`, ``episode_return_std``, ``num_episodes`` and
    ``num_env_steps``."""
    spread = pstdev(returns) if returns else math.nan
    counts = {"num_episodes": len(returns), "num_env_steps": num_env_steps}
    return {**episode_summary(returns, lengths), "episode_return_std": spread, **counts}


def play(
    runner: EnvRunner, count: int, *, in_episodes: bool, explore: bool, progress: bool
) -> tuple[list[FinishedEpisode], dict[str, Any]]:
    """Begin new episodes, play ``count`` episodes or steps, and return the episodes that count and their
    :func:`evaluation_summary`.

    Each env contributes an equal share of the episodes, because counting the first episodes to end over all envs would
    favour short episodes. A number of steps is rounded up to a multiple of the number of envs; all episodes that end
    within these steps count.

    Raises:
        RuntimeError: If ``count`` is in episodes, and none that counts ends in :data:`LIMIT` steps of each env.
    """
    envs, unit = runner.num_envs, "episodes" if in_episodes else "steps"
    wanted = [count // envs + (slot < count % envs) if in_episodes else math.inf for slot in range(envs)]
    counted: list[FinishedEpisode] = []
    steps = since_end = 0
    runner.reset()
    with display(count, enabled=progress, waiting=f"evaluating {count:,} {unit}") as show:
        while any(wanted) if in_episodes else steps < count:
            rows = FRAGMENT if in_episodes else min(FRAGMENT, -(-(count - steps) // envs))
            rollout = runner.sample(rows, explore=explore)
            steps += rollout.num_env_steps  # less than rows * envs if resets take a step
            since_end += rows
            for episode in finished_episodes(rollout, in_evaluation=True):
                if wanted[episode.env_index]:
                    wanted[episode.env_index] -= 1
                    counted.append(episode)
                    since_end = 0  # counted episodes only: one endless env must not hide behind the others
            if in_episodes and since_end > LIMIT:
                got = f"none that counts in the last {LIMIT:,} steps of each of {envs} envs"
                remedy = "evaluate a number of steps: evaluation_duration_unit='timesteps'"
                raise never_ends("evaluate()", got, remedy)
            done = len(counted) if in_episodes else min(steps, count)
            also = f", {steps:,} steps" if in_episodes else ""  # so that a line changes during long episodes
            show(done, f"evaluated {done:,}/{count:,} {unit}{also}")
    returns = [episode.episode_return for episode in counted]
    lengths = [episode.length for episode in counted]
    return counted, evaluation_summary(returns, lengths, steps)
