"""BatchLearner: a learner whose batches come ready, such as out of a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rlmodule.acceleration import moved
from rlmodule.learner import Batch, Learner
from rlmodule.learning_together import no_data
from rlmodule.module import DEFAULT_MODULE_ID
from rlmodule.schedules import value_at
from rlmodule.update_metrics import Metrics, join_metrics


class BatchLearner(Learner):
    """A learner that is fed ready train batches, such as samples of a replay buffer.

    Override points, besides those of :class:`Learner`:
        ``before_gradient_step``: what precedes each step, such as drawing noise.
        ``prepare_batch``: what is computed from a batch before the gradient step, such as targets.
        ``after_gradient_step``: what follows each step, such as moving a target net.

    Of several learners all call ``before_gradient_step`` and ``after_gradient_step``, but those without data in an
    update not the loss and ``prepare_batch``: what draws from ``generator`` belongs into the former.
    """

    def before_gradient_step(self, module_id: str) -> None:
        """Runs under ``no_grad`` before ``prepare_batch``. Default: nothing."""

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """The batch as the loss shall see it; runs under ``no_grad``. Default: as it came."""
        return batch

    def after_gradient_step(self, module_id: str) -> None:
        """Follow the module's new weights. Runs under ``no_grad``. Default: nothing."""

    def update_from_batch(
        self, batch: Batch | None, *, env_steps: int, module_id: str = DEFAULT_MODULE_ID
    ) -> dict[str, Metrics]:
        """One gradient step on ``batch``. Nothing here waits for the device.

        Args:
            batch: Columns ``[B, ...]``, as the loss reads them; sequences ``[L, B, ...]`` for a recurrent module. Of
                several learners the part of this one, which may be None.
            env_steps: Env steps sampled in the whole run so far; schedules go by it.
            module_id: Which module learns.

        Returns:
            Module id → tensors: what the loss reported, scalars or one entry per row, of the rows here alone.
            :func:`merge_metrics` joins those of several learners, :meth:`summarize_updates` makes numbers of many.

        Raises:
            KeyError: If there is no module of that id; names those there are.
            ValueError: If there is no data.
            PeerLost: If another learner did not take part to the end.
        """
        module = self.module[module_id]
        if batch is None and self.peers.size == 1:
            raise no_data()
        with self.peers:
            self._begin(env_steps)
            if batch is not None and self.device.type != "cpu":
                batch = {name: moved(column, self.device) for name, column in batch.items()}
            if not module.training:  # to ask costs less than to walk over all its parts each time
                self.module.train()
            with self._noise():
                with torch.no_grad():
                    self.before_gradient_step(module_id)
                    if batch is not None:
                        batch = self.prepare_batch(module_id, batch)
                metrics = self._gradient_step(module_id, batch)
            self.num_updates += 1
            with torch.no_grad():
                self._update_statistics(module_id, batch)
                self.after_gradient_step(module_id)
        return {module_id: metrics}

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """The numbers of a result, from what successive calls of :meth:`update_from_batch` returned."""
        if not history:
            return {}
        lr = {"learning_rate": value_at(self.settings.lr, self.env_steps)}
        return {
            module_id: self._summary(module_id, join_metrics([metrics[module_id] for metrics in history]), lr)
            for module_id in history[0]
        }
