"""The loss of an algorithm and those that a module adds to it (:class:`ExtraLossAPI`), checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from catalog.base import Tree
from rlmodule.learning.reports import OWN_NAMES, Metrics
from rlmodule.modules.apis import ExtraLoss, ExtraLossAPI


def wrong_loss(returned: Any, learner: str) -> TypeError:
    """Return the error of a ``compute_loss_for_module()`` that did not return a loss and metrics."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    shapes = [f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__ for x in parts]
    return TypeError(
        f"{learner}.compute_loss_for_module(): expected a scalar tensor and a dict of tensors to "
        f"report, got {' and '.join(shapes)}. Return (loss.mean(), {{'name': value}})."
    )


def add_extra_losses(
    loss: Tensor, metrics: Metrics, module: ExtraLossAPI, rows: dict[str, Tree], fwd_out: Mapping[str, Tree]
) -> tuple[Tensor, Metrics]:
    """Add the weighted losses of ``module`` to ``loss``; returns the sum and what they report.

    Raises:
        TypeError, ValueError: If they are not scalar losses by name, or report under a name that is taken.
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
    """Check that the losses of ``module`` report the same names at every call.

    Raises:
        ValueError: If they do not.
    """
    if known != reported.keys():
        expected, got = (", ".join(sorted(names)) or "none" for names in (known, reported))
        expected = f"the same losses and metrics at every call: {expected}"
        raise ValueError(f"{_where(module)}: expected {expected}, got {got}. Give a loss that is not due the value 0.")


def name_taken(module: object, name: str) -> ValueError:
    """Return the error of a module that reports ``name``, as the algorithm does."""
    return ValueError(
        f"{_where(module)}: expected names that the algorithm does not report itself, got "
        f"{name!r}. Call it something else."
    )


def _where(module: object) -> str:
    return f"{type(module).__name__}.compute_extra_losses()"
