"""Learners: the gradient step, and how rollouts become its minibatches.

An algorithm derives from :class:`EpisodeLearner` (PPO-like: rollouts, with bootstraps and advantages) or from
:class:`BatchLearner` (DQN-like: ready batches from a replay buffer) and writes the loss. Several learners that train
together have a :class:`DataParallel`; a single one has None.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, ClassVar

import torch
import tree
from torch import Tensor, nn

from catalog.base import Tree
from catalog.hooks import Hooks
from rlmodule.collective import Collective, SingleProcess
from rlmodule.data.columns import Columns
from rlmodule.data.device import moved
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout, map_leaves
from rlmodule.data.sequences import cut_into_sequences, flatten_sequences, num_rows, sequence_minibatches
from rlmodule.learning.compilation import GradientPass, gradient_pass, is_plain, learner_device
from rlmodule.learning.data_parallel import DataParallel, no_data
from rlmodule.learning.flat_optimizer import FlatAdam, FlatParameters, load_optimizer_state, optimizer_state
from rlmodule.learning.reports import (
    ROWS,
    SKIPPED,
    Metrics,
    add_extra_losses,
    check_names,
    count_in_a_row,
    name_taken,
    too_many_skipped,
    wrong_loss,
)
from rlmodule.learning.schedules import scaled, value_at
from rlmodule.learning.sharding import Share
from rlmodule.learning.update_data import check_episodes, check_preprocessed, explain_missing_column, num_steps_in
from rlmodule.modules.apis import ExtraLossAPI, ValueFunctionAPI, check_apis
from rlmodule.modules.recurrent import forward_sequences, values_along, with_states
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule
from rlmodule.modules.shape_checks import check_module
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.seeding import int_seed, torch_stream
from rlmodule.settings import EpisodeLearnerSettings, LearnerSettings

Batch = dict[str, Tree]


class GlobalStream:
    """Puts torch's global generators (the CPU's, and that of a GPU) on a stream of the run within ``with`` blocks, for
    what draws from nothing else, such as dropout. A block continues where the last one ended.

    Attributes:
        collective: Learners that train together draw other numbers each; the stream has the same state on all of them.
    """

    collective: Collective = SingleProcess()

    def __init__(self, run_seed: int, role: str, device: torch.device | str = "cpu") -> None:
        self._generators = [torch.default_generator]
        if (device := torch.device(device)).type == "cuda":
            torch.cuda.init()
            self._generators.append(torch.cuda.default_generators[device.index])
        seed = int_seed(run_seed, role)
        self._states = [torch.Generator(each.device).manual_seed(seed).get_state() for each in self._generators]

    def _swap(self) -> None:
        """Swap the generators' states with those kept here. torch.random.fork_rng takes as long as an update."""
        states, self._states = self._states, [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def __enter__(self) -> None:
        self._swap()
        if self.collective.size > 1:
            *seeds, self._following = torch.randint(2**62, (self.collective.size + 1,)).tolist()
            torch.manual_seed(seeds[self.collective.rank])

    def __exit__(self, *exc_info: object) -> None:
        if self.collective.size > 1:
            torch.manual_seed(self._following)
        self._swap()

    def get_state(self) -> Tensor:
        """The state of the CPU's generator, followed by that of the GPU's."""
        return torch.cat(self._states)

    def set_state(self, state: Tensor) -> None:
        """Restore what :meth:`get_state` gave, whether or not that stream and this one have a GPU."""
        saved = state.cpu().tensor_split([len(self._states[0])])
        self._states = [new.clone() if len(new) else own for own, new in zip(self._states, saved, strict=False)]


class Learner(Hooks, ABC):
    """Holds the modules and their optimizers and takes gradient steps.

    Override points:
        ``compute_loss_for_module``: the loss.
        ``configure_optimizer_for_module``: another optimizer; Adam with a fused step by default.
        ``required_apis``: abilities the loss needs of a module.
        ``summarize``: how the metrics of all minibatches become numbers; their means by default.
        ``get_state``, ``set_state``: when a subclass keeps something that evolves.
        ``add_module``, ``remove_module``, ``load_module_state``: when it keeps something of each module.

    Several learners, each with a part of the data, take the steps that one would take with all of it, provided the loss
    is a mean over rows; their weights are the same bits at any time. Draw random numbers that all must share from
    ``generator``; dropout and the like draw other numbers on each learner. What depends on all rows of a minibatch,
    such as batch norm in training, sees only those of its own learner.

    Args:
        settings: Learning rate, clipping, minibatches.
        spec: The modules.
        run_seed: Seed of the run; minibatches are shuffled from its ``learner`` stream.

    Attributes:
        collective: The learners that train together with this one.
        progress: Gradient steps so far, also within an update.

    Raises:
        TypeError: If a module lacks an ability in ``required_apis``.
        ValueError: If a pass of a module returns a wrong shape; see :func:`rlmodule.modules.shape_checks.check_module`.
    """

    required_apis: ClassVar[tuple[type, ...]] = ()

    def __init__(self, settings: LearnerSettings, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.settings = settings
        self.device = learner_device(settings)
        self.module: MultiRLModule = spec.build().to(self.device)
        self.collective: Collective = SingleProcess()
        self._data_parallel: DataParallel | None = None  # if there are others
        self.progress = 0
        self.parameters: dict[str, FlatParameters] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self._stateful: dict[str, bool] = {}
        self._gradient_passes: dict[str, GradientPass] = {}
        self._skipped_in_a_row: dict[str, int] = {}
        for module_id in self.module:
            self._register_module(module_id)
        self._extra_metrics: dict[str, frozenset[str]] = {}
        self._run_seed = run_seed
        self.generator = torch_stream(run_seed, "learner")
        self._module_noise = GlobalStream(run_seed, "module_noise", self.device)
        self.env_steps = 0
        self.num_updates = 0
        self.connect(self.collective)

    def _register_module(self, module_id: str) -> None:
        """Check a module, and make its optimizer and all else that is kept for each."""
        module = self.module[module_id]
        check_apis(module, self.required_apis, type(self).__name__, module_id)
        check_module(module)
        self._check_own_parameters(module_id)
        self.parameters[module_id] = flat = FlatParameters(module.parameters())
        self.optimizers[module_id] = optimizer = self.configure_optimizer_for_module(module_id, flat.tensor)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # where torch's own schedulers keep it, too
        self._stateful[module_id] = module.is_stateful()
        self._gradient_passes[module_id] = gradient_pass(self, module_id)
        self._skipped_in_a_row[module_id] = 0
        if self._data_parallel is not None:
            self._data_parallel.register(module_id, module)

    def _check_own_parameters(self, module_id: str) -> None:
        """Refuse trainable parameters that another module trains: each optimizer would step in a copy of its own."""
        mine = {id(p): name for name, p in self.module[module_id].named_parameters()}
        for other, flat in self.parameters.items():
            if shared := [mine[id(p)] for p in flat.views if id(p) in mine]:
                raise ValueError(
                    f"module {module_id!r} of {type(self).__name__}: expected trainable parameters "
                    f"of its own, got {', '.join(shared[:5])}, which module {other!r} trains, too. "
                    "Build them in setup() of each module, or freeze them with "
                    "requires_grad_(False)."
                )

    def connect(self, collective: Collective) -> None:
        """Train together with the learners of ``collective`` from the next update on.

        All must have the same state and make the same calls: which updates, of which module, after how many env steps.
        Only the data differs.

        A learner that raises within an update leaves the others, which then raise :class:`CollectiveError`.
        """
        self.collective.close()
        if self._data_parallel is not None:
            self._data_parallel.leave(self.module)
        self.collective = self._module_noise.collective = collective
        is_alone = collective.size == 1
        self._data_parallel = None if is_alone else DataParallel(collective, self.module)
        self._together: AbstractContextManager[None] = nullcontext() if is_alone else collective
        self._is_plain = is_plain(self.settings) and is_alone

    def add_module(self, module_id: str, spec: RLModuleSpec) -> None:
        """Train a further module from now on. Its weights depend on the run's seed and its id.

        Raises:
            ValueError: If there is one of that id, or the id cannot be one.
            TypeError: If it lacks an ability in ``required_apis``.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int_seed(self._run_seed, "module", zlib.crc32(module_id.encode())))
            self.module.add(module_id, spec.build().to(self.device))
        try:
            self._register_module(module_id)
        except Exception:
            self.module.remove(module_id)
            raise

    def remove_module(self, module_id: str) -> None:
        """Forget a module.

        Raises:
            KeyError: If there is none of that id; names those there are.
        """
        self.module.remove(module_id)
        del self.parameters[module_id], self.optimizers[module_id], self._stateful[module_id]
        del self._gradient_passes[module_id], self._skipped_in_a_row[module_id]
        self._extra_metrics.pop(module_id, None)
        if self._data_parallel is not None:
            self._data_parallel.forget(module_id)

    def load_module_state(self, module_id: str, state: Mapping[str, Tensor]) -> None:
        """Copy the ``state`` of a module, as its ``get_state()`` gives it, into the module ``module_id``, whose
        optimizer keeps its state.

        Raises:
            KeyError: If there is no module of that id; names those there are.
            ValueError: If the state is not one of such a module.
        """
        self.module[module_id].set_state(state)

    @abstractmethod
    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """The scalar loss of one minibatch, and tensors to report.

        Args:
            module_id: Which module.
            batch: Columns ``[B, ...]``: rows, also for a recurrent module.
            fwd_out: What ``forward_train`` made of them, ``[B, ...]``.
        """

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        """The optimizer of a module, given all its parameters as one flat tensor: an elementwise one such as Adam.

        The learning rates it is made with are its own: ``settings.lr`` reaches them only if it is passed here. An
        ``lr`` that is a schedule multiplies them by its value over its value at step 0.

        A parameter that took no part in the loss has a gradient of zero.
        """
        return FlatAdam(parameters, lr=value_at(self.settings.lr, 0), eps=1e-5)

    def forward_rows(self, module_id: str, batch: Batch) -> tuple[Batch, Mapping[str, Tree]]:
        """``forward_train(batch)``: the batch and what came out, both as rows ``[B, ...]`` if they are sequences.

        Raises:
            ValueError: If a recurrent module is given rows, or predicts values and returns no ``embeddings``.
        """
        module = self.module[module_id]
        if self._stateful[module_id]:
            where = f"{type(self).__name__} with the recurrent module {module_id!r}"
            return forward_sequences(module, batch, where)
        return batch, module.forward_train(batch)

    def compute_total_loss(self, module_id: str, rows: Batch, fwd_out: Mapping[str, Tree]) -> tuple[Tensor, Metrics]:
        """The algorithm's loss and those of the module itself, and what they report."""
        returned = self.compute_loss_for_module(module_id, rows, fwd_out)
        loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        if not (isinstance(loss, Tensor) and not loss.dim() and isinstance(metrics, dict)):
            raise wrong_loss(returned, type(self).__name__)
        if isinstance(module := self.module[module_id], ExtraLossAPI):
            loss, extra = add_extra_losses(loss, metrics, module, rows, fwd_out)
            check_names(module, extra, self._extra_metrics.setdefault(module_id, frozenset(extra)))
            metrics |= extra
        return loss, metrics

    def _gradient_step(self, module_id: str, batch: Batch) -> Metrics:
        """One gradient step: forward, loss, backward, clip, step. Nothing here waits for the device.

        The step is left out, and the optimizer untouched, where the loss or the gradient is not finite.
        """
        parameters, settings = self.parameters[module_id], self.settings
        if self._is_plain:
            loss, metrics = self.compute_total_loss(module_id, *self.forward_rows(module_id, batch))
            parameters.zero_grad()
            loss.backward()
        else:
            compute, together = self._gradient_passes[module_id], self._data_parallel
            loss, metrics = compute(batch) if together is None else together.gradient(compute, parameters, batch)
        norm = parameters.clip(settings.grad_clip, settings.grad_clip_by)
        both = norm + loss.detach()
        skip = both.sub_(both).ne_(0).float()  # what is not finite less itself is NaN, and that is not 0
        if isinstance(optimizer := self.optimizers[module_id], FlatAdam):
            optimizer.step_unless(skip)
        elif not skip:
            optimizer.step()
        self.progress += 1
        metrics |= {"gradient_norm": norm, "total_loss": loss, SKIPPED: skip}
        return {name: value.detach() for name, value in metrics.items()}

    def _update_statistics(self, module_id: str, batch: Batch) -> None:
        """Update the module's statistics with the observations of ``batch``; average buffers over all learners."""
        rows = {Columns.OBS: batch[Columns.OBS]}
        if self._stateful[module_id]:
            rows = flatten_sequences(rows, batch.get(Columns.VALID_ROWS))
        self.module[module_id].update_observation_statistics(rows[Columns.OBS])
        if self._data_parallel is not None:
            self._data_parallel.average_buffers(module_id, num_rows(batch))

    def _summary(self, module_id: str, metrics: Metrics, more: Mapping[str, float]) -> dict[str, float]:
        """The numbers of a result: those of :meth:`summarize`, ``more``, the learning rate, and the means of what the
        module's own losses reported."""
        extra, skipped = self._extra_metrics.get(module_id, frozenset()), metrics.pop(SKIPPED)
        before, limit = self._skipped_in_a_row[module_id], self.settings.max_nonfinite_updates_in_a_row
        num_skipped = float(skipped.sum())
        self._skipped_in_a_row[module_id] = in_a_row = count_in_a_row(skipped, before, limit) if num_skipped else 0
        if in_a_row >= limit:
            raise too_many_skipped(limit, module_id, self.module[module_id])
        lr = float(self.optimizers[module_id].param_groups[0]["lr"])  # the first group's, if there are several
        results = self.summarize(module_id, {n: value for n, value in metrics.items() if n not in extra})
        results |= {**more, "learning_rate": lr, "num_updates_skipped": num_skipped}
        if again := sorted(extra & results.keys()):
            raise name_taken(self.module[module_id], again[0])
        return results | {name: float(metrics[name].mean()) for name in sorted(extra)}

    def _joined(self, module_id: str, steps: Sequence[Metrics]) -> Metrics:
        """Join the metrics of gradient steps, and of all learners."""
        if self._data_parallel is None:
            return join_metrics(steps)
        known = self._extra_metrics.get(module_id, frozenset())
        metrics, self._extra_metrics[module_id] = self._data_parallel.join_metrics(steps, known)
        return metrics

    def _steps_after(self, num_new: int) -> int:
        """The count of env steps where the caller passes none: the data of all learners is new."""
        return self.env_steps + int(self.collective.all_reduce(torch.tensor(num_new)))

    def _set_env_steps(self, env_steps: int) -> None:
        """Set the count of env steps, and the learning rates if ``lr`` is a schedule."""
        self.env_steps, schedule = env_steps, self.settings.lr
        if isinstance(schedule, int | float):
            return
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = scaled(group["initial_lr"], schedule, env_steps)

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        """Numbers for the result, from metrics stacked or concatenated over minibatches. Default: means."""
        return {name: float(value.mean()) for name, value in metrics.items()}

    def get_state(self) -> dict[str, Any]:
        """Everything that evolves, as a tree of tensors (references, not copies) and JSON-able values."""
        scheduled = not isinstance(self.settings.lr, int | float)
        return {
            "module": self.module.get_state(),
            "optimizers": {n: optimizer_state(opt, is_scheduled=scheduled) for n, opt in self.optimizers.items()},
            "generator": self.generator.get_state(),
            "module_noise": self._module_noise.get_state(),
            "env_steps": self.env_steps,
            "num_updates": self.num_updates,
            "skipped_in_a_row": self._skipped_in_a_row.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, in place."""
        self.module.set_state(state["module"])
        for module_id, saved in state["optimizers"].items():
            load_optimizer_state(self.optimizers[module_id], saved)
        self.generator.set_state(state["generator"])
        self._module_noise.set_state(state["module_noise"])
        self.env_steps, self.num_updates = state["env_steps"], state["num_updates"]
        self._skipped_in_a_row = dict(state["skipped_in_a_row"])


class EpisodeLearner(Learner):
    """A learner that is given rollouts or episodes and makes its train batch of them.

    Everything except the gradient steps runs under ``no_grad`` with the modules in eval mode, so that running
    statistics such as those of batch norm see each minibatch once.

    Override points, besides those of :class:`Learner`:
        ``preprocess_train_data``: change a rollout before the value pass, or add columns for the loss; the identity by
        default.
        ``make_train_batch``: bootstraps, advantages, targets; which columns the loss sees.
        ``should_stop``: end the epochs early.
        ``after_update``: what is adapted once per iteration.

    Each of several learners calls these with its part of the data, which may have no valid row; only the metrics for
    ``should_stop`` and ``summarize`` are those of all learners. ``self.collective`` gathers what else is needed.
    """

    _added_columns: Sequence[str] = ()

    def __init__(self, settings: EpisodeLearnerSettings, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        super().__init__(settings, spec, run_seed=run_seed)
        self.settings = settings

    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        """Return the rollout to train on. Runs on the learner, before anything is computed from the rewards.

        Columns ``[T, N, ...]`` that it adds reach the loss as rows ``[B, ...]``, like those of the rollout.
        """
        return rollout

    @abstractmethod
    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """What the loss sees, as :meth:`pack` makes it of the rollout's columns and new ones, and numbers to report."""

    def value_pass(self, module_id: str, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values ``[T, N]`` of the observations and of what followed each step; see :meth:`Rollout.split_values`."""
        module = self.module[module_id]
        assert isinstance(module, ValueFunctionAPI)
        if self._stateful[module_id]:
            return rollout.split_values(values_along(module, rollout))
        return rollout.split_values(module.compute_values({Columns.OBS: rollout.rows_to_value()}))

    def pack(self, module_id: str, rollout: Rollout, names: Sequence[str]) -> Batch:
        """The named columns, and those that ``preprocess_train_data`` added, as a train batch: the valid rows
        ``[B, ...]``, or sequences for a recurrent module."""
        names = [*names, *self._added_columns]
        if self._data_parallel is not None:
            rollout, names = self._data_parallel.number(rollout), [*names, Columns.ORDER]
        if self._stateful[module_id]:
            return cut_into_sequences(rollout, names, self.module[module_id].max_seq_len)
        return rollout.valid_rows(names)

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        """Whether to skip the remaining epochs, asked after each epoch with its metrics. Default: no."""
        return False

    def may_stop(self) -> bool:
        """Whether to ask ``should_stop`` at all; the same on all learners. Default: if it is overridden."""
        return type(self).should_stop is not EpisodeLearner.should_stop

    def after_update(self, module_id: str, batch: Batch) -> None:
        """Adapt what is adapted once per iteration, given the train batch, which may be empty; :meth:`forward_rows`
        makes rows of it and of the module's present outputs. Default: nothing."""

    def update(self, episodes: Rollout | Sequence[Episode], **kwargs: Any) -> dict[str, dict[str, float]]:
        """Deprecated: call :meth:`update_from_episodes`."""
        warn_of_update(type(self), "update_from_episodes")
        return self.update_from_episodes(episodes, **kwargs)

    def update_from_episodes(
        self,
        episodes: Rollout | Sequence[Episode] | None,
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int | None = None,
        minibatch_size: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Learn from one rollout (or episodes, which are packed into one): epochs of reshuffled minibatches.

        Args:
            episodes: The data; this learner's part if there are several, which may be None.
            env_steps, module_id, num_epochs, minibatch_size: See :meth:`LearnerGroup.update_from_episodes`.

        Returns:
            Module id → numbers to report; the seconds of the phases are under ``"timers"``.

        Raises:
            KeyError: If there is no module of that id (names the known ones), or the data lacks a column.
            TypeError: If the data is neither a rollout nor episodes.
            ValueError: If there is no data.
            CollectiveError: If another learner raised, ended or hangs.
        """
        self.module[module_id]  # raises if there is none
        rollout = episodes
        if not isinstance(rollout, Rollout):
            check_episodes(rollout, f"{type(self).__name__}.update_from_episodes()")
            rollout = Rollout.from_episodes(rollout) if rollout else None
        with self._together:
            if env_steps is None:
                env_steps = self._steps_after(num_steps_in(rollout))
            self._set_env_steps(env_steps)
            if self._data_parallel is not None:
                rollout = self._data_parallel.sync_rollout(rollout, self.generator, self.num_updates, self.env_steps)
            if rollout is None:
                raise no_data()
            start = perf_counter()
            self.module.eval()
            batch, reported = self._train_batch(module_id, rollout.to(self.device))
            share = None if self._data_parallel is None else self._data_parallel.share_of(batch)
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
                        stop = self.should_stop(module_id, epochs[-1])
                        if self.collective.all_reduce(torch.tensor(float(stop))):
                            break
            self.num_updates += self.progress - before
            metrics = join_metrics(epochs) if epochs else self._joined(module_id, steps)
            results = self._summary(module_id, metrics, reported)
            self.module.eval()
            self.after_update(module_id, batch)
            self._update_statistics(module_id, batch)
        timers = {"value_pass": prepared - start, "update": perf_counter() - prepared}
        return {module_id: results, "timers": timers}

    @torch.no_grad()
    def _train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """The train batch of a rollout, preprocessed, and numbers to report."""
        try:
            if type(self).preprocess_train_data is not EpisodeLearner.preprocess_train_data:
                known = [*rollout.columns]  # it may add columns in place
                rollout = self.preprocess_train_data(rollout)
                where = f"{type(self).__name__}.preprocess_train_data()"
                self._added_columns = check_preprocessed(rollout, known, where)
            if self._stateful[module_id]:
                rollout = with_states(self.module[module_id], rollout)
            return self.make_train_batch(module_id, rollout)
        except KeyError as error:
            explain_missing_column(error, f"{type(self).__name__}.update_from_episodes()", rollout.columns)
            raise

    def _minibatches(
        self, batch: Batch, share: Share | None = None, minibatch_size: int | None = None
    ) -> Iterator[Batch]:
        """Split the reshuffled batch into pieces of ``minibatch_size`` rows per learner, or sequences of as many."""
        pieces = sequence_minibatches if Columns.STATE_IN in batch else row_minibatches
        size = self.settings.minibatch_size if minibatch_size is None else minibatch_size
        return pieces(batch, None if size is None else size * self.collective.size, self.generator, share)


def join_metrics(steps: Sequence[Metrics]) -> Metrics:
    """Join the metrics of several gradient steps, or of several epochs: stack scalars, concatenate rows."""
    of_one = {name: value for name, value in steps[0].items() if name != ROWS}
    return {n: (torch.cat if x.dim() else torch.stack)([step[n] for step in steps]) for n, x in of_one.items()}


def row_minibatches(
    batch: Batch, size: int | None, generator: torch.Generator, share: Share | None = None
) -> Iterator[Batch]:
    """Split the rows ``[B, ...]``, reshuffled, into pieces of ``size`` (None: into one). The last may be smaller, but a
    single row joins the piece before it, since batch norm needs two.

    With a ``share``, the rows of all learners are split, and each piece has those of them that are in ``batch``.
    """
    first = tree.flatten(batch)[0]
    rows = len(first) if share is None else share.total
    order = torch.randperm(rows, generator=generator)
    bounds = [start for start in range(0, rows, size or rows or 1) if start == 0 or rows - start > 1] + [rows]
    if share is not None:
        order, bounds = share.of(order, bounds)
    if first.device.type != "cpu":
        order = moved(order, first.device)
    # one gather per column and epoch; the minibatches are views
    shuffled = {name: map_leaves(lambda x: x[order], column) for name, column in batch.items()}
    for start, stop in itertools.pairwise(bounds):
        yield {name: map_leaves(lambda x, rows=slice(start, stop): x[rows], c) for name, c in shuffled.items()}


def warn_of_update(owner: type, right: str) -> None:
    """Warn that ``owner.update()`` is deprecated; ``right`` replaces it."""
    warnings.warn(f"{owner.__name__}.update() is deprecated: call {right}().", DeprecationWarning, stacklevel=3)
