"""ActionCriticLearner: the base learner of algorithms with a policy and critics that value observation and action."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.off_policy.learner import ReplayLearner
from catalog.checks import Schedule
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.device import moved
from rlmodule.learning.flat_optimizer import FlatAdam, Part
from rlmodule.learning.schedules import value_at
from rlmodule.learning.sharding import spans
from rlmodule.modules.apis import ActionValueAPI
from rlmodule.modules.spec import MultiRLModuleSpec

_STREAMS = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Distance between the initial states of the streams of one gradient step."""


class ActionCriticLearner(ReplayLearner):
    """Learns critics, and a policy that they guide, from one batch of replayed steps at a time.

    Override points: those of :class:`ReplayLearner`.
    """

    required_apis = (ActionValueAPI,)

    def __init__(self, settings: Any, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        # gets its state in each step, since a new one would take longer
        self._rng = np.random.Generator(np.random.PCG64(0))
        self._rng_state: dict[str, Any] = dict(self._rng.bit_generator.state)
        self._noise_seed = self._num_draws = 0  # of this gradient step
        super().__init__(settings, spec, run_seed=run_seed)

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        return FlatAdam(parameters, lr=value_at(self.settings.lr, 0), eps=1e-8)

    def make_part(self, names: tuple[str, ...], lr: Schedule | None) -> Part:
        """Return an optimizer part with the parameters whose names are in ``names`` or below a name in it, and with the
        learning rate ``lr``. None takes the setting ``lr``."""
        return Part(names, self.settings.lr if lr is None else lr, self.settings.grad_clip)

    def before_gradient_step(self, module_id: str) -> None:
        """Draw the seed of the noise of this gradient step. All learners draw the same seed."""
        super().before_gradient_step(module_id)
        self._noise_seed, self._num_draws = int(torch.randint(2**62, (), generator=self.generator)), 0

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
