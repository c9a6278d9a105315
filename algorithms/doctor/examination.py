"""The examination of an env: play it at random and at the corners of its actions, and train on it for a moment."""

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.doctor.findings import Found, found_in
from algorithms.doctor.play import TRACE, Moment, extreme_action, moments
from algorithms.doctor.random_play import findings_of, returns_of
from algorithms.run.text import return_text
from catalog.spaces import array_leaves
from rlmodule.envs.checks import SEVERAL_AGENTS
from rlmodule.envs.subprocesses import alarm
from rlmodule.envs.sync_vector_env import SyncEnvs

MOST_STEPS = 20_000
"""Largest number of steps of random play."""


class _TimeUp(BaseException):
    """Raised in the middle of an iteration. No Exception, which the guard of an env would take for one of the env."""


class Examination(logging.Handler):
    """Examines an env for about ``seconds``. The first fault ends the examination. What the library logs
    meanwhile is a finding, too.

    Args:
        make_config: Imports the env, and returns the config to train with. An error in it is a finding, too.
        seconds: How long to play and train.
        say: Called with what is done next, and its seconds if they are known.

    Attributes:
        found: Name and text of each finding, in the order in which they were found.
        play: The random play.
        curve: Env steps and mean return after each iteration of the training.
    """

    def __init__(self, make_config: Callable[[], AlgorithmConfig], seconds: float, say: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self._make_config, self._seconds, self._say = make_config, seconds, say
        self.found, self.play, self.curve = list[Found](), list[Moment](), list[tuple[int, float]]()

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(("logged", record.getMessage()))

    def run(self) -> None:
        """Make the env, and examine it."""
        logger, name_of_error = logging.getLogger("rlmodule"), "contract"
        logger.addHandler(self)
        try:
            with redirect_stdout(io.StringIO()), self._build() as algorithm:
                envs = _envs_of(algorithm)
                if envs:
                    self.found += self._play(envs[0], algorithm)
                    self.found += self._compare(*envs[:2])
                    self.found += self._visit_corners(envs[0], algorithm)
                name_of_error = "training"
                self.found += self._train(algorithm)
        except (Exception, SystemExit) as error:
            self.found.append(found_in(error, name_of_error))
        finally:
            logger.removeHandler(self)

    def _build(self) -> Algorithm:
        """Make at least two envs in this process, and the nets: a policy for each agent, if there are several agents
        and the config has no policies."""
        config = self._make_config()
        self._say("making the env and the nets")
        config.update({"num_env_runners": 0, "num_envs_per_env_runner": max(2, config.num_envs_per_env_runner)})
        try:
            return config.build()
        except (TypeError, ValueError) as error:
            if SEVERAL_AGENTS not in str(error):
                raise
        return config.update({"policies": "own"}).build()

    def _play(self, env: Any, algorithm: Algorithm) -> Iterator[Found]:
        """Play at random, and yield what that shows."""
        self._say("playing at random", self._seconds / 4)
        with redirect_stdout(io.StringIO()) as printed:
            self.play.extend(moments(env, most=MOST_STEPS, seconds=self._seconds / 4))
        if text := printed.getvalue().strip():
            yield "prints", f"random play printed {len(text):,} characters: {text[:60]!r}"
        modules = algorithm.learner_group.module.items()
        yield from findings_of(self.play, is_raw=any(module.observation_normalizer is None for _, module in modules))

    def _compare(self, env: Any, other: Any) -> Iterator[Found]:
        """Yield randomness that no seed determines, state that outlasts a reset, and actions without effect."""
        self._say("playing the same seed again", self._seconds)
        first = self.play[:TRACE]
        if (at := _first_difference(first, moments(other))) is not None:
            yield "seed", f"two envs with the same seed and actions differ after {at} steps"
        elif (at := _first_difference(first, moments(env), moments(other))) is not None:
            yield "leak", f"envs that are reset again, and step in turn, differ from new ones after {at} steps"
        if _first_difference(first, moments(env, action_seed=100)) is None:
            yield "actions", f"{len(first)} steps were the same with other actions"

    def _visit_corners(self, env: Any, algorithm: Algorithm) -> Iterator[Found]:
        """Take actions at the bounds of their spaces. Numbers that are not finite raise."""
        boxes: list[spaces.Box] = []
        for _, module in algorithm.learner_group.module.items():
            leaves = array_leaves(module.action_space)
            boxes += [leaf.space for leaf in leaves if isinstance(leaf.space, spaces.Box)]
        for box in boxes:
            if not box.is_bounded():
                yield "action-bounds", f"{box} has numbers without a bound"
        for share in (0.0, 1.0, 0.5) if boxes else ():
            self._say("taking extreme actions", self._seconds / 20)
            for _ in moments(env, partial(extreme_action, share), seconds=self._seconds / 20):
                pass

    def _train(self, algorithm: Algorithm) -> Iterator[Found]:
        """Train until the time is up. Yield where it went, and whether the returns stayed those of random play."""
        self._say(f"training with {type(algorithm).__name__}", self._seconds / 2)
        seconds, metrics = Counter[str](), algorithm.metrics
        with suppress(_TimeUp), alarm(self._seconds / 2, _TimeUp()):
            while True:
                seconds.update(algorithm.train()["timers"])
                if metrics.episodes:
                    self.curve.append((metrics.env_steps, metrics.training_return))
        total = metrics.seconds
        if not total:
            yield "time", f"one iteration takes more than {self._seconds / 2:.0f} s"
            return
        env, nets = seconds["env_step"], seconds.total() - seconds["env_step"] - seconds["bookkeeping"]
        shares = f"env {env / total:.0%}, nets {nets / total:.0%}, framework {1 - (env + nets) / total:.0%}"
        yield "time", f"{metrics.env_steps / total:,.0f} steps a second: {shares}"
        returns = returns_of(self.play) or [np.nan]
        mean, margin = np.mean(returns), 2 * np.std(returns) / np.sqrt(len(returns))  # two standard errors
        if not self.curve or not self.curve[-1][1] > mean + margin:
            shown = [return_text(value) for _, value in self.curve[:: 1 + len(self.curve) // 7]]
            yield "learning", f"random play returns {return_text(float(mean))}, training {' → '.join(shown) or '–'}"


def _first_difference(*plays: Iterable[Moment]) -> int | None:
    """Return the number of the first moment in which what envs returned differs between ``plays``; None if there is
    none."""
    for number, at_once in enumerate(zip(*plays, strict=False)):
        if len({moment[:4] for moment in at_once}) > 1:
            return number
    return None


def _envs_of(algorithm: Algorithm) -> Sequence[Any]:
    """Return the envs that ``algorithm`` will train on, in their guards; none of a ready vector env, whose envs cannot
    be reached."""
    runner: Any = algorithm.env_runner_group.local_runner
    if algorithm.config.is_multi_agent:
        return runner.envs
    return runner.env.envs if isinstance(runner.env, SyncEnvs) else []
