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


class ActionCriticLearner(ReplayLearner):
    """Learns critics, and a policy that they guide, from one batch of replayed steps at a time.

    Override points: those of :class:`ReplayLearner`.
    """

    required_apis = (ActionValueAPI,)

    def __init__(self, settings: Any, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        # gets its state in each step, since a new one would take longer
        self._rng = np.random.Generator(np.random.PCG64(0))
        self._rng_state = self._rng.bit_generator.state
        super().__init__(settings, spec, run_seed=run_seed)

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        return FlatAdam(parameters, lr=value_at(self.settings.lr, 0), eps=1e-8)

    def make_part(self, names: tuple[str, ...], lr: Schedule | None) -> Part:
        """Return an optimizer part with the parameters whose names are in ``names`` or below a name in it, and with the
        learning rate ``lr``. None takes the setting ``lr``."""
        return Part(names, self.settings.lr if lr is None else lr, self.settings.grad_clip)

    def before_gradient_step(self, module_id: str) -> None:
        """Seed the noise generator for this gradient step. All learners use the same seed."""
        super().before_gradient_step(module_id)
        self._rng_state["state"]["state"] = int(torch.randint(2**62, (), generator=self.generator))
        self._rng.bit_generator.state = self._rng_state

    def draw_noise(self, module_id: str, batch: Batch, num_actions: int) -> Tensor:
        """Return noise for ``num_actions`` actions in each row of this learner's batch, ``[num_actions, ..., W]`` for
        rows or sequences ``[...]``, where ``W`` is the size of the noise for one sample of the action distribution.
        Every learner draws the noise for the rows of all learners and returns only the noise for its own rows."""
        module, rewards = self.module[module_id], batch[Columns.REWARDS]
        (*steps, own), rank, size = rewards.shape, self.collective.rank, self.collective.size
        total = self.settings.train_batch_size_per_learner * size
        if steps:
            total = max(1, total // module.max_seq_len)
        first, stop = spans(total, size)[rank]
        if stop - first != own:  # a batch of another size than that of the settings
            first, total = rank * own, size * own
        shape = (num_actions, *steps, total)
        noise = module.action_dist_cls.draw_noise(self._rng, math.prod(shape), module.num_dist_inputs)
        assert noise is not None  # the catalog checks it
        return moved(noise.unflatten(0, shape).narrow(-2, first, own), rewards.device)
