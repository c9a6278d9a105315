"""EpisodeLearner: the base learner of algorithms that train on rollouts, such as PPO."""

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.data.sequences import cut_into_sequences, sequence_minibatches
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.learner import Learner, warn_of_update
from rlmodule.learning.minibatches import row_minibatches
from rlmodule.learning.reports import Metrics, join_metrics
from rlmodule.learning.sharding import Share
from rlmodule.learning.update_data import (
    ModuleData,
    check_counts,
    check_episodes,
    check_preprocessed,
    explain_missing_column,
    num_steps_in,
)
from rlmodule.modules.apis import ValueFunctionAPI
from rlmodule.modules.recurrent import values_along, with_states
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.settings import EpisodeLearnerSettings

if TYPE_CHECKING:
    from rlmodule.learning.groups import Groups


class EpisodeLearner(Learner):
    """Trains on rollouts or episodes, in epochs of minibatches.

    Everything except the gradient steps runs under ``no_grad`` with the modules in eval mode, so that only the forward
    passes of gradient steps update statistics such as those of batch norm.

    Override points, in addition to those of :class:`Learner`:
        ``preprocess_train_data``: change a rollout before its values are computed, or add columns for the loss;
        default: return it unchanged.
        ``make_train_batch``: compute bootstraps, advantages and targets, and choose the columns that the loss gets.
        ``should_stop``: end the epochs early; default: never.
        ``after_update``: adapt coefficients once per update; default: do nothing.

    If several learners train together, each calls these methods with its own share of the data, which may have no valid
    row. Only ``should_stop`` and ``summarize`` get the metrics of all learners. Use ``self.collective`` to exchange
    anything else.
    """

    _added_columns: Sequence[str] = ()

    def __init__(self, settings: EpisodeLearnerSettings, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        super().__init__(settings, spec, run_seed=run_seed)
        self.settings = settings

    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        """Return the rollout to train on. This runs in the learner, before anything is computed from the rewards. The
        default returns ``rollout`` unchanged.

        Columns ``[T, N, ...]`` that an override adds are passed to the loss as rows ``[B, ...]``, as the rollout's own
        columns are.
        """
        return rollout

    @abstractmethod
    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Compute the columns that the loss reads, such as advantages. Return them as a train batch from :meth:`pack`,
        and a dict of numbers to report."""

    def value_pass(self, module_id: str, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return the value of each row's observation, and of the next one, ``[T, N]`` each; see ``split_values``."""
        module = self.module[module_id]
        assert isinstance(module, ValueFunctionAPI)
        if self._stateful[module_id]:
            return rollout.split_values(values_along(module, rollout))
        return rollout.split_values(module.compute_values({Columns.OBS: rollout.rows_to_value()}))

    def pack(self, module_id: str, rollout: Rollout, names: Sequence[str]) -> Batch:
        """Return a train batch of the columns in ``names`` and the columns that ``preprocess_train_data`` added. It
        consists of the valid rows ``[B, ...]``, or of sequences ``[L, B, ...]`` for a recurrent module."""
        names = [*names, *self._added_columns]
        if self.data_parallel is not None:
            rollout, names = self.data_parallel.number(rollout), [*names, Columns.ORDER]
        if self._stateful[module_id]:
            return cut_into_sequences(rollout, names, self.module[module_id].max_seq_len)
        return rollout.valid_rows(names)

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        """Return True to skip the remaining epochs. This is called after each epoch with the metrics of its
        minibatches, which have the form that :meth:`summarize` describes. The default returns False."""
        return False

    def _all_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        """Return whether ``should_stop`` returns True on any learner. All learners get the same answer."""
        stop = self.should_stop(module_id, metrics)
        return bool(self.collective.all_reduce(torch.tensor(float(stop))))

    def may_stop(self) -> bool:
        """Return whether ``should_stop`` must be called at all. The answer must be the same on all learners. The
        default returns True if ``should_stop`` is overridden."""
        return type(self).should_stop is not EpisodeLearner.should_stop

    def after_update(self, module_id: str, batch: Batch) -> None:
        """Adapt coefficients of the loss after the last gradient step of an update. The default does nothing.

        Args:
            module_id: The module that was trained.
            batch: The train batch, which may be empty; :meth:`forward_rows` computes the module's outputs for it.
        """

    def update(self, episodes: Rollout | Sequence[Episode], **kwargs: Any) -> dict[str, dict[str, float]]:
        """Call :meth:`update_from_episodes`. This method is deprecated and warns."""
        warn_of_update(type(self), "update_from_episodes")
        return self.update_from_episodes(episodes, **kwargs)

    def update_from_episodes(
        self,
        episodes: ModuleData | Mapping[str, ModuleData],
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int | None = None,
        minibatch_size: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Learn from one rollout, or from episodes, in epochs of reshuffled minibatches.

        Args:
            episodes: The data, or a dict of data by module id. With several learners, this learner's share, or None.
            env_steps, module_id, num_epochs, minibatch_size: See :meth:`LearnerGroup.update_from_episodes`.

        Returns:
            Module id → numbers to report by name. The key ``"timers"`` has the seconds that each phase took.

        Raises:
            KeyError: If no module has the given id, or the data lacks a column that the learner reads.
            TypeError, ValueError: If the data is neither a rollout nor episodes, no learner has any, or ``num_epochs``
                or ``minibatch_size`` is less than 1.
            CollectiveError: If another learner raises an error, exits or hangs.
        """
        if num_epochs is not None or minibatch_size is not None:
            counts = {"num_epochs": num_epochs, "minibatch_size": minibatch_size}
            check_counts(counts, f"{type(self).__name__}.update_from_episodes()")
        is_alone = self._settings_of.get(module_id) is self.settings and module_id not in self.sharing
        if isinstance(episodes, Mapping) or not is_alone:
            return self._update_each(episodes, module_id, env_steps, num_epochs, minibatch_size)
        rollout = episodes if isinstance(episodes, Rollout) else self._rollout_of(episodes)
        with self._together:
            following = self._steps_after(num_steps_in(rollout)) if env_steps is None else env_steps
            self._set_env_steps(self.env_steps if env_steps is None else env_steps)
            if self.data_parallel is not None:
                rollout = self.data_parallel.sync_rollout(rollout, self.generator, self.num_updates, self.env_steps)
            if rollout is None:
                raise no_data()
            start = perf_counter()
            self.module.eval()
            # only gradient steps run in train mode: in the value pass, dropout and batch norm act as in the runners
            batch, reported = self._train_batch(module_id, rollout.to(self.device))
            share = None if self.data_parallel is None else self.data_parallel.share_of(batch)
            prepared = perf_counter()
            self.module.train()
            before, epochs, steps = self.progress, list[Metrics](), list[Metrics]()
            with self._module_noise:
                for _ in range(self.settings.num_epochs if num_epochs is None else num_epochs):
                    for minibatch in self._minibatches(batch, share, minibatch_size):
                        steps.append(self._gradient_step(module_id, minibatch))
                    if self.progress == before:
                        raise no_data("no valid row")
                    if self.may_stop():
                        epochs.append(self._joined(module_id, steps))
                        steps.clear()
                        if self._all_stop(module_id, epochs[-1]):
                            break
            self.num_updates += self.progress - before
            metrics = join_metrics(epochs) if epochs else self._joined(module_id, steps)
            results = self._summary(module_id, metrics, reported)
            self.module.eval()
            self.after_update(module_id, batch)
            self._update_statistics(module_id, batch)
            self.env_steps = following
        return {module_id: results, "timers": {"value_pass": prepared - start, "update": perf_counter() - prepared}}

    def _update_each(
        self,
        data: ModuleData | Mapping[str, ModuleData],
        module_id: str,
        env_steps: int | None,
        num_epochs: int | None,
        minibatch_size: int | None,
    ) -> dict[str, dict[str, float]]:
        """Do what :meth:`update_from_episodes` documents for modules that have their own settings or are updated with
        others: update them in the order of their ids, and the modules of a :class:`Group` together."""
        check_episodes(data, f"{type(self).__name__}.update_from_episodes()", module_id)
        data = data if isinstance(data, Mapping) else {module_id: data}
        settings = {module_id: self.settings_of(module_id) for module_id in sorted(data)}
        groups: Any = [((module_id,), None) for module_id in settings]
        if self.sharing or len(groups) > 1:
            groups = self._groups.divide([*settings], stacks=self._is_plain and self.device.type == "cpu")
        results, timers = dict[str, dict[str, float]](), {"value_pass": 0.0, "update": 0.0}
        with self._together:
            following = self._steps_after(num_steps_in(data)) if env_steps is None else env_steps
            steps = self.env_steps if env_steps is None else env_steps
            for ids, group in groups:
                with self.using(settings[ids[0]]):
                    if group is None:
                        results |= self.update_from_episodes(
                            data[ids[0]],
                            env_steps=steps,
                            module_id=ids[0],
                            num_epochs=num_epochs,
                            minibatch_size=minibatch_size,
                        )
                    else:
                        self._set_env_steps(steps)
                        rollouts = [self._rollout_of(data[module_id]) for module_id in ids]
                        results |= group.update(rollouts, num_epochs, minibatch_size)
                timers = {phase: timers[phase] + seconds for phase, seconds in results.pop("timers").items()}
            self.env_steps = following
        return results | {"timers": timers}

    @functools.cached_property
    def _groups(self) -> "Groups":
        from rlmodule.learning.groups import Groups  # only several modules need it

        return Groups(self)

    def _take_shared_parts(self, module_id: str) -> set[int]:
        return self._groups.take_shared_parts(module_id)

    def _rollout_of(self, data: ModuleData) -> Rollout | None:
        """Return ``data`` as a rollout, or None if it is None or an empty sequence of episodes. Raise TypeError if
        ``data`` is anything else."""
        check_episodes(data, f"{type(self).__name__}.update_from_episodes()")
        if data is None or isinstance(data, Rollout):
            return data
        return Rollout.from_episodes(data) if data else None

    @torch.no_grad()
    def _train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Run ``preprocess_train_data`` and ``make_train_batch``. Return the batch, and numbers to report."""
        try:
            if type(self).preprocess_train_data is not EpisodeLearner.preprocess_train_data:
                known = rollout.columns
                # a copy, since the override may add columns in place
                rollout = self.preprocess_train_data(dataclasses.replace(rollout, columns={**known}))
                self._added_columns = check_preprocessed(rollout, known, type(self).__name__)
            if self._stateful[module_id]:
                rollout = with_states(self.module[module_id], rollout)
            return self.make_train_batch(module_id, rollout)
        except KeyError as error:
            explain_missing_column(error, f"{type(self).__name__}.update_from_episodes()", rollout.columns)
            raise

    def _minibatches(self, batch: Batch, share: Share | None = None, size: int | None = None) -> Iterator[Batch]:
        """Shuffle the batch, and yield this learner's rows (or sequences) of each minibatch. ``size`` is the
        number of env steps per minibatch and learner; None takes the setting ``minibatch_size``. ``share`` is None if
        this learner trains alone."""
        pieces = sequence_minibatches if Columns.STATE_IN in batch else row_minibatches
        size = self.settings.minibatch_size if size is None else size
        return pieces(batch, None if size is None else size * self.collective.size, self.generator, share)
