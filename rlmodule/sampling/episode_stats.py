"""Returns and lengths of episodes, which go on from one fragment to the next."""

from __future__ import annotations

import numpy as np

_NOTHING_FINISHED = {
    "episode_returns": np.empty(0),
    "episode_lengths": np.empty(0, np.int64),
    "episode_slots": np.empty(0, np.int64),
}


class EpisodeStats:
    """What the open episodes of ``num_envs`` envs have come to.

    Args:
        num_envs: ``N``.
        resets_in_a_step: Whether the row after an episode's last one is no transition, as in next-step mode.
    """

    def __init__(self, num_envs: int, resets_in_a_step: bool) -> None:
        self._returns = np.zeros(num_envs)
        self._began = np.zeros(num_envs, np.int64)
        self._pause = int(resets_in_a_step)

    def begin(self, steps: int) -> None:
        """All episodes begin, after ``steps`` steps."""
        self._returns[:] = 0
        self._began[:] = steps

    def finished(self, rewards: np.ndarray, ended: np.ndarray, steps: int) -> dict[str, np.ndarray]:
        """``episode_returns``, ``episode_lengths`` and ``episode_slots`` of those that end, in order of time; the open
        ones are carried over.

        Args:
            rewards: Of the next rows ``[T, N]``; 0 where a row is no transition.
            ended: Whether a row is the last of an episode ``[T, N]``.
            steps: Steps before them.
        """
        totals = np.add.accumulate(rewards, 0, np.float64)
        totals += self._returns
        self._returns = totals[-1]
        if not np.count_nonzero(ended):
            return _NOTHING_FINISHED.copy()
        slots, rows = ended.T.nonzero()  # slot by slot, each in order of time
        total, end = totals[rows, slots], rows + (steps + 1)
        before, began = np.zeros(len(rows)), self._began[slots]
        again = (slots[1:] == slots[:-1]).nonzero()[0]  # whose slot has another that ends, the next one
        before[again + 1] = total[again]
        began[again + 1] = end[again] + self._pause
        counted = np.zeros_like(self._returns)
        counted[slots] = total  # the last one's of a slot stays, since it is written last
        self._returns -= counted
        self._began[slots] = end + self._pause
        in_time = rows.argsort(kind="stable")
        return {
            "episode_returns": (total - before)[in_time],
            "episode_lengths": (end - began)[in_time],
            "episode_slots": slots[in_time],
        }
