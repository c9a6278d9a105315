"""The examination of an env: play it at random and at the corners of its actions, and train on it for a moment."""

from __future__ import annotations

import io
import logging
import math
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.doctor.findings import Finding, finding, finding_of
from algorithms.doctor.play import Moment, action_spaces_of, moments
from algorithms.doctor.random_play import findings_of, returns_of
from algorithms.run.text import return_text
from catalog.spaces import array_leaves
from rlmodule.envs.checks import SEVERAL_AGENTS
from rlmodule.envs.sync_vector_env import SyncEnvs

MOST_STEPS = 20_000
"""Largest number of steps of random play."""

TRACE = 150
"""Number of resets and steps in which two plays of an env are compared, and of a play with extreme actions."""

_AGAIN = 3.0  # seconds until a time limit raises again, as Python ignores what is raised in a __del__


class _TimeUp(BaseException):
    """Raised in the middle of an iteration. No Exception, which the guard of an env would take for one of the env."""


class Examination(logging.Handler):
    """Examines the env of ``config`` for about ``seconds``. The first fault ends the examination. What the library logs
    meanwhile is a finding, too.

    Args:
        config: The env, and the algorithm to train with.
        seconds: How long to play and train.

    Attributes:
        findings: In the order in which they were found.
        play: The random play.
        curve: Env steps and mean return after each iteration of the training.
    """

    _say: Callable[..., None]

    def __init__(self, config: AlgorithmConfig, seconds: float) -> None:
        super().__init__(logging.WARNING)
        self.config, self._seconds, self._printed = config, seconds, io.StringIO()
        self.findings, self.play, self.curve = list[Finding](), list[Moment](), list[tuple[int, float]]()

    def emit(self, record: logging.LogRecord) -> None:
        self.findings.append(finding("logged", record.getMessage()))

    def run(self, say: Callable[..., None]) -> None:
        """Make the env, and examine it. ``say`` is called with what is done next, and its seconds if they are known."""
        self._say = say
        logger, name_of_error = logging.getLogger("rlmodule"), "contract"
        logger.addHandler(self)
        try:
            with redirect_stdout(self._printed), self._build() as algorithm:
                if envs := _envs_of(algorithm):
                    self.findings += self._play(envs[0], algorithm)
                    self.findings += self._compare(*envs[:2])
                    self.findings += self._visit_corners(envs[0])
                name_of_error = "training"
                self.findings += self._train(algorithm)
        except (Exception, SystemExit) as error:
            self.findings.append(finding_of(error, name_of_error))
        finally:
            logger.removeHandler(self)

    def _build(self) -> Algorithm:
        """Make at least two envs in this process, and the nets: a policy for each agent, if there are several agents
        and the config has no policies."""
        self._say("making the env and the nets")
        num_envs = max(2, self.config.num_envs_per_env_runner)
        self.config.update({"num_env_runners": 0, "num_envs_per_env_runner": num_envs})
        try:
            return self.config.build()
        except (TypeError, ValueError) as error:
            if SEVERAL_AGENTS not in str(error):
                raise
        return self.config.update({"policies": "own"}).build()

    def _play(self, env: Any, algorithm: Algorithm) -> Iterator[Finding]:
        """Play at random, and yield what that shows."""
        self._say("playing at random", self._seconds / 4)
        until = perf_counter() + self._seconds / 4
        begin = self._printed.tell()
        for moment in islice(moments(env), MOST_STEPS):
            self.play.append(moment)
            if perf_counter() > until:
                break
        if text := self._printed.getvalue()[begin:].strip():
            yield finding("prints", f"random play printed {len(text):,} characters: {text[:60]!r}")
        modules = algorithm.learner_group.module.items()
        yield from findings_of(self.play, is_raw=any(module.observation_normalizer is None for _, module in modules))

    def _compare(self, env: Any, other: Any) -> Iterator[Finding]:
        """Yield randomness that no seed determines, state that outlasts a reset, and actions without effect."""
        self._say("playing the same seed again")
        first = [moment.returned for moment in self.play[:TRACE]]

        def first_difference(*envs: Any, action_seed: int = 0) -> int | None:
            plays = (moments(env, action_seed=action_seed) for env in envs)
            for number, (returned, *others) in enumerate(zip(first, *plays, strict=False)):
                if any(moment.returned != returned for moment in others):
                    return number
            return None

        if (at := first_difference(other)) is not None:
            yield finding("seed", f"two envs with the same seed and actions differ after {at} steps")
        elif (at := first_difference(env, other)) is not None:
            yield finding("leak", f"envs that are reset again, and step in turn, differ from new ones after {at} steps")
        if first_difference(env, action_seed=100) is None:
            yield finding("actions", f"{len(first)} steps were the same with other actions")

    def _visit_corners(self, env: Any) -> Iterator[Finding]:
        """Take actions at the bounds of their spaces. Numbers that are not finite raise."""
        leaves = [leaf.space for space in action_spaces_of(env).values() for leaf in array_leaves(space)]
        boxes = [space for space in leaves if isinstance(space, spaces.Box)]
        for box in boxes:
            if not box.is_bounded():
                yield finding("action-bounds", f"{box} has numbers without a bound")
        for share in (0.0, 1.0, 0.5) if boxes else ():
            self._say("taking extreme actions")
            with _time_limit(self._seconds / 20):
                for _ in islice(moments(env, share=share), TRACE):
                    pass

    def _train(self, algorithm: Algorithm) -> Iterator[Finding]:
        """Train until the time is up. Yield where it went, and whether the returns stayed those of random play."""
        self._say(f"training with {type(algorithm).__name__}", self._seconds / 2)
        seconds, total = Counter[str](), 0.0
        until = perf_counter() + self._seconds / 2
        with _time_limit(self._seconds / 2):
            while perf_counter() < until:
                result = algorithm.train()
                seconds.update(result["timers"])
                total = result["time_total_s"]
                if algorithm.metrics.episodes:
                    self.curve.append((algorithm.env_steps, result["env_runners"]["episode_return_mean"]))
        if not total:
            yield finding("time", f"one iteration takes more than {self._seconds / 2:.0f} s")
            return
        env, nets = seconds["env_step"], seconds.total() - seconds["env_step"] - seconds["bookkeeping"]
        shares = f"env {env / total:.0%}, nets {nets / total:.0%}, framework {1 - (env + nets) / total:.0%}"
        yield finding("time", f"{algorithm.env_steps / total:,.0f} steps a second: {shares}")
        returns = returns_of(self.play) or [math.nan]
        mean, margin = np.mean(returns), 2 * np.std(returns) / math.sqrt(len(returns))  # two standard errors
        if not self.curve or not self.curve[-1][1] > mean + margin:
            shown = [return_text(value) for _, value in self.curve[:: math.ceil(len(self.curve) / 6) or 1]]
            text = f"random play returns {return_text(float(mean))}, training {' → '.join(shown) or '–'}"
            yield finding("learning", text)


def _envs_of(algorithm: Algorithm) -> Sequence[Any]:
    """Return the envs that ``algorithm`` will train on, in their guards; none of a ready vector env, whose envs cannot
    be reached."""
    runner: Any = algorithm.env_runner_group.local_runner
    if algorithm.config.is_multi_agent:
        return runner.envs
    return runner.env.envs if isinstance(runner.env, SyncEnvs) else []


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """End the block after ``seconds``, wherever it is."""

    def end(number: int, frame: Any) -> None:
        raise _TimeUp

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    except _TimeUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
