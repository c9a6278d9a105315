"""Learner: owns modules and their optimizers, and takes gradient steps.

An algorithm's learner defines the loss. It derives from :class:`EpisodeLearner` if it trains on rollouts, as PPO does,
or from :class:`BatchLearner` if it trains on ready batches from a replay buffer, as DQN does. Learners that train
together synchronise through :class:`DataParallel`, which a single learner does not use.
"""

import copy
import itertools
import warnings
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
from rlmodule.data.sequences import flatten_sequences, num_rows
from rlmodule.learning.compilation import GradientPass, gradient_pass, learner_device
from rlmodule.learning.data_parallel import DataParallel
from rlmodule.learning.flat_optimizer import (
    FlatAdam,
    FlatParameters,
    Part,
    TrainedPart,
    load_optimizer_state,
    optimizer_state,
    parameters_by_part,
)
from rlmodule.learning.global_stream import GlobalStream
from rlmodule.learning.reports import (
    SKIPPED,
    Metrics,
    add_extra_losses,
    check_names,
    join_metrics,
    loss_without_gradient,
    metric_tensors,
    name_taken,
    too_many_skipped,
    wrong_loss,
)
from rlmodule.learning.schedules import scaled, value_at
from rlmodule.modules.apis import ExtraLossAPI, check_apis
from rlmodule.modules.recurrent import forward_sequences
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.modules.shape_checks import check_module
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
        ``can_stack``: whether one call of the loss may compute the losses of several modules; default: no.
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
        num_gradient_steps: Number of gradient steps of each module in the whole run, by module id.
        stepping: The names of the parts that a module's current or latest gradient step updates, by module id, from
            :meth:`parts_to_step`; all parts before the first step. A loss is compiled or captured separately for each
            choice of parts.
        trained_parts: The parts of each trained module, including their parameters and optimizers, by module id and
            part name.
        shared_parts: The parts that several modules share, including their parameters and optimizers, by name. They are
            trained with the settings of the run.
        sharing: The names of the shared parts of each module that has any, by module id.
        row_weights: While ``M`` modules are updated at once, the weight of each row in its module's means, ``[M, B]``;
            otherwise None. See :meth:`mean`.

    Raises:
        TypeError: If a module lacks an interface in ``required_apis``.
        ValueError: If a forward pass of a module returns a wrong shape (see
            :func:`rlmodule.modules.shape_checks.check_module`), if a trainable parameter is not in exactly one part of
            its module, or if the settings assign a GPU that torch cannot use.
    """

    required_apis: ClassVar[tuple[type, ...]] = ()

    def __init__(self, settings: LearnerSettings, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.settings = settings
        self.device = learner_device(settings)
        self.module: MultiRLModule = spec.build().to(self.device)
        self.collective: Collective = SingleProcess()
        self.data_parallel: DataParallel | None = None  # None for a single learner
        self.progress = self.env_steps = self.num_updates = 0
        self.parameters: dict[str, FlatParameters] = {}
        self.num_gradient_steps: dict[str, int] = {}
        self.stepping: dict[str, tuple[str, ...]] = {}
        self.trained_parts: dict[str, dict[str, TrainedPart]] = {}
        self.row_weights: Tensor | None = None
        self._stepping: dict[str, list[TrainedPart]] = {}
        self.shared_parts: dict[str, TrainedPart] = {}
        self.sharing: dict[str, list[str]] = {}
        self._stateful: dict[str, bool] = {}
        self._gradient_passes: dict[str, GradientPass] = {}
        self._settings_of: dict[str, LearnerSettings] = {}
        self._trains: dict[str, bool] = {}  # what add_module() said
        self._skipped_in_a_row: dict[str, int] = {}
        self._extra_metrics: dict[str, frozenset[str]] = {}
        self.run_settings = settings
        for module_id, one in spec.rl_module_specs.items():
            with self.using(settings.for_module(module_id)):
                self._register_module(module_id, one)
        self._run_seed = run_seed
        self.generator = torch_stream(run_seed, "learner")
        self._module_noise = GlobalStream(run_seed, "module_noise", self.device)
        self.connect(self.collective)

    def _register_module(self, module_id: str, spec: RLModuleSpec) -> None:
        """Check the module ``module_id``, which was built from ``spec``, and create its optimizers and the other state
        kept for each module. If the module is not trained, only freeze its parameters."""
        module = self.module[module_id]
        if not self._trains.get(module_id, self.settings.is_trained(module_id)):
            check_nothing_shared(module_id, self.module)
            module.requires_grad_(False)
            return
        self._settings_of[module_id] = self.settings
        check_apis(module, self.required_apis, type(self).__name__, module_id)
        check_module(module)
        shared = self._take_shared_parts(module_id) if self.module.shared_parts else set[int]()
        self._check_own_parameters(module_id, shared)
        parts = self.parts_of(module_id)
        own = parameters_by_part(module, parts, f"{type(self).__name__}.parts_of({module_id!r})")
        own = {name: [p for p in those if id(p) not in shared] for name, those in own.items()}
        self.parameters[module_id] = flat = FlatParameters(own)
        self.trained_parts[module_id] = {
            name: TrainedPart(part, flat.parts[name], self._make_optimizer(module_id, part, flat.parts[name].tensor))
            for name, part in parts.items()
        }
        self._set_stepping(module_id, tuple(parts))
        self.num_gradient_steps[module_id] = 0
        self._stateful[module_id] = module.is_stateful()
        self._gradient_passes[module_id] = gradient_pass(self, module_id)
        self._skipped_in_a_row[module_id] = 0
        if self.data_parallel is not None:
            self.data_parallel.register(module_id, module)

    def _make_optimizer(self, module_id: str, part: Part, parameters: nn.Parameter) -> torch.optim.Optimizer:
        settings = copy.copy(self.settings)
        for name, value in (("lr", part.lr), ("grad_clip", part.grad_clip)):
            object.__setattr__(settings, name, value)  # unlike setattr(), it changes this copy of frozen settings, too
        with self.using(settings):
            try:
                optimizer = self.configure_optimizer_for_module(module_id, parameters)
            except TypeError as error:
                if "params argument given to the optimizer" not in str(error):
                    raise
                raise TypeError(
                    f"{type(self).__name__}.configure_optimizer_for_module(): expected an optimizer of a list, got one "
                    "of parameters itself, which is one flat tensor. Write it in brackets, as in "
                    "torch.optim.RMSprop([parameters])."
                ) from error
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # the key that torch's own schedulers use
        return optimizer

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All optimizers by name. The name is ``module_id`` for a module with one part, ``module_id.part`` for a part
        of a module with several parts, and the name of the part for a shared part."""
        return {name: part.optimizer for name, part in self._named_parts()}

    def _named_parts(self) -> Iterator[tuple[str, TrainedPart]]:
        for module_id, parts in self.trained_parts.items():
            for name, part in parts.items():
                yield (f"{module_id}.{name}" if len(parts) > 1 else module_id), part
        yield from self.shared_parts.items()

    def settings_of(self, module_id: str) -> Any:
        """Return the settings of a module, which are the settings of the run, changed by the module's
        ``policy_overrides``.

        Raises:
            KeyError: If no module has the id ``module_id``. The error names the known ids.
            ValueError: If the module is not trained.
        """
        if module_id not in self._settings_of:
            self.module[module_id]  # raises if no module has that id
            trained = ", ".join(self._settings_of) or "none"
            raise ValueError(
                f"module {module_id!r}: expected one that is trained ({trained}), got one that is not. Name it in "
                "policies_to_train, or leave out its data."
            )
        return self._settings_of[module_id]

    @contextmanager
    def using(self, settings: Any) -> Iterator[None]:
        """Use ``settings`` as the settings of this learner within the block."""
        before, self.settings = self.settings, settings
        try:
            yield
        finally:
            self.settings = before

    def _take_shared_parts(self, module_id: str) -> set[int]:
        """Register the parts that a module shares with other modules, unless another module has registered them. Return
        ``id(parameter)`` of the trainable parameters in these parts. This is called only if there are shared parts.
        This base class always raises ValueError, because it updates one module at a time."""
        raise ValueError(
            f"shared_parts: expected a learner that updates several modules at once, got {type(self).__name__}, which "
            "learns from a batch of one module. Train with PPO, or give each policy its own parts."
        )

    def _check_own_parameters(self, module_id: str, but: Collection[int]) -> None:
        """Raise ValueError if a parameter of the module, except those whose ``id()`` is in ``but``, is already trained
        as part of another module, because each optimizer would update its own copy of it."""
        mine = {id(p): name for name, p in self.module[module_id].named_parameters() if id(p) not in but}
        for other, flat in self.parameters.items():
            if shared := [mine[id(p)] for p in flat.views if id(p) in mine]:
                raise ValueError(
                    f"module {module_id!r} of {type(self).__name__}: expected trainable parameters "
                    f"that no other module trains, got {', '.join(shared[:5])}, which module {other!r} "
                    "trains, too. Build them in setup() of each module, name them in shared_parts, or freeze them with "
                    "requires_grad_(False)."
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
        is_alone, settings = collective.size == 1, self.settings
        self.data_parallel = None if is_alone else DataParallel(collective, self.module)
        self._together: AbstractContextManager[None] = nullcontext() if is_alone else collective
        wraps = settings.torch_autocast or settings.torch_compile_learner or settings.torch_cuda_graphs
        self._is_plain = is_alone and not wraps

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
            self._trains[module_id] = train
            try:
                with self.using(self.settings.for_module(module_id)):
                    self._register_module(module_id, spec)
            except Exception:
                self._forget_module(module_id)
                raise

    def remove_module(self, module_id: str) -> None:
        """Remove a module, its optimizers and all other state kept for it.

        Raises:
            KeyError: If no module has the id ``module_id``. The error names the known ids.
        """
        self._forget_module(module_id)

    def _forget_module(self, module_id: str) -> None:
        """Remove a module and undo ``_register_module``, even if that method raised an error halfway."""
        self.module.remove(module_id)
        kept = self.parameters, self.trained_parts, self._stepping, self._stateful
        counts = self.stepping, self.num_gradient_steps, self._skipped_in_a_row, self.sharing, self._trains
        for by_id in (*kept, *counts, self._gradient_passes, self._extra_metrics, self._settings_of):
            by_id.pop(module_id, None)
        for name in self.shared_parts.keys() - set(itertools.chain.from_iterable(self.sharing.values())):
            del self.shared_parts[name]
        if self.data_parallel is not None:
            self.data_parallel.forget(module_id)

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
        has one entry per row.

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
        return tuple(self.trained_parts[module_id])

    def can_stack(self, module_id: str) -> bool:
        """Return whether one call of ``compute_loss_for_module`` may compute the losses of ``M`` modules that have the
        settings and net structure of module ``module_id``. Such a call gets columns and outputs ``[M, B, ...]`` and the
        id of the first module, and must return losses ``[M]``, and metrics ``[M]`` or ``[M, B]``. The loss must compute
        all means with :meth:`mean`, and must neither read nor change anything that differs between modules. The default
        is False."""
        return False

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean of ``rows`` ``[B]``. If ``M`` modules are updated at once, return ``[M]`` from ``[M, B]``."""
        return rows.mean() if self.row_weights is None else (rows * self.row_weights).sum(1)

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
        if self._stateful[module_id]:
            where = f"{type(self).__name__} with the recurrent module {module_id!r}"
            return forward_sequences(module, batch, where)
        return batch, module.forward_train(batch)

    def compute_total_loss(self, module_id: str, rows: Batch, fwd_out: Mapping[str, Tree]) -> tuple[Tensor, Metrics]:
        """Return the loss, with the module's extra losses, and all metrics, given what :meth:`forward_rows` returns."""
        returned = self.compute_loss_for_module(module_id, rows, fwd_out)
        loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        if not (isinstance(loss, Tensor) and not loss.dim() and isinstance(metrics, dict)):
            raise wrong_loss(returned, type(self).__name__)
        if isinstance(module := self.module[module_id], ExtraLossAPI):
            loss, extra = add_extra_losses(loss, metrics, module, rows, fwd_out)
            check_names(module, extra, self._extra_metrics.setdefault(module_id, frozenset(extra)))
            metrics |= extra
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise loss_without_gradient(type(self).__name__)
        return loss, metric_tensors(metrics, loss, type(self).__name__)

    def _gradient_step(self, module_id: str, batch: Batch) -> Metrics:
        """Take one gradient step without waiting for the device, and return its metrics. If the loss or the gradient is
        not finite, leave the weights and the optimizer unchanged."""
        parameters = self.parameters[module_id]
        if (names := tuple(self.parts_to_step(module_id))) != self.stepping[module_id]:
            self._set_stepping(module_id, names)
        if self._is_plain:
            loss, metrics = self.compute_total_loss(module_id, *self.forward_rows(module_id, batch))
            parameters.zero_grad()
            loss.backward()
        else:
            compute, together = self._gradient_passes[module_id], self.data_parallel
            loss, metrics = compute(batch) if together is None else together.gradient(compute, parameters, batch)
        by, stepping = self.settings.grad_clip_by, self._stepping[module_id]
        norms = [each.flat.clip(each.part.grad_clip, by) for each in stepping]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        both = norm + loss.detach()
        skip = both.sub_(both).ne_(0).float()  # x - x is 0 if x is finite, else NaN
        for each in stepping:
            if isinstance(optimizer := each.optimizer, FlatAdam):
                optimizer.step_unless(skip)
            elif not skip:
                optimizer.step()
        self.progress += 1
        self.num_gradient_steps[module_id] += 1
        metrics |= {"gradient_norm": norm, "total_loss": loss, SKIPPED: skip}
        if len(self.trained_parts[module_id]) > 1:
            metrics |= {f"gradient_norm_{name}": x for name, x in zip(names, norms, strict=True)}
        return {name: value.detach() for name, value in metrics.items()}

    def _set_stepping(self, module_id: str, names: tuple[str, ...]) -> None:
        """Set the names of the parts that the next gradient step of a module updates. Raise ValueError if ``names`` is
        empty or names an unknown part."""
        if not names or not set(names) <= self.trained_parts[module_id].keys():
            known = ", ".join(self.trained_parts[module_id])
            raise ValueError(
                f"{type(self).__name__}.parts_to_step({module_id!r}): expected one or more of {known}, got {names}. "
                "Name parts that parts_of() returns."
            )
        self.stepping[module_id] = names
        self._stepping[module_id] = [self.trained_parts[module_id][name] for name in names]

    def _update_statistics(self, module_id: str, batch: Batch) -> None:
        """Update the observation statistics with ``batch``; average buffers over all learners."""
        rows = {Columns.OBS: batch[Columns.OBS]}
        if self._stateful[module_id]:
            rows = flatten_sequences(rows, batch.get(Columns.VALID_ROWS))
        self.module[module_id].update_observation_statistics(rows[Columns.OBS])
        if self.data_parallel is not None:
            self.data_parallel.average_buffers(module_id, num_rows(batch))

    def _summary(self, module_id: str, metrics: Metrics, more: Mapping[str, float]) -> dict[str, float]:
        """Return numbers to report: ``more``, :meth:`summarize` results, learning rates, skipped updates, extra losses.
        Raise FloatingPointError if too many updates in a row had a loss or gradient that was not finite."""
        extra, skipped = self._extra_metrics.get(module_id, frozenset()), metrics.pop(SKIPPED).tolist()
        limit, in_a_row = self.settings.max_nonfinite_updates_in_a_row, self._skipped_in_a_row
        for one in skipped:
            in_a_row[module_id] = in_a_row[module_id] + 1 if one else 0
            if in_a_row[module_id] >= limit:
                raise too_many_skipped(limit, module_id, self.module[module_id])
        rates = {n: float(x.optimizer.param_groups[0]["lr"]) for n, x in self.trained_parts[module_id].items()}
        rates = {f"learning_rate_{name}" if len(rates) > 1 else "learning_rate": lr for name, lr in rates.items()}
        results = self.summarize(module_id, {n: value for n, value in metrics.items() if n not in extra})
        results |= {**more, **rates, "num_updates_skipped": sum(skipped)}
        if again := sorted(extra & results.keys()):
            raise name_taken(self.module[module_id], again[0])
        return results | {name: float(metrics[name].mean()) for name in sorted(extra)}

    def _joined(self, module_id: str, steps: Sequence[Metrics]) -> Metrics:
        """Average scalar metrics over learners and stack them over steps; concatenate metrics with entries per row."""
        if self.data_parallel is None:
            return join_metrics(steps)
        known = self._extra_metrics.get(module_id, frozenset())
        metrics, self._extra_metrics[module_id] = self.data_parallel.join_metrics(steps, known)
        return metrics

    def _steps_after(self, num_new: int) -> int:
        """Return the count of env steps after an update, which is the current count plus the sum of ``num_new`` over
        all learners."""
        return self.env_steps + int(self.collective.all_reduce(torch.tensor(num_new)))

    def _set_env_steps(self, env_steps: int) -> None:
        """Set the count of env steps sampled in the run, and update the learning rates that follow a schedule."""
        self.env_steps = env_steps
        for _, each in self._named_parts():
            if not isinstance(schedule := each.part.lr, int | float):
                for group in each.optimizer.param_groups:
                    group["lr"] = scaled(group["initial_lr"], schedule, env_steps)

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the numbers to report, by name, from the ``metrics`` of all minibatches: tensors ``[M]`` with an entry
        per minibatch, or, if the loss reports an entry per row, the rows of all minibatches. Default: their means."""
        return {name: float(value.mean()) for name, value in metrics.items()}

    def get_state(self) -> dict[str, Any]:
        """Return all state that training changes, as a tree of tensors and of values that JSON can represent. The
        tensors are references, not copies."""
        return {
            "module": self.module.get_state(),
            "optimizers": {
                name: optimizer_state(each.optimizer, is_scheduled=not isinstance(each.part.lr, int | float))
                for name, each in self._named_parts()
            },
            "generator": self.generator.get_state(),
            "module_noise": self._module_noise.get_state(),
            "env_steps": self.env_steps,
            "num_updates": self.num_updates,
            "num_gradient_steps": self.num_gradient_steps.copy(),
            "skipped_in_a_row": self._skipped_in_a_row.copy(),
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
        self.num_gradient_steps |= state["num_gradient_steps"]
        self._skipped_in_a_row |= state["skipped_in_a_row"]

    if not TYPE_CHECKING:  # so that type checkers still report unknown attributes
        __getattr__ = explain_unknown


def warn_of_update(owner: type, right: str) -> None:
    """Warn that ``owner.update()`` is deprecated and that the method ``right`` replaces it."""
    warnings.warn(f"{owner.__name__}.update() is deprecated: call {right}().", DeprecationWarning, stacklevel=3)
