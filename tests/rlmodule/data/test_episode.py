"""Episodes: what goes in comes out, chunks fit together again, misuse is explained."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmodule.data.episode import Episode
from rlmodule.testing.data import differences


def make_episode(length: int, *, nested: bool = False, end: str | None = None, id: str = "e", t: int = 0) -> Episode:
    """Observation ``t`` is ``[t, 10·t]``, action ``t % 3``, reward ``t + 1``, logp ``-t``."""

    def obs(step: int) -> Any:
        vector = np.array([step, 10 * step], np.float32)
        return {"b": vector, "a": (np.uint8(step % 256), vector[:1])} if nested else vector

    steps = [*range(t, t + length)]
    return Episode(
        [obs(step) for step in (*steps, t + length)],
        [step % 3 for step in steps],
        [step + 1.0 for step in steps],
        columns={"action_logp": [np.float32(-step) for step in steps]},
        terminated=end == "terminated",
        truncated=end == "truncated",
        id=id,
        t_started=t,
    )


def three_steps() -> Episode:
    return Episode(
        np.arange(8.0).reshape(4, 2), [2, 0, 1], [1.0, -1.0, 4.0], columns={"action_logp": [-0.1, -0.2, -0.3]}, id="x"
    )


def test_getters_give_entries_lists_and_views() -> None:
    episode = three_steps()
    assert len(episode) == 3
    assert episode.column_names == ["action_logp"]
    assert episode.get_observations().shape == (4, 2)
    np.testing.assert_array_equal(episode.get_observations(-1), [6, 7])
    np.testing.assert_array_equal(episode.get_observations(slice(1, 3)), [[2, 3], [4, 5]])
    np.testing.assert_array_equal(episode.get_actions(), [2, 0, 1])
    assert episode.get_actions().dtype == np.int64
    np.testing.assert_array_equal(episode.get_actions([0, -1, 0]), [2, 1, 2])
    np.testing.assert_array_equal(episode.get_actions(np.array([-3])), [2])
    assert episode.get_actions([]).shape == (0,)
    assert episode.get_rewards(1) == -1
    np.testing.assert_array_equal(episode.get_rewards(slice(-2, None)), [-1, 4])
    assert episode.get_columns("action_logp", 2) == -0.3
    np.testing.assert_array_equal(episode.get_columns("rewards"), episode.get_rewards())
    assert episode.total_reward == 4.0
    episode.get_rewards()[0] = 7.0
    assert episode.total_reward == 10.0


def test_arrays_are_kept_and_tensors_are_taken() -> None:
    obs, actions, rewards = np.zeros((3, 2), np.uint8), torch.tensor([0.5, 1]), torch.tensor([1, 2])
    episode = Episode(obs, actions, rewards)
    assert episode.get_observations().base is obs
    np.testing.assert_array_equal(episode.get_actions(), [0.5, 1])
    assert episode.get_rewards().dtype == np.float64


def test_chunks_know_where_they_start_and_whether_they_end() -> None:
    episode = make_episode(5, end="truncated", t=10)
    middle, tail, none = episode[1:3], episode[-2:], episode[5:]
    assert (middle.t_started, middle.t, middle.id, middle.truncated) == (11, 13, "e", False)
    assert (tail.t_started, tail.truncated, tail.terminated) == (13, True, False)
    assert (len(none), none.truncated, none.t_started, none.total_reward) == (0, False, 15, 0)
    np.testing.assert_array_equal(middle.get_observations()[:, 0], [11, 12, 13])
    assert np.shares_memory(middle.get_observations(), episode.get_observations())
    assert "steps 13..15" in repr(tail)
    assert "truncated" in repr(tail)


def test_lists_of_observations_may_be_nested() -> None:
    observations = [{"a": [t, t], "b": (t,)} for t in range(3)]
    episode = Episode(observations, [(0, 1.0), (1, 2.0)], (0.0, 1.0))
    assert episode.get_observations()["a"].shape == (3, 2)
    np.testing.assert_array_equal(episode.get_actions()[1], [1.0, 2.0])
    assert episode.get_observations(1)["b"] == (1,)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 20), st.lists(st.integers(0, 20), max_size=4), st.booleans(), st.sampled_from(["terminated", None])
)
def test_slices_make_up_the_whole(length: int, at: list[int], nested: bool, end: str | None) -> None:
    whole = make_episode(length, nested=nested, end=end, t=3)
    borders = [0, *sorted(x % length for x in at), length]
    for a, b in pairwise(borders):
        expected = make_episode(b - a, nested=nested, end=end if a < b == length else None, t=3 + a)
        assert repr(whole[a:b]) == repr(expected)
        if a < b:  # an empty list does not know its dtype
            assert differences(whole[a:b]._columns, expected._columns) == []


def test_it_can_be_pickled() -> None:
    episode = make_episode(3, nested=True)
    assert differences(vars(pickle.loads(pickle.dumps(episode))), vars(episode)) == []


MISUSES: dict[str, tuple[type[Exception], Callable[[], object], str]] = {
    "reserved column": (ValueError, lambda: Episode([0, 1], [0], [0.0], columns={"valid": [1]}), "Rename them"),
    "lengths": (
        ValueError,
        lambda: Episode([0, 1], [0, 1], [0.0, 0.0]),
        r"obs: expected 3 entries for rewards of shape \(2,\), got 2",
    ),
    "no actions": (ValueError, lambda: Episode([0, 1], [], [0.0]), r"actions: expected 1 entries .* got 0"),
    "scalars": (ValueError, lambda: Episode((0, 1), [0], [0.0]), "expected 2 entries .* got no"),
    "rewards": (ValueError, lambda: Episode([0, 1], [0], [[0.0]]), "one reward"),  # pyright: ignore
    "unknown column": (KeyError, lambda: make_episode(1).get_columns("action_lopg"), "Did you mean 'action_logp'"),
    "single step": (TypeError, lambda: make_episode(2)[0], "get_actions"),  # pyright: ignore
    "stride": (TypeError, lambda: make_episode(4)[::2], "get_actions"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_misuse_is_explained(case: str) -> None:
    error, call, words = MISUSES[case]
    with pytest.raises(error, match=r"Episode: .*expected .+, got .+\. ?\S+") as caught:
        call()
    assert caught.match(words)


def test_entries_of_a_list_are_alike() -> None:
    with pytest.raises(ValueError, match="same shape"):
        Episode([[0], [1, 2]], [0], [0.0])
