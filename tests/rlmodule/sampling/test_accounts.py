"""Returns and lengths of episodes that end, by hand and by a slow oracle."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlmodule.sampling.accounts import EpisodeStats

EMPTY = {"episode_returns": [], "episode_lengths": [], "episode_slots": []}


def lists(stats: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    return {name: values.tolist() for name, values in stats.items()}


def test_episodes_go_on_from_fragment_to_fragment() -> None:
    totals = EpisodeStats(2, resets_in_a_step=False)
    ended = np.zeros((2, 2), bool)
    assert lists(totals.finished(np.array([[1, 10], [2, 20]], np.float32), ended, 0)) == EMPTY
    ended = np.array([[False, True], [True, False], [True, True]])
    assert lists(totals.finished(np.array([[3, 30], [4, 40], [5, 50]], np.float32), ended, 2)) == {
        "episode_returns": [60, 10, 5, 90],
        "episode_lengths": [3, 4, 1, 2],
        "episode_slots": [1, 0, 0, 1],
    }


def test_episodes_that_begin_anew_know_nothing_of_those_before() -> None:
    totals = EpisodeStats(2, resets_in_a_step=False)
    totals.finished(np.ones((3, 2), np.float32), np.zeros((3, 2), bool), 0)
    totals.begin(7)
    stats = lists(totals.finished(np.array([[1, 2], [3, 4]], np.float32), np.array([[False, True], [True, True]]), 7))
    assert stats == {"episode_returns": [2, 4, 4], "episode_lengths": [1, 2, 1], "episode_slots": [1, 0, 1]}


@given(st.data())
def test_any_fragments_tell_of_what_ended(data: st.DataObject) -> None:
    pause, num_envs = data.draw(st.booleans()), data.draw(st.integers(1, 4))
    totals, before = EpisodeStats(num_envs, resets_in_a_step=pause), 0
    returns, lengths, resting = [0.0] * num_envs, [0] * num_envs, [False] * num_envs
    for steps in data.draw(st.lists(st.integers(1, 6), max_size=5)):
        rewards, ended = np.zeros((steps, num_envs), np.float32), np.zeros((steps, num_envs), bool)
        expected: dict[str, list[Any]] = {name: [] for name in EMPTY}
        for row in range(steps):
            for slot in range(num_envs):
                if resting[slot]:
                    resting[slot] = False
                    continue
                rewards[row, slot], ended[row, slot] = data.draw(st.integers(-9, 9)), data.draw(st.booleans())
                returns[slot] += float(rewards[row, slot])
                lengths[slot] += 1
                if ended[row, slot]:
                    for name, value in zip(EMPTY, (returns[slot], lengths[slot], slot), strict=True):
                        expected[name].append(value)
                    returns[slot], lengths[slot], resting[slot] = 0.0, 0, pause
        assert lists(totals.finished(rewards, ended, before)) == expected
        before += steps
