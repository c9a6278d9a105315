"""Episodes: what goes in comes out, chunks fit together again, misuse is explained."""

from __future__ import annotations

import copy
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


def make_episode(length: int, *, nested: bool = False, end: str | None = None, id: str = "e", t: int = 0) -> Episode:
    """Observation ``t`` is ``[t, 10·t]``, action ``t % 3``, reward ``t + 1``, logp ``-t``."""

    def obs(step: int) -> Any:
        vector = np.array([step, 10 * step], np.float32)
        return {"b": vector, "a": (np.uint8(step % 256), vector[:1])} if nested else vector

    episode = Episode(id=id, t_started=t)
    episode.add_reset(obs(t))
    for step in range(t, t + length):
        last = step == t + length - 1
        flags = {"terminated": last and end == "terminated", "truncated": last and end == "truncated"}
        episode.add_step(step % 3, obs(step + 1), step + 1.0, **flags, action_logp=np.float32(-step))
    return episode


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
    episode.get_rewards()[0] = 7.0
    assert episode.total_reward == 10.0


def test_the_total_reward_is_the_sum_of_the_rewards() -> None:
    assert three_steps().total_reward == 4.0
    assert three_steps()[1:1].total_reward == 0


def test_chunks_know_where_they_start_and_whether_they_end() -> None:
    episode = make_episode(5, end="truncated", t=10)
    middle, tail, none = episode[1:3], episode[-2:], episode[5:]
    assert (middle.t_started, middle.t, middle.id, middle.is_finished) == (11, 13, "e", False)
    assert (tail.t_started, tail.truncated, tail.terminated) == (13, True, False)
    assert (len(none), none.is_finished, none.t_started) == (0, False, 15)
    np.testing.assert_array_equal(middle.get_observations()[:, 0], [11, 12, 13])
    assert np.shares_memory(middle.get_observations(), episode.get_observations())
    assert "steps 13..15" in repr(tail)
    assert "truncated" in repr(tail)


def test_adding_to_a_chunk_leaves_the_rest_alone() -> None:
    episode = make_episode(5)
    before = copy.deepcopy(episode)
    chunk = episode[:2]
    chunk.add_step(7, np.full(2, 99, np.float32), 0.0, True, action_logp=0.0)
    assert episode == before
    assert chunk.get_observations()[-1, 0] == 99
    assert chunk.terminated


def test_dtypes_grow_with_the_values() -> None:
    episode = Episode()
    episode.add_reset(np.zeros(1, np.uint8))
    episode.add_step(1, np.ones(1, np.uint8), 1)
    episode.add_step(0.5, torch.tensor([2], dtype=torch.uint8), float(torch.tensor(2.5)))
    np.testing.assert_array_equal(episode.get_actions(), [1.0, 0.5])
    assert episode.get_observations().dtype == np.uint8
    assert episode.total_reward == 3.5


def test_tensors_with_a_gradient_are_converted() -> None:
    values = torch.tensor([[1.0], [2.0], [4.0]], requires_grad=True)
    episode = Episode(values, values[1:], values[1:, 0])
    assert episode.get_observations().tolist() == [[1.0], [2.0], [4.0]]
    assert episode.get_actions().tolist() == [[2.0], [4.0]]
    assert episode.get_rewards().tolist() == [2.0, 4.0]
    assert episode.total_reward == 6.0


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
def test_slices_concatenate_to_the_whole(length: int, at: list[int], nested: bool, end: str | None) -> None:
    whole = make_episode(length, nested=nested, end=end, t=3)
    borders = [0, *sorted(x % length for x in at), length]
    chunks = [whole[a:b] for a, b in pairwise(borders)]
    assert [chunk.t_started for chunk in chunks] == [3 + a for a in borders[:-1]]
    assert chunks[0].concat(*chunks[1:]) == whole


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 12), st.integers(1, 12), st.integers(0, 12), st.booleans())
def test_cut_then_concat_is_the_whole(first: int, second: int, lookback: int, nested: bool) -> None:
    whole = make_episode(first + second, nested=nested, end="terminated")
    chunk = make_episode(first, nested=nested)
    rest = chunk.cut(min(lookback, first))
    assert rest.t == chunk.t
    for t in range(first, first + second):
        rest.add_step(
            whole.get_actions(t),
            whole.get_observations(t + 1),
            whole.get_rewards(t),
            t == first + second - 1,
            action_logp=whole.get_columns("action_logp", t),
        )
    assert chunk.concat(rest) == whole


@given(st.booleans(), st.integers(0, 5))
@settings(deadline=None, max_examples=12)
def test_pickle_round_trip(nested: bool, length: int) -> None:
    episode = make_episode(length, nested=nested)
    assert pickle.loads(pickle.dumps(episode)) == episode
    assert pickle.loads(pickle.dumps(Episode())).is_reset is False


def test_equality_looks_at_everything() -> None:
    assert make_episode(3) == make_episode(3)
    assert make_episode(3) != make_episode(3, end="truncated")
    assert make_episode(3) != make_episode(3, id="f")
    assert make_episode(3) != make_episode(3, nested=True)
    assert make_episode(3) != make_episode(4)
    assert make_episode(3) != "e"
    nan = Episode([np.nan, 1.0], [0], [0.0], id="n")
    assert nan == Episode([np.nan, 1.0], [0], [0.0], id="n")


def test_adding_steps_seldom_copies() -> None:
    buffer_copies = 0
    episode = Episode()
    episode.add_reset(np.zeros(3))
    held = episode.get_observations().base
    for _ in range(1000):
        episode.add_step(0, np.zeros(3), 0.0)
        buffer_copies += episode.get_observations().base is not held
        held = episode.get_observations().base
    assert buffer_copies <= 10


def finished() -> Episode:
    return make_episode(2, end="terminated")


def step(episode: Episode, **changes: Any) -> None:
    values: dict[str, Any] = {"action": 0, "obs": np.zeros(2), "reward": 0.0, "action_logp": 0.0}
    episode.add_step(**{name: value for name, value in (values | changes).items() if value is not None})


MISUSES: dict[str, tuple[type[Exception], Callable[[], object], str]] = {
    "step before reset": (RuntimeError, lambda: step(Episode()), "Call add_reset"),
    "step after the end": (RuntimeError, lambda: step(finished()), "Begin another"),
    "second reset": (RuntimeError, lambda: finished().add_reset(0), "Begin another"),
    "cut of a finished one": (RuntimeError, lambda: finished().cut(), "Begin another"),
    "cut before reset": (RuntimeError, lambda: Episode().cut(), "Call add_reset"),
    "slice before reset": (RuntimeError, lambda: Episode()[:], "Call add_reset"),
    "long lookback": (ValueError, lambda: make_episode(2).cut(3), "expected 0 to 2, got 3. Repeat fewer"),
    "another shape": (ValueError, lambda: step(make_episode(1), obs=np.zeros(3)), r"expected shape \(2,\), got \(3,\)"),
    "another structure": (ValueError, lambda: step(make_episode(1), action={"x": 1}), "the same shape"),
    "column left out": (ValueError, lambda: step(make_episode(1), action_logp=None), r"\['action_logp'\], got \[\]"),
    "column too many": (ValueError, lambda: step(make_episode(1), more=1), "every step"),
    "reserved column": (ValueError, lambda: step(make_episode(1), valid=True), "Choose another name"),
    "lengths": (
        ValueError,
        lambda: Episode([0, 1], [0, 1], [0.0, 0.0]),
        "obs: expected 3 entries for 2 rewards, got 2",
    ),
    "no observations": (ValueError, lambda: Episode(None, [0], [0.0]), "obs: expected 2 entries for 1 rewards, got 0"),
    "no actions": (
        ValueError,
        lambda: Episode([0, 1], None, [0.0]),
        "actions: expected 1 entries for 1 rewards, got 0",
    ),
    "scalars": (ValueError, lambda: Episode((0, 1), [0], [0.0]), "expected 2 entries for 1 rewards, got no"),
    "ragged list": (
        ValueError,
        lambda: Episode([[0], [1, 2]], [0], [0.0]),
        r"obs\[1\]: expected shape \(1,\), got \(2,\)",
    ),
    "rewards": (ValueError, lambda: Episode([0, 1], [0], [[0.0]]), "Give one number per step"),  # pyright: ignore
    "end of nothing": (ValueError, lambda: Episode([0], terminated=True), "Leave out the flag"),
    "unknown column": (KeyError, lambda: make_episode(1).get_columns("action_lopg"), "Did you mean 'action_logp'"),
    "no actions yet": (KeyError, lambda: Episode().get_actions(), "comes with"),
    "index": (IndexError, lambda: make_episode(2).get_actions(2), "ints from -2 to 1, a slice or None, got 2"),
    "index in a list": (IndexError, lambda: make_episode(2).get_observations([0, -4]), "ints from -3 to 2"),
    "mask": (IndexError, lambda: make_episode(2).get_rewards([True, False]), "flatnonzero"),
    "single step": (TypeError, lambda: make_episode(2)[0], "get_actions"),  # pyright: ignore
    "stride": (TypeError, lambda: make_episode(4)[::2], "get_actions"),
    "other id": (ValueError, lambda: make_episode(2).concat(make_episode(2, t=2, id="f")), "chunks of one episode"),
    "gap": (ValueError, lambda: make_episode(2).concat(make_episode(2, t=3)), "from step 2 on"),
    "seam": (
        ValueError,
        lambda: make_episode(2).concat(Episode([0, 1], [0], [0.0], id="e", t_started=2)),
        "step 2 in both",
    ),
    "after the end": (ValueError, lambda: finished().concat(make_episode(2, t=2)), "unfinished"),
    "other end": (ValueError, lambda: make_episode(2).concat(finished()), "unfinished"),
    "other columns": (
        ValueError,
        lambda: make_episode(2).concat(
            make_episode(2).cut(), Episode([[2.0, 20], [0, 0]], [0], [0.0], id="e", t_started=2)
        ),
        "Record the same",
    ),
}


@pytest.mark.parametrize("case", MISUSES)
def test_misuse_is_explained(case: str) -> None:
    error, call, words = MISUSES[case]
    with pytest.raises(error, match=r"Episode: .*: expected .+, got .+\. \S+") as caught:
        call()
    assert caught.match(words)


def test_a_refused_step_changes_nothing() -> None:
    episode = make_episode(3)
    for bad in ({"obs": np.zeros(3)}, {"action": np.zeros(4)}, {"action_logp": np.zeros(2)}):
        with pytest.raises(ValueError, match="the same shape"):
            step(episode, **bad)
    assert episode == make_episode(3)
