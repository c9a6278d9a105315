"""Learner: owns modules and their optimizers, and takes gradient steps.

An algorithm's learner defines the loss. It derives from :class:`EpisodeLearner` if it trains on rollouts, as PPO does,
or from :class:`BatchLearner` if it trains on ready batches from a replay buffer, as DQN does. Learners that train
together synchronise through :class:`DataParallel`, which a single learner does not use.
"""

import copy
import itertools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from catalog.base import Tree
from catalog.hooks import Hooks, explain_unknown
from rlmodule.collective import Collective, SingleProcess
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.device import keep_freed_memory
from rlmodule.data.rollout import map_leaves
from rlmodule.data.sequences import flatten_sequences, num_rows
from rlmodule.learning.compilation import gradient_pass, learner_device
from rlmodule.learning.data_parallel import DataParallel
from rlmodule.learning.flat_optimizer import (
    FlatAdam,
    FlatParameters,
    FlatPart,
    Part,
    TrainedPart,
    load_optimizer_state,
    parameters_by_part,
    where_not_finite,
)
from rlmodule.learning.global_stream import GlobalStream
from rlmodule.learning.reports import (
    ROWS,
    SKIPPED,
    Metrics,
    add_extra_losses,
    check_names,
    loss_without_gradient,
    metric_tensors,
    name_taken,
    too_many_skipped,
    wrong_loss,
)
from rlmodule.learning.schedules import value_at
from rlmodule.learning.trained_module import (
    TrainedModule,
    check_nets_apart,
    check_parts_to_step,
    not_trained,
    tensor_changed,
)
from rlmodule.modules.apis import ExtraLossAPI, check_apis
from rlmodule.modules.recurrent import forward_sequences
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.modules.shape_checks import check_batch_norm, check_module
from rlmodule.modules.shared_parts import check_nothing_shared
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.seeding import int_seed, torch_stream
from rlmodule.settings import LearnerSettings


class Learner(Hooks, ABC):
    """Owns modules and their optimizers, and trains the modules by gradient steps.

    Override points:
        ``compute_loss_for_module``: the loss.
        ``parts_of``: the parts of a module that have separate optimizers; default: one part.
        ``parts_to_step``: the parts to update in the next gradient step; default: all.
        ``configure_optimizer_for_module``: the optimizer of each part; default: Adam with a fused step.
        ``required_apis``: the interfaces that a module must implement for the loss.
        ``summarize``: the numbers reported from the metrics of all minibatches; default: their means.
        ``get_state``, ``set_state``: state that a subclass adds.
        ``add_module``, ``remove_module``, ``load_module_state``: state that a subclass keeps for each module.

    If the loss is a mean over rows, several learners, each with a share of the data, take the gradient steps that one
    learner would take with all the data, and the weights of all learners stay bitwise identical. Draw random numbers
    that must be the same on all learners from ``generator``. Dropout and similar layers draw different numbers on each
    learner. Operations over all rows of a minibatch, such as batch norm in training, use only the rows of their own
    learner.

    Args:
        settings: Settings of the run for learners, such as the learning rate and the gradient clipping.
        spec: Describes the modules to build.
        run_seed: Seed of the run. The stream ``learner`` derived from it shuffles the rows of minibatches.

    Attributes:
        settings: During an update, the settings of the module that is updated; between updates, the settings of the
            run. See :meth:`settings_of`.
        run_settings: The settings of the run.
        collective: The learners that train together, this one included.
        progress: Number of gradient steps taken since this object was created, counted step by step even during an
            update.
        trained: What is kept for each module that is trained, by module id.
        shared_parts: The parts that several modules share, including their parameters and optimizers, by name. They are
            trained with the settings of the run.

    Raises:
        TypeError: If a module lacks an interface in ``required_apis``.
        ValueError: If a forward pass of a module returns a wrong shape (see
            :func:`rlmodule.modules.shape_checks.check_module`), if a trainable parameter is not in exactly one part of
            its module, or if the settings assign a GPU that torch cannot use.
    """

    required_apis: ClassVar[tuple[type, ...]] = ()

    def __init__(self, settings: LearnerSettings, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.settings = self.run_settings = settings
        self.device = learner_device(settings)
        self._has_plain_loss = not (
            settings.torch_autocast or settings.torch_compile_learner or settings.torch_cuda_graphs
        )
        if self.device.type == "cpu":
            keep_freed_memory()
        self.module: MultiRLModule = spec.build().to(self.device)
        self.collective: Collective = SingleProcess()
        self.data_parallel: DataParallel | None = None  # None for a single learner
        self.progress = self.env_steps = self.num_updates = 0
        self.trained: dict[str, TrainedModule] = {}
        self.shared_parts: dict[str, TrainedPart] = {}
        for module_id, module_spec in spec.rl_module_specs.items():
            self.settings = settings.for_module(module_id)
            self._register_module(module_id, module_spec, train=settings.is_trained(module_id))
        self.settings = settings
        self._run_seed = run_seed
        self.generator = torch_stream(run_seed, "learner")
        self._module_noise = GlobalStream(run_seed, "module_noise", self.device)
        self.connect(self.collective)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        """Check the module ``module_id``, which was built from ``spec``, and create its optimizers and the other state
        kept for it. Unless ``train``, only freeze its parameters. :attr:`settings` are those of the module."""
        module, name_of_class = self.module[module_id], type(self).__name__
        where = f"module {module_id!r} of {name_of_class}"
        others = [(f"module {other!r}", of_other) for other, of_other in self.module.items() if other != module_id]
        if not train:
            check_nothing_shared(module_id, self.module)
            check_nets_apart(where, module, others)
            module.requires_grad_(False)
            return
        check_apis(module, self.required_apis, name_of_class, module_id)
        check_module(module)
        check_batch_norm(module_id, module, self.settings.rows_per_gradient_step)
        shared = self._register_shared_parts(module_id) if self.module.shared_parts else []
        # shared parameters have their own optimizers, so the module's parts are left without them
        trained_elsewhere = {id(p) for name in shared for p in self.shared_parts[name].flat.views}
        check_nets_apart(where, module, others, but=trained_elsewhere)
        parts = self.parts_of(module_id)
        by_part = parameters_by_part(module, parts, f"{name_of_class}.parts_of({module_id!r})")
        own = {name: [p for p in views if id(p) not in trained_elsewhere] for name, views in by_part.items()}
        parameters, trained_parts = FlatParameters(own), dict[str, TrainedPart]()
        for name, part in parts.items():
            trained_parts[name] = self._trained_part(module_id, part, parameters.parts[name], self.settings)
        tensors = {name: (x, x.requires_grad) for name, x in module.state_dict(keep_vars=True).items()}
        trained = TrainedModule(self.settings, parameters, trained_parts, shared, module.is_stateful(), tensors)
        self.trained[module_id] = trained
        trained.gradient_pass = gradient_pass(self, module_id)
        if self.data_parallel is not None:
            self.data_parallel.pool_moments(module)

    def _trained_part(self, module_id: str, part: Part, flat: FlatPart, settings: LearnerSettings) -> TrainedPart:
        """Return ``part`` with the optimizer from :meth:`configure_optimizer_for_module`, which is called with a copy
        of ``settings`` that has the values of ``part``."""
        of_part, before = copy.copy(settings), self.settings
        for name, value in (("lr", part.lr), ("grad_clip", part.grad_clip)):
            object.__setattr__(of_part, name, value)  # unlike setattr(), it changes this copy of frozen settings, too
        self.settings = of_part
        try:
            optimizer = self.configure_optimizer_for_module(module_id, flat.tensor)
        except TypeError as error:
            if "params argument given to the optimizer" not in str(error):
                raise
            raise TypeError(
                f"{type(self).__name__}.configure_optimizer_for_module(): expected an optimizer of a list, got one "
                "of parameters itself, which is one flat tensor. Write it in brackets, as in "
                "torch.optim.RMSprop([parameters])."
            ) from error
        finally:
            self.settings = before
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"{type(self).__name__}.configure_optimizer_for_module(): expected a torch.optim.Optimizer, got "
                f"{optimizer!r}. Return the one you made."
            )
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # the key that torch's own schedulers use
        return TrainedPart(part, flat, optimizer, settings.grad_clip_by)

    @property
    def parameters(self) -> dict[str, FlatParameters]:
        """The flattened parameters of each trained module, by module id."""
        return {module_id: trained.parameters for module_id, trained in self.trained.items()}

    @property
    def num_gradient_steps(self) -> dict[str, int]:
        """Number of gradient steps of each module in the whole run, by module id."""
        return {module_id: trained.num_gradient_steps for module_id, trained in self.trained.items()}

    @property
    def stepping(self) -> dict[str, tuple[str, ...]]:
        """The names of the parts that a module's current or latest gradient step updates, by module id, from
        :meth:`parts_to_step`; all parts before the first step. A loss is compiled or captured separately for each
        choice of parts."""
        return {module_id: trained.stepping for module_id, trained in self.trained.items()}

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All optimizers by name. The name is ``module_id`` for a module with one part, ``module_id.part`` for a part
        of a module with several parts, and the name of the part for a shared part."""
        return {name: part.optimizer for name, part in self._named_parts()}

    def _named_parts(self) -> Iterator[tuple[str, TrainedPart]]:
        for module_id, trained in self.trained.items():
            for name, part in trained.parts.items():
                yield (f"{module_id}.{name}" if len(trained.parts) > 1 else module_id), part
        yield from self.shared_parts.items()

    def settings_of(self, module_id: str) -> Any:
        """Return the settings of a module, which are the settings of the run, changed by the module's
        ``policy_overrides``.

        Raises:
            KeyError: If no module has the id ``module_id``. The error names the known ids.
            ValueError: If the module is not trained.
        """
        if module_id not in self.trained:
            self.module[module_id]  # raises if no module has that id
            raise not_trained(module_id, self.trained)
        return self.trained[module_id].settings

    def use_settings_of(self, module_id: str) -> Any:
        """Make :attr:`settings` those of a module until the end of the update, for the hooks called next. Return them.
        Raise the errors of :meth:`settings_of`."""
        self.settings = settings = self.settings_of(module_id)
        return settings

    @contextmanager
    def _update(self) -> Iterator[None]:
        """Within the block, take part in an update of all learners. Afterwards, use the settings of the run again."""
        try:
            with self._together:
                yield
        finally:
            self.settings = self.run_settings

    def _register_shared_parts(self, module_id: str) -> list[str]:
        """Create the optimizers of the parts that a module shares with others, unless another module has done so.
        Return the names of these parts. This base class raises ValueError: it updates one module at a time."""
        raise ValueError(
            f"shared_parts: expected a learner that updates several modules at once, got {type(self).__name__}, which "
            "learns from a batch of one module. Train with PPO, or give each policy its own parts."
        )

    def connect(self, collective: Collective) -> None:
        """Train together with the learners of ``collective`` from the next update on. Close the previous collective.

        All learners must have the same state and get the same calls, that is, the same updates of the same modules
        after the same number of env steps. Only the data may differ.

        If a learner raises an error during an update, it leaves the collective, and the other learners raise
        :class:`CollectiveError`.
        """
        self.collective.close()
        if self.data_parallel is not None:
            self.data_parallel.leave(self.module)
        self.collective = self._module_noise.collective = collective
        is_alone = collective.size == 1
        self.data_parallel = None if is_alone else DataParallel(collective, self.module)
        self._together: AbstractContextManager[None] = nullcontext() if is_alone else collective
        self._is_plain = is_alone and self._has_plain_loss

    def add_module(self, module_id: str, spec: RLModuleSpec, train: bool = True) -> None:
        """Add a module. The run's seed and ``module_id`` determine its initial weights.

        Args:
            module_id: Id of the new module.
            spec: Describes the module to build.
            train: Whether to train the module from now on. If False, it has no optimizer and its parameters are frozen.

        Raises:
            ValueError: If the id is in use or invalid, or the module fails a check of :class:`Learner`'s constructor.
            TypeError: If the module lacks an interface in ``required_apis``.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int_seed(self._run_seed, "module", zlib.crc32(module_id.encode())))
            self.module.add(module_id, spec.build().to(self.device))
            self.settings = self.run_settings.for_module(module_id)
            try:
                self._register_module(module_id, spec, train=train)
            except Exception:
                self._forget_module(module_id)
                raise
            finally:
                self.settings = self.run_settings

    def remove_module(self, module_id: str) -> None:
        """Remove a module, its optimizers and all other state kept for it.

        Raises:
            KeyError: If no module has the id ``module_id``. The error names the known ids.
        """
        self._forget_module(module_id)

    def _forget_module(self, module_id: str) -> None:
        """Remove a module and undo ``_register_module``, even if that method raised an error halfway."""
        self.module.remove(module_id)
        self.trained.pop(module_id, None)
        still_shared = {name for trained in self.trained.values() for name in trained.shared}
        for name in self.shared_parts.keys() - still_shared:
            del self.shared_parts[name]

    def load_module_state(self, module_id: str, state: Mapping[str, Tensor]) -> None:
        """Copy ``state``, which a module's ``get_state()`` returned, into the module ``module_id``. The optimizers of
        the module keep their state.

        Raises:
            KeyError: If no module has the id ``module_id``. The error names the known ids.
            ValueError: If the names or shapes in ``state`` do not match the module.
        """
        self.module[module_id].set_state(state)

    @abstractmethod
    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Return the scalar loss of one minibatch, and the metrics to report by name. A metric is a scalar tensor or
        has one entry per row. One with the name of a metric that this library reports itself, such as ``total_loss``,
        replaces that metric.

        Args:
            module_id: The module to train.
            batch: Columns ``[B, ...]`` of the minibatch. The sequences of a recurrent module have been flattened into
                valid rows.
            fwd_out: The outputs of ``forward_train`` for these rows, ``[B, ...]``.
        """

    def parts_of(self, module_id: str) -> Mapping[str, Part]:
        """Return the parts of a module by name. Each part has its own optimizer, learning rate and upper bound on its
        gradients. Every trainable parameter must be in exactly one part. The default is one part with the settings
        ``lr`` and ``grad_clip``."""
        return {"all": Part(("",), self.settings.lr, self.settings.grad_clip)}

    def parts_to_step(self, module_id: str) -> Collection[str]:
        """Return the names of the parts that the next gradient step updates; default: all. This is called once before
        each gradient step. The loss can read the names from ``stepping``."""
        return tuple(self.trained[module_id].parts)

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        """Return a new optimizer for one of the parts from :meth:`parts_of`. The optimizer must be elementwise, as Adam
        is, because ``parameters`` is one flat tensor with all parameters of the part.

        During the call, ``self.settings.lr`` is the part's learning rate, a number or a schedule. Start with
        ``value_at(self.settings.lr, 0)``, and the optimizer follows a schedule exactly. Any other initial learning rate
        is multiplied by the schedule's current value and divided by the schedule's first value that is not 0. If
        ``lr`` is a number, the optimizer's learning rate is not changed.

        Parameters that the loss does not depend on get gradients of zero.
        """
        return FlatAdam(parameters, lr=value_at(self.settings.lr, 0), eps=1e-5)

    def forward_rows(self, module_id: str, batch: Batch) -> tuple[Batch, Mapping[str, Tree]]:
        """Run ``forward_train(batch)``. Return batch and outputs, with sequences flattened to rows ``[B, ...]``. Raise
        ValueError if a recurrent module gets rows, or if it predicts values and returns no ``embeddings``."""
        module = self.module[module_id]
        if self.trained[module_id].is_stateful:
            where = f"{type(self).__name__} with the recurrent module {module_id!r}"
            return forward_sequences(module, batch, where)
        return batch, module.forward_train(batch)

    def compute_total_loss(self, module_id: str, rows: Batch, fwd_out: Mapping[str, Tree]) -> tuple[Tensor, Metrics]:
        """Return the loss, with the module's extra losses, and all metrics, given what :meth:`forward_rows` returns."""
        returned: Any = self.compute_loss_for_module(module_id, rows, fwd_out)
        loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        if not (isinstance(loss, Tensor) and not loss.dim() and isinstance(metrics, dict)):
            raise wrong_loss(returned, type(self).__name__)
        if isinstance(module := self.module[module_id], ExtraLossAPI):
            loss, extra = add_extra_losses(loss, metrics, module, rows, fwd_out)
            trained = self.trained[module_id]
            if trained.extra_metrics is None:
                trained.extra_metrics = frozenset(extra)
            check_names(module, extra, trained.extra_metrics)
            metrics |= extra
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise loss_without_gradient(type(self).__name__)
        if not all(isinstance(value, Tensor) and value.is_floating_point() for value in metrics.values()):
            metrics = metric_tensors(metrics, loss, type(self).__name__)
        return loss, metrics

    def gradient_step(self, module_id: str, batch: Batch) -> Metrics:
        """Take one gradient step without waiting for the device, and return its metrics. If the loss or the gradient is
        not finite, leave the weights and the optimizer unchanged."""
        trained = self.trained[module_id]
        names = tuple(self.parts_to_step(module_id))
        if names != trained.stepping:
            check_parts_to_step(names, trained.parts, f"{type(self).__name__}.parts_to_step({module_id!r})")
            trained.stepping = names
        if self._is_plain:  # alone, and neither compiled, captured nor in bfloat16
            loss, metrics = self.compute_total_loss(module_id, *self.forward_rows(module_id, batch))
            trained.parameters.zero_grad()
            loss.backward()
        elif self.data_parallel is None:
            loss, metrics = trained.gradient_pass(batch)
        else:
            loss, metrics = self.data_parallel.gradient(trained.gradient_pass, trained.parameters, batch)
        parts = [trained.parts[name] for name in names]
        norms = [part.clip() for part in parts]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        # the norm is not finite if any gradient is not
        skip = where_not_finite(norm + loss.detach())
        for part in parts:
            part.step_unless(skip)
        self.progress += 1
        trained.num_gradient_steps += 1
        reported = {"gradient_norm": norm, "total_loss": loss, SKIPPED: skip}
        if len(trained.parts) > 1:
            reported |= {f"gradient_norm_{name}": part_norm for name, part_norm in zip(names, norms, strict=True)}
        # the loss may replace what is reported here, which comes after its other metrics
        return map_leaves(Tensor.detach, {**metrics, **reported, **metrics})

    def _update_statistics(self, module_id: str, batch: Batch) -> None:
        """Update the observation statistics with ``batch``; average buffers over all learners."""
        rows = {Columns.OBS: batch[Columns.OBS]}
        if self.trained[module_id].is_stateful:
            rows = flatten_sequences(rows, batch.get(Columns.VALID_ROWS))
        self.module[module_id].update_observation_statistics(rows[Columns.OBS])
        if self.data_parallel is not None:
            self.data_parallel.average_buffers(self.module[module_id], num_rows(batch))

    def _summary(self, module_id: str, metrics: Metrics, more: Mapping[str, float]) -> dict[str, float]:
        """Return numbers to report: ``more``, :meth:`summarize` results, learning rates, skipped updates, extra losses.
        Raise FloatingPointError if too many updates in a row had a loss or gradient that was not finite, and
        ValueError if tensors of the module were replaced, frozen or unfrozen."""
        trained = self.trained[module_id]
        now = self.module[module_id].state_dict(keep_vars=True)
        for name, (x, is_trained) in trained.tensors.items():
            if now.get(name) is not x or x.requires_grad != is_trained:
                raise tensor_changed(module_id, name, is_same=now.get(name) is x, is_trained=is_trained)
        skipped = metrics.pop(SKIPPED).tolist()
        limit = trained.settings.max_nonfinite_updates_in_a_row
        for was_skipped in skipped:
            trained.skipped_in_a_row = trained.skipped_in_a_row + 1 if was_skipped else 0
            if trained.skipped_in_a_row >= limit:
                raise too_many_skipped(limit, module_id, self.module[module_id])
        # summarize() gets the metrics of the algorithm's loss; those of the module's own losses are averaged
        extra = trained.extra_metrics or frozenset()
        results = self.summarize(module_id, {name: value for name, value in metrics.items() if name not in extra})
        results |= {**more, **results}
        for name, part in trained.parts.items():
            key = f"learning_rate_{name}" if len(trained.parts) > 1 else "learning_rate"
            results.setdefault(key, part.learning_rate)
        results["num_updates_skipped"] = sum(skipped)
        if taken := sorted(extra & results.keys()):
            raise name_taken(self.module[module_id], taken[0])
        return results | {name: float(metrics[name].mean()) for name in sorted(extra)}

    def joined_metrics(self, module_id: str, steps: Sequence[Metrics]) -> Metrics:
        """Join the metrics of a module's gradient steps: average scalars over learners and stack them over steps, and
        concatenate metrics with entries per row."""
        if self.data_parallel is None:
            return join_metrics(steps)
        trained = self.trained[module_id]
        metrics, trained.extra_metrics = self.data_parallel.join_metrics(steps, trained.extra_metrics or frozenset())
        return metrics

    def _steps_after(self, num_new: int) -> int:
        """Return the count of env steps after an update, which is the current count plus the sum of ``num_new`` over
        all learners."""
        return self.env_steps + int(self.collective.all_reduce(torch.tensor(num_new)))

    def _set_env_steps(self, env_steps: int) -> None:
        """Set the count of env steps sampled in the run, and update the learning rates that follow a schedule."""
        self.env_steps = env_steps
        for _, part in self._named_parts():
            part.schedule(env_steps)

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the numbers to report, by name, from the ``metrics`` of all minibatches: tensors ``[M]`` with an entry
        per minibatch, or, if the loss reports an entry per row, the rows of all minibatches. Default: their means."""
        return {name: float(value.mean()) for name, value in metrics.items()}

    def get_state(self) -> dict[str, Any]:
        """Return all state that training changes, as a tree of tensors and of values that JSON can represent. The
        tensors are references, not copies."""
        return {
            "module": self.module.get_state(),
            "optimizers": {name: part.get_state() for name, part in self._named_parts()},
            "generator": self.generator.get_state(),
            "module_noise": self._module_noise.get_state(),
            "env_steps": self.env_steps,
            "num_updates": self.num_updates,
            "num_gradient_steps": self.num_gradient_steps,
            "skipped_in_a_row": {module_id: trained.skipped_in_a_row for module_id, trained in self.trained.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state` in place. Restore only those optimizers that both the state and this
        learner have."""
        self.module.set_state(state["module"])
        optimizers = self.optimizers
        for name in optimizers.keys() & state["optimizers"].keys():  # other modules may be trained now
            load_optimizer_state(optimizers[name], state["optimizers"][name])
        self.generator.set_state(state["generator"])
        self._module_noise.set_state(state["module_noise"])
        self.env_steps, self.num_updates = state["env_steps"], state["num_updates"]
        for module_id in self.trained.keys() & state["num_gradient_steps"].keys():
            self.trained[module_id].num_gradient_steps = state["num_gradient_steps"][module_id]
            self.trained[module_id].skipped_in_a_row = state["skipped_in_a_row"][module_id]

    if not TYPE_CHECKING:  # so that type checkers still report unknown attributes
        __getattr__ = explain_unknown


def join_metrics(steps: Sequence[Metrics]) -> Metrics:
    """Join each metric over the steps that report it: stack scalars into ``[M]``, concatenate entries per row."""
    names = dict.fromkeys(itertools.chain.from_iterable(steps))
    values = {name: [step[name] for step in steps if name in step] for name in names if name != ROWS}
    return {name: (torch.cat if those[0].dim() else torch.stack)(those) for name, those in values.items()}
