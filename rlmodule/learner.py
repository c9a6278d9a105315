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
from rlmodule.apis import check_apis
from rlmodule.columns import Columns
from rlmodule.episode import Episode
from rlmodule.flat import FlatParameters
from rlmodule.module import DEFAULT_MODULE_ID, MultiRLModule
from rlmodule.randomness import torch_stream
from rlmodule.rollout import Rollout, map_leaves
from rlmodule.schedules import value_at
from rlmodule.settings import LearnerSettings
from rlmodule.specs import MultiRLModuleSpec

Batch = dict[str, Tree]
Metrics = dict[str, Tensor]


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
        self.generator = torch_stream(run_seed, "learner")
        self.env_steps = 0
        self.num_updates = 0

    @abstractmethod
    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """The scalar loss of one minibatch, and tensors to report.

        Args:
            module_id: Which module.
            batch: Columns ``[B, ...]``.
            fwd_out: What ``forward_train(batch)`` returned.
        """

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        """The optimizer of a module, given all its parameters as one flat tensor: an elementwise one such as Adam.

        A parameter that took no part in the loss has a gradient of zero.
        """
        return torch.optim.Adam([parameters], lr=value_at(self.settings.lr, 0), eps=1e-5, fused=True)

    def _gradient_step(self, module_id: str, batch: Batch) -> Metrics:
        """Forward, loss, backward, clip, step. Nothing here waits for the device."""
        loss, metrics = self.compute_loss_for_module(module_id, batch, self.module[module_id].forward_train(batch))
        parameters = self.parameters[module_id]
        parameters.zero_grad()
        loss.backward()
        metrics["gradient_norm"] = parameters.clip(self.settings.grad_clip, self.settings.grad_clip_by)
        self.optimizers[module_id].step()
        metrics["total_loss"] = loss
        return {name: value.detach() for name, value in metrics.items()}

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
            "env_steps": self.env_steps,
            "num_updates": self.num_updates,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, in place."""
        self.module.set_state(state["module"])
        for module_id, saved in state["optimizers"].items():
            load_optimizer_state(self.optimizers[module_id], saved)
        self.generator.set_state(state["generator"])
        self.env_steps, self.num_updates = state["env_steps"], state["num_updates"]


class EpisodeLearner(Learner):
    """A learner that is fed rollouts or episodes and makes its own train batch of them.

    Override points, besides those of :class:`Learner`:
        ``preprocess_train_data``: change a rollout before the value pass; the identity by default.
        ``make_train_batch``: bootstraps, advantages, targets; which columns the loss sees.
        ``should_stop``: end the epochs early.
        ``after_update``: what is adapted once per iteration.
    """

    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        """The rollout to train on. Runs on the learner, before anything is computed from the rewards."""
        return rollout

    @abstractmethod
    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Columns ``[B, ...]`` of the valid rows for the loss, and numbers to report. Runs under ``no_grad``."""

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        """Whether to leave out the remaining epochs, asked after each with that epoch's metrics. Default: no."""
        return False

    def after_update(self, module_id: str, batch: Batch) -> None:
        """Adapt what is adapted once per iteration, given the data trained on. Default: nothing."""

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
        self.module.train()
        with torch.no_grad():
            rollout = self.preprocess_train_data(rollout)
            batch, reported = self.make_train_batch(module_id, rollout)
        prepared = perf_counter()
        history: list[Metrics] = []
        for _ in range(self.settings.num_epochs):
            epoch = [self._gradient_step(module_id, minibatch) for minibatch in self._minibatches(batch)]
            history += epoch
            if self.should_stop(module_id, join_metrics(epoch)):
                break
        self.num_updates += len(history)
        results = self.summarize(module_id, join_metrics(history)) | reported | {"learning_rate": lr}
        self.after_update(module_id, batch)
        self.module[module_id].update_observation_statistics(batch[Columns.OBS])
        timers = {"value_pass": prepared - start, "update": perf_counter() - prepared}
        return {module_id: results, "timers": timers}

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        """The batch, reshuffled, in pieces of ``minibatch_size`` (the last may be smaller)."""
        rows = len(tree.flatten(batch)[0])
        order = torch.randperm(rows, generator=self.generator)
        size = self.settings.minibatch_size or rows
        # one gather per column and epoch; the minibatches are views
        shuffled = {name: map_leaves(lambda rows: rows[order], column) for name, column in batch.items()}
        for start in range(0, rows, size):
            yield {
                name: map_leaves(lambda rows, start=start: rows[start : start + size], column)
                for name, column in shuffled.items()
            }


class BatchLearner(Learner):
    """A learner that is fed ready train batches, such as samples of a replay buffer."""

    def update_from_batch(self, batch: Batch, *, env_steps: int) -> dict[str, dict[str, float]]:
        """One gradient step on ``batch`` ``[B, ...]``.

        Args:
            batch: Columns, as the loss reads them.
            env_steps: Env steps sampled in the whole run so far; schedules go by it.

        Returns:
            Module id → numbers to report.
        """
        lr = self._begin(env_steps)
        self.module.train()
        metrics = self._gradient_step(DEFAULT_MODULE_ID, batch)
        self.num_updates += 1
        return {DEFAULT_MODULE_ID: self.summarize(DEFAULT_MODULE_ID, metrics) | {"learning_rate": lr}}


def join_metrics(history: Sequence[Metrics]) -> Metrics:
    """Metrics of several minibatches as one: scalars stacked, rows concatenated."""
    return {
        name: torch.stack([m[name] for m in history]) if value.dim() == 0 else torch.cat([m[name] for m in history])
        for name, value in history[0].items()
    }


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``optimizer.state_dict()`` with string keys, as trees of tensors and JSON-able values."""
    state = optimizer.state_dict()
    return {"state": {str(k): v for k, v in state["state"].items()}, "param_groups": state["param_groups"]}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what :func:`optimizer_state` gave."""
    optimizer.load_state_dict(
        {"state": {int(k): v for k, v in state["state"].items()}, "param_groups": state["param_groups"]}
    )
