"""Family: modules that share parts, which are updated together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import map_leaves, row_minibatches
from rlmodule.data.sequences import num_rows, sequence_minibatches
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.flat_optimizer import where_not_finite
from rlmodule.learning.reports import ROWS, SKIPPED, Metrics
from rlmodule.learning.update_data import TrainData

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner
    from rlmodule.learning.stacks import StackedPass


class Family:
    """Updates modules that share parts on the sum of their losses. Each loss is a mean over the module's rows, and all
    modules are trained in the same number of minibatches. The gradient of each part is clipped separately and each part
    has its own optimizer, but if any loss or gradient is not finite, no part is updated.

    Args:
        learner: The learner that trains the modules.
        module_ids: The ids of the modules.
        compute: The pass of all modules in this order, or None to compute the losses one by one. It is None if several
            learners train together.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str], compute: StackedPass | None) -> None:
        self._learner, self._ids, self._compute = learner, module_ids, compute

    def train(self, data: Mapping[str, TrainData]) -> dict[str, Metrics]:
        """Train the modules, each on its ``data`` for its number of epochs. Return each module's metrics, joined over
        its minibatches."""
        learner = self._learner
        sizes = self._minibatch_sizes(data)
        history: dict[str, list[Metrics]] = {module_id: [] for module_id in self._ids}
        stopped = set[str]()
        for epoch in itertools.count():
            training = [x for x in self._ids if epoch < data[x].num_epochs and x not in stopped]
            if not training:
                break
            num_before = {module_id: len(history[module_id]) for module_id in training}
            pieces = list[Iterator[Batch]]()
            for module_id in training:
                batch, share = data[module_id].batch, data[module_id].share
                cut = sequence_minibatches if Columns.STATE_IN in batch else row_minibatches
                pieces.append(cut(batch, sizes[module_id], learner.generator, share))
            # sizes are rounded up, which may leave a module with fewer minibatches than the others
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

    def _minibatch_sizes(self, data: Mapping[str, TrainData]) -> dict[str, int]:
        """Return the number of rows in the minibatches of each module. All modules get as many minibatches as the
        module that needs most of them."""
        counts = dict[str, tuple[int, int]]()
        num_minibatches = 1
        for module_id in self._ids:
            batch, share, size = data[module_id].batch, data[module_id].share, data[module_id].minibatch_size
            length, count = batch[Columns.STARTS].shape if Columns.STATE_IN in batch else (1, num_rows(batch))
            if share is not None:
                count, length = share.total, share.length
            if not count:
                raise no_data("no valid row")
            if size is not None:
                # a minibatch has as many whole sequences as its size allows
                num_minibatches = max(num_minibatches, math.ceil(count / max(1, size // length)))
            counts[module_id] = count, length
        return {module_id: math.ceil(count / num_minibatches) * length for module_id, (count, length) in counts.items()}

    def _gradient_step(self, batches: Mapping[str, Batch]) -> dict[str, Metrics]:
        """Take a gradient step for the modules that have a minibatch in ``batches``, as :meth:`Learner.gradient_step`
        does for a single module. A minibatch may be empty on this learner, but not on all learners. Return the metrics
        of each module."""
        learner, collective = self._learner, self._learner.collective
        modules = {module_id: learner.trained[module_id] for module_id in batches}
        shared = {name: learner.shared_parts[name] for trained in modules.values() for name in trained.shared}
        parts = [*shared.values()]
        for trained in modules.values():
            parts += trained.parts.values()
        for part in parts:
            part.flat.grad.zero_()

        rows = torch.tensor([float(num_rows(batch) if batch else 0) for batch in batches.values()])
        if self._compute is not None and len(batches) == len(self._ids):
            losses, results = self._compute(batches)
            # parameters of shared parts occur once for each module, so that their gradients add up
            grads = [p.grad for p in self._compute.modules.parameters if p.grad is not None]
            pieces = self._compute.grad.flatten().split([grad.numel() for grad in grads])
            for grad, piece in zip(grads, pieces, strict=True):
                grad.add_(piece.view_as(grad))
        else:
            # each loss is the mean over the rows of all learners, to which this learner contributes by its rows
            weights = rows / collective.all_reduce(rows.clone())
            losses = torch.zeros(len(batches), device=learner.device)
            results = {module_id: Metrics() for module_id in batches}
            for i, (module_id, batch) in enumerate(batches.items()):
                if not rows[i]:
                    continue
                learner.use_settings_of(module_id)
                loss, metrics = learner.compute_total_loss(module_id, *learner.forward_rows(module_id, batch))
                (loss * weights[i]).backward()
                losses[i] = loss.detach() * weights[i]
                results[module_id] |= metrics
        if collective.size > 1:
            # one exchange for all losses and gradients takes less time than one for each
            pooled = collective.all_reduce(torch.cat([losses, *(part.flat.grad for part in parts)]))
            losses, *grads = pooled.split([len(losses), *(part.flat.grad.numel() for part in parts)])
            for part, grad in zip(parts, grads, strict=True):
                part.flat.grad.copy_(grad)

        norms = {part: part.clip() for part in parts}
        # one value that is not finite skips the step of all, since a shared part learns from all losses
        skip = where_not_finite(torch.stack([*norms.values()]).sum() + losses.sum())
        for part in parts:
            part.step_unless(skip)

        learner.progress += len(batches)
        for i, (module_id, trained) in enumerate(modules.items()):
            trained.num_gradient_steps += 1
            of_module = [*(shared[name] for name in trained.shared), *trained.parts.values()]
            norm = torch.linalg.vector_norm(torch.stack([norms[part] for part in of_module]))
            reported = {"gradient_norm": norm, "total_loss": losses[i], SKIPPED: skip}
            results[module_id] |= reported | results[module_id]
            if collective.size > 1:
                results[module_id][ROWS] = rows[i]
        return map_leaves(Tensor.detach, results)
