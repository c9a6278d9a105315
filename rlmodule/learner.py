"""Learners: one gradient step, and the two ways data comes to it.

An algorithm derives from :class:`EpisodeLearner` (PPO-like: rollouts, with bootstraps and advantages) or from
:class:`BatchLearner` (DQN-like: ready batches from a replay buffer) and writes the loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar

import torch
import tree
from torch import Tensor, nn

from catalog.base import Tree
from catalog.errors import explain_error
from rlmodule.apis import ExtraLoss, ExtraLossAPI, QNetAPI, ValueFunctionAPI, check_apis
from rlmodule.columns import Columns
from rlmodule.episode import Episode
from rlmodule.flat import FlatAdam, FlatParameters
from rlmodule.module import DEFAULT_MODULE_ID, MultiRLModule
from rlmodule.randomness import GlobalStream, torch_stream
from rlmodule.rollout import Rollout, map_leaves
from rlmodule.schedules import value_at
from rlmodule.sequences import (
    cut_into_sequences,
    embeddings_of,
    flatten_sequences,
    sequence_minibatches,
    values_along,
    with_states,
)
from rlmodule.settings import EpisodeLearnerSettings, LearnerSettings
from rlmodule.specs import MultiRLModuleSpec

Batch = dict[str, Tree]
Metrics = dict[str, Tensor]

_SKIPPED = "update_skipped"
"""Metric of each gradient step: 1 if it was left out, else 0."""


class Learner(ABC):
    """Holds the modules and their optimizers and takes gradient steps.

    Override points:
        ``compute_loss_for_module``: the loss.
        ``configure_optimizer_for_module``: another optimizer; Adam with a fused step by default.
        ``required_apis``: abilities the loss needs of a module.
        ``summarize``: how the metrics of all minibatches become numbers; their means by default.
        ``get_state``, ``set_state``: when a subclass keeps something that evolves.

    Args:
        settings: Learning rate, clipping, minibatches.
        spec: The modules.
        run_seed: Seed of the run; minibatches are shuffled from its ``learner`` stream.

    Raises:
        TypeError: If a module lacks an ability in ``required_apis``.
    """

    required_apis: ClassVar[tuple[type, ...]] = ()

    def __init__(self, settings: LearnerSettings, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.settings = settings
        self.module: MultiRLModule = spec.build()
        for module_id, module in self.module.items():
            check_apis(module, self.required_apis, type(self).__name__, module_id)
        self.parameters = {name: FlatParameters(module.parameters()) for name, module in self.module.items()}
        self.optimizers = {
            name: self.configure_optimizer_for_module(name, flat.tensor) for name, flat in self.parameters.items()
        }
        self._stateful = {name: module.is_stateful() for name, module in self.module.items()}
        self._extra_metrics: dict[str, frozenset[str]] = {}
        self.generator = torch_stream(run_seed, "learner")
        self._module_noise = GlobalStream(run_seed, "module_noise")
        self.env_steps = 0
        self.num_updates = 0
        self._skipped_in_a_row = dict.fromkeys(self.parameters, 0)

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

        A parameter that took no part in the loss has a gradient of zero.
        """
        return FlatAdam(parameters, lr=value_at(self.settings.lr, 0), eps=1e-5)

    def forward_rows(self, module_id: str, batch: Batch) -> tuple[Batch, Mapping[str, Tree]]:
        """``forward_train(batch)``: the batch and what came out, both as rows ``[B, ...]`` if they are sequences.

        Raises:
            ValueError: If a recurrent module is given rows, or predicts values and returns no ``embeddings``.
        """
        module = self.module[module_id]
        if not self._stateful[module_id]:
            return batch, module.forward_train(batch)
        if Columns.STATE_IN not in batch:
            raise ValueError(
                explain_error(
                    f"{type(self).__name__} with the recurrent module {module_id!r}",
                    expected=f"a batch of sequences, with {Columns.STATE_IN} and {Columns.STARTS}",
                    got=f"one of rows, with {', '.join(batch)}",
                    remedy="Make the train batch with pack().",
                )
            )
        fwd_out, valid_rows = module.forward_train(batch), batch.get(Columns.VALID_ROWS)
        if isinstance(module, ValueFunctionAPI | QNetAPI):
            embeddings_of(module, fwd_out)
        return flatten_sequences(batch, valid_rows), flatten_sequences(fwd_out, valid_rows)

    def _gradient_step(self, module_id: str, batch: Batch) -> Metrics:
        """Forward, loss, backward, clip, step. Nothing here waits for the device.

        The step is left out, and the optimizer untouched, where the loss or the gradient is not finite.
        """
        rows, fwd_out = self.forward_rows(module_id, batch)
        loss, metrics = self._checked_loss(self.compute_loss_for_module(module_id, rows, fwd_out))
        if isinstance(module := self.module[module_id], ExtraLossAPI):
            loss = self._add_extra_losses(loss, module.compute_extra_losses(rows, fwd_out), module_id, metrics)
        parameters = self.parameters[module_id]
        parameters.zero_grad()
        loss.backward()
        norm = parameters.clip(self.settings.grad_clip, self.settings.grad_clip_by)
        both = norm + loss.detach()
        skip = both.sub_(both).ne_(0).float()  # what is not finite less itself is NaN, and that is not 0
        if isinstance(optimizer := self.optimizers[module_id], FlatAdam):
            optimizer.step_unless(skip)
        elif not skip:
            optimizer.step()
        metrics |= {"gradient_norm": norm, "total_loss": loss, _SKIPPED: skip}
        return {name: value.detach() for name, value in metrics.items()}

    def _checked_loss(self, returned: Any) -> tuple[Tensor, Metrics]:
        """What ``compute_loss_for_module`` returned, if it is a scalar tensor and a dict."""
        if isinstance(returned, tuple) and len(returned) == 2:
            loss, metrics = returned
            if isinstance(loss, Tensor) and not loss.dim() and isinstance(metrics, dict):
                return loss, metrics
        shapes = [f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__ for x in _as_tuple(returned)]
        raise TypeError(
            explain_error(
                f"{type(self).__name__}.compute_loss_for_module()",
                expected="a scalar tensor and a dict of tensors to report",
                got=" and ".join(shapes),
                remedy="Return (loss.mean(), {'name': value}).",
            )
        )

    def _update_observation_statistics(self, module_id: str, batch: Batch) -> None:
        """Let the module take in the observations it was just trained on."""
        obs = {Columns.OBS: batch[Columns.OBS]}
        if self._stateful[module_id]:
            obs = flatten_sequences(obs, batch.get(Columns.VALID_ROWS))
        self.module[module_id].update_observation_statistics(obs[Columns.OBS])

    def _add_extra_losses(
        self, loss: Tensor, extra_losses: Mapping[str, ExtraLoss], module_id: str, metrics: Metrics
    ) -> Tensor:
        """``loss`` and, weighted, those of the module itself; what is to be reported of them joins ``metrics``."""
        where, reported = self._where_extra_losses(module_id), dict[str, Tensor]()
        if not (isinstance(extra_losses, dict) and all(isinstance(x, ExtraLoss) for x in extra_losses.values())):
            expected, remedy = "a dict from names to ExtraLoss", "Return {'name': ExtraLoss(value, weight=1.0)}."
            raise TypeError(explain_error(where, expected=expected, got=repr(extra_losses), remedy=remedy))
        for name, extra in extra_losses.items():
            if not isinstance(extra.value, Tensor) or extra.value.dim():
                got = f"shape {tuple(extra.value.shape)}" if isinstance(extra.value, Tensor) else repr(extra.value)
                where, remedy = f"{where}[{name!r}]", "Return the mean of a loss per row."
                raise ValueError(explain_error(where, expected="a scalar tensor", got=got, remedy=remedy))
            loss = loss + extra.weight * extra.value
            for key, value in ((f"{name}_loss", extra.value), *extra.metrics.items()):
                if key in reported or key in metrics or key in ("total_loss", "gradient_norm", _SKIPPED):
                    raise _taken(where, key)
                reported[key] = value
        known = self._extra_metrics.setdefault(module_id, frozenset(reported))
        if known != reported.keys():
            expected, got = (", ".join(sorted(names)) or "none" for names in (known, reported))
            expected = f"the same losses and metrics at every call: {expected}"
            remedy = "Give a loss that is not due the value 0."
            raise ValueError(explain_error(where, expected=expected, got=got, remedy=remedy))
        metrics.update(reported)
        return loss

    def _where_extra_losses(self, module_id: str) -> str:
        return f"{type(self.module[module_id]).__name__}.compute_extra_losses()"

    def _summary(self, module_id: str, metrics: Metrics, more: Mapping[str, float]) -> dict[str, float]:
        """The numbers of a result: what :meth:`summarize` makes of the algorithm's own metrics, ``more``, and the means
        of what the module's own losses reported."""
        extra = self._extra_metrics.get(module_id, frozenset())
        metrics = dict(metrics)
        more = {**more, "num_updates_skipped": self._count_skipped(module_id, metrics.pop(_SKIPPED))}
        results = self.summarize(module_id, {n: value for n, value in metrics.items() if n not in extra}) | dict(more)
        if taken := sorted(extra & results.keys()):
            raise _taken(self._where_extra_losses(module_id), taken[0])
        return results | {name: float(metrics[name].mean()) for name in sorted(extra)}

    def _count_skipped(self, module_id: str, skipped: Tensor) -> float:
        """How many updates were left out since their loss or gradient was not finite.

        Raises:
            FloatingPointError: If too many were in a row; names the parameters.
        """
        limit = self.settings.max_nonfinite_updates_in_a_row
        for one in skipped.tolist():
            self._skipped_in_a_row[module_id] = self._skipped_in_a_row[module_id] + 1 if one else 0
            if self._skipped_in_a_row[module_id] < limit:
                continue
            named = self.module[module_id].named_parameters()
            wrong = [name for name, p in named if p.grad is not None and not p.grad.isfinite().all()]
            raise FloatingPointError(
                explain_error(
                    f"updates of module {module_id!r}",
                    expected="finite losses and gradients",
                    got=f"{limit} in a row that are not; in the last one "
                    + (f"the gradients of {', '.join(wrong)}" if wrong else "the loss alone"),
                    remedy="The weights are as they were before these. Lower lr, look at the scale of rewards and at "
                    "losses of your own, or allow more by max_nonfinite_updates_in_a_row.",
                )
            )
        return float(skipped.sum())

    def _begin(self, env_steps: int) -> float:
        """Note the number of env steps sampled so far and set the learning rates that belong to it."""
        self.env_steps = env_steps
        lr = value_at(self.settings.lr, env_steps)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = lr
        return lr

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        """Numbers for the result, from metrics stacked or concatenated over minibatches. Default: means."""
        return {name: float(value.mean()) for name, value in metrics.items()}

    def get_state(self) -> dict[str, Any]:
        """Everything that evolves, as a tree of tensors (references, not copies) and JSON-able values."""
        return {
            "module": self.module.get_state(),
            "optimizers": {module_id: optimizer_state(opt) for module_id, opt in self.optimizers.items()},
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
    """A learner that is fed rollouts or episodes and makes its own train batch of them.

    All but the gradient steps runs under ``no_grad`` with the modules in eval mode, so that running statistics such as
    those of batch norm take in each minibatch once.

    Override points, besides those of :class:`Learner`:
        ``preprocess_train_data``: change a rollout before the value pass; the identity by default.
        ``make_train_batch``: bootstraps, advantages, targets; which columns the loss sees.
        ``should_stop``: end the epochs early.
        ``after_update``: what is adapted once per iteration.
    """

    def __init__(self, settings: EpisodeLearnerSettings, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        super().__init__(settings, spec, run_seed=run_seed)
        self.settings = settings

    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        """The rollout to train on. Runs on the learner, before anything is computed from the rewards."""
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
        """The named columns as a train batch: the valid rows ``[B, ...]``, or sequences for a recurrent module."""
        if self._stateful[module_id]:
            return cut_into_sequences(rollout, names, self.module[module_id].max_seq_len)
        return rollout.valid_rows(names)

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        """Whether to leave out the remaining epochs, asked after each with that epoch's metrics. Default: no."""
        return False

    def after_update(self, module_id: str, batch: Batch) -> None:
        """Adapt what is adapted once per iteration, given the train batch; :meth:`forward_rows` makes rows of it and of
        what the module says now. Default: nothing."""

    def update_from_episodes(
        self, rollouts: Rollout | Sequence[Episode], *, env_steps: int
    ) -> dict[str, dict[str, float]]:
        """Learn from one rollout (or episodes, which are packed into one): epochs of reshuffled minibatches.

        Args:
            rollouts: The data.
            env_steps: Env steps sampled in the whole run so far; schedules go by it.

        Returns:
            Module id → numbers to report; the seconds of the phases are under ``"timers"``.
        """
        lr = self._begin(env_steps)
        rollout = rollouts if isinstance(rollouts, Rollout) else Rollout.from_episodes(rollouts)
        module_id, start = DEFAULT_MODULE_ID, perf_counter()
        self.module.eval()
        with torch.no_grad():
            rollout = with_states(self.module[module_id], self.preprocess_train_data(rollout))
            batch, reported = self.make_train_batch(module_id, rollout)
        prepared = perf_counter()
        self.module.train()
        history: list[Metrics] = []
        with self._module_noise:
            for _ in range(self.settings.num_epochs):
                epoch = [self._gradient_step(module_id, minibatch) for minibatch in self._minibatches(batch)]
                history += epoch
                if self.should_stop(module_id, join_metrics(epoch)):
                    break
        self.num_updates += len(history)
        results = self._summary(module_id, join_metrics(history), reported | {"learning_rate": lr})
        self.module.eval()
        self.after_update(module_id, batch)
        self._update_observation_statistics(module_id, batch)
        timers = {"value_pass": prepared - start, "update": perf_counter() - prepared}
        return {module_id: results, "timers": timers}

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        """The batch, reshuffled, in pieces of ``minibatch_size`` rows or of sequences of as many rows."""
        pieces = sequence_minibatches if Columns.STATE_IN in batch else row_minibatches
        return pieces(batch, self.settings.minibatch_size, self.generator)


class BatchLearner(Learner):
    """A learner that is fed ready train batches, such as samples of a replay buffer.

    Override points, besides those of :class:`Learner`:
        ``prepare_batch``: what is computed from a batch before the gradient step, such as targets.
        ``after_gradient_step``: what follows each step, such as moving a target net.
    """

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        """The batch as the loss shall see it; runs under ``no_grad``. Default: as it came."""
        return batch

    def after_gradient_step(self, module_id: str) -> None:
        """Follow the module's new weights. Runs under ``no_grad``. Default: nothing."""

    def update_from_batch(self, batch: Batch, *, env_steps: int) -> dict[str, Metrics]:
        """One gradient step on ``batch``. Nothing here waits for the device.

        Args:
            batch: Columns ``[B, ...]``, as the loss reads them; sequences ``[L, B, ...]`` for a recurrent module.
            env_steps: Env steps sampled in the whole run so far; schedules go by it.

        Returns:
            Module id → tensors: what the loss reported, scalars or one entry per row. :meth:`summarize_updates` makes
            numbers of many of these.
        """
        self._begin(env_steps)
        module_id = DEFAULT_MODULE_ID
        if not self.module[module_id].training:  # to ask costs less than to walk over all its parts each time
            self.module.train()
        with self._module_noise:
            with torch.no_grad():
                batch = self.prepare_batch(module_id, batch)
            metrics = self._gradient_step(module_id, batch)
        self.num_updates += 1
        with torch.no_grad():
            self._update_observation_statistics(module_id, batch)
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


def row_minibatches(batch: Batch, size: int | None, generator: torch.Generator) -> Iterator[Batch]:
    """Rows ``[B, ...]``, reshuffled, in pieces of ``size`` (all if it is None). The last may be smaller, but a single
    row joins the piece before: batch norm takes two."""
    rows = len(tree.flatten(batch)[0])
    order = torch.randperm(rows, generator=generator)
    size = rows if size is None else size
    # one gather per column and epoch; the minibatches are views
    shuffled = {name: map_leaves(lambda x: x[order], column) for name, column in batch.items()}
    starts = [start for start in range(0, rows, size) if start == 0 or rows - start > 1]
    for start, stop in zip(starts, [*starts[1:], rows], strict=True):
        yield {name: map_leaves(lambda x, rows=slice(start, stop): x[rows], c) for name, c in shuffled.items()}


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def join_metrics(history: Sequence[Metrics]) -> Metrics:
    """Metrics of several minibatches as one: scalars stacked, rows concatenated."""
    return {
        name: torch.stack([m[name] for m in history]) if value.dim() == 0 else torch.cat([m[name] for m in history])
        for name, value in history[0].items()
    }


def _taken(where: str, name: str) -> ValueError:
    expected, remedy = "names that the algorithm does not report itself", "Call it something else."
    return ValueError(explain_error(where, expected=expected, got=repr(name), remedy=remedy))


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``optimizer.state_dict()`` with string keys, as trees of tensors and JSON-able values."""
    state = optimizer.state_dict()
    return {"state": {str(k): v for k, v in state["state"].items()}, "param_groups": state["param_groups"]}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what :func:`optimizer_state` gave."""
    optimizer.load_state_dict(
        {"state": {int(k): v for k, v in state["state"].items()}, "param_groups": state["param_groups"]}
    )
