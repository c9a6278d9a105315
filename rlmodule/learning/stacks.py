"""Stack: modules with the same structure, which take their gradient steps in a single pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from rlmodule.data.columns import Batch
from rlmodule.data.sequences import num_rows
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.flat_optimizer import where_not_finite
from rlmodule.learning.joint_update import JointUpdate, StackedPass
from rlmodule.learning.reports import SKIPPED, Metrics
from rlmodule.learning.update_data import TrainData

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner


class Stack(JointUpdate):
    """Updates ``M`` modules with the same structure and settings in a single forward and backward pass. The results are
    those of separate updates, up to rounding.

    Args:
        learner: The learner that trains the modules. It trains alone.
        module_ids: The ids of the modules.
        compute: The pass of the modules, in the order of ``module_ids``.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str], compute: StackedPass) -> None:
        super().__init__(learner, module_ids)
        self._compute = compute
        self._parts = [part for module_id in module_ids for part in learner.trained[module_id].parts.values()]

    def train(self, data: Mapping[str, TrainData]) -> dict[str, Metrics]:
        self._compute.modules.refresh()  # buffers change only between updates
        return super().train(data)

    def _minibatch_sizes(self, data: Mapping[str, TrainData]) -> dict[str, int | None]:
        if not all(num_rows(data[module_id].batch) for module_id in self.module_ids):
            raise no_data("no valid row")
        return {module_id: data[module_id].minibatch_size for module_id in self.module_ids}

    def _generators(self, data: Mapping[str, TrainData]) -> dict[str, torch.Generator]:
        # Separate updates draw the permutations of all epochs module by module. So each module gets a generator that
        # continues where those of the modules before it end.
        shared, generators = self._learner.generator, dict[str, torch.Generator]()
        for module_id in self.module_ids:
            generators[module_id] = torch.Generator()
            generators[module_id].set_state(shared.get_state())
            for _ in range(data[module_id].num_epochs):
                torch.randperm(num_rows(data[module_id].batch), generator=shared)
        return generators

    def _gradient_step(self, batches: Mapping[str, Batch]) -> dict[str, Metrics]:
        learner, compute = self._learner, self._compute
        if len(batches) < len(self.module_ids):
            results = dict[str, Metrics]()
            for module_id, batch in batches.items():
                learner.use_settings_of(module_id)
                results[module_id] = learner.gradient_step(module_id, batch)
            return results
        weights = [part.flat.tensor.detach() for part in self._parts]
        torch.stack(weights, out=compute.modules.weights)
        losses, results = compute(batches)
        norms = torch.linalg.vector_norm(compute.grad, dim=1)
        limit = self._parts[0].part.grad_clip
        if limit is not None:
            compute.grad.div_(norms.clamp_min(limit).div_(limit)[:, None])
        skips = where_not_finite(norms + losses)
        for i, module_id in enumerate(self.module_ids):
            part = self._parts[i]
            part.flat.grad.copy_(compute.grad[i])
            part.step_unless(skips[i])
            learner.trained[module_id].num_gradient_steps += 1
            results[module_id] |= {"gradient_norm": norms[i], "total_loss": losses[i], SKIPPED: skips[i]}
        learner.progress += len(batches)
        return results
