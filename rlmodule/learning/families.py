"""Groups, which are modules that are updated together, and families, which are groups whose modules share parts."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout, map_leaves
from rlmodule.data.sequences import num_rows, sequence_minibatches
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.flat_optimizer import FlatAdam, TrainedPart
from rlmodule.learning.minibatches import row_minibatches
from rlmodule.learning.reports import ROWS, SKIPPED, Metrics
from rlmodule.learning.sharding import Share

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner
    from rlmodule.learning.stacks import StackedPass

Shares = Sequence[Share | None]
"""This learner's share of the rows of each module; None for each module if a single learner trains."""


class Group(ABC):
    """Modules that are updated together, each on its own data.

    Override points: ``_train``.

    Args:
        learner: The learner that trains the modules.
        module_ids: The ids of the modules.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str]) -> None:
        self._learner, self._ids = learner, module_ids

    def update(self, rollouts: Sequence[Rollout | None], num_epochs: int | None, size: int | None) -> dict[str, Any]:
        """Update the modules, each on its rollout, as :meth:`EpisodeLearner.update_from_episodes` updates a single
        module. Return what that method returns.

        Args:
            rollouts: The rollout of each module, in the order of ``module_ids``; None if this learner has no data for
                the module.
            num_epochs: Epochs of each module; None uses the module's setting.
            size: Rows per minibatch of one learner; None uses the module's setting.
        """
        learner, peers = self._learner, self._learner.data_parallel
        start, batches, reported, shares = perf_counter(), list[Batch](), list[Any](), list[Share | None]()
        learner.module.eval()
        for module_id, rollout in zip(self._ids, rollouts, strict=True):
            with learner.using(learner.settings_of(module_id)):
                if peers is not None:
                    now = learner.num_updates, learner.env_steps
                    rollout = peers.sync_rollout(rollout, learner.generator, *now)
                if rollout is None:
                    raise no_data()
                batch, more = learner._train_batch(module_id, rollout.to(learner.device))
                batches.append(batch)
                reported.append(more)
                shares.append(None if peers is None else peers.share_of(batch))
        before, steps = perf_counter(), learner.progress
        of_modules = [learner.settings_of(module_id) for module_id in self._ids]
        epochs = [settings.num_epochs if num_epochs is None else num_epochs for settings in of_modules]
        sizes = [settings.minibatch_size if size is None else size for settings in of_modules]
        learner.module.train()
        with learner._module_noise:
            of_each = self._train(batches, shares, epochs, sizes)
        learner.num_updates += learner.progress - steps
        learner.module.eval()
        results: dict[str, Any] = {}
        for module_id, metrics, batch, more in zip(self._ids, of_each, batches, reported, strict=True):
            with learner.using(learner.settings_of(module_id)):
                results[module_id] = learner._summary(module_id, metrics, more)
                learner.after_update(module_id, batch)
                learner._update_statistics(module_id, batch)
        return results | {"timers": {"value_pass": before - start, "update": perf_counter() - before}}

    @abstractmethod
    def _train(
        self, batches: Sequence[Batch], shares: Shares, epochs: Sequence[int], sizes: Sequence[int | None]
    ) -> list[Metrics]:
        """Train each module on its batch (with its :class:`Share`; None without other learners) for its ``epochs``, in
        minibatches of its ``sizes`` (None: all rows). Return each module's metrics, joined over its minibatches."""


def _units(batch: Batch, share: Share | None) -> tuple[int, int]:
    """Return the number of sequences of a batch, over all learners, and the rows in each; without sequences, the number
    of rows and 1."""
    if share is not None:
        return share.total, share.length
    if Columns.STATE_IN not in batch:
        return num_rows(batch), 1
    length, count = batch[Columns.STARTS].shape
    return count, length


class Family(Group):
    """Updates modules that share parts on the sum of their losses. Each loss is a mean over the module's rows, and all
    modules are trained in the same number of minibatches. The gradient of each part is clipped separately and each part
    has its own optimizer, but if any loss or gradient is not finite, no part is updated.

    Args:
        learner: The learner that trains the modules.
        module_ids: The ids of the modules.
        compute: A :class:`StackedPass` of the modules, or None to compute the losses one by one.
    """

    def __init__(self, learner: EpisodeLearner, module_ids: Sequence[str], compute: StackedPass | None) -> None:
        super().__init__(learner, module_ids)
        self._compute = compute

    def _train(
        self, batches: Sequence[Batch], shares: Shares, epochs: Sequence[int], sizes: Sequence[int | None]
    ) -> list[Metrics]:
        learner, collective = self._learner, self._learner.collective
        counts, lengths = zip(*map(_units, batches, shares), strict=True)
        if not all(counts):
            raise no_data("no valid row")
        each = zip(counts, lengths, sizes, strict=True)  # a minibatch has as many whole units as its size allows
        pieces = max(-(-n // max(1, size * collective.size // length)) if size else 1 for n, length, size in each)
        cutters = [sequence_minibatches if Columns.STATE_IN in batch else row_minibatches for batch in batches]
        lengths = [-(-n // pieces) * length for n, length in zip(counts, lengths, strict=True)]  # rows of a minibatch
        history: list[list[Metrics]] = [[] for _ in batches]
        stopped = [False] * len(batches)
        for epoch in range(max(epochs)):
            stopped = [over or epoch >= last for over, last in zip(stopped, epochs, strict=True)]
            if all(stopped):
                break
            before, each = [len(of) for of in history], zip(stopped, cutters, batches, lengths, shares, strict=True)
            cut = [() if over else of(batch, n, learner.generator, share) for over, of, batch, n, share in each]
            for minibatches in itertools.zip_longest(*cut):
                self._step(minibatches, history)
            for i, module_id in enumerate(self._ids):
                with learner.using(learner.settings_of(module_id)):
                    if learner.may_stop() and not stopped[i]:
                        latest = learner._joined(module_id, history[i][before[i] :])
                        stopped[i] = learner._all_stop(module_id, latest)
        return [learner._joined(module_id, steps) for module_id, steps in zip(self._ids, history, strict=True)]

    def _step(self, minibatches: Sequence[Batch | None], history: Sequence[list[Metrics]]) -> None:
        """Take a gradient step for the modules whose minibatch is not None. A minibatch may be empty on this learner,
        but not on all learners. Append the metrics of each of these modules to its list in ``history``."""
        learner, collective = self._learner, self._learner.collective
        acting = [(i, self._ids[i], batch) for i, batch in enumerate(minibatches) if batch is not None]
        own = {module_id: [*learner.trained_parts[module_id].values()] for _, module_id, _ in acting}
        shared = {n: learner.shared_parts[n] for _, module_id, _ in acting for n in learner.sharing[module_id]}
        parts: list[TrainedPart] = [*shared.values(), *itertools.chain.from_iterable(own.values())]
        for part in parts:
            part.flat.grad.zero_()
        rows = torch.tensor([float(num_rows(batch) if batch else 0) for _, _, batch in acting])
        if self._compute is not None and len(acting) == len(self._ids):
            losses, reported = self._backward_at_once(self._compute, [batch for *_, batch in acting])
        else:
            losses, reported = torch.zeros(len(acting), device=learner.device), list[Metrics]()
            weights = rows / collective.all_reduce(rows.clone())
            for k, (_, module_id, batch) in enumerate(acting):
                reported.append({})
                if batch and rows[k]:
                    with learner.using(learner.settings_of(module_id)):
                        passed = learner.forward_rows(module_id, batch)
                        loss, reported[k] = learner.compute_total_loss(module_id, *passed)
                    (loss * weights[k]).backward()
                    losses[k] = loss.detach() * weights[k]
        if collective.size > 1:
            pooled = collective.all_reduce(torch.cat([losses, *(part.flat.grad for part in parts)]))
            losses, *grads = pooled.split([len(losses), *(part.flat.grad.numel() for part in parts)])
            for part, grad in zip(parts, grads, strict=True):
                part.flat.grad.copy_(grad)
        by = [learner.run_settings.grad_clip_by] * len(shared)
        by += [learner.settings_of(module_id).grad_clip_by for module_id, those in own.items() for _ in those]
        norms = torch.stack([x.flat.clip(x.part.grad_clip, how) for x, how in zip(parts, by, strict=True)])
        both = norms.sum() + losses.sum()
        skip = both.sub_(both).ne_(0).float()
        for part in parts:
            if isinstance(part.optimizer, FlatAdam):
                part.optimizer.step_unless(skip)
            elif not skip:
                part.optimizer.step()
        learner.progress += len(acting)
        for k, (i, module_id, _) in enumerate(acting):
            learner.num_gradient_steps[module_id] += 1
            mine = [*own[module_id], *(shared[name] for name in learner.sharing[module_id])]
            which = torch.tensor([part in mine for part in parts], device=norms.device)
            step = {"gradient_norm": torch.linalg.vector_norm(norms[which]), "total_loss": losses[k], SKIPPED: skip}
            step |= {ROWS: rows[k]} if collective.size > 1 else {}
            history[i].append({name: x.detach() for name, x in (reported[k] | step).items()})

    def _backward_at_once(self, compute: StackedPass, batches: Sequence[Batch]) -> tuple[torch.Tensor, list[Metrics]]:
        """Add the gradients of all modules to the gradients of their parts. Return the losses ``[M]``, and the metrics
        of each module."""
        counts = torch.tensor([num_rows(batch) for batch in batches])
        width = int(counts.max())

        def padded(*columns: torch.Tensor) -> torch.Tensor:  # with rows of the same module, whose masks are valid
            return torch.stack([x if len(x) == width else x[torch.arange(width) % len(x)] for x in columns])

        first, *others = batches
        batch = {name: map_leaves(padded, x, *(other[name] for other in others)) for name, x in first.items()}
        compute.modules.refresh()
        with self._learner.using(self._learner.settings_of(self._ids[0])):
            losses, metrics = compute(batch, (torch.arange(width) < counts[:, None]) / counts[:, None])
        grads = [p.grad for own in compute.modules.parameters for p in own if p.grad is not None]
        pieces = compute.grad.flatten().split([grad.numel() for grad in grads])
        added = [piece.view_as(grad) for grad, piece in zip(grads, pieces, strict=True)]
        torch._foreach_add_(grads, added)  # pyright: ignore[reportPrivateImportUsage]
        rows = counts.tolist()
        return losses, [
            {n: x[i, :num] if x.dim() > 1 else x[i] for n, x in metrics.items()} for i, num in enumerate(rows)
        ]
