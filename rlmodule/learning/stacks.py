"""Stack: modules with the same structure, which take their gradient steps in a single pass."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlmodule.data.columns import Batch
from rlmodule.data.rollout import map_columns, map_leaves, minibatch_bounds
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
        module_id: The id of the first module.
        modules: The modules.

    Attributes:
        grad: The gradients of the last call, a flat row per module, ``[M, P]``, in the order of its ``parameters()``.
    """

    def __init__(self, learner: EpisodeLearner, module_id: str, modules: ModuleStack) -> None:
        self._learner, self._id, self.modules = learner, module_id, modules
        self.grad = torch.zeros_like(modules.weights)
        self._grads = modules.views_of(self.grad)

    def __call__(self, batch: Batch, weights: Tensor) -> tuple[Tensor, Metrics]:
        """Return the losses ``[M]`` and the metrics for the columns ``[M, B, ...]`` of ``batch``, and store the
        gradients in ``grad``. The loss of a module is the sum of its row losses weighted with its row of ``weights``
        ``[M, B]``."""
        module = self.modules.module
        self._learner.use_settings_of(self._id)
        row_losses, metrics = self._learner.compute_row_losses(self._id, module, batch, module.forward_train(batch))
        losses = (row_losses * weights).sum(1)
        # no loss depends on the weights of another module, so the gradient of the sum has those of all
        grads = torch.autograd.grad(losses.sum(), self.modules.leaves, materialize_grads=True)
        torch._foreach_copy_(self._grads, grads)  # pyright: ignore[reportPrivateImportUsage]
        return losses.detach(), metrics


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
        self._parts = [part for module_id in module_ids for part in learner.trained[module_id].parts.values()]

    def train(self, data: Mapping[str, TrainData]) -> dict[str, Metrics]:
        """Train the modules, each on its ``data``. Return each module's metrics, joined over its minibatches."""
        learner, first = self._learner, data[self._ids[0]]
        batches = [data[module_id].batch for module_id in self._ids]
        counts = [num_rows(batch) for batch in batches]
        if not all(counts):
            raise no_data("no valid row")
        # Rows of all modules are concatenated, and each minibatch gathers its rows from there.
        rows, weights = _places(counts, first.minibatch_size)
        whole: Batch = {
            name: map_leaves(lambda *columns: torch.cat(columns), column, *(batch[name] for batch in batches[1:]))
            for name, column in batches[0].items()
        }
        # The permutations are drawn module by module, as in separate updates.
        orders = list[list[Tensor]]()
        for start, count in zip(itertools.accumulate(counts, initial=0), counts, strict=False):
            permutations = [torch.randperm(count, generator=learner.generator) for _ in range(first.num_epochs)]
            orders.append([start + permutation for permutation in permutations])
        # Columns of padding alone are cut off; `here` says which modules take part in a step.
        widths = weights.count_nonzero(2).amax(1).tolist()
        here = weights[:, :, 0].ne(0)
        history = list[Metrics]()
        self._compute.modules.refresh()
        for order in zip(*orders, strict=True):
            places = torch.cat(order)[rows]
            shuffled = map_columns(lambda x, places=places: x[places], whole)
            for step, width in enumerate(widths):
                minibatch = map_columns(lambda x, at=(step, slice(None), slice(width)): x[at], shuffled)
                history.append(self._gradient_step(minibatch, weights[step, :, :width], here[step]))
        for module_id, num_steps in zip(self._ids, here.sum(0).tolist(), strict=True):
            learner.trained[module_id].num_gradient_steps += num_steps * first.num_epochs
        used = torch.cat([weights[step, :, :width] for step, width in enumerate(widths)] * first.num_epochs, 1).ne(0)
        of_modules = _by_module(history, here.repeat(first.num_epochs, 1), used)
        return dict(zip(self._ids, of_modules, strict=True))

    def _gradient_step(self, batch: Batch, weights: Tensor, here: Tensor) -> Metrics:
        """Take a gradient step on the columns ``[M, B, ...]`` of ``batch``, as :meth:`Learner.gradient_step` does, for
        the modules that ``here`` ``[M]`` marks. For ``weights``, see :class:`StackedPass`. Return the metrics of all
        ``M`` modules, with a leading dim ``M``."""
        losses, metrics = self._compute(batch, weights)
        grad = self._compute.grad
        norms = torch.linalg.vector_norm(grad, dim=1)
        limit = self._parts[0].part.grad_clip
        if limit is not None:
            grad.div_(norms.clamp_min(limit).div_(limit)[:, None])
        skipped = where_not_finite(norms + losses)
        skips = torch.where(here, skipped, 1.0)
        for part, of_module, skip in zip(self._parts, grad.unbind(), skips.unbind(), strict=True):
            part.flat.grad.copy_(of_module)
            part.step_unless(skip)
        torch.stack([part.flat.tensor.detach() for part in self._parts], out=self._compute.modules.weights)
        self._learner.progress += int(here.count_nonzero())
        metrics |= {"gradient_norm": norms, "total_loss": losses, SKIPPED: skipped}
        return {name: value.detach() for name, value in metrics.items()}


def _places(counts: Sequence[int], size: int | None) -> tuple[Tensor, Tensor]:
    """Cut the rows of each module into minibatches, as :func:`row_minibatches` does.

    Returns:
        The index of each row among the concatenated rows of all modules, ``[steps, M, B]``, and the weight of each row
        in the mean over its minibatch, of the same shape. Shorter minibatches are padded with repetitions of their own
        rows, and modules that have no minibatch in a step with their first row. Padding has weight 0.
    """
    cuts = [[*itertools.pairwise(minibatch_bounds(count, size))] for count in counts]
    num_steps = max(map(len, cuts))
    width = max(stop - start for cut in cuts for start, stop in cut)
    rows = torch.zeros(num_steps, len(counts), width, dtype=torch.int64)
    weights = torch.zeros(num_steps, len(counts), width)
    first_row = 0
    for i, (count, cut) in enumerate(zip(counts, cuts, strict=True)):
        rows[:, i] = first_row
        for step, (start, stop) in enumerate(cut):
            rows[step, i] = first_row + start + torch.arange(width) % (stop - start)
            weights[step, i, : stop - start] = 1 / (stop - start)
        first_row += count
    return rows, weights


def _by_module(history: Sequence[Metrics], here: Tensor, used: Tensor) -> list[Metrics]:
    """Return the metrics of each module, joined over all gradient steps.

    Args:
        history: The metrics ``[M]`` or ``[M, B]`` of each step.
        here: True where a module took the step, ``[steps, M]`` bool.
        used: ``[M, rows]`` bool over the rows of all steps, concatenated: True for rows of a minibatch, False for
            padding.
    """
    of_modules: list[Metrics] = [{} for _ in range(here.shape[1])]
    for name, value in history[0].items():
        is_per_row = value.dim() > 1
        values = [metrics[name] for metrics in history]
        joined = torch.cat(values, 1) if is_per_row else torch.stack(values, 1)
        for i, metrics in enumerate(of_modules):
            metrics[name] = joined[i][used[i] if is_per_row else here[:, i]]
    return of_modules
