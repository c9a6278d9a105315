"""Stack: modules with the same structure, which take their gradient steps in a single pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlmodule.data.columns import Batch
from rlmodule.data.rollout import map_leaves, row_minibatches
from rlmodule.data.sequences import num_rows
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.flat_optimizer import where_not_finite
from rlmodule.learning.reports import SKIPPED, Metrics
from rlmodule.learning.update_data import TrainData
from rlmodule.modules.module_stack import ModuleStack

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner


class StackedPass:
    """Computes the losses of ``M`` modules with the same structure, and their gradients, in a single pass.

    Args:
        learner: The learner that trains the modules.
        module_ids: The ids of the modules.
        modules: The modules, in the same order.

    Attributes:
        grad: The gradients of the last call, a flat row per module, ``[M, P]``, in the order of its ``parameters()``.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str], modules: ModuleStack) -> None:
        self._learner, self._ids, self.modules = learner, module_ids, modules
        self.grad = torch.zeros_like(modules.weights)
        self._grads = modules.views_of(self.grad)

    def __call__(self, batches: Mapping[str, Batch]) -> tuple[Tensor, dict[str, Metrics]]:
        """Return the losses ``[M]`` and the metrics of each module for its minibatch in ``batches``, and store the
        gradients in ``grad``."""
        counts = [num_rows(batches[module_id]) for module_id in self._ids]
        width, is_even = max(counts), min(counts) == max(counts)

        def padded(*columns: Tensor) -> Tensor:
            # repeat rows of the same module, whose action masks are valid; their weight is 0
            return torch.stack(columns if is_even else [x[torch.arange(width) % len(x)] for x in columns])

        batch: Batch = map_leaves(padded, *(batches[module_id] for module_id in self._ids))
        module, module_id = self.modules.module, self._ids[0]
        self.modules.refresh()
        self._learner.use_settings_of(module_id)
        row_losses, metrics = self._learner.compute_row_losses(module_id, module, batch, module.forward_train(batch))
        num_valid = torch.tensor(counts)[:, None]
        losses = (row_losses * ((torch.arange(width) < num_valid) / num_valid)).sum(1)
        # no loss depends on the weights of another module, so the gradient of the sum has those of all
        grads = torch.autograd.grad(losses.sum(), self.modules.leaves, materialize_grads=True)
        torch._foreach_copy_(self._grads, grads)  # pyright: ignore[reportPrivateImportUsage]
        results: dict[str, Metrics] = {module_id: {} for module_id in self._ids}
        for name, values in metrics.items():
            for of_module, value, count in zip(results.values(), values.detach().unbind(), counts, strict=True):
                of_module[name] = value[:count]
        return losses.detach(), results


class Stack:
    """Updates ``M`` modules with the same structure in a single forward and backward pass, each on its own data. The
    results are those of separate updates, up to rounding.

    Args:
        learner: The learner that trains the modules. It trains alone.
        module_ids: The ids of the modules, which have the same settings.
        compute: The pass of the modules, in the order of ``module_ids``.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str], compute: StackedPass) -> None:
        self._learner, self._ids, self._compute = learner, module_ids, compute

    def train(self, data: Mapping[str, TrainData]) -> dict[str, Metrics]:
        """Train the modules, each on its ``data``. Return each module's metrics, joined over its minibatches."""
        learner = self._learner
        history: dict[str, list[Metrics]] = {module_id: [] for module_id in self._ids}
        epochs = list[list[Iterator[Batch]]]()
        for module_id in self._ids:
            of_module = data[module_id]
            batch, size = of_module.batch, of_module.minibatch_size
            if not num_rows(batch):
                raise no_data("no valid row")
            # this draws the permutations of all epochs, module by module, as in separate updates
            epochs.append([row_minibatches(batch, size, learner.generator) for _ in range(of_module.num_epochs)])
        for epoch in zip(*epochs, strict=True):
            for step in itertools.zip_longest(*epoch):
                batches = {x: batch for x, batch in zip(self._ids, step, strict=True) if batch is not None}
                if len(batches) == len(self._ids):
                    results = self._gradient_step(batches)
                else:  # some modules have fewer rows, and so fewer minibatches
                    results = {x: learner.gradient_step(x, batch) for x, batch in batches.items()}
                for module_id, metrics in results.items():
                    history[module_id].append(metrics)
        return {module_id: learner.joined_metrics(module_id, steps) for module_id, steps in history.items()}

    def _gradient_step(self, batches: Mapping[str, Batch]) -> dict[str, Metrics]:
        """Take a gradient step for each module, as :meth:`Learner.gradient_step` does, on its minibatch in ``batches``.
        Return the metrics of each module."""
        losses, results = self._compute(batches)
        modules = [self._learner.trained[module_id] for module_id in self._ids]
        parts = [part for trained in modules for part in trained.parts.values()]
        grad = self._compute.grad
        norms = torch.linalg.vector_norm(grad, dim=1)
        limit = parts[0].part.grad_clip
        if limit is not None:
            grad.div_(norms.clamp_min(limit).div_(limit)[:, None])
        skips = where_not_finite(norms + losses)
        self._learner.progress += len(modules)
        of_modules = modules, parts, results.values(), grad.unbind(), norms.unbind(), losses.unbind(), skips.unbind()
        for trained, part, metrics, gradient, norm, loss, skip in zip(*of_modules, strict=True):
            part.flat.grad.copy_(gradient)
            part.step_unless(skip)
            trained.num_gradient_steps += 1
            reported = {"gradient_norm": norm, "total_loss": loss, SKIPPED: skip}
            metrics |= reported | metrics
        return results
