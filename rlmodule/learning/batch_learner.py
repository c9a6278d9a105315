"""A learner that trains on ready batches, such as samples of a replay buffer."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.device import moved
from rlmodule.data.rollout import allocate_observations, as_tensors
from rlmodule.data.sequences import num_rows
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.learner import Learner, join_metrics
from rlmodule.learning.reports import Metrics
from rlmodule.learning.update_data import check_batch, explain_missing_column, warn_of_update
from rlmodule.modules.recurrent import check_sequences
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID


class BatchLearner(Learner):
    """Trains on ready batches, such as samples of a replay buffer, with one gradient step per batch.

    Override points, in addition to those of :class:`Learner`:
        ``before_gradient_step``: prepare each gradient step, for example draw noise.
        ``prepare_batch``: add columns to a batch before the gradient step, for example targets.
        ``after_gradient_step``: update other state after each gradient step, for example target nets.

    If several learners train together, all of them call ``before_gradient_step`` and ``after_gradient_step``, but
    learners without data skip ``prepare_batch`` and the loss. So draw from ``generator``, which must stay the same on
    all learners, only in ``before_gradient_step`` and ``after_gradient_step``.

    Attributes:
        num_in_batch: Number of rows, or of sequences, in the shares of all learners that train together; None if no
            group has said it.
    """

    num_in_batch: int | None = None

    def before_gradient_step(self, module_id: str) -> None:
        """Prepare a gradient step of module ``module_id``. Runs under ``no_grad`` before ``prepare_batch``. The default
        does nothing."""

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """Return the batch that the loss gets. Runs under ``no_grad``. The default returns ``batch`` unchanged."""
        return batch

    def after_gradient_step(self, module_id: str) -> None:
        """Update state that depends on the module's weights, such as a target net, after a gradient step. Runs under
        ``no_grad``. The default does nothing."""

    def update(self, batch: Batch, **kwargs: Any) -> dict[str, dict[str, float]]:
        """Call :meth:`update_from_batch`. This method is deprecated and warns."""
        warn_of_update(type(self), "update_from_batch")
        return self.update_from_batch(batch, **kwargs)

    def update_from_batch(
        self, batch: Batch | None, *, env_steps: int | None = None, module_id: str = DEFAULT_MODULE_ID
    ) -> dict[str, dict[str, float]]:
        """Take one gradient step on ``batch`` and return its metrics as numbers. This waits for the device; use
        :meth:`step_on_batch` to avoid the wait.

        Args:
            batch: Columns ``[B, ...]`` that the loss reads, or sequences ``[L, B, ...]`` for a recurrent module. If
                several learners train together, this learner's share of the batch; None if the share is empty.
            env_steps: Env steps sampled in the whole run so far, for schedules; None adds the number of rows of the
                batch, over all learners, to the learner's count.
            module_id: The module to train.

        Returns:
            Module id → numbers to report by name, computed over the rows of all learners.

        Raises:
            KeyError: If no module has the id ``module_id``, or the batch lacks a column that the learner reads.
            TypeError: If the batch is not a dict of tensors.
            ValueError: If the module is not trained, or no learner has data.
            CollectiveError: If another learner raises an error, exits or hangs.
        """
        where = f"{type(self).__name__}.update_from_batch()"
        check_batch(batch, where)
        if batch and module_id in self.trained and self.trained[module_id].is_stateful:
            check_sequences(batch, f"{where} with the recurrent module {module_id!r}")
        try:
            with self._update():
                now = self._steps_after(num_rows(batch) if batch else 0)
                if now == self.env_steps:
                    raise no_data("no row")
                step = self.step_on_batch(batch, env_steps=now if env_steps is None else env_steps, module_id=module_id)
                joined = self.joined_metrics(module_id, [step[module_id]])
        except KeyError as error:
            explain_missing_column(error, where, batch or {})
            raise
        return self.summarize_updates([{module_id: joined}])

    def step_on_batch(
        self, batch: Batch | None, *, env_steps: int, module_id: str = DEFAULT_MODULE_ID
    ) -> dict[str, Metrics]:
        """Take one gradient step on ``batch``, without waiting for the device and without checking the data. In a loop
        of many small updates, call this method for each update and :meth:`summarize_updates` now and then.

        Args:
            batch, env_steps, module_id: See :meth:`update_from_batch`.

        Returns:
            Module id → metrics by name, computed over this learner's rows alone. A metric is a scalar tensor or has one
            entry per row. :func:`merge_metrics` joins the metrics of several learners, and :meth:`summarize_updates`
            turns the metrics of many updates into numbers.

        Raises:
            KeyError: If no module has the id ``module_id``. The error names the known ids.
            ValueError: If the module is not trained, or ``batch`` is None and this learner trains alone.
            CollectiveError: If another learner raises an error, exits or hangs.
        """
        self.settings_of(module_id)  # raises if the module is unknown or not trained
        if batch is None and self.collective.size == 1:
            raise no_data()
        module = self.module[module_id]
        with self._update():
            self.use_settings_of(module_id)
            self._set_env_steps(env_steps)
            if batch is not None and self.device.type != "cpu":
                batch = moved(batch, self.device)
            if not module.training:  # train() walks over all submodules: asking first is cheaper
                self.module.train()
            with self._module_noise:
                with torch.no_grad():
                    self.before_gradient_step(module_id)
                    if batch is not None:
                        batch = self.prepare_batch(module_id, batch)
                metrics = self.gradient_step(module_id, batch or {})
            self.num_updates += 1
            with torch.no_grad():
                if batch is None:
                    # no data here: join the statistics of the other learners with a batch of no rows
                    leading = (0, 0) if self.trained[module_id].is_stateful else (0,)
                    obs = moved(as_tensors(allocate_observations(module.input_space, *leading)), self.device)
                    batch = {Columns.OBS: obs}
                self._update_statistics(module_id, batch)
                self.after_gradient_step(module_id)
        return {module_id: metrics}

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """Return the numbers to report, by module id and name, from the results of successive calls of
        :meth:`step_on_batch`. Leave the modules in eval mode."""
        if not history:
            return {}
        self.module.eval()  # once here, since eval() walks over all submodules
        by_id = dict[str, list[Metrics]]()
        for step in history:
            for module_id, metrics in step.items():
                by_id.setdefault(module_id, []).append(metrics)
        results = dict[str, dict[str, float]]()
        try:
            for module_id, steps in by_id.items():
                self.use_settings_of(module_id)
                results[module_id] = self._summary(module_id, join_metrics(steps), {})
        finally:
            self.settings = self.run_settings
        return results
