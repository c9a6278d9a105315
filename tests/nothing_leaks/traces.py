"""What updates of a learner do, as numbers, and comparisons of two such traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from rlmodule import Rollout
from rlmodule.data.sequences import num_rows
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.episode_learner import EpisodeLearner
from rlmodule.learning.learner import Learner
from tests.nothing_leaks.cases import ID, float64

Trace = dict[str, Tensor]
MOST = 1e-10
"""Largest difference, relative to the largest number of the same kind, that counts as rounding in float64."""

UPDATES = 2
"""Updates from the same episodes. Values count from the second one on, once they have statistics."""


def gradients_of(learner: Learner, data: Any) -> list[tuple[str, int, Tensor]]:
    """Update ``learner``, and return the module, the number of rows and the gradient of each gradient step."""
    steps = []
    take = learner.gradient_step

    def recorded(module_id: str, batch: Any) -> Any:
        metrics = take(module_id, batch)
        steps.append((module_id, num_rows(batch) if batch else 0, learner.parameters[module_id].grad.clone()))
        return metrics

    with mock.patch.object(learner, "gradient_step", recorded), float64():
        learner.update_from_episodes(data)  # type: ignore[attr-defined]
    return steps


def update(learner: Learner, data: Any, times: int = UPDATES) -> list[Mapping[str, Any]]:
    """Update ``learner`` from a list of pairs of module and batch, or ``times`` times from a rollout or rollouts by
    module. Return what it reports."""
    results: list[Mapping[str, Any]] = []
    with float64():
        for i in range(times if isinstance(data, Rollout | Mapping) else 0):
            assert isinstance(learner, EpisodeLearner)
            results.append(learner.update_from_episodes(data, env_steps=64 * i))
        for i, (module_id, batch) in enumerate(() if isinstance(data, Rollout | Mapping) else data):
            assert isinstance(learner, BatchLearner)
            results.append(learner.update_from_batch(batch, env_steps=64 * i, module_id=module_id))
    return results


def trace_of(learner: Learner, data: Any) -> dict[str, Trace]:
    """Update ``learner``, and return by module all that it reports, its last gradients, its weights and its
    statistics."""
    results = update(learner, data)
    traces: dict[str, Trace] = {}
    for module_id, trained in learner.trained.items():
        trace = traces[module_id] = {}
        for i, result in enumerate(results):
            for name, value in result.get(module_id, {}).items():
                assert name != "num_updates_skipped" or value == 0, "an update was skipped"
                trace[f"{i}: {name}"] = torch.tensor(value, dtype=torch.float64)
        trace["gradients"] = trained.parameters.grad.clone()
        for name, value in learner.module[module_id].get_state().items():
            kind = "weights" if name in dict(learner.module[module_id].named_parameters()) else name
            trace[kind] = torch.cat([trace.get(kind, value.new_zeros(0)), value.detach().flatten()])
        assert trace["gradients"].abs().max() > 0, "nothing was learned"
    for name, part in learner.shared_parts.items():
        traces[name] = {"gradients": part.flat.grad.clone(), "weights": part.flat.tensor.detach().clone()}
    return traces


def differences(before: Mapping[str, Any], after: Mapping[str, Any], most: float = MOST) -> dict[str, float]:
    """Return the entries of two traces that differ by more than ``most``, with the difference."""
    assert before.keys() == after.keys()
    found: dict[str, float] = {}
    for name, value in before.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": off for key, off in differences(value, after[name], most).items()}
            continue
        scale = max(float(value.double().abs().max()), 1e-12) if value.numel() else 1.0
        off = float((value.double() - after[name].double()).abs().max()) / scale if value.numel() else 0.0
        if not off <= most:  # also True for NaN
            found[name] = off
    return found


def with_ids(batches: list[Any], module_id: str = ID) -> list[tuple[str, Any]]:
    return [(module_id, batch) for batch in batches]
