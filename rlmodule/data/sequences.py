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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
import tree
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.device import moved
from rlmodule.data.rollout import Rollout, map_leaves

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
    steps = rollout.shape[0]
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

    valid = cut(rollout.valid)
    used = valid.any(0)
    keep = slice(None) if used.all() else used  # a slice copies nothing
    batch = {
        # observations are padded with the last one, since zeros may lie outside the space
        name: map_leaves(lambda x, repeats=name == Columns.OBS: cut(x, repeats=repeats)[:, keep], rollout[name])
        for name in (*names, Columns.STARTS)
    }
    batch[Columns.STATE_IN] = map_leaves(lambda x: x.flatten(0, 1)[keep], rollout.state_in)
    if not valid.all():
        batch[Columns.VALID_ROWS] = valid[:, keep].flatten().nonzero().squeeze(1)
    return batch


def flatten_sequences(columns: Mapping[str, Tree], valid_rows: Tensor | None) -> Batch:
    """Flatten columns ``[L, B, ...]`` of sequences into rows ``[R, ...]``. The result has the rows at the indices
    ``valid_rows``, or all ``L·B`` rows if ``valid_rows`` is None. Drop the columns that only sequences need, such as
    ``starts`` and recurrent states."""

    def flatten(column: Tensor) -> Tensor:
        rows = column.flatten(0, 1)
        return rows if valid_rows is None else rows.index_select(0, valid_rows)

    return map_leaves(flatten, without(columns, *_NOT_ROWS))


def replace_rows(batch: Mapping[str, Tree], rows: Mapping[str, Tensor]) -> Batch:
    """Return ``batch``, of rows or of sequences, with other values of its valid rows in the columns of ``rows``
    ``[R, ...]``, which are in the order of :func:`flatten_sequences`."""
    if Columns.STATE_IN not in batch:
        return {**batch, **rows}
    replaced = dict(batch)
    for name, values in rows.items():
        column = batch[name].clone()
        column.flatten(0, 1)[batch.get(Columns.VALID_ROWS, slice(None))] = values
        replaced[name] = column
    return replaced


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

    def forward(norm: _BatchNorm, plain: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
        if not norm.training or len(input) != total:
            return plain(input)
        valid = input.index_select(0, rows)
        # The layers after it get all rows: those that are not valid are normalised with the same statistics.
        dims = [dim for dim in range(input.dim()) if dim != 1]
        var, mean = torch.var_mean(valid.detach(), dims, correction=0)
        every_row = functional.batch_norm(input, mean, var, norm.weight, norm.bias, eps=norm.eps)
        return every_row.index_copy(0, rows, plain(valid))

    with ExitStack() as stack:
        for norm in module.modules():
            if not isinstance(norm, _BatchNorm):
                continue
            norm.forward = partial(forward, norm, norm.forward)
            stack.callback(delattr, norm, "forward")
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
    starts = batch[Columns.STARTS]
    length, count = starts.shape
    total, longest = (count, length) if share is None else (share.total, share.length)
    order = torch.randperm(total, generator=generator)
    bounds = [*range(0, total, max(1, total if size is None else size // longest)), total]
    if share is not None:
        order, bounds = share.of(order, bounds)
    order_on_device = moved(order, starts.device)
    is_valid: Tensor | None = None
    if Columns.VALID_ROWS in batch:
        # on the CPU, since minibatches differ in their numbers of valid rows: this waits for a GPU once per epoch
        is_valid = torch.zeros(length, count, dtype=torch.bool)
        is_valid.view(-1)[batch[Columns.VALID_ROWS].cpu()] = True
    of_rows = without(batch, Columns.STATE_IN, Columns.VALID_ROWS)
    for begin, end in itertools.pairwise(bounds):
        if begin == end:
            yield {}
            continue
        piece = order_on_device[begin:end]
        minibatch = map_leaves(lambda x, piece=piece: x.index_select(1, piece), of_rows)
        minibatch[Columns.STATE_IN] = map_leaves(
            lambda x, piece=piece: x.index_select(0, piece), batch[Columns.STATE_IN]
        )
        if is_valid is not None:
            rows = is_valid[:, order[begin:end]].flatten().nonzero().squeeze(1)
            minibatch[Columns.VALID_ROWS] = moved(rows, starts.device)
        yield minibatch
