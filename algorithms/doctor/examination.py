"""The examination of an env: play it at random and at the corners of its actions, and train on it for a moment."""

from __future__ import annotations

import io
import logging
import math
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.doctor.findings import Finding, finding, finding_of
from algorithms.doctor.random_play import TRACE, RandomPlay
from algorithms.doctor.subject import envs_of, moments
from algorithms.run.text import return_text
from catalog.spaces import array_leaves

MOST_STEPS = 20_000
"""Largest number of steps of random play."""

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
        findings: What was found.
        play: The random play.
        curve: Env steps and mean return after each iteration of the training.
    """

    _say: Callable[..., None]

    def __init__(self, config: AlgorithmConfig, seconds: float) -> None:
        super().__init__(logging.WARNING)
        self.config, self._seconds = config, seconds
        self.findings, self.play, self.curve = list[Finding](), RandomPlay(), list[tuple[int, float]]()

    def emit(self, record: logging.LogRecord) -> None:
        self.findings.append(finding("logged", record.getMessage()))

    def run(self, say: Callable[..., None]) -> None:
        """Make the env, and examine it. ``say`` is called with what is done next, and its seconds if they are known."""
        self._say = say
        logger, name_of_error = logging.getLogger("rlmodule"), "contract"
        logger.addHandler(self)
        try:
            with ExitStack() as opened:
                opened.enter_context(redirect_stdout(io.StringIO()))
                self._say("making the env")
                envs = [opened.enter_context(closing(env)) for env in envs_of(self.config)]
                self._say("building the nets")
                name_of_error = "spaces"
                algorithm = opened.enter_context(self.config.build())
                name_of_error = "contract"
                if envs:  # a ready vector env has none
                    self.findings += self._play(envs[0], algorithm)
                    self.findings += self._compare(*envs[:2])
                    self.findings += self._visit_corners(envs[0])
                name_of_error = "training"
                self.findings += self._train(algorithm)
        except (Exception, SystemExit) as error:
            self.findings.append(finding_of(error, name_of_error))
        finally:
            logger.removeHandler(self)

    def _play(self, env: Any, algorithm: Algorithm) -> Iterator[Finding]:
        """Play at random, and yield what that shows."""
        self._say("playing at random", self._seconds / 4)
        until = perf_counter() + self._seconds / 4
        with redirect_stdout(io.StringIO()) as printed:
            for moment in moments(env):
                self.play.add(moment)
                if perf_counter() > until or len(self.play.step_seconds) == MOST_STEPS:
                    break
        if text := printed.getvalue().strip():
            yield finding("prints", f"random play printed {len(text):,} characters: {text[:60]!r}")
        modules = algorithm.learner_group.module.items()
        yield from self.play.findings(is_raw=any(module.observation_normalizer is None for _, module in modules))

    def _compare(self, env: Any, other: Any) -> Iterator[Finding]:
        """Yield randomness that no seed determines, state that outlasts a reset, and actions without effect."""
        self._say("playing the same seed again")
        first = self.play.trace

        def first_difference(*envs: Any) -> int | None:
            for number, (digest, *others) in enumerate(zip(first, *map(moments, envs), strict=False)):
                if any(moment.digest() != digest for moment in others):
                    return number
            return None

        if (at := first_difference(other)) is not None:
            yield finding("seed", f"two envs with the same seed and actions differ after {at} steps")
        elif (at := first_difference(env, other)) is not None:
            yield finding("leak", f"envs that are reset again, and step in turn, differ from new ones after {at} steps")
        if [moment.digest() for moment in islice(moments(env, action_seed=100), len(first))] == first:
            yield finding("actions", f"{len(first)} steps were the same with other actions")

    def _visit_corners(self, env: Any) -> Iterator[Finding]:
        """Take actions at the bounds of their spaces. Numbers that are not finite raise."""
        leaves = [leaf.space for space in env.action_spaces.values() for leaf in array_leaves(space)]
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
        returns = self.play.returns[:-1] or [math.nan]
        mean, margin = np.mean(returns), 2 * np.std(returns) / math.sqrt(len(returns))  # two standard errors
        if not self.curve or not self.curve[-1][1] > mean + margin:
            shown = [return_text(value) for _, value in self.curve[:: math.ceil(len(self.curve) / 6) or 1]]
            text = f"random play returns {return_text(float(mean))}, training {' → '.join(shown) or '–'}"
            yield finding("learning", text)


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
