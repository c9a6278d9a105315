"""Divide data among learners that train together, and find each learner's share of a minibatch.

Several learners use the minibatches that a single learner with all the data would use, that is, the same permutation of
rows, cut at the same places. Each learner computes on the rows of a minibatch that are in its own shard.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmodule.collective import Collective
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout, entry_of, map_leaves
from rlmodule.data.sequences import num_rows, without


def shard(data: Rollout | Sequence[Episode] | Mapping[str, Any], num_shards: int) -> list[Any]:
    """Split a rollout, a sequence of episodes, or a dict of either by module id into ``num_shards`` shards, one per
    learner. The shards of a dict are dicts with the same keys."""
    if isinstance(data, Mapping):
        parts = {module_id: shard(one, num_shards) for module_id, one in data.items()}
        return [{module_id: part[i] for module_id, part in parts.items()} for i in range(num_shards)]
    return shard_rollout(data, num_shards) if isinstance(data, Rollout) else shard_episodes(data, num_shards)


def shard_rollout(rollout: Rollout, num_shards: int) -> list[Rollout | None]:
    """Split the rollout by slots into ``num_shards`` views of neighbouring slots. Their numbers of slots differ by at
    most one, and a shard without slots is None. The views have no ``stats``, because ``stats`` describe the whole
    rollout."""
    return [_take_slots(rollout, a, b) if a < b else None for a, b in spans(rollout.shape[1], num_shards)]


def shard_episodes(episodes: Sequence[Episode], num_shards: int) -> list[list[Episode]]:
    """Split the episodes, in order, into ``num_shards`` shards whose numbers of steps differ by at most one.

    An episode that would be in several shards is cut into chunks, which are views. Learners bootstrap from the last
    observation of a chunk that is cut off. See :meth:`Rollout.from_episodes` for the recurrent state at the start of
    later chunks. Episodes without a step are left out.

    Raises:
        ValueError: If ``num_shards`` is not positive.
    """
    if num_shards < 1:
        raise ValueError(f"shard_episodes(): expected num_shards >= 1, got {num_shards}. Pass one for each learner.")
    ends = list(itertools.accumulate(map(len, episodes)))
    shards: list[list[Episode]] = []
    for begin, end in spans(ends[-1] if ends else 0, num_shards):
        shard = []
        for episode, stop in zip(episodes, ends, strict=True):
            start = stop - len(episode)
            a, b = max(begin, start), min(end, stop)
            if a < b:
                shard.append(episode if b - a == len(episode) else episode[a - start : b - start])
        shards.append(shard)
    return shards


def shard_batch(batch: Batch, num_shards: int) -> list[Batch | None]:
    """Split a train batch of rows ``[B, ...]``, or of sequences ``[L, B, ...]``, into ``num_shards`` shards. Their
    numbers of rows or sequences differ by at most one, and an empty shard is None. :func:`join_rows` joins results that
    have one entry per row."""
    take = _cut if Columns.STATE_IN not in batch else _take_sequences
    return [take(batch, a, b) if a < b else None for a, b in spans(num_in_batch(batch), num_shards)]


def num_in_batch(batch: Batch) -> int:
    """Return the number of rows of a batch of rows, or of sequences of a batch of sequences."""
    return num_rows(batch) if Columns.STATE_IN not in batch else batch[Columns.STARTS].shape[1]


def join_rows(batch: Batch, parts: Sequence[Tensor]) -> Tensor:
    """Put results per row, which were computed shard by shard, into the order of the rows of ``batch``.

    Args:
        batch: The batch that :func:`shard_batch` has split.
        parts: The results of each shard that is not None, in order, with one entry per valid row.

    Returns:
        The results ``[R, ...]`` in the order of the ``R`` valid rows of ``batch``.
    """
    joined = torch.cat(list(parts))
    if Columns.STATE_IN not in batch:
        return joined
    ends = torch.tensor([end for _, end in spans(batch[Columns.STARTS].shape[1], len(parts))])
    # `joined` has the shards in turn, each with its rows in the order of the batch
    shard_of_row = torch.searchsorted(ends, _owners(batch), right=True)
    order = shard_of_row.argsort(stable=True)
    return torch.empty_like(joined).index_copy_(0, order.to(joined.device), joined)


def nothing_like(rollout: Rollout) -> Rollout:
    """Return a rollout of one invalid row with the columns and shapes of ``rollout``, for a learner that has no
    data."""
    index = (slice(0, 1), slice(0, 1))
    columns = map_leaves(lambda x: x[index].clone(), rollout.columns)
    for flags in (Columns.VALID, Columns.TERMINATEDS, Columns.TRUNCATEDS):
        columns[flags].zero_()
    return Rollout(
        columns=columns,
        last_obs=entry_of(rollout.last_obs, slice(1)),
        final_index=rollout.final_index[:0],
        final_obs=entry_of(rollout.final_obs, slice(0)),
        state_in=entry_of(rollout.state_in, index),
    )


class Share:
    """Selects this learner's rows (or sequences) from minibatches over the rows (or sequences) of all learners. All
    learners must construct it at the same time, since it gathers ``keys`` from all of them.

    Args:
        keys: Sort keys of this learner's rows, ``[B]`` int64. They define the order of the rows of all learners. Rows
            with equal keys are ordered by rank.
        length: Length of this learner's sequences; 1 if the batch consists of rows.
        collective: The learners that train together.

    Attributes:
        total: Total number of rows (or sequences) of all learners.
        length: Length of the longest sequence of any learner.
    """

    def __init__(self, keys: Tensor, length: int, collective: Collective) -> None:
        parts = collective.all_gather(torch.cat([torch.tensor([length]), keys.cpu()]))
        self.length = max(int(part[0]) for part in parts)
        everywhere = torch.cat([part[1:] for part in parts])
        self.total = len(everywhere)
        # rows in the order of the keys, as their indices in this learner's batch: those of earlier ranks are negative
        begin = sum(len(part) - 1 for part in parts[: collective.rank])
        here = everywhere.argsort(stable=True) - begin
        self._here = here.where(here < len(keys), -1)

    def of(self, order: Tensor, bounds: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Restrict minibatches over the rows (or sequences) of all learners to those of this learner.

        Args:
            order: Permutation of the rows of all learners, ``[total]``.
            bounds: Index in ``order`` at which each minibatch begins, followed by ``total``.

        Returns:
            The indices of this learner's rows in its batch, in the same order, and the bounds that cut them into the
            same minibatches. A minibatch without rows of this learner is empty.
        """
        here = self._here[order]
        is_mine = here >= 0
        num_mine_before = torch.cat([torch.zeros(1, dtype=torch.int64), is_mine.cumsum(0)])
        return here[is_mine], num_mine_before[list(bounds)].tolist()


def spans(count: int, num: int) -> list[tuple[int, int]]:
    """Split ``range(count)`` into ``num`` consecutive spans ``(begin, end)``, one per learner. Their lengths differ by
    at most one, and longer spans come first."""
    each, more = divmod(count, num)
    begins = [i * each + min(i, more) for i in range(num + 1)]
    return list(itertools.pairwise(begins))


def _take_slots(rollout: Rollout, begin: int, end: int) -> Rollout:
    slots = slice(begin, end)
    inside = (rollout.final_index[:, 1] >= begin) & (rollout.final_index[:, 1] < end)
    return dataclasses.replace(
        rollout,
        columns=map_leaves(lambda x: x[:, slots], rollout.columns),
        last_obs=entry_of(rollout.last_obs, slots),
        final_index=rollout.final_index[inside] - torch.tensor([0, begin], device=rollout.final_index.device),
        final_obs=entry_of(rollout.final_obs, inside),
        state_in=map_leaves(lambda x: x[:, slots], rollout.state_in),
        first_env_index=rollout.first_env_index + begin,
        stats={},
    )


def _take_sequences(batch: Batch, begin: int, end: int) -> Batch:
    states = {Columns.STATE_IN: batch[Columns.STATE_IN]}
    indices = Columns.VALID_ROWS, Columns.NEXT_ROWS
    cut = _cut(without(batch, *states, *indices), begin, end, dim=1) | _cut(states, begin, end)
    num_sequences, owners = batch[Columns.STARTS].shape[1], _owners(batch)
    is_inside = (owners >= begin) & (owners < end)
    for name in indices:
        if name in batch:
            # row t of sequence b has the index t·B + b; here b counts from `begin`, and B is the size of the shard
            time = batch[name][is_inside] // num_sequences
            sequence = batch[name][is_inside] % num_sequences - begin
            cut[name] = time * (end - begin) + sequence
    return cut


def _owners(batch: Batch) -> Tensor:
    """Return for each valid row the index in ``[0, B)`` of the sequence that it belongs to, int64 ``[R]``."""
    valid_rows, starts = batch.get(Columns.VALID_ROWS), batch[Columns.STARTS]
    places = torch.arange(starts.numel(), device=starts.device) if valid_rows is None else valid_rows
    return places % starts.shape[1]


def _cut(columns: Batch, begin: int, end: int, dim: int = 0) -> Batch:
    return map_leaves(lambda x: x.narrow(dim, begin, end - begin), columns)
