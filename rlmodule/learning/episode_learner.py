"""EpisodeLearner: the base learner of algorithms that train on rollouts, such as PPO."""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout, row_minibatches
from rlmodule.data.sequences import cut_into_sequences, sequence_minibatches
from rlmodule.learning.data_parallel import no_data
from rlmodule.learning.families import Family
from rlmodule.learning.flat_optimizer import FlatParameters, Part
from rlmodule.learning.joint_updates import divide
from rlmodule.learning.learner import Learner, join_metrics
from rlmodule.learning.reports import Metrics
from rlmodule.learning.stacks import Stack
from rlmodule.learning.trained_module import TrainedModule
from rlmodule.learning.update_data import (
    ModuleData,
    TrainData,
    check_counts,
    check_episodes,
    check_preprocessed,
    explain_missing_column,
    num_steps_in,
    warn_of_update,
)
from rlmodule.modules.apis import ValueFunctionAPI
from rlmodule.modules.recurrent import values_along, with_states
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, RLModule
from rlmodule.modules.shared_parts import places_of, tensors_at
from rlmodule.settings import EpisodeLearnerSettings


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
        ``can_stack``, ``compute_row_losses``: the losses of several modules at once; default: one module at a time.

    If several learners train together, each calls these methods with its own share of the data, which may have no valid
    row. Only ``should_stop`` and ``summarize`` get the metrics of all learners. Use ``self.collective`` to exchange
    anything else.
    """

    settings: EpisodeLearnerSettings
    _added_columns: Sequence[str] = ()
    # the modules of the latest update, whether stacks were allowed, and how it divided the modules
    _divided: tuple[Sequence[TrainedModule], bool, Sequence[str | Family | Stack]] = (), False, ()

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
        if self.trained[module_id].is_stateful:
            return rollout.split_values(values_along(module, rollout))
        return rollout.split_values(module.compute_values({Columns.OBS: rollout.rows_to_value()}))

    def pack(self, module_id: str, rollout: Rollout, names: Sequence[str]) -> Batch:
        """Return a train batch of the columns in ``names`` and the columns that ``preprocess_train_data`` added. It
        consists of the valid rows ``[B, ...]``, or of sequences ``[L, B, ...]`` for a recurrent module."""
        names = [*names, *self._added_columns]
        if self.data_parallel is not None:
            rollout, names = self.data_parallel.number(rollout), [*names, Columns.ORDER]
        if self.trained[module_id].is_stateful:
            return cut_into_sequences(rollout, names, self.module[module_id].max_seq_len)
        return rollout.valid_rows(names)

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        """Return True to skip the remaining epochs. This is called after each epoch with the metrics of its
        minibatches, which have the form that :meth:`summarize` describes. The default returns False."""
        return False

    def all_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        """Return whether ``should_stop`` returns True on any learner. All learners get the same answer."""
        stop = self.should_stop(module_id, metrics)
        return bool(self.collective.all_reduce(torch.tensor(float(bool(stop)))))

    def may_stop(self) -> bool:
        """Return whether ``should_stop`` must be called at all. The answer must be the same on all learners. The
        default returns True if ``should_stop`` is overridden."""
        return type(self).should_stop is not EpisodeLearner.should_stop

    def can_stack(self, module_id: str) -> bool:
        """Return whether the loss is the mean of :meth:`compute_row_losses`, and reads or changes nothing else that
        differs between modules with the settings and net structure of module ``module_id``. If so, ``M`` such modules
        may be trained in one pass. The default is False."""
        return False

    def compute_row_losses(
        self, module_id: str, module: RLModule, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the loss of each row, and the metrics by name. Called only if :meth:`can_stack` returns True.

        Args:
            module_id: The module to train, or the first of ``M`` modules of the same structure.
            module: That module, or all ``M`` modules as one.
            batch: Columns ``[B, ...]`` of a minibatch, or ``[M, B, ...]``.
            fwd_out: The outputs of ``forward_train`` for these rows.

        Returns:
            Losses ``[B]`` or ``[M, B]``, and metrics with one entry per row.
        """
        raise NotImplementedError

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
            TypeError, ValueError: If the data is neither a rollout nor episodes, no learner has any, a module is not
                trained, or ``num_epochs`` or ``minibatch_size`` is less than 1.
            CollectiveError: If another learner raises an error, exits or hangs.
        """
        where = f"{type(self).__name__}.update_from_episodes()"
        if num_epochs is not None or minibatch_size is not None:
            check_counts({"num_epochs": num_epochs, "minibatch_size": minibatch_size}, where)
        if not isinstance(episodes, Rollout):
            check_episodes(episodes, where, module_id)
        data = episodes if isinstance(episodes, Mapping) else {module_id: episodes}
        module_ids = sorted(data)
        for module_id in module_ids:
            self.settings_of(module_id)  # raises if the module is unknown or not trained
        with self._update():
            env_steps_after = self._steps_after(num_steps_in(data)) if env_steps is None else env_steps
            self._set_env_steps(self.env_steps if env_steps is None else env_steps)
            start = perf_counter()
            # only gradient steps run in train mode: in the value pass, dropout and batch norm act as in the runners
            self.module.eval()
            prepared = dict[str, TrainData]()
            for module_id in module_ids:
                prepared[module_id] = self._prepare(module_id, data[module_id], num_epochs, minibatch_size)
            prepared_at, steps_before = perf_counter(), self.progress
            self.module.train()
            metrics = dict[str, Metrics]()
            for update in self._divide(module_ids):
                with self._module_noise:
                    if not isinstance(update, str):
                        metrics |= update.train(prepared)
                        continue
                    module_id, of_module = update, prepared[update]
                    self.use_settings_of(module_id)
                    cut = sequence_minibatches if Columns.STATE_IN in of_module.batch else row_minibatches
                    epochs, steps = list[Metrics](), list[Metrics]()
                    for _ in range(of_module.num_epochs):
                        for batch in cut(of_module.batch, of_module.minibatch_size, self.generator, of_module.share):
                            steps.append(self.gradient_step(module_id, batch))
                        if not (steps or epochs):
                            raise no_data("no valid row")
                        # the metrics of all learners take an exchange, which most updates need only once
                        if self.may_stop():
                            epochs.append(self.joined_metrics(module_id, steps))
                            steps.clear()
                            if self.all_stop(module_id, epochs[-1]):
                                break
                    metrics[module_id] = join_metrics(epochs) if epochs else self.joined_metrics(module_id, steps)
            self.num_updates += self.progress - steps_before
            self.module.eval()
            results = dict[str, dict[str, float]]()
            for module_id, of_module in prepared.items():
                self.use_settings_of(module_id)
                results[module_id] = self._summary(module_id, metrics[module_id], of_module.reported)
                self._update_statistics(module_id, of_module.batch)  # which the copies of target nets have, too
                self.after_update(module_id, of_module.batch)
            self.env_steps = env_steps_after
        results["timers"] = {"value_pass": prepared_at - start, "update": perf_counter() - prepared_at}
        return results

    def _prepare(
        self, module_id: str, data: ModuleData, num_epochs: int | None, minibatch_size: int | None
    ) -> TrainData:
        """Return what module ``module_id`` is trained on, for :meth:`update_from_episodes`. Raise ValueError if no
        learner has data."""
        settings = self.use_settings_of(module_id)
        rollout = data if isinstance(data, Rollout) else None
        if data and not isinstance(data, Rollout):
            rollout = Rollout.from_episodes(data)
        if self.data_parallel is not None:
            rollout = self.data_parallel.sync_rollout(rollout, self.generator, self.num_updates, self.env_steps)
        if rollout is None:
            raise no_data()
        batch, reported = self._train_batch(module_id, rollout.to(self.device))
        share = None if self.data_parallel is None else self.data_parallel.share_of(batch)
        size = settings.minibatch_size if minibatch_size is None else minibatch_size
        return TrainData(
            batch,
            share,
            num_epochs=settings.num_epochs if num_epochs is None else num_epochs,
            minibatch_size=None if size is None else size * self.collective.size,
            reported=reported,
        )

    def _divide(self, module_ids: list[str]) -> Sequence[str | Family | Stack]:
        """Divide modules into those that are updated alone, which are returned as their ids, and those that are updated
        together. See :func:`rlmodule.learning.joint_updates.divide`."""
        if len(module_ids) == 1 and not self.shared_parts:
            return module_ids  # the usual case
        modules = [self.trained[module_id] for module_id in module_ids]
        may_stack = self._is_plain and self.device.type == "cpu"
        # stacks take long to build, and most updates are of the same modules as the one before
        if self._divided[:2] != (modules, may_stack):
            self._divided = modules, may_stack, divide(self, module_ids, may_stack=may_stack)
        return self._divided[2]

    def _register_shared_parts(self, module_id: str) -> list[str]:
        """Create the optimizers of the parts that a module shares with other modules, unless another module has done
        so. Return the names of these parts.

        Raises:
            ValueError: If a shared part has the same name as a module, or if the loss is compiled, captured in a CUDA
                graph, or computed in bfloat16.
        """
        settings, names = self.run_settings, list[str]()
        for name, places in places_of(self.module.shared_parts, self.module).items():
            if module_id not in places:
                continue
            if name in self.module or not self._has_plain_loss:
                raise ValueError(
                    f"shared_parts[{name!r}]: expected a name that no policy has, and a loss that is neither compiled, "
                    f"captured nor in bfloat16, got policies {', '.join(self.module)} and torch_compile_learner="
                    f"{settings.torch_compile_learner}, torch_cuda_graphs={settings.torch_cuda_graphs}, "
                    f"torch_autocast={settings.torch_autocast}. Choose another name, or leave these settings out."
                )
            path = places[module_id]
            tensors = [owner[key] for owner, key in tensors_at(self.module[module_id], path).values()]
            # by id, since two submodules may have the same parameter
            parameters = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
            if not parameters:
                raise ValueError(
                    f"shared_parts[{name!r}]: expected a part with trainable parameters, got none in {path!r} of "
                    f"{module_id!r}. Share another part, and let each policy have its own statistics."
                )
            if name not in self.shared_parts:
                flat = FlatParameters({name: parameters.values()}).parts[name]
                part = Part((path,), settings.lr, settings.grad_clip)
                self.shared_parts[name] = self._trained_part(name, part, flat, settings)
            names.append(name)
        return names

    @torch.no_grad()
    def _train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Run ``preprocess_train_data`` and ``make_train_batch``. Return the batch, and numbers to report."""
        try:
            if type(self).preprocess_train_data is not EpisodeLearner.preprocess_train_data:
                known = rollout.columns
                # a copy, since the override may add columns in place
                rollout = self.preprocess_train_data(dataclasses.replace(rollout, columns={**known}))
                self._added_columns = check_preprocessed(rollout, known, type(self).__name__)
            if self.trained[module_id].is_stateful:
                rollout = with_states(self.module[module_id], rollout)
            return self.make_train_batch(module_id, rollout)
        except KeyError as error:
            explain_missing_column(error, f"{type(self).__name__}.update_from_episodes()", rollout.columns)
            raise
