"""Stacks, which are groups of modules with the same structure that take their gradient steps in a single pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import map_columns, map_leaves
from rlmodule.data.sequences import num_rows
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.families import Group, Shares
from rlmodule.learning.flat_optimizer import FlatAdam
from rlmodule.learning.minibatches import minibatch_bounds
from rlmodule.learning.reports import SKIPPED, Metrics, metric_tensors
from rlmodule.modules.apis import ExtraLossAPI, ValueFunctionAPI
from rlmodule.modules.module_stack import ModuleStack, stack_of, structure_of
from rlmodule.modules.rl_module import MultiRLModule, RLModule

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner


def stack_key(learner: EpisodeLearner, module_id: str) -> object:
    """Return a key that is equal for modules that may form a :class:`Stack` together. If the module may not be in any
    stack, return its id."""
    module, settings = learner.module[module_id], learner.settings_of(module_id)
    own = [*learner.trained_parts[module_id].values()]
    parts = own + [learner.shared_parts[name] for name in learner.sharing.get(module_id, ())]
    everything = sum(len(part.flat.views) for part in parts) == len([*module.parameters()])
    plain = settings.grad_clip_by == "global_norm" and {type(part.optimizer) for part in parts} == {FlatAdam}
    with learner.using(settings):
        allowed = learner.can_stack(module_id) and not learner.may_stop()
    if len(own) > 1 or not (everything and plain and allowed) or isinstance(module, ExtraLossAPI):
        return module_id
    return structure_of(module), id(settings), own[0].part.grad_clip


def stacked_pass(learner: EpisodeLearner, ids: Sequence[str]) -> StackedPass | None:
    """Return a :class:`StackedPass` of the modules ``ids``, whose keys from :func:`stack_key` are equal. Return None if
    ``ids`` has one id, or if the results would differ from those of the separate modules."""
    modules = stack_of([learner.module[module_id] for module_id in ids], _training_pass, training=True)
    return None if modules is None else StackedPass(learner, ids[0], modules)


def _training_pass(module: RLModule, batch: Batch) -> list[Tensor]:
    out = module.forward_train(batch)
    values = [module.compute_values(batch, out.get(Columns.EMBEDDINGS))] if isinstance(module, ValueFunctionAPI) else []
    return [x for x in out.values() if isinstance(x, Tensor)] + values


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
        self._as_first = MultiRLModule({module_id: modules.module})
        self.grad = torch.zeros_like(modules.weights)
        self._grads = modules.views_of(self.grad)

    def __call__(self, batch: Batch, weights: Tensor) -> tuple[Tensor, Metrics]:
        """Return the losses ``[M]`` and the metrics for the columns ``[M, B, ...]`` of ``batch``, and store the
        gradients in ``grad``. The mean over a module's rows is their sum weighted with its row of ``weights``
        ``[M, B]``."""
        learner, before = self._learner, self._learner.module
        learner.module, learner.row_weights = self._as_first, weights
        try:
            out = self.modules.module.forward_train(batch)
            losses, metrics = learner.compute_loss_for_module(self._id, batch, out)
        finally:
            learner.module, learner.row_weights = before, None
        grads = torch.autograd.grad(losses.sum(), self.modules.leaves, materialize_grads=True)
        torch._foreach_copy_(self._grads, grads)  # pyright: ignore[reportPrivateImportUsage]
        return losses.detach(), metric_tensors(metrics, losses, type(learner).__name__)


class Stack(Group):
    """Updates ``M`` modules with the same structure in a single forward and backward pass, each on its own data.

    Args:
        learner: The learner that trains the modules.
        module_ids: The ids of the modules.
        compute: The :class:`StackedPass` of the modules, in the order of ``module_ids``.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str], compute: StackedPass) -> None:
        super().__init__(learner, module_ids)
        self._compute = compute
        self._parts = [part for module_id in module_ids for part in learner.trained_parts[module_id].values()]

    def _train(
        self, batches: Sequence[Batch], shares: Shares, epochs: Sequence[int], sizes: Sequence[int | None]
    ) -> list[Metrics]:
        num_epochs, size = epochs[0], sizes[0]  # the same for all modules
        learner, counts = self._learner, [num_rows(batch) for batch in batches]
        if not all(counts):
            raise no_data("no valid row")
        rows, weights = _places(counts, size)
        whole: Batch = {
            name: map_leaves(lambda *x: torch.cat(x), column, *(batch[name] for batch in batches[1:]))
            for name, column in batches[0].items()
        }
        starts = itertools.accumulate(counts, initial=0)
        orders = [  # drawn module by module, as in separate updates
            [start + torch.randperm(count, generator=learner.generator) for _ in range(num_epochs)]
            for start, count in zip(starts, counts, strict=False)
        ]
        widths, here = weights.count_nonzero(2).amax(1).tolist(), weights[:, :, 0].ne(0)
        history = list[Metrics]()
        self._compute.modules.refresh()
        for order in zip(*orders, strict=True):
            places = torch.cat(order)[rows]
            shuffled = map_columns(lambda x, places=places: x[places], whole)
            for step, width in enumerate(widths):
                batch = map_columns(lambda x, at=(step, slice(None), slice(width)): x[at], shuffled)
                history.append(self._step(batch, weights[step, :, :width], here[step]))
        num_steps = here.sum(0) * num_epochs
        for module_id, num in zip(self._ids, num_steps.tolist(), strict=True):
            learner.num_gradient_steps[module_id] += num
        used = torch.cat([weights[step, :, :width] for step, width in enumerate(widths)] * num_epochs, 1).ne(0)
        return _by_module(history, here.repeat(num_epochs, 1), used)

    def _step(self, batch: Batch, weights: Tensor, here: Tensor) -> Metrics:
        """Take a gradient step on the columns ``[M, B, ...]`` of ``batch``, as :meth:`Learner._gradient_step` does, for
        the modules that ``here`` ``[M]`` marks. Return the metrics of all ``M`` modules, with a leading dim ``M``. For
        ``weights``, see :class:`StackedPass`."""
        learner, grad = self._learner, self._compute.grad
        losses, metrics = self._compute(batch, weights)
        norms = torch.linalg.vector_norm(grad, dim=1)
        if (limit := self._parts[0].part.grad_clip) is not None:
            grad.div_(norms.clamp_min(limit).div_(limit)[:, None])
        both = norms + losses
        skips = both.sub_(both).ne_(0).float()
        for part, row, skip in zip(self._parts, grad.unbind(), torch.where(here, skips, 1.0).unbind(), strict=True):
            part.flat.grad.copy_(row)
            part.optimizer.step_unless(skip)  # pyright: ignore[reportAttributeAccessIssue]
        torch.stack([part.flat.tensor.detach() for part in self._parts], out=self._compute.modules.weights)
        learner.progress += int(here.count_nonzero())
        metrics |= {"gradient_norm": norms, "total_loss": losses, SKIPPED: skips}
        return {name: value.detach() for name, value in metrics.items()}


def _places(counts: Sequence[int], size: int | None) -> tuple[Tensor, Tensor]:
    """Cut the rows of each module into minibatches, as :func:`row_minibatches` does.

    Returns:
        The index of each row among the concatenated rows of all modules, ``[steps, M, B]``, and the weight of each row
        in the mean over its minibatch, of the same shape. Shorter minibatches are padded with repetitions of their own
        rows, and modules that have no minibatch in a step with their first row. Padding has weight 0.
    """
    bounds = [minibatch_bounds(count, size) for count in counts]
    steps, width = max(map(len, bounds)) - 1, max(b - a for of in bounds for a, b in itertools.pairwise(of))
    rows, weights = torch.zeros(steps, len(counts), width, dtype=torch.int64), torch.zeros(steps, len(counts), width)
    for i, (start, of) in enumerate(zip(itertools.accumulate(counts, initial=0), bounds, strict=False)):
        rows[:, i] = start
        for step, (a, b) in enumerate(itertools.pairwise(of)):
            rows[step, i] = start + a + torch.arange(width) % (b - a)
            weights[step, i, : b - a] = 1 / (b - a)
    return rows, weights


def _by_module(history: Sequence[Metrics], here: Tensor, used: Tensor) -> list[Metrics]:
    """Return the metrics of each module, joined over all gradient steps.

    Args:
        history: The metrics ``[M]`` or ``[M, B]`` of each step.
        here: True where a module took the step, ``[steps, M]`` bool.
        used: ``[M, rows]`` bool over the rows of all steps, concatenated: True for rows of a minibatch, False for
            padding.
    """
    per_row = {name for name, x in history[0].items() if x.dim() > 1}
    joined = {n: (torch.cat if n in per_row else torch.stack)([m[n] for m in history], 1) for n in history[0]}
    return [
        {name: x[i][used[i] if name in per_row else here[:, i]] for name, x in joined.items()}
        for i in range(here.shape[1])
    ]
