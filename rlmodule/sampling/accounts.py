"""The accounts of an env runner: which steps are in its rollouts, which were lost, and which episodes ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from typing_extensions import Never

from rlmodule.envs.checks import EnvError
from rlmodule.envs.shared_counter import SharedCounter

_NOTHING_FINISHED = {
    "episode_returns": np.empty(0),
    "episode_lengths": np.empty(0, np.int64),
    "episode_slots": np.empty(0, np.int64),
}


class EpisodeStats:
    """Computes returns and lengths of finished episodes. Keeps the sums of unfinished episodes from one fragment to the
    next.

    Args:
        num_envs: Number of envs, ``N``.
        resets_in_a_step: Whether the row after the last row of an episode only resets the env, as with next-step
            autoreset.
    """

    def __init__(self, num_envs: int, resets_in_a_step: bool) -> None:
        self._returns = np.zeros(num_envs)
        self._began = np.zeros(num_envs, np.int64)
        self._pause = int(resets_in_a_step)

    def begin(self, steps: int) -> None:
        """Begin a new episode in every env, after the runner has taken ``steps`` steps of each env."""
        self._returns[:] = 0
        self._began[:] = steps

    def open(self, steps: int) -> list[tuple[float, int]]:
        """Return the return and the length so far of each env's open episode, after ``steps`` steps of each env."""
        return list(zip(self._returns.tolist(), (steps - self._began).tolist(), strict=True))

    def resume(self, steps: int, episodes: Sequence[tuple[float, int]]) -> None:
        """Continue ``episodes``, one return and length per env from :meth:`open`, after ``steps`` steps of each env."""
        self._returns[:], lengths = np.array(episodes).T
        self._began[:] = steps - lengths.astype(np.int64)

    def finished(self, rewards: np.ndarray, ended: np.ndarray, steps: int) -> dict[str, np.ndarray]:
        """Return ``episode_returns``, ``episode_lengths`` and ``episode_slots`` of the episodes that end in the given
        rows, in order of time. Add the rewards of unfinished episodes to their sums.

        Args:
            rewards: Rewards ``[T, N]`` of the rows; 0 where a row is not a transition.
            ended: Whether a row is the last row of an episode, ``[T, N]``.
            steps: Number of steps of each env before these rows.
        """
        totals = np.add.accumulate(rewards, 0, np.float64)
        totals += self._returns
        self._returns = totals[-1]
        if not np.count_nonzero(ended):
            return _NOTHING_FINISHED.copy()
        slots, rows = ended.T.nonzero()  # slot by slot, each in order of time
        total, end = totals[rows, slots], rows + (steps + 1)
        before, began = np.zeros(len(rows)), self._began[slots]
        again = (slots[1:] == slots[:-1]).nonzero()[0]  # entries after which the same slot ends again
        before[again + 1] = total[again]
        began[again + 1] = end[again] + self._pause
        counted = np.zeros_like(self._returns)
        counted[slots] = total  # the last end of a slot wins, since it is written last
        self._returns -= counted
        self._began[slots] = end + self._pause
        in_time = rows.argsort(kind="stable")
        return {
            "episode_returns": (total - before)[in_time],
            "episode_lengths": (end - began)[in_time],
            "episode_slots": slots[in_time],
        }


class Accounts:
    """Base class of env runners. It accounts for every env step: the number in ``step_counter`` equals the steps of the
    rollouts, plus the lost steps in their ``stats``, plus ``num_env_steps_lost``.

    Args:
        settings: The settings of the runner.
        first_env_index: Index of the runner's first env among all envs of the run.
        role: ``"env"`` or ``"evaluation_env"``.
        step_counter: Counts the calls of ``env.step`` before each is made. None creates a counter.

    Attributes:
        num_envs: Number of envs.
        progress: Number of steps of each env so far. It also grows while a rollout is sampled.
        num_env_steps_lost: Steps of fragments that ended in an error, by cause. ``env_raised`` counts the steps that
            raised or ended the process of their env, ``fragment`` all other steps.
    """

    def __init__(self, settings: Any, first_env_index: int, role: str, step_counter: SharedCounter | None) -> None:
        self._settings, self._first, self._role = settings, first_env_index, role
        self.step_counter = step_counter or SharedCounter()
        self.progress = self._steps = 0
        self.num_env_steps_lost: Counter[str] = Counter()
        self.num_envs: int = settings.num_envs_per_env_runner
        self._inference_mode = torch.inference_mode()  # creating one takes longer than entering it

    def recycle(self) -> None:
        """Let the next call of ``sample`` overwrite the last rollout, which is not read any more. The default keeps
        it."""

    def _complete(self, rollout: Any, policy_version: int, start: float, seconds: dict[str, float]) -> Any:
        """Return ``rollout`` after setting its policy version and adding ``seconds`` per phase to its ``stats``, with
        the rest of the time since ``start`` (from ``perf_counter()``) as ``bookkeeping``."""
        rollout.policy_version = policy_version
        bookkeeping = perf_counter() - start - seconds["env_step"] - seconds["forward"]
        rollout.stats |= seconds | {"bookkeeping": bookkeeping}
        return rollout

    def _lose(
        self,
        error: BaseException,
        calls_before: int,
        num_faults: int,
        culprit_of: Callable[[BaseException], BaseException],
    ) -> Never:
        """Add the steps of a fragment that ended in ``error`` to ``num_env_steps_lost``. Then raise ``error`` or its
        cause.

        Args:
            error: The error that is being handled, in an ``except`` block.
            calls_before: The count of ``step_counter`` before the fragment.
            num_faults: Number of steps that raised earlier in the fragment and whose envs were restarted.
            culprit_of: Returns the error to raise in place of ``error``, or ``error`` itself.
        """
        if torch.is_inference_mode_enabled():  # Ctrl-C can come between the end of a block and its exit
            self._inference_mode.__exit__(None, None, None)
        culprit = culprit_of(error)
        num = self.step_counter.count - calls_before
        is_step = isinstance(culprit, EnvError) and culprit.place.get("call") != "reset()"
        raised = min(num, num_faults + is_step)
        self.num_env_steps_lost += Counter(env_raised=raised, fragment=num - raised)  # adding drops counts of 0
        if culprit is error:
            raise
        raise culprit from error


def wrong_value_or(error: BaseException, check: Callable[[], None]) -> BaseException:
    """Return the error to raise when a module or an env failed with ``error``. If ``check`` raises because it finds a
    wrong value, that value is the cause, so return the error of ``check``. Otherwise return ``error`` itself."""
    if isinstance(error, Exception):
        try:
            check()
        except (TypeError, ValueError) as found:
            return error if str(found) == str(error) else found
    return error
