"""BatchLearner: a learner that is given ready batches, such as those of a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlmodule.data.columns import Columns
from rlmodule.data.device import moved
from rlmodule.data.rollout import allocate_observations, as_tensors
from rlmodule.data.sequences import num_rows
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.learner import Batch, Learner, join_metrics, warn_of_update
from rlmodule.learning.reports import Metrics
from rlmodule.learning.update_data import check_batch, explain_missing_column
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID


class BatchLearner(Learner):
    """A learner that is given ready train batches, such as samples of a replay buffer.

    Override points, besides those of :class:`Learner`:
        ``before_gradient_step``: what precedes each step, such as drawing noise.
        ``prepare_batch``: what is computed from a batch before the gradient step, such as targets.
        ``after_gradient_step``: what follows each step, such as moving a target net.

    In an update of several learners, those without data do not call ``prepare_batch`` and the loss, but all call
    ``before_gradient_step`` and ``after_gradient_step``: draw from ``generator`` in these.
    """

    def before_gradient_step(self, module_id: str) -> None:
        """Runs under ``no_grad`` before ``prepare_batch``. Default: nothing."""

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """Return the batch for the loss; runs under ``no_grad``. Default: unchanged."""
        return batch

    def after_gradient_step(self, module_id: str) -> None:
        """Follow the module's new weights. Runs under ``no_grad``. Default: nothing."""

    def update(self, batch: Batch, **kwargs: Any) -> dict[str, dict[str, float]]:
        """Deprecated: call :meth:`update_from_batch`."""
        warn_of_update(type(self), "update_from_batch")
        return self.update_from_batch(batch, **kwargs)

    def update_from_batch(
        self, batch: Batch | None, *, env_steps: int | None = None, module_id: str = DEFAULT_MODULE_ID
    ) -> dict[str, dict[str, float]]:
        """Take one gradient step on ``batch``, and wait for its numbers. :meth:`step_on_batch` does not wait.

        Args:
            batch: Columns ``[B, ...]``, as the loss reads them; sequences ``[L, B, ...]`` for a recurrent module. This
                learner's part if there are several, which may be None.
            env_steps: Env steps sampled in the whole run so far, for schedules; None adds the rows of the batch to the
                count of this learner.
            module_id: Which module learns.

        Returns:
            Module id → numbers to report, of the rows of all learners.

        Raises:
            KeyError: If there is no module of that id (names the known ones), or the batch lacks a column.
            TypeError: If the batch is no dict of tensors.
            ValueError: If there is no data.
            CollectiveError: If another learner raised, ended or hangs.
        """
        where = f"{type(self).__name__}.update_from_batch()"
        check_batch(batch, where)
        try:
            with self._together:
                if env_steps is None:
                    env_steps = self._steps_after(0 if batch is None else num_rows(batch))
                step = self.step_on_batch(batch, env_steps=env_steps, module_id=module_id)
                joined = self._joined(module_id, [step[module_id]])
        except KeyError as error:
            explain_missing_column(error, where, batch or {})
            raise
        self.module.eval()
        return {module_id: self._summary(module_id, joined, {})}

    def step_on_batch(
        self, batch: Batch | None, *, env_steps: int, module_id: str = DEFAULT_MODULE_ID
    ) -> dict[str, Metrics]:
        """Take one gradient step on ``batch``, without waiting for the device and without checking the data. Loops with
        many small updates call it, and :meth:`summarize_updates` now and then.

        Args:
            batch, env_steps, module_id: See :meth:`update_from_batch`.

        Returns:
            Module id → tensors: what the loss reported, scalars or one entry per row, of the rows here alone.
            :func:`merge_metrics` joins those of several learners, :meth:`summarize_updates` makes numbers of many.

        Raises:
            KeyError: If there is no module of that id; names those there are.
            ValueError: If there is no data.
            CollectiveError: If another learner raised, ended or hangs.
        """
        module = self.module[module_id]
        if batch is None and self.collective.size == 1:
            raise no_data()
        with self._together:
            self._set_env_steps(env_steps)
            if batch is not None and self.device.type != "cpu":
                batch = {name: moved(column, self.device) for name, column in batch.items()}
            if not module.training:  # to ask costs less than to walk over all its parts each time
                self.module.train()
            with self._module_noise:
                with torch.no_grad():
                    self.before_gradient_step(module_id)
                    if batch is not None:
                        batch = self.prepare_batch(module_id, batch)
                metrics = self._gradient_step(module_id, batch or {})
            self.num_updates += 1
            with torch.no_grad():
                if batch is None:
                    leading = (0, 0) if self._stateful[module_id] else (0,)
                    obs = moved(as_tensors(allocate_observations(module.input_space, *leading)), self.device)
                    batch = {Columns.OBS: obs}
                self._update_statistics(module_id, batch)
                self.after_gradient_step(module_id)
        return {module_id: metrics}

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """The numbers of a result, from what successive calls of :meth:`step_on_batch` returned; leaves the modules in
        eval mode until the next step."""
        if not history:
            return {}
        self.module.eval()  # not after each update, which would walk over all parts each time
        return {
            module_id: self._summary(module_id, join_metrics([metrics[module_id] for metrics in history]), {})
            for module_id in history[0]
        }
