"""Join batches that were drawn from several replay buffers."""

from collections.abc import Sequence

import torch
import tree
from torch import Tensor

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import map_leaves


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Return one batch of the rows or sequences of several ``batches``, which are results of
    :meth:`ReplayBuffer.sample`, in their order."""
    if len(batches) == 1:
        return batches[0]
    if Columns.NEXT_ROWS not in batches[0]:
        first, *others = batches
        return {
            name: map_leaves(lambda *parts: torch.cat(parts), column, *(other[name] for other in others))
            for name, column in first.items()
        }
    return _join_sequences(batches)


def _join_sequences(batches: Sequence[Batch]) -> Batch:
    """Join batches of sequences ``[L', B, ...]`` along ``B``. Shorter ones repeat their last row, which is never
    valid."""
    shapes = [batch[Columns.STARTS].shape for batch in batches]
    length, total = max(rows for rows, _ in shapes), sum(sequences for _, sequences in shapes)

    def side_by_side(*parts: Tensor) -> Tensor:
        return torch.cat(
            [torch.cat([part, part[-1:].expand(length - len(part), *part.shape[1:])]) for part in parts], 1
        )

    def renumbered(*indices: Tensor) -> Tensor:
        # an index `t · B + b` counts the sequences of one batch, and now those of all
        parts, before = [], 0
        for index, (_, sequences) in zip(indices, shapes, strict=True):
            parts.append(index // sequences * total + before + index % sequences)
            before += sequences
        return torch.cat(parts)

    joins = {
        Columns.STATE_IN: lambda *states: torch.cat(states),
        Columns.BURN_IN: lambda *rows: torch.cat(rows, 1),
        Columns.VALID_ROWS: renumbered,
        Columns.NEXT_ROWS: renumbered,
    }
    return {
        name: tree.map_structure(joins.get(name, side_by_side), *(batch[name] for batch in batches))
        for name in batches[0]
    }
