"""Cut a batch of rows into shuffled minibatches."""

import itertools
from collections.abc import Iterator

import torch
import tree

from rlmodule.data.columns import Batch
from rlmodule.data.device import moved
from rlmodule.data.rollout import map_columns
from rlmodule.learning.sharding import Share


def minibatch_bounds(rows: int, size: int | None) -> list[int]:
    """Cut ``range(rows)`` into minibatches of ``size`` (None: into one). Return the index at which each begins, then
    ``rows``. A single row at the end joins the minibatch before it."""
    return [start for start in range(0, rows, size or rows or 1) if start == 0 or rows - start > 1] + [rows]


def row_minibatches(
    batch: Batch, size: int | None, generator: torch.Generator, share: Share | None = None
) -> Iterator[Batch]:
    """Shuffle the rows of ``batch`` ``[B, ...]``, and yield them in minibatches of ``size`` rows, or in one if ``size``
    is None. A single row at the end joins the minibatch before it, because batch norm needs two rows.

    With a ``share``, the minibatches are of the rows of all learners; yield the rows of each that are in ``batch``.
    """
    first = tree.flatten(batch)[0]
    rows = len(first) if share is None else share.total
    order = torch.randperm(rows, generator=generator)
    bounds = minibatch_bounds(rows, size)
    if share is not None:
        order, bounds = share.of(order, bounds)
    if first.device.type != "cpu":
        order = moved(order, first.device)
    # gather once per column and epoch, so that the minibatches are views
    shuffled = map_columns(lambda x: x[order], batch)
    for start, stop in itertools.pairwise(bounds):
        yield map_columns(lambda x, rows=slice(start, stop): x[rows], shuffled)
