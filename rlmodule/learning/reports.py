"""Check the losses and metrics of algorithms and of modules (:class:`ExtraLossAPI`), and join metrics over minibatches
and over learners."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from catalog.base import Tree
from rlmodule.data.columns import Batch
from rlmodule.data.rollout import entry_of
from rlmodule.learning.sharding import join_rows
from rlmodule.modules.apis import ExtraLoss, ExtraLossAPI

Metrics = dict[str, Tensor]

# Metric of each gradient step if several learners train together: the number of this learner's rows in the minibatch.
ROWS = "rows_trained_on"
# Metric of each gradient step: 1 if the step was skipped because its loss or gradient was not finite, otherwise 0.
SKIPPED = "update_skipped"
# Names of the metrics that each gradient step reports in addition to the metrics of the loss.
OWN_NAMES = ("total_loss", "gradient_norm", SKIPPED)


def merge_metrics(results: Sequence[Metrics], batch: Batch) -> Metrics:
    """Merge the metrics that ``step_on_batch`` returned for one module on each learner. Return what a single learner
    would return for the whole ``batch``: scalars as means over all rows, and metrics with an entry per row in the order
    of the rows of ``batch``."""
    if len(results) == 1:
        return results[0]
    scalars, parts = merge_parts([part_of([metrics]) for metrics in results])
    return entry_of(scalars, 0) | {name: join_rows(batch, x) for name, x in parts.items()}


def part_of(history: Sequence[Metrics]) -> dict[str, Any]:
    """Return the metrics of one learner over ``M`` minibatches in the form that :func:`merge_parts` takes.

    Args:
        history: The metrics of each minibatch, over this learner's rows. The entry ``ROWS``, a scalar tensor, is the
            number of these rows. If it is 0, the other metrics are ignored. Some minibatches may lack some metrics.
    """
    rows = torch.stack([metrics[ROWS] for metrics in history]).double()  # [M]
    filled = [metrics if count else Metrics() for metrics, count in zip(history, rows.tolist(), strict=True)]
    weights, sums, per_row = Metrics(), Metrics(), Metrics()
    for name in dict.fromkeys(itertools.chain.from_iterable(filled)):
        if name == ROWS:
            continue
        values = [metrics[name] for metrics in filled if name in metrics]
        reported = torch.tensor([name in metrics for metrics in filled])
        weights[name] = rows * reported
        if values[0].dim():
            per_row[name] = torch.cat(values)
        else:
            sums[name] = torch.zeros_like(rows)
            sums[name][reported] = torch.stack(values).double().cpu() * rows[reported]
    return {"rows": rows, "weights": weights, "sums": sums, "per_row": per_row}


def merge_parts(parts: Sequence[dict[str, Any]]) -> tuple[Metrics, dict[str, list[Tensor]]]:
    """Merge the metrics of all learners over the same ``M`` minibatches, given the result of :func:`part_of` for each
    learner.

    Returns:
        Two dicts whose keys are names of metrics. The first has the scalar metrics: for each minibatch that reports the
        metric, its mean over the rows of all learners. The second has the metrics with an entry per row: a list with
        one tensor for each learner that has rows.

    Raises:
        ValueError: If learners report different metrics for the same minibatch.
    """
    rows = torch.stack([part["rows"] for part in parts]).sum(0)
    scalars, per_row = Metrics(), dict[str, list[Tensor]]()
    for name in dict.fromkeys(itertools.chain.from_iterable(part["weights"] for part in parts)):
        having = [part for part in parts if name in part["weights"]]
        weights = torch.stack([part["weights"][name] for part in having]).sum(0)
        is_reported = weights > 0
        if (is_reported & (weights != rows)).any():
            raise ValueError(
                f"metrics of learners that train together: expected {name!r} from all learners or from none for each "
                "minibatch, got it from some. Report the same on all of them."
            )
        if name in having[0]["per_row"]:
            per_row[name] = [part["per_row"][name] for part in having]
        else:
            mean = torch.stack([part["sums"][name] for part in having]).sum(0) / weights
            scalars[name] = mean[is_reported].float()
    return scalars, per_row


def too_many_skipped(limit: int, module_id: str, module: nn.Module) -> FloatingPointError:
    """Return the error to raise after ``limit`` consecutive updates with a non-finite loss or gradient.

    The message lists the parameters of ``module`` whose current gradients are not finite.
    """
    wrong = [name for name, p in module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    last = f"the gradients of {', '.join(wrong)}" if wrong else "the loss alone"
    return FloatingPointError(
        f"updates of module {module_id!r}: expected finite losses and gradients, got {limit} in a "
        f"row that are not; in the last one {last}. The weights are as they were before these. "
        "Lower lr, check the scale of rewards and your own losses, or allow more with "
        "max_nonfinite_updates_in_a_row."
    )


def wrong_loss(returned: Any, learner: str) -> TypeError:
    """Return the error to raise if ``compute_loss_for_module()`` returned something other than a loss and metrics.

    Args:
        returned: What it returned.
        learner: Name of the learner's class.
    """
    parts = returned if isinstance(returned, tuple) else (returned,)
    shapes = [f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__ for x in parts]
    return TypeError(
        f"{learner}.compute_loss_for_module(): expected a scalar tensor and a dict of tensors to "
        f"report, got {' and '.join(shapes)}. Return (loss.mean(), {{'name': value}})."
    )


def loss_without_gradient(learner: str) -> ValueError:
    """Return the error to raise if the loss of the learner class ``learner`` depends on no parameter."""
    return ValueError(
        f"{learner}.compute_loss_for_module(): expected a loss that depends on the parameters, got one without a "
        "gradient. Leave out detach() and torch.no_grad(), and compute it from fwd_out."
    )


def metric_tensors(metrics: Mapping[str, Any], loss: Tensor, learner: str) -> Metrics:
    """Return ``metrics`` as tensors of floats: numbers in the shape and on the device of ``loss``, and tensors of
    integers and of bools converted, as they have no mean.

    Raises:
        TypeError: If a metric is neither a tensor nor a number; names the metric and the class ``learner``.
    """
    tensors: Metrics = {}  # a call of the alias Metrics would stop torch.compile
    for name, value in metrics.items():
        if not isinstance(value, Tensor):
            if not isinstance(value, int | float | np.number | np.bool_):
                raise TypeError(
                    f"{learner}.compute_loss_for_module(): expected a tensor or a number as metric {name!r}, got "
                    f"{type(value).__name__}. Report a scalar, or one entry per row."
                )
            value = loss.detach().new_full(loss.shape, float(value))
        tensors[name] = value if value.is_floating_point() else value.float()
    return tensors


def add_extra_losses(
    loss: Tensor, metrics: Metrics, module: ExtraLossAPI, rows: Batch, fwd_out: Mapping[str, Tree]
) -> tuple[Tensor, Metrics]:
    """Compute the extra losses of ``module`` for ``rows``, and add them to the algorithm's ``loss``, multiplied by
    their weights. Return the sum, and the metrics of the extra losses.

    Raises:
        TypeError: If the module does not return a dict from names to :class:`ExtraLoss`.
        ValueError: If an extra loss is not a scalar tensor, or its metrics have a name that the algorithm or another
            extra loss uses.
    """
    where, extra_losses, reported = _where(module), module.compute_extra_losses(rows, fwd_out), dict[str, Tensor]()
    if not (isinstance(extra_losses, dict) and all(isinstance(x, ExtraLoss) for x in extra_losses.values())):
        raise TypeError(
            f"{where}: expected a dict from names to ExtraLoss, got {extra_losses!r}. Return "
            "{'name': ExtraLoss(value, weight=1.0)}."
        )
    for name, extra in extra_losses.items():
        if not isinstance(extra.value, Tensor) or extra.value.dim():
            got = f"shape {tuple(extra.value.shape)}" if isinstance(extra.value, Tensor) else repr(extra.value)
            where, remedy = f"{where}[{name!r}]", "Return the mean of a loss per row."
            raise ValueError(f"{where}: expected a scalar tensor, got {got}. {remedy}")
        loss = loss + extra.weight * extra.value
        for key, value in ((f"{name}_loss", extra.value), *extra.metrics.items()):
            if key in reported or key in metrics or key in OWN_NAMES:
                raise name_taken(module, key)
            reported[key] = value
    return loss, reported


def check_names(module: ExtraLossAPI, reported: Metrics, known: frozenset[str]) -> None:
    """Check that the extra losses of ``module`` report the same names at every call.

    Raises:
        ValueError: If the names in ``reported`` differ from ``known``, the names of earlier calls.
    """
    if known != reported.keys():
        expected, got = (", ".join(sorted(names)) or "none" for names in (known, reported))
        expected = f"the same losses and metrics at every call: {expected}"
        raise ValueError(
            f"{_where(module)}: expected {expected}, got {got}. Return the value 0 for a loss that does not apply."
        )


def name_taken(module: object, name: str) -> ValueError:
    """Return the error to raise if the extra losses of ``module`` report ``name``, which is in use already."""
    return ValueError(
        f"{_where(module)}: expected names that the algorithm does not report itself, got "
        f"{name!r}. Choose another name."
    )


def _where(module: object) -> str:
    return f"{type(module).__name__}.compute_extra_losses()"
