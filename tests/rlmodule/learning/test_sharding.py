"""Sharding: nothing is lost, parts are equal in size, cuts bootstrap, and pieces are those of one learner."""

import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import strategies
from torch import Tensor

from rlmodule import Columns, Episode, Rollout
from rlmodule.collective import Collective
from rlmodule.data.rollout import map_leaves, row_minibatches
from rlmodule.data.sequences import sequence_minibatches
from rlmodule.learning.sharding import Share, join_rows, nothing_like, shard_batch, shard_episodes, shard_rollout
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import differences, random_rollout
from tests.rlmodule.toys import NoNets, Recurrent, Small

OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


class OfThese(Collective):
    """A learner whose peers' rows are known beforehand."""

    def __init__(self, rank: int, rows: list[Tensor]) -> None:
        self.rank, self.size, self._rows = rank, len(rows), rows

    def all_reduce(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        assert torch.equal(rows, self._rows[self.rank])
        return self._rows

    def close(self) -> None:
        raise NotImplementedError


# --- rollouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module_class", [Small, Recurrent])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 5, 7])
def test_shards_of_a_rollout_are_its_slots(module_class: Any, num_shards: int) -> None:
    catalog_class = NoNets if module_class is Recurrent else None
    module = RLModuleSpec(module_class, OBS, ACTIONS, {"max_seq_len": 4}, catalog_class).build()
    rollout = random_rollout(module, 9, 5, seed=3)
    rollout.first_env_index, rollout.policy_version = 10, 7
    shards = shard_rollout(rollout, num_shards)
    assert len(shards) == num_shards
    present = [shard for shard in shards if shard is not None]
    widths = [shard.shape[1] for shard in present]
    assert sum(widths) == 5
    assert max(widths) - min(widths) <= 1
    assert shards == [*present, *[None] * (num_shards - len(present))]
    assert [shard.first_env_index for shard in present] == [10 + sum(widths[:i]) for i in range(len(widths))]
    joined = Rollout.concat(present)
    order = [sorted(map(tuple, each.final_index.tolist())) for each in (joined, rollout)]
    assert order[0] == order[1]
    for name in rollout.columns:
        assert differences(joined[name], rollout[name]) == []
    assert differences(joined.following_observations(), rollout.following_observations()) == []
    assert differences(joined.state_in, rollout.state_in) == []
    assert differences(joined.last_obs, rollout.last_obs) == []
    assert joined.policy_version == 7


def test_nothing_like_a_rollout_is_one_invalid_row_with_all_columns() -> None:
    rollout = random_rollout(RLModuleSpec(Small, OBS, ACTIONS).build(), 9, 5, seed=3)
    rollout.columns["more"] = torch.ones(9, 5, 2)
    before = rollout.valid.clone()
    nothing = nothing_like(rollout)
    assert nothing.shape == (1, 1)
    assert nothing.num_env_steps == 0
    assert nothing.columns.keys() == rollout.columns.keys()
    assert nothing.valid_rows(["more"])["more"].shape == (0, 2)
    assert torch.equal(rollout.valid, before)


# --- episodes ---------------------------------------------------------------------------------------------------------


def episode(length: int, number: int, ends: str) -> Episode:
    steps = np.arange(length + 1, dtype=np.float32) + 100 * number
    return Episode(
        steps[:, None],
        np.zeros(length, np.int64),
        steps[1:],
        terminated=ends == "terminated",
        truncated=ends == "truncated",
    )


ENDS = ("", "terminated", "truncated")


@hypothesis.given(
    lengths=strategies.lists(
        strategies.tuples(strategies.integers(1, 12), strategies.sampled_from(ENDS)),
        max_size=8,
    ),
    num_shards=strategies.integers(1, 6),
)
def test_shards_of_episodes_are_all_of_their_steps(lengths: list[tuple[int, str]], num_shards: int) -> None:
    episodes = [episode(length, i, ends) for i, (length, ends) in enumerate(lengths)]
    shards = shard_episodes(episodes, num_shards)
    assert len(shards) == num_shards
    sizes = [sum(map(len, shard)) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    chunks = list(itertools.chain(*shards))
    assert len(chunks) <= len(episodes) + num_shards - 1
    rebuilt = []
    for whole in episodes:
        first, *others = [chunk for chunk in chunks if chunk.id == whole.id]
        rebuilt.append(first.concat(*others))  # which refuses gaps and other observations at the seams
        for chunk in [first, *others][:-1]:
            assert not chunk.is_finished
    np.testing.assert_equal([vars(chunk) for chunk in rebuilt], [vars(whole) for whole in episodes])


def test_no_shard_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shard_episodes\(\): expected num_shards >= 1, got 0\. Pass one for each"):
        shard_episodes([episode(3, 0, "terminated")], 0)


def test_a_cut_is_bootstrapped_from_what_followed_it() -> None:
    shards = shard_episodes([episode(6, 0, "terminated"), episode(4, 1, "truncated")], 2)
    assert [[len(chunk) for chunk in shard] for shard in shards] == [[5], [1, 4]]
    first, second = (Rollout.from_episodes(shard) for shard in shards)
    values = first.rows_to_value()[:, 0]  # the value of an observation is its number
    _, following = first.split_values(values)
    assert following[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert not first[Columns.TERMINATEDS].any()
    _, following = second.split_values(second.rows_to_value()[:, 0])
    assert second[Columns.TERMINATEDS][:, 0].tolist() == [True, False, False, False]
    assert following[:, 1].tolist() == [101, 102, 103, 104]
    assert second[Columns.STARTS][0].tolist() == [False, True]  # the chunk goes on, the episode starts


# --- batches ----------------------------------------------------------------------------------------------------------


def sequences(length: int, count: int, *, full: bool = False) -> dict[str, Any]:
    """Sequences whose rows are numbered by place, with a valid row in each sequence."""
    numbers = torch.arange(length * count).view(length, count)
    valid = torch.rand(length, count, generator=torch.Generator().manual_seed(count)) < 0.6
    valid[0] = True
    batch = {
        Columns.OBS: {"a": numbers.unsqueeze(-1).float()},
        Columns.STARTS: numbers % 3 == 0,
        Columns.STATE_IN: {"h": numbers[0].float()},
        Columns.BURN_IN: {Columns.OBS: {"a": numbers[:1]}, Columns.STARTS: numbers[:1] > 0},
    }
    rows = valid.flatten().nonzero().squeeze(1)
    return batch if full else batch | {Columns.VALID_ROWS: rows, Columns.NEXT_ROWS: rows + count}


@hypothesis.given(
    length=strategies.integers(1, 5),
    count=strategies.integers(1, 7),
    num_shards=strategies.integers(1, 5),
    full=strategies.booleans(),
)
def test_shards_of_sequences_hold_their_rows_and_join_again(
    length: int, count: int, num_shards: int, full: bool
) -> None:
    batch = sequences(length, count, full=full)
    shards = [shard for shard in shard_batch(batch, num_shards) if shard is not None]
    assert len(shards) == min(num_shards, count)
    numbers = []
    for shard in shards:
        assert torch.equal(shard[Columns.STATE_IN]["h"], shard[Columns.OBS]["a"][0, :, 0])
        assert torch.equal(shard[Columns.BURN_IN][Columns.OBS]["a"][0], shard[Columns.OBS]["a"][0, :, 0].long())
        flat = shard[Columns.OBS]["a"].flatten()
        numbers.append(flat if full else flat[shard[Columns.VALID_ROWS]])
        if not full:
            width = shard[Columns.STARTS].shape[1]
            assert torch.equal(shard[Columns.NEXT_ROWS], shard[Columns.VALID_ROWS] + width)
    expected = torch.arange(length * count) if full else batch[Columns.VALID_ROWS]
    assert torch.equal(join_rows(batch, numbers), expected.float())


@pytest.mark.parametrize(("rows", "num_shards", "sizes"), [(7, 2, [4, 3]), (2, 3, [1, 1]), (6, 3, [2, 2, 2])])
def test_shards_of_rows_are_neighbours(rows: int, num_shards: int, sizes: list[int]) -> None:
    batch = {"a": torch.arange(rows), "b": (torch.arange(rows) * 2,)}
    shards = shard_batch(batch, num_shards)
    assert shards[len(sizes) :] == [None] * (num_shards - len(sizes))
    present = [shard for shard in shards if shard is not None]
    assert [len(shard["a"]) for shard in present] == sizes
    assert torch.equal(join_rows(batch, [shard["a"] for shard in present]), batch["a"])
    assert all(torch.equal(shard["b"][0], shard["a"] * 2) for shard in present)


# --- minibatches ------------------------------------------------------------------------------------------------------


@hypothesis.given(
    owners=strategies.lists(strategies.integers(0, 2), min_size=1, max_size=40),
    size=strategies.one_of(strategies.none(), strategies.integers(1, 15)),
    length=strategies.sampled_from([0, 3]),
    seed=strategies.integers(0, 9),
)
def test_minibatches_are_what_each_has_of_those_of_one(
    owners: list[int], size: int | None, length: int, seed: int
) -> None:
    total, of = len(owners), torch.tensor(owners)
    keys = torch.arange(total) * 10 + 5

    def batch_of(rows: Tensor) -> dict[str, Any]:
        if not length:
            return {"x": rows}
        many = rows.expand(length, len(rows))
        return {"x": many, Columns.STARTS: many > -1, Columns.STATE_IN: rows}

    def pieces(rows: Tensor, share: Share | None) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        cut = sequence_minibatches if length else row_minibatches
        found = list(cut(batch_of(rows), size, generator, share))
        return [[] if not each else (each["x"][0] if length else each["x"]).tolist() for each in found]

    whole = pieces(torch.arange(total), None)
    mine = [(of == rank).nonzero().squeeze(1) for rank in range(3)]
    message = [torch.cat([torch.tensor([max(1, length)]), keys[rows]]) for rows in mine]
    for rank in range(3):
        share = Share(keys[mine[rank]], max(1, length), OfThese(rank, message))
        assert share.total == total
        assert pieces(mine[rank], share) == [[row for row in piece if owners[row] == rank] for piece in whole]


def test_rows_of_one_key_stand_by_rank() -> None:
    keys = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    message = [torch.cat([torch.tensor([1]), each]) for each in keys]
    places = [Share(keys[rank], 1, OfThese(rank, message))._here.clamp_min(-1).tolist() for rank in range(2)]
    assert places == [[0, -1, 1, -1], [-1, 1, -1, 0]]


def test_leaves_of_a_shard_are_views() -> None:
    batch = {"a": torch.arange(6), "b": {"c": torch.arange(6)}}
    first, _ = shard_batch(batch, 2)
    assert first is not None
    shared = []
    map_leaves(lambda x: shared.append(x.data_ptr()), first["b"])
    assert shared == [batch["b"]["c"].data_ptr()]
