"""Rollouts: values find their rows, invalid rows stay out, episodes can be packed and unpacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tree
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmodule.data.columns import Columns
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout

ENDS = ("terminated", "truncated", "both", None)


def random_rollout(seed: int, steps: int, slots: int, mode: str = "same_step") -> Rollout:
    """Every observation is a number of its own: ``obs`` counts up, final ones are negative.

    ``mode`` is ``"same_step"``, or ``"next_step"`` with an invalid row after every end that has the final observation.
    """
    rng = np.random.default_rng(seed)
    obs = np.arange((steps + 1) * slots, dtype=np.float32).reshape(steps + 1, slots) + 1
    flags = rng.random((2, steps, slots)) < 0.25
    valid = np.ones((steps, slots), bool)
    if mode == "next_step":
        for t in range(1, steps):
            valid[t] = ~(valid[t - 1] & flags[:, t - 1].any(0))
            flags[:, t] &= valid[t]
    final_index = np.argwhere(flags[1] & ~flags[0])
    finals = -np.arange(1, len(final_index) + 1, dtype=np.float32)
    if mode == "next_step":
        finals = obs[final_index[:, 0] + 1, final_index[:, 1]]
    columns: dict[str, Any] = {
        Columns.OBS: obs[:-1],
        Columns.ACTIONS: rng.integers(0, 3, (steps, slots)),
        Columns.REWARDS: rng.random((steps, slots), dtype=np.float32) * valid,
        Columns.TERMINATEDS: flags[0],
        Columns.TRUNCATEDS: flags[1],
        Columns.VALID: valid,
        Columns.ACTION_DIST_INPUTS: rng.random((steps, slots, 3), dtype=np.float32),
    }
    columns = {name: torch.from_numpy(column) for name, column in columns.items()}
    columns[Columns.OBS] = {"x": columns[Columns.OBS]}
    return Rollout(
        columns=columns,
        last_obs={"x": torch.from_numpy(obs[-1])},
        final_index=torch.from_numpy(final_index),
        final_obs={"x": torch.from_numpy(finals)},
    )


def episode_of(first: int, length: int, end: str | None) -> Episode:
    return Episode(
        {
            "x": np.arange(first, first + length + 1, dtype=np.float64),
            "y": (np.full((length + 1, 2), first, np.uint8),),
        },
        np.arange(length, dtype=np.int32),
        np.arange(length) * 0.5,
        columns={Columns.ACTION_LOGP: -np.arange(length, dtype=np.float64)},
        terminated=end in ("terminated", "both"),
        truncated=end in ("truncated", "both"),
    )


def content(episode: Episode, *, without_last: bool = False) -> tuple[Any, ...]:
    """What two episodes of different ids have in common."""
    obs = episode.get_observations(slice(None, len(episode) if without_last else None))
    rest = [episode.get_actions(), episode.get_rewards(), *map(episode.get_columns, episode.column_names)]
    arrays = [x.astype(np.float64).tolist() for x in tree.flatten([obs, *rest])]
    return arrays, episode.terminated, episode.truncated, episode.column_names


rollouts = st.builds(
    random_rollout,
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from(["same_step", "next_step"]),
)


@given(rollouts)
@settings(deadline=None, max_examples=40)
def test_split_values_equals_a_slow_oracle(rollout: Rollout) -> None:
    """The value of an observation is its number plus a half, so that rows can be distinguished."""
    own, following = rollout.split_values(rollout.rows_to_value()["x"] + 0.5)
    steps, slots = rollout.shape
    finals = {(t, n): k for k, (t, n) in enumerate(rollout.final_index.tolist())}
    for t in range(steps):
        for n in range(slots):
            assert own[t, n] == rollout["obs"]["x"][t, n] + 0.5
            if (t, n) in finals:
                expected = rollout.final_obs["x"][finals[t, n]]
            elif t + 1 < steps:
                expected = rollout["obs"]["x"][t + 1, n]
            else:
                expected = rollout.last_obs["x"][n]
            assert following[t, n] == expected + 0.5


@given(rollouts)
@settings(deadline=None, max_examples=40)
def test_following_observations_equal_a_slow_oracle(rollout: Rollout) -> None:
    following, obs = rollout.following_observations()["x"], rollout["obs"]["x"]
    steps = len(rollout.valid)
    finals = {(t, n): k for k, (t, n) in enumerate(rollout.final_index.tolist())}
    for t, n in zip(*(places.tolist() for places in rollout.valid.nonzero(as_tuple=True)), strict=True):
        if (t, n) in finals:
            expected = rollout.final_obs["x"][finals[t, n]]
        elif t + 1 < steps and not rollout.valid[t + 1, n]:
            expected = obs[t + 1, n]  # the final observation in line
        elif rollout["terminateds"][t, n]:
            expected = obs[t, n]  # what followed is not known
        else:
            expected = obs[t + 1, n] if t + 1 < steps else rollout.last_obs["x"][n]
        assert following[t, n] == expected


@given(rollouts)
@settings(deadline=None, max_examples=40)
def test_valid_rows_keeps_exactly_the_valid(rollout: Rollout) -> None:
    batch = rollout.valid_rows([Columns.OBS, Columns.ACTION_DIST_INPUTS])
    places = [(t, n) for t in range(rollout.shape[0]) for n in range(rollout.shape[1]) if rollout.valid[t, n]]
    assert rollout.num_env_steps == len(places)
    assert batch["obs"]["x"].tolist() == [rollout["obs"]["x"][place].item() for place in places]
    assert batch["action_dist_inputs"].shape == (len(places), 3)


@given(rollouts)
@settings(deadline=None, max_examples=30)
def test_to_episodes_covers_every_valid_row_once(rollout: Rollout) -> None:
    episodes = rollout.to_episodes()
    assert sum(map(len, episodes)) == rollout.num_env_steps
    own, following = rollout.split_values(rollout.rows_to_value()["x"])
    after = {int(x): y for x, y in zip(own.flatten().tolist(), following.flatten().tolist(), strict=True)}
    seen = []
    for episode in episodes:
        obs = episode.get_observations()["x"]
        seen += obs[:-1].tolist()
        for t in range(len(episode) - 1 if episode.terminated else len(episode)):
            assert obs[t + 1] == after[int(obs[t])]
    assert sorted(seen) == sorted(rollout["obs"]["x"][rollout.valid].tolist())
    flags = {name: sum(getattr(e, name) for e in episodes) for name in ("terminated", "truncated")}
    valid = rollout.valid
    assert flags["terminated"] == int((rollout[Columns.TERMINATEDS] & valid).sum())
    assert flags["truncated"] == int((rollout[Columns.TRUNCATEDS] & valid).sum())


@given(rollouts)
@settings(deadline=None, max_examples=40)
def test_values_and_content_survive_repacking(rollout: Rollout) -> None:
    """A learner sees the same transitions with the same successors in both."""
    episodes = rollout.to_episodes()
    packed = Rollout.from_episodes(episodes)

    def transitions(data: Rollout) -> set[tuple[float, ...]]:
        own, following = data.split_values(data.rows_to_value()["x"])
        terminated = data[Columns.TERMINATEDS]
        parts = (own, following.masked_fill(terminated, 0), data[Columns.REWARDS], terminated, data[Columns.TRUNCATEDS])
        return set(zip(*(part[data.valid].tolist() for part in parts), strict=True))

    assert transitions(packed) == transitions(rollout)
    # the observation after a terminated last row is lost
    assert [content(e, without_last=e.terminated) for e in packed.to_episodes()] == [
        content(e, without_last=e.terminated) for e in episodes
    ]


def test_packing_hand_made_episodes() -> None:
    rollout = Rollout.from_episodes(
        [episode_of(10, 2, "truncated"), episode_of(20, 3, None), episode_of(30, 1, "both")]
    )
    assert rollout.shape == (3, 3)
    assert rollout["obs"]["x"].dtype == torch.float32
    assert rollout["obs"]["x"].T.tolist() == [[10, 11, 12], [20, 21, 22], [30, 31, 31]]
    assert rollout["obs"]["y"][0].dtype == torch.uint8
    assert rollout.last_obs["x"].tolist() == [12, 23, 31]
    assert rollout.valid.T.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert rollout["truncateds"].T.tolist() == [[False, True, False], [False] * 3, [True, False, False]]
    assert rollout["terminateds"].T.tolist() == [[False] * 3, [False] * 3, [True, False, False]]
    assert rollout["actions"].dtype == torch.int64
    assert rollout["actions"].T.tolist() == [[0, 1, 0], [0, 1, 2], [0, 0, 0]]
    assert rollout["rewards"].T.tolist() == [[0, 0.5, 0], [0, 0.5, 1.0], [0, 0, 0]]
    assert rollout["action_logp"].dtype == torch.float32
    assert rollout.final_index.tolist() == [[1, 0]]
    assert rollout.final_obs["x"].tolist() == [12]
    assert rollout.final_obs["y"][0].shape == (1, 2)
    assert rollout.num_env_steps == 6
    assert (rollout.policy_version, rollout.stats) == (0, {})
    _, following = rollout.split_values(rollout.rows_to_value()["x"])
    assert following.T[:2].tolist() == [[11, 12, 12], [21, 22, 23]]


def test_packing_without_an_end_or_further_columns() -> None:
    episode = Episode([0.0, 1.0], [0.5], [1.0])
    rollout = Rollout.from_episodes([episode])
    assert Columns.ACTION_LOGP not in rollout
    assert rollout["actions"].dtype == torch.float32
    assert rollout.final_index.shape == (0, 2)
    assert rollout.rows_to_value().tolist() == [0.0, 1.0]


@given(st.lists(st.tuples(st.integers(1, 7), st.sampled_from(ENDS)), min_size=1, max_size=5))
@settings(deadline=None, max_examples=30)
def test_packing_and_unpacking_is_the_identity(shapes: list[tuple[int, str | None]]) -> None:
    episodes = [episode_of(10 * i, length, end) for i, (length, end) in enumerate(shapes)]
    longest = max(length for length, _ in shapes)
    unpacked = Rollout.from_episodes(episodes).to_episodes()
    assert len(unpacked) == len(episodes)
    for before, after in zip(episodes, unpacked, strict=True):
        lost = before.terminated and len(before) == longest
        assert content(after, without_last=lost) == content(before, without_last=lost)
        if lost:
            assert after.get_observations(-1)["x"] == before.get_observations(-2)["x"]


def test_unpacking_same_step_data() -> None:
    """Slot 0: an episode ends after row 0, terminated; the next one after row 2, truncated; a third stays open."""
    rollout = random_rollout(0, 4, 1)
    for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS):
        rollout[name].zero_()
    rollout[Columns.TERMINATEDS][0] = True
    rollout[Columns.TRUNCATEDS][2] = True
    rollout.final_index, rollout.final_obs = torch.tensor([[2, 0]]), {"x": torch.tensor([-1.0])}
    episodes = rollout.to_episodes()
    assert [e.get_observations()["x"].tolist() for e in episodes] == [[1, 1], [2, 3, -1], [4, 5]]
    assert [(e.terminated, e.truncated) for e in episodes] == [(True, False), (False, True), (False, False)]
    assert np.shares_memory(episodes[1].get_rewards(), rollout[Columns.REWARDS].numpy())
    assert rollout["obs"]["x"].flatten().tolist() == [1, 2, 3, 4]
    assert len({e.id for e in episodes}) == 3


def test_misuse_is_explained() -> None:
    good, whole = episode_of(0, 2, None), r".*: expected .+, got .+\. \S+"
    bare = Episode(good.get_observations(), good.get_actions(), good.get_rewards())
    cases = {
        r"expected one or more episodes with steps .*, got \[\]": [],
        "steps 0..0": [good, good[:0]],
        "columns .*'action_logp'": [good, bare],
        "the same columns, got .*'action_logp'": [bare, good],
    }
    for text, episodes in cases.items():
        with pytest.raises(ValueError, match=r"Rollout\.from_episodes\(\)" + whole) as caught:
            Rollout.from_episodes(episodes)
        assert caught.match(text)
    rollout = Rollout.from_episodes([episode_of(0, 2, "truncated")])
    rollout.final_index, rollout.final_obs = (
        rollout.final_index[:0],
        tree.map_structure(lambda x: x[:0], rollout.final_obs),
    )
    with pytest.raises(ValueError, match=r"final_index" + whole):
        rollout.to_episodes()


def test_concat_shifts_the_slots_of_final_observations() -> None:
    parts = [random_rollout(seed, 5, slots) for seed, slots in ((1, 2), (2, 3))]
    joined = Rollout.concat(parts)
    assert joined.shape == (5, 5)
    expected = [part.split_values(part.rows_to_value()["x"]) for part in parts]
    for got, one, two in zip(joined.split_values(joined.rows_to_value()["x"]), *expected, strict=True):
        torch.testing.assert_close(got, torch.cat([one, two], 1))


def test_concat_keeps_the_stats_of_a_single_rollout_only() -> None:
    rollout = random_rollout(1, 5, 2)
    rollout.stats["episode_returns"] = np.ones(3)
    assert Rollout.concat([rollout]) is rollout
    assert Rollout.concat([rollout, rollout]).stats == {}
