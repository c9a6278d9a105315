"""EpisodeStats: returns and lengths of episodes that continue from one fragment to the next."""

from collections.abc import Sequence

import numpy as np

_NOTHING_FINISHED = {
    "episode_returns": np.empty(0),
    "episode_lengths": np.empty(0, np.int64),
    "episode_slots": np.empty(0, np.int64),
}


class EpisodeStats:
    """Computes returns and lengths of finished episodes, and keeps the sums of unfinished ones between fragments.

    Args:
        num_envs: ``N``.
        resets_in_a_step: Whether the row after the last one of an episode only resets the env, as in next-step mode.
    """

    def __init__(self, num_envs: int, resets_in_a_step: bool) -> None:
        self._returns = np.zeros(num_envs)
        self._began = np.zeros(num_envs, np.int64)
        self._pause = int(resets_in_a_step)

    def begin(self, steps: int) -> None:
        """Begin a new episode in every env, after ``steps`` steps."""
        self._returns[:] = 0
        self._began[:] = steps

    def open(self, steps: int) -> list[tuple[float, int]]:
        """Return the return and the length so far of each env's open episode, after ``steps`` steps."""
        return list(zip(self._returns.tolist(), (steps - self._began).tolist(), strict=True))

    def resume(self, steps: int, episodes: Sequence[tuple[float, int]]) -> None:
        """Continue ``episodes`` from :meth:`open`, after ``steps`` steps."""
        self._returns[:], lengths = np.array(episodes).T
        self._began[:] = steps - lengths.astype(np.int64)

    @property
    def oldest(self) -> int:
        """The step in which the oldest open episode began."""
        return int(self._began.min())

    def finished(self, rewards: np.ndarray, ended: np.ndarray, steps: int) -> dict[str, np.ndarray]:
        """Return ``episode_returns``, ``episode_lengths`` and ``episode_slots`` of the episodes that end in the next
        rows, in order of time.

        Args:
            rewards: Rewards ``[T, N]`` of the rows; 0 where a row is not a transition.
            ended: Whether a row is the last of an episode, ``[T, N]``.
            steps: Number of steps before these rows.
        """
        totals = np.add.accumulate(rewards, 0, np.float64)
        totals += self._returns
        self._returns = totals[-1]
        if not np.count_nonzero(ended):
            return _NOTHING_FINISHED.copy()
        slots, rows = ended.T.nonzero()  # slot by slot, each in order of time
        total, end = totals[rows, slots], rows + (steps + 1)
        before, began = np.zeros(len(rows)), self._began[slots]
        again = (slots[1:] == slots[:-1]).nonzero()[0]  # entries whose slot has a later end: the next entry
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
