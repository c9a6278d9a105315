"""ActionCriticLearner: the base learner of algorithms with a policy and critics that value observation and action."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.off_policy.algorithm import ReplayTraining
from algorithms.off_policy.learner import ReplayLearner, check_return_head
from algorithms.ops.distributional import least_returns, return_losses
from catalog.checks import Schedule
from catalog.critics import CriticSettings
from catalog.return_heads import ReturnHead
from catalog.settings import setting
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.device import moved
from rlmodule.learning.flat_optimizer import FlatAdam, Part
from rlmodule.learning.reports import Metrics
from rlmodule.learning.schedules import value_at
from rlmodule.learning.sharding import spans
from rlmodule.modules.apis import ActionValueAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

Distance: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Returns the losses of numbers from predictions and targets."""

_STREAMS = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Distance between the initial states of the streams of one gradient step."""


class ActionCriticTraining(CriticSettings, ReplayTraining):
    """Settings of the updates of a policy, and of critics that value observation and action."""

    grad_clip = None
    actor_lr: Schedule | None = setting(None, "Learning rate of the policy; None takes lr.", ge=0)
    critic_lr: Schedule | None = setting(None, "Learning rate of the critics; None takes lr.", ge=0)
    target_critics: int | None = setting(
        None, "Number of critics, drawn in each gradient step, whose least value targets use; None uses all.", ge=1
    )
    drop_quantiles: int = setting(
        0, "Number of the largest quantiles, per critic, that targets leave out so that they do not overestimate.", ge=0
    )

    def check_critics(self) -> None:
        """Check that these settings do not contradict each other.

        Raises:
            ValueError: In the cases of :meth:`check_returns`, or if a setting would have no effect.
        """
        self.check_returns(type(self).__name__)
        name = type(self).__name__
        if self.target_critics is not None and self.target_critics >= self.num_critics:
            raise ValueError(
                f"{name}.target_critics: expected fewer than num_critics={self.num_critics}, got "
                f"{self.target_critics}. Leave it out to use all critics."
            )
        if self.drop_quantiles and self.drop_quantiles >= self.num_quantiles:
            raise ValueError(
                f"{name}.drop_quantiles: expected fewer than num_quantiles={self.num_quantiles}, got "
                f"{self.drop_quantiles}. Set num_quantiles, or leave this out."
            )


class ActionCriticLearner(ReplayLearner):
    """Learns critics, and a policy that they guide, from one batch of replayed steps at a time.

    Override points: those of :class:`ReplayLearner`.
    """

    required_apis = (ActionValueAPI,)
    settings: Any

    def __init__(self, settings: Any, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        # gets its state in each step, since a new one would take longer
        self._rng = np.random.Generator(np.random.PCG64(0))
        self._rng_state: dict[str, Any] = dict(self._rng.bit_generator.state)
        self._noise_seed = self._num_draws = 0  # of this gradient step
        self._target_critics: Tensor | None = None  # those of this gradient step; None for all
        super().__init__(settings, spec, run_seed=run_seed)

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        return FlatAdam(parameters, lr=value_at(self.settings.lr, 0), eps=1e-8)

    def make_part(self, names: tuple[str, ...], lr: Schedule | None) -> Part:
        """Return an optimizer part with the parameters whose names are in ``names`` or below a name in it, and with the
        learning rate ``lr``. None takes the setting ``lr``."""
        return Part(names, self.settings.lr if lr is None else lr, self.settings.grad_clip)

    def parts_of(self, module_id: str) -> Mapping[str, Part]:
        """Split the parameters into parts for the optimizer: ``critic``, those of :meth:`further_parts`, and ``actor``
        with all other parameters."""
        module = self.module[module_id]
        assert isinstance(module, ActionValueAPI)
        critic = self.make_part(module.critic_names(), self.settings.critic_lr)
        parts = {"critic": critic, **self.further_parts(module)}
        others = list[str]()
        for name, _ in module.named_parameters():
            if not any(part.covers(name) for part in parts.values()):
                others.append(name)
        return {"actor": self.make_part(tuple(others), self.settings.actor_lr), **parts}

    def further_parts(self, module: RLModule) -> dict[str, Part]:
        """Return the parts of ``module`` that belong neither to its critics nor to its policy, by name; by default
        none."""
        return {}

    def before_gradient_step(self, module_id: str) -> None:
        """Draw the seed of the noise of this gradient step, and the critics that its targets use if the settings ask
        for a few. All learners draw the same."""
        super().before_gradient_step(module_id)
        if self.settings.target_critics is not None:
            drawn = torch.randperm(self.settings.num_critics, generator=self.generator)
            self._target_critics = drawn[: self.settings.target_critics]
        self._noise_seed, self._num_draws = int(torch.randint(2**62, (), generator=self.generator)), 0

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        if train:
            module = self.module[module_id]
            assert isinstance(module, ActionValueAPI)
            check_return_head(module.return_head(), self.settings, module_id)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one row's target: ``()`` for a number, ``(K,)`` for the probabilities of atoms. For quantiles, those
        of all critics together that targets use."""
        settings = self.settings
        if settings.num_quantiles == 1:
            return settings.return_shape
        num_critics = settings.target_critics or settings.num_critics
        return (num_critics * (settings.num_quantiles - settings.drop_quantiles),)

    def least_returns(self, head: ReturnHead, outputs: Tensor) -> Tensor:
        """Return the most pessimistic outputs of the critics that targets use, as
        :func:`algorithms.ops.distributional.least_returns` does."""
        if self._target_critics is not None:
            outputs = outputs[moved(self._target_critics, outputs.device)]
        return least_returns(head, outputs, self.settings.drop_quantiles)

    def critic_loss(
        self, head: ReturnHead, outputs: Tensor, batch: Batch, distance: Distance
    ) -> tuple[Tensor, Metrics]:
        """Return the loss of the critics, a mean over rows and a sum over critics, and its metrics.

        Args:
            head: What the outputs mean.
            outputs: Outputs of the critics for the actions in ``batch``, ``[critics, B, *head.shape]``.
            batch: Columns, with ``value_targets``.
            distance: Returns the losses of numbers from predictions and targets.
        """
        losses, values, errors = return_losses(head, outputs, batch[Columns.VALUE_TARGETS], distance)
        losses = losses.sum(0)
        if Columns.WEIGHTS in batch:
            losses = losses * batch[Columns.WEIGHTS]
        loss = losses.mean()
        return loss, {"qf_loss": loss, "td_error": errors.abs().mean(0), "qf": values.mean(0)}

    def draw_noise(self, module_id: str, batch: Batch, num_actions: int) -> Tensor:
        """Return noise for ``num_actions`` actions in each row of this learner's batch, ``[num_actions, ..., W]`` for
        rows or sequences ``[...]``, where ``W`` is the size of the noise for one sample of the action distribution.
        Every learner draws the noise for the rows of all learners and returns only the noise for its own rows."""
        module, rewards = self.module[module_id], batch[Columns.REWARDS]
        (*steps, own), rank, size = rewards.shape, self.collective.rank, self.collective.size
        total = self._num_of_all(own, module.max_seq_len if steps else 1)

        def drawn(count: int) -> Tensor:
            """Return the noise of a batch of an even ``count`` of rows. Its stream is not that of ``count ± 2``."""
            stream = 2 * self._num_draws + count // 2 % 2
            self._rng_state["state"]["state"] = (self._noise_seed + stream * _STREAMS) % 2**128
            self._rng.bit_generator.state = self._rng_state
            shape = (num_actions, *steps, count)
            noise = module.action_dist_cls.draw_noise(self._rng, math.prod(shape), module.num_dist_inputs)
            assert noise is not None  # the catalog checks it
            return noise.unflatten(0, shape)

        half = total // 2
        if total == 2 * half:
            noise = drawn(total)
        else:
            # The first half is that of a batch of one row more, and the second half that of one row less. So each of
            # two learners needs to know only the number of its own rows.
            noise = drawn(total + 1).narrow(-2, 0, half + 1)
            if half:
                noise = torch.cat([noise, drawn(total - 1).narrow(-2, half, half)], -2)
        self._num_draws += 1
        first, _ = spans(total, size)[rank]
        return moved(noise.narrow(-2, first, own), rewards.device)

    def _num_of_all(self, own: int, length: int) -> int:
        """Return the number of rows, or of sequences of ``length``, of all learners, of which this one has ``own``. If
        the group has not said it, this is the number in a batch of the settings, or if ``own`` does not fit that, a
        number that is even for each learner."""
        if self.num_in_batch is not None:
            return self.num_in_batch
        rank, size = self.collective.rank, self.collective.size
        total = max(1, self.settings.train_batch_size_per_learner * size // length)
        first, stop = spans(total, size)[rank]
        return total if stop - first == own else size * own
