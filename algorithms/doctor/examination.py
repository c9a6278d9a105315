"""The examination of an env: play it at random and at the corners of its actions, and train on it for a moment."""

import faulthandler
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import tree
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.doctor.findings import Found, found_in
from algorithms.doctor.play import Moment, moments
from algorithms.doctor.random_play import findings_of
from algorithms.run.text import return_text
from rlmodule.envs.checks import SEVERAL_AGENTS
from rlmodule.envs.subprocesses import alarm
from rlmodule.envs.sync_vector_env import SyncEnvs

MOST_STEPS = 20_000
"""Largest number of steps of random play."""

FEWEST_STEPS = 20
"""Number of steps from which other random actions cannot be the same by chance."""

PATIENCE = 20.0
"""Seconds by which a step of the examination may last longer than planned. After that, the env hangs, and this process
ends."""

MOST_GROWTH = 20e6
"""Bytes by which this process may grow in random play."""


class _TimeUp(BaseException):
    """Raised in the middle of an iteration. No Exception, which the guard of an env would take for one of the env."""


@dataclass
class Examination:
    """The examination of an env, and what it found. The first fault ends it.

    Attributes:
        seconds: How long to play and train.
        found: Name and text of each finding, in the order in which they were found.
        play: The random play.
        curve: Env steps of the training and mean return: of random play at 0, then after each iteration.
    """

    seconds: float
    found: list[Found] = field(default_factory=list)
    play: list[Moment] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)

    def run(self, make_config: Callable[[], AlgorithmConfig]) -> None:
        """Examine the env of the config that ``make_config`` returns, or whose error is found, too."""
        try:
            self._begin("making the env and the nets")
            with _built(make_config()) as algorithm, redirect_stdout(io.StringIO()) as printed:
                runner: Any = algorithm.env_runner_group.local_runner
                made = runner if algorithm.config.is_multi_agent else runner.env
                if made is runner or isinstance(made, SyncEnvs):  # the envs of a ready vector env cannot be reached
                    env, other = made.envs[:2]
                    self.found += self._play(env, other, algorithm)
                    self.found += self._visit_corners(env, algorithm)
                self.found += self._train(algorithm)
                if text := printed.getvalue():
                    self.found.append(("prints", f"it printed {len(text):,} characters: {text[:60]!r}"))
        except (Exception, SystemExit) as error:
            self.found.append(found_in(error))
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _begin(self, what: str) -> None:
        """Say ``what`` is done next, for half of the seconds at most. End this process if it takes longer."""
        print(f"{what} ...", file=sys.stderr)
        faulthandler.dump_traceback_later(PATIENCE + self.seconds / 2, exit=True)

    def _play(self, env: Any, other: Any, algorithm: Algorithm) -> Iterator[Found]:
        """Play at random, first with the same seed and actions several times. Yield what that shows."""
        self._begin("playing the same seed and actions")
        first = [*moments(env, seconds=self.seconds / 8)]
        most = len(first)
        in_turn = zip(first, moments(env, most=most), moments(other, most=most), strict=True)
        if first != [*moments(other, most=most)]:
            yield "seed", "two envs with the same seed and actions differ"
        elif any(len({*same}) > 1 for same in in_turn):
            yield "leak", "envs that are reset again, and step in turn, differ from new ones"
        self._begin("playing at random")
        process = psutil.Process()
        before = process.memory_info().rss
        self.play += moments(env, most=MOST_STEPS, seconds=self.seconds / 4, action_seed=1)
        growth = process.memory_info().rss - before
        if growth > MOST_GROWTH:
            yield "memory", f"the process grew by {growth / 1e6:.0f} MB in {len(self.play):,} steps"
        if most >= FEWEST_STEPS and first == self.play[:most]:
            yield "actions", f"{most} steps were the same with other actions"
        normalizers = [module.observation_normalizer for _, module in algorithm.learner_group.module.items()]
        yield from findings_of(self.play, is_raw=None in normalizers)

    def _visit_corners(self, env: Any, algorithm: Algorithm) -> Iterator[Found]:
        """Take actions at the bounds of their spaces. Numbers that are not finite raise."""
        self._begin("taking extreme actions")
        for leaf in tree.flatten(algorithm.env_runner_group.action_space):
            if isinstance(leaf, spaces.Box) and not leaf.is_bounded():
                yield "action-bounds", f"{leaf} has numbers without a bound"
        for share in (0.0, 1.0, 0.5):
            for _ in moments(env, share=share, seconds=self.seconds / 6):
                pass

    def _train(self, algorithm: Algorithm) -> Iterator[Found]:
        """Train until the time is up. Yield where it went, and whether the returns stayed those of random play."""
        self._begin("training")
        returns = [moment.total for moment in self.play if moment.is_over] or [np.nan]
        mean, error = float(np.mean(returns)), np.std(returns) / np.sqrt(len(returns))
        self.curve.append((0, mean))
        seconds, metrics = Counter[str](), algorithm.metrics
        with suppress(_TimeUp), alarm(self.seconds / 2, _TimeUp()):
            while True:
                seconds.update(algorithm.train()["timers"])
                self.curve.append((metrics.env_steps, metrics.training_return))
        total = metrics.seconds
        if not total:
            yield "time", f"one iteration takes more than {self.seconds / 2:.0f} s"
            return
        env, framework = seconds["env_step"] / total, seconds["bookkeeping"] / total
        shares = f"env {env:.0%}, framework {framework:.0%}, nets {1 - env - framework:.0%}"
        yield "time", f"{self.curve[-1][0] / total:,.0f} steps a second: {shares}"
        if not metrics.training_return > mean + 2 * error:
            shown = [return_text(value) for _, value in self.curve[:: 1 + len(self.curve) // 7]]
            yield "learning", f"the mean return, first of random play: {' → '.join(shown)}"


def _built(config: AlgorithmConfig) -> Algorithm:
    """Make at least two envs in this process, and the nets: a policy for each agent, if there are several agents and
    ``config`` has no policies."""
    config.update({"num_env_runners": 0, "num_envs_per_env_runner": max(2, config.num_envs_per_env_runner)})
    try:
        return config.build()
    except Exception as error:
        if SEVERAL_AGENTS not in str(error):
            raise
    return config.update({"policies": "own"}).build()
