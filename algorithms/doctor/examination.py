"""The examination of an env: play it at random and at the corners of its actions, and train on it for a moment."""

from __future__ import annotations

import io
import logging
import math
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean, pstdev
from time import perf_counter
from typing import Any

from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.doctor.findings import Finding, finding_of
from algorithms.doctor.random_play import RandomPlay
from algorithms.doctor.subject import OneAgent, at_corners, envs_of, moments
from algorithms.run.text import return_text
from catalog.spaces import array_leaves

MOST_STEPS = 20_000
"""Largest number of steps of random play."""
TRACE = 300
"""Number of resets and steps in which two plays of an env are compared."""

_SEED = 7
_MOST_DRAWN = 1_000  # returns and seconds
_WINDOW = 100  # episodes that the return of a training is averaged over


class _TimeUp(BaseException):
    """Raised in the middle of an iteration. No Exception, which the guard of an env would take for one of the env."""


class _Log(logging.Handler):
    """Reports what the library logs about the env, each text once."""

    def __init__(self, report: Callable[[Finding], None]) -> None:
        super().__init__(logging.WARNING)
        self._report, self._known = report, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._known:
            self._known.add(text)
            self._report(Finding("unread-mask" if "nothing reads the mask" in text else "logged", text))


@dataclass
class Examination:
    """Examines the env of ``config`` for about ``seconds``. The first fault ends the examination.

    Args:
        config: The env, and the algorithm to train with.
        seconds: How long to play and train.
        report: Called with each finding.
        say: Called with what is done next, and its seconds if it goes well.

    Attributes:
        measured: Numbers for a picture: ``returns`` of random play, ``curve``, pairs of env steps and mean return of
            the training, and the seconds of each step in random play, ``step_seconds``.
    """

    config: AlgorithmConfig
    seconds: float
    report: Callable[[Finding], None]
    say: Callable[[str, float], None]
    measured: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Make the env, examine it, and report what is found."""
        printed, log, logger = io.StringIO(), _Log(self.report), logging.getLogger("rlmodule")
        logger.addHandler(log)
        name_of_error = "contract"
        try:
            with redirect_stdout(printed), ExitStack() as opened:
                self._begin("making the env")
                envs = [opened.enter_context(closing(env)) for env in envs_of(self.config)]
                name_of_error = "spaces"
                self._begin("building the nets")
                algorithm = opened.enter_context(self.config.build())
                name_of_error = "contract"
                play = RandomPlay()
                if envs:  # a ready vector env has none
                    self._compare(*envs[:2])
                    before = printed.tell()
                    self._play(envs[0], play, algorithm)
                    if text := printed.getvalue()[before:].strip():
                        self.report(Finding("prints", f"random play printed {len(text):,} characters: {text[:60]!r}"))
                    self._visit_corners(envs[0])
                name_of_error = "training"
                self._train(algorithm, play.returns)
        except (Exception, SystemExit) as error:
            self.report(finding_of(error, name_of_error))
        finally:
            logger.removeHandler(log)

    def _begin(self, what: str, share: float = 0.0) -> float:
        """Say ``what`` is done for a ``share`` of the time, and return when that is over."""
        self.say(what, share * self.seconds)
        return perf_counter() + share * self.seconds

    def _compare(self, env: Any, other: Any) -> None:
        """Report randomness that no seed determines, state that outlasts a reset, and actions without effect."""
        until = self._begin("playing the same seed again", 0.03)
        first = list[Any]()
        for moment in islice(moments(env, _SEED), TRACE):
            first.append(moment.digest())
            if perf_counter() > until:
                break

        def differences(env: Any) -> Iterator[bool]:
            return (moment.digest() != digest for moment, digest in zip(moments(env, _SEED), first, strict=False))

        def first_difference(*envs: Any) -> int | None:
            in_turn = zip(*map(differences, envs), strict=True)
            return next((number for number, differ in enumerate(in_turn) if any(differ)), None)

        if (at := first_difference(other)) is not None:
            self.report(Finding("seed", f"two envs with seed {_SEED} and the same actions differ after {at} steps"))
        elif (at := first_difference(env, other)) is not None:
            text = f"envs that are reset again with seed {_SEED}, and step in turn, differ from a new one"
            self.report(Finding("leak", f"{text} after {at} steps"))
        if [moment.digest() for moment in islice(moments(env, _SEED, action_seed=100), len(first))] == first:
            self.report(Finding("actions", f"{len(first):,} steps were the same with other actions"))

    def _play(self, env: Any, play: RandomPlay, algorithm: Algorithm) -> None:
        """Play at random, and report what that shows."""
        until = self._begin("playing at random", 0.25)
        for moment in moments(env, _SEED):
            play.add(moment)
            if perf_counter() > until or len(play.step_seconds) == MOST_STEPS:
                break
        modules = dict(algorithm.learner_group.module.items()).values()
        is_raw = any(module.observation_normalizer is None for module in modules)
        has_time_limit = isinstance(env, OneAgent) and env.has_time_limit
        for finding in play.findings(has_time_limit=has_time_limit, is_raw=is_raw):
            self.report(finding)
        every = math.ceil(len(play.step_seconds) / _MOST_DRAWN)
        self.measured |= {"returns": play.returns[-_MOST_DRAWN:], "step_seconds": play.step_seconds[::every]}

    def _visit_corners(self, env: Any) -> None:
        """Take actions at the bounds of their spaces. Numbers that are not finite raise."""
        leaves = [leaf.space for space in env.action_spaces.values() for leaf in array_leaves(space)]
        boxes = [space for space in leaves if isinstance(space, spaces.Box)]
        if unbounded := [box for box in boxes if not box.is_bounded()]:
            self.report(Finding("action-bounds", f"there are none in {unbounded[0]}"))
        for share in (0.0, 1.0, 0.5) if boxes else ():
            until = self._begin("taking extreme actions", 0.03)
            for _ in islice(moments(env, _SEED, at_corners(share)), TRACE):
                if perf_counter() > until:
                    break

    def _train(self, algorithm: Algorithm, random_returns: Sequence[float]) -> None:
        """Train until the time is up. Report where it went, and whether the returns grew."""
        self._begin(f"training with {type(algorithm).__name__}", 0.5)
        points, seconds, total = list[tuple[int, float]](), Counter[str](), 0.0
        with _time_limit(self.seconds * 0.5):
            while True:
                result = algorithm.train()
                points.append((algorithm.env_steps, result["env_runners"]["episode_return_mean"]))
                seconds.update(result["timers"])
                total = result["time_total_s"]
        if not points:
            self.report(Finding("time", f"one iteration takes more than {self.seconds / 2:.0f} s"))
            return
        env, _ = seconds.pop("env_step"), seconds.pop("bookkeeping")
        shares = {"env": env, "nets": seconds.total(), "framework": total - env - seconds.total()}
        text = ", ".join(f"{name} {value / total:.0%}" for name, value in shares.items())
        self.report(Finding("time", f"{points[-1][0] / total:,.0f} steps a second: {text}"))
        self.measured["curve"] = curve = [point for point in points if math.isfinite(point[1])]
        if not (random_returns and curve):
            self.report(Finding("learning", "no return to compare, as no episode ended"))
            return
        # two standard errors, if the spread of the returns in training is that of random play
        counts = 1 / len(random_returns) + 1 / min(algorithm.metrics.episodes, _WINDOW)
        margin = 2 * pstdev(random_returns) * math.sqrt(counts)
        if curve[-1][1] <= fmean(random_returns) + margin:
            shown = " → ".join(return_text(value) for _, value in curve[:: math.ceil(len(curve) / 6)])
            text = f"random play returns {return_text(fmean(random_returns))}, training {shown}"
            self.report(Finding("learning", text))


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """End the block after ``seconds``, wherever it is."""

    def end(number: int, frame: Any) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TimeUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
