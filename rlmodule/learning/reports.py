"""Metrics of minibatches, joined over the minibatches of an update and over learners that train together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from catalog.base import Tree
from rlmodule.learning.sharding import join_rows

Metrics = dict[str, Tensor]

ROWS = "rows_trained_on"
"""Metric of each gradient step of a learner with others: its own rows in the minibatch."""
SKIPPED = "update_skipped"
"""Metric of each gradient step: 1 if it was left out, else 0."""
OWN_NAMES = ("total_loss", "gradient_norm", SKIPPED)
"""Metrics of each gradient step, whatever the loss."""


def merge_metrics(results: Sequence[Metrics], batch: dict[str, Tree]) -> Metrics:
    """Merge what ``step_on_batch`` reported for a module on each learner into what one learner would report of the
    whole ``batch``: scalars as means over all rows, entries per row in the order of its rows."""
    if len(results) == 1:
        return results[0]
    scalars, parts = merge_parts([part_of([metrics]) for metrics in results])
    return {name: value[0] for name, value in scalars.items()} | {n: join_rows(batch, x) for n, x in parts.items()}


def part_of(history: Sequence[Metrics]) -> dict[str, Any]:
    """One learner's metrics of ``M`` minibatches, in some of which it may have no rows, for :func:`merge_parts`."""
    filled = [metrics for metrics in history if metrics[ROWS] > 0]
    first = filled[0] if filled else {}
    scalars = [name for name, value in first.items() if name != ROWS and not value.dim()]
    return {
        "rows": torch.stack([metrics[ROWS] for metrics in history]),
        "scalars": {n: torch.stack([m.get(n, m[ROWS]).double().cpu() for m in history]) for n in scalars},
        "per_row": {n: torch.cat([m[n] for m in filled]) for n, value in first.items() if value.dim()},
    }


def merge_parts(parts: Sequence[dict[str, Any]]) -> tuple[Metrics, dict[str, list[Tensor]]]:
    """Return the metrics that are scalars in each minibatch as means ``[M]`` over the rows of all learners, and the
    others learner by learner.

    Raises:
        ValueError: If two learners report different ones.
    """
    filled = [part for part in parts if part["scalars"]]
    first = filled[0]
    for part in filled:
        expected, got = (sorted({**each["scalars"], **each["per_row"]}) for each in (first, part))
        if expected != got:
            raise ValueError(
                f"metrics of learners that train together: expected {', '.join(expected)}, got "
                f"{', '.join(got)}. Report the same for every minibatch."
            )
    rows = torch.stack([part["rows"] for part in filled]).double()  # [n, M]
    scalars = Metrics()
    for name in first["scalars"]:
        values = torch.stack([part["scalars"][name] for part in filled])
        # where a learner has no rows it has no metrics either
        scalars[name] = (torch.where(rows > 0, values * rows, 0.0).sum(0) / rows.sum(0)).float()
    return scalars, {name: [part["per_row"][name] for part in filled] for name in first["per_row"]}


def count_in_a_row(skipped: Tensor, before: int, limit: int) -> int:
    """Count the updates in a row that were left out, up to the latest one or to the one that reaches ``limit``.

    Args:
        skipped: Which of the latest updates were left out ``[M]``.
        before: The count before these.
        limit: How many are too many.
    """
    for one in skipped.tolist():
        before = before + 1 if one else 0
        if before >= limit:
            break
    return before


def too_many_skipped(limit: int, module_id: str, module: nn.Module) -> FloatingPointError:
    """Return the error of updates that were not finite; names the parameters."""
    wrong = [name for name, p in module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    got = f"{limit} in a row that are not; in the last one " + (
        f"the gradients of {', '.join(wrong)}" if wrong else "the loss alone"
    )
    return FloatingPointError(
        f"updates of module {module_id!r}: expected finite losses and gradients, got {got}. The "
        "weights are as they were before these. Lower lr, look at the scale of rewards and at "
        "losses of your own, or allow more by max_nonfinite_updates_in_a_row."
    )
