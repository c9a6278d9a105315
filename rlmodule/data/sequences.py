"""Cut rollouts into sequences for recurrent modules, shuffle sequences, and flatten them into rows.

A recurrent module is trained on sequences of ``L = max_seq_len`` rows (``T`` if a rollout has fewer). Each sequence
begins with the recurrent state that the module had there when it acted. A batch of ``B`` sequences has columns
``[L, B, ...]``, including ``starts``, which is True in the first row of each episode; the initial states ``state_in``
``[B, ...]``; and, if some rows are invalid, ``valid_rows`` ``[R]``, the indices of the ``R`` valid rows among all
``L·B``. ``forward_train`` gets the sequences. A loss gets their valid rows ``[R, ...]``, which
:func:`flatten_sequences` returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import tree
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.device import moved
from rlmodule.data.rollout import Rollout, map_columns, map_leaves

if TYPE_CHECKING:
    from rlmodule.learning.sharding import Share

_NOT_ROWS = (
    Columns.STARTS,
    Columns.STATE_IN,
    Columns.STATE_OUT,
    Columns.VALID_ROWS,
    Columns.NEXT_ROWS,
    Columns.BURN_IN,
)


def cut_into_sequences(rollout: Rollout, names: Iterable[str], max_seq_len: int) -> Batch:
    """Cut the named columns and ``starts`` into a batch of sequences, in order of time and then of slots.

    If the number of time steps is not a multiple of ``max_seq_len``, the last sequence of each slot is padded with
    invalid rows, which repeat the last observation and have zeros in all other columns. Sequences without any valid row
    are dropped.

    Args:
        rollout: The rollout, with a ``state_in``.
        names: Names of the columns to return; ``starts`` need not be among them.
        max_seq_len: Length of a sequence; the number of time steps if that is smaller.

    Returns:
        The columns ``[L, B, ...]``, ``state_in`` ``[B, ...]`` and, if any row is invalid, ``valid_rows`` ``[R]``, the
        indices of the valid rows among all ``L·B``.

    Raises:
        ValueError: If ``state_in`` of the rollout does not have one entry for every ``max_seq_len`` time steps.
    """
    steps, slots = rollout.shape
    length = min(max_seq_len, steps)
    count = -(-steps // length)
    found = None if rollout.state_in is None else len(tree.flatten(rollout.state_in)[0])
    if found != count:
        raise ValueError(
            f"Rollout.state_in: expected {count} rows of states: {steps} steps in sequences of {max_seq_len}, got "
            f"{found}. Sample and train with one max_seq_len, or set state_in to None to have it computed."
        )

    def cut(column: Tensor, *, repeats: bool = False) -> Tensor:
        if missing := count * length - steps:
            row = column[-1:] if repeats else torch.zeros_like(column[:1])
            column = torch.cat([column, row.expand(missing, *column.shape[1:])])
        # [count · L, N] → [L, count · N]: the sequences of all slots at one time stay next to each other
        return column.unflatten(0, (count, length)).transpose(0, 1).flatten(1, 2)

    batch = {
        # observations are padded with the last one, since zeros may lie outside the space
        name: map_leaves(lambda x, repeats=name == Columns.OBS: cut(x, repeats=repeats), rollout[name])
        for name in (*names, Columns.STARTS)
    }
    batch[Columns.STATE_IN] = map_leaves(lambda x: x.flatten(0, 1), rollout.state_in)
    valid = cut(rollout.valid)
    if valid.all():
        return batch
    used = valid.any(0).nonzero().squeeze(1)
    if len(used) < count * slots:
        states = map_leaves(lambda x: x.index_select(0, used), batch.pop(Columns.STATE_IN))
        batch = map_columns(lambda x: x.index_select(1, used), batch) | {Columns.STATE_IN: states}
    batch[Columns.VALID_ROWS] = valid[:, used].flatten().nonzero().squeeze(1)
    return batch


def flatten_sequences(columns: Mapping[str, Tree], valid_rows: Tensor | None) -> Batch:
    """Flatten columns ``[L, B, ...]`` of sequences into rows ``[R, ...]``. The result has the rows at the indices
    ``valid_rows``, or all ``L·B`` rows if ``valid_rows`` is None. Drop the columns that only sequences need, such as
    ``starts`` and recurrent states."""

    def flatten(column: Tensor) -> Tensor:
        rows = column.flatten(0, 1)
        return rows if valid_rows is None else rows.index_select(0, valid_rows)

    return map_columns(flatten, without(columns, *_NOT_ROWS))


def without(columns: Mapping[str, Tree], *names: str) -> Batch:
    """Return the ``columns`` except the columns with the given ``names``."""
    return {name: column for name, column in columns.items() if name not in names}


@contextmanager
def over_valid_rows(module: nn.Module, rows: Tensor, total: int) -> Iterator[None]:
    """Within the block, make the batch norms of ``module`` compute their statistics only from the valid rows of a batch
    of sequences.

    This affects batch norms in training mode whose input has ``total`` rows, the number of all rows; ``rows`` are the
    indices of the valid rows. The same statistics normalise the invalid rows. If only one row is valid, batch norms use
    their running statistics, because a single row has no variance.
    """
    whole: dict[nn.Module, Tensor] = {}  # input of each batch norm that is running, with all rows

    def select(norm: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        if not norm.training or len(args[0]) != total:
            return None
        whole[norm] = args[0]
        return (args[0].index_select(0, rows),)

    def join(norm: _BatchNorm, args: tuple[Any, ...], out: Tensor) -> Tensor:
        x = whole.pop(norm, None)
        if x is None:
            return out
        # The norm has normalised the valid rows alone. Normalise the other rows with the same statistics, so that
        # the layers after it get all rows.
        dims = [dim for dim in range(x.dim()) if dim != 1]
        var, mean = torch.var_mean(args[0].detach(), dims, correction=0)
        every_row = functional.batch_norm(x, mean, var, norm.weight, norm.bias, eps=norm.eps)
        return every_row.index_copy(0, rows, out)

    with ExitStack() as stack:
        for norm in module.modules():
            if not isinstance(norm, _BatchNorm):
                continue
            stack.callback(norm.register_forward_pre_hook(select).remove)
            stack.callback(norm.register_forward_hook(join).remove)
            if len(rows) == 1:
                stack.callback(norm.train, norm.training)
                norm.eval()
        yield


def num_rows(batch: Mapping[str, Tree]) -> int:
    """Return the number of rows that a loss gets from a batch of rows or of sequences. Invalid rows do not count."""
    if Columns.STATE_IN not in batch:
        return len(tree.flatten(batch)[0])
    return batch[Columns.STARTS].numel() if Columns.VALID_ROWS not in batch else len(batch[Columns.VALID_ROWS])


def sequence_minibatches(
    batch: Mapping[str, Tree], size: int | None, generator: torch.Generator, share: Share | None = None
) -> Iterator[Batch]:
    """Shuffle a batch of sequences, and yield it in minibatches of ``size // L`` sequences, but at least one sequence.

    Args:
        batch: Columns ``[L, B, ...]`` of ``B`` sequences of ``L`` rows, and their ``state_in``, as from
            :func:`cut_into_sequences`.
        size: Number of rows in a minibatch, counting invalid rows; None yields a single minibatch.
        generator: Draws the order. It must have the same state on all learners.
        share: This learner's part of the sequences of all learners; None if ``batch`` has all sequences. With a share,
            minibatches are cut from the sequences of all learners, of which the longest counts as ``L``. Each minibatch
            is yielded with only its sequences from ``batch``, as an empty dict if there are none.
    """
    length, count = batch[Columns.STARTS].shape
    total, longest = (count, length) if share is None else (share.total, share.length)
    order = torch.randperm(total, generator=generator)
    bounds = [*range(0, total, max(1, total if size is None else size // longest)), total]
    if share is not None:
        order, bounds = share.of(order, bounds)
    if not count:
        yield from [{}] * (len(bounds) - 1)
        return
    pieces = [order[start:stop] for start, stop in itertools.pairwise(bounds)]
    # Gather the rows so that those of each minibatch are contiguous. This takes one gather per column and epoch, and
    # the minibatches are views, both as sequences and as rows.
    places = torch.arange(0, length * count, count)[:, None]
    index = torch.cat([(places + piece).flatten() for piece in pieces])
    valid_rows = _valid_rows(batch, index, [length * len(piece) for piece in pieces])
    order, index = moved((order, index), batch[Columns.STARTS].device)
    of_rows = without(batch, Columns.STATE_IN, Columns.VALID_ROWS)
    gathered = map_columns(lambda x: x.flatten(0, 1).index_select(0, index), of_rows)
    states = map_leaves(lambda x: x.index_select(0, order), batch[Columns.STATE_IN])
    for (begin, end), kept in zip(itertools.pairwise(bounds), valid_rows, strict=True):
        if begin == end:
            yield {}
            continue
        rows, shape = slice(begin * length, end * length), (length, end - begin)
        minibatch = map_columns(lambda x, rows=rows, shape=shape: x[rows].unflatten(0, shape), gathered)
        minibatch[Columns.STATE_IN] = map_leaves(lambda x, piece=slice(begin, end): x[piece], states)
        if kept is not None:
            minibatch[Columns.VALID_ROWS] = kept
        yield minibatch


def _valid_rows(batch: Mapping[str, Tree], index: Tensor, sizes: list[int]) -> list[Tensor] | list[None]:
    """Return for each minibatch the positions of its valid rows within it, or None if all rows of ``batch`` are valid.
    ``index`` has the numbers in ``batch`` of the rows of all minibatches, one minibatch after another. ``sizes`` has
    the number of rows of each minibatch."""
    if Columns.VALID_ROWS not in batch:
        return [None] * len(sizes)
    rows = batch[Columns.VALID_ROWS]
    valid = torch.zeros(len(index), dtype=torch.bool)
    valid[rows.cpu()] = True  # the sizes are needed on the CPU: this waits for a GPU once per epoch
    return [moved(part.nonzero().squeeze(1), rows.device) for part in valid[index].split(sizes)]
