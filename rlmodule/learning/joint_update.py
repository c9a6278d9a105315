"""JointUpdate: several modules that are updated together."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import map_leaves, row_minibatches
from rlmodule.data.sequences import num_rows, sequence_minibatches
from rlmodule.learning.reports import Metrics
from rlmodule.learning.update_data import TrainData
from rlmodule.modules.module_stack import ModuleStack

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner


class JointUpdate(ABC):
    """Updates modules together, each on its own data: their first minibatches in one step, then their second ones.

    Args:
        learner: The learner that trains the modules.
        module_ids: The ids of the modules, in sorted order.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str]) -> None:
        self._learner, self.module_ids = learner, module_ids

    def train(self, data: Mapping[str, TrainData]) -> dict[str, Metrics]:
        """Train the modules, each on its ``data`` for its number of epochs. Return each module's metrics, joined over
        its minibatches."""
        learner = self._learner
        sizes, generators = self._minibatch_sizes(data), self._generators(data)
        history: dict[str, list[Metrics]] = {module_id: [] for module_id in self.module_ids}
        stopped = set[str]()
        for epoch in itertools.count():
            training = [x for x in self.module_ids if epoch < data[x].num_epochs and x not in stopped]
            if not training:
                break
            num_before = {module_id: len(history[module_id]) for module_id in training}
            pieces = list[Iterator[Batch]]()
            for module_id in training:
                batch, share = data[module_id].batch, data[module_id].share
                cut = sequence_minibatches if Columns.STATE_IN in batch else row_minibatches
                pieces.append(cut(batch, sizes[module_id], generators[module_id], share))
            # modules with fewer minibatches take no part in the last steps
            for step in itertools.zip_longest(*pieces):
                batches = {x: batch for x, batch in zip(training, step, strict=True) if batch is not None}
                for module_id, metrics in self._gradient_step(batches).items():
                    history[module_id].append(metrics)
            for module_id in training:
                learner.use_settings_of(module_id)
                if learner.may_stop():
                    latest = learner.joined_metrics(module_id, history[module_id][num_before[module_id] :])
                    if learner.all_stop(module_id, latest):
                        stopped.add(module_id)
        return {module_id: learner.joined_metrics(module_id, steps) for module_id, steps in history.items()}

    @abstractmethod
    def _minibatch_sizes(self, data: Mapping[str, TrainData]) -> dict[str, int | None]:
        """Return the number of rows in the minibatches of each module; None for all rows. Raise ValueError if a module
        has no valid row."""

    @abstractmethod
    def _generators(self, data: Mapping[str, TrainData]) -> dict[str, torch.Generator]:
        """Return the generator that shuffles the rows of each module."""

    @abstractmethod
    def _gradient_step(self, batches: Mapping[str, Batch]) -> dict[str, Metrics]:
        """Take a gradient step for the modules that have a minibatch in ``batches``, as :meth:`Learner.gradient_step`
        does for a single module. Return the metrics of each."""


class StackedPass:
    """Computes the losses of ``M`` modules with the same structure, and their gradients, in a single pass.

    Args:
        learner: The learner that trains the modules. It trains alone.
        modules: The modules as one.

    Attributes:
        grad: The gradients of the last call, a flat row per module, ``[M, P]``, in the order of its ``parameters()``.
    """

    def __init__(self, learner: EpisodeLearner, modules: ModuleStack) -> None:
        self._learner, self.modules = learner, modules
        self.grad = torch.zeros_like(modules.weights)
        self._grads = modules.views_of(self.grad)

    def __call__(self, batches: Mapping[str, Batch]) -> tuple[Tensor, dict[str, Metrics]]:
        """Return the losses ``[M]`` and the metrics of each module for a minibatch ``[B, ...]`` of each module, and
        store the gradients in ``grad``."""
        counts = torch.tensor([num_rows(batch) for batch in batches.values()])
        width = int(counts.max())

        def padded(*columns: Tensor) -> Tensor:
            # repeat rows of the same module, whose action masks are valid; their weight is 0
            return torch.stack([x if len(x) == width else x[torch.arange(width) % len(x)] for x in columns])

        first, *others = batches.values()
        stacked = {name: map_leaves(padded, column, *(x[name] for x in others)) for name, column in first.items()}
        weights = (torch.arange(width) < counts[:, None]) / counts[:, None]
        first_id, module = next(iter(batches)), self.modules.module
        self._learner.use_settings_of(first_id)
        out = module.forward_train(stacked)
        row_losses, metrics = self._learner.compute_row_losses(first_id, module, stacked, out)
        losses = (row_losses * weights).sum(1)
        # no loss depends on the weights of another module, so the gradient of the sum has those of all
        grads = torch.autograd.grad(losses.sum(), self.modules.leaves, materialize_grads=True)
        torch._foreach_copy_(self._grads, grads)  # pyright: ignore[reportPrivateImportUsage]
        results = dict[str, Metrics]()
        for i, (module_id, count) in enumerate(zip(batches, counts.tolist(), strict=True)):
            results[module_id] = {name: value.detach()[i, :count] for name, value in metrics.items()}
        return losses.detach(), results
