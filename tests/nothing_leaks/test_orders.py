"""What must not depend on an order, or on how work is divided: minibatches, slots, env runners, agents, learners."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import tree
from torch import Tensor

from algorithms.off_policy import ActionCriticLearner
from algorithms.ppo import PPOConfig
from algorithms.registry import ALGORITHMS
from rlmodule import Columns, Rollout
from rlmodule.agents.cartpoles import CartPoles
from rlmodule.agents.runner import AgentRunner
from rlmodule.collective import Collective
from rlmodule.data.rollout import map_leaves
from rlmodule.learning.sharding import shard_batch, shard_rollout
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.testing.data import differences as different_bits
from tests.nothing_leaks.cases import ID, Case, cases, in_float64, one_after_another
from tests.nothing_leaks.traces import differences, gradients_of, trace_of, with_ids
from tests.settings_act.footprint import Track
from tests.together import Fleet

# --- minibatches and rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(episodes=True))
def test_minibatches_of_an_epoch_add_up_to_its_gradient(case: Case) -> None:
    # weights that stay as they are
    case = case.having(lr=1e-30, num_epochs=1, grad_clip=None)
    rollout = in_float64(case.rollout())
    [(_, count, whole)] = gradients_of(case.having(minibatch_size=None).learner(), rollout)
    orders = []
    for size, seed in ((8, 1), (8, 2), (20, 3)):
        learner = case.having(minibatch_size=size).learner()
        learner.generator.manual_seed(seed)
        steps = gradients_of(learner, rollout)
        assert len(steps) > 1
        assert sum(rows for _, rows, _ in steps) == count
        total = sum((gradient * rows / count for _, rows, gradient in steps), torch.zeros(()))
        assert differences({"gradient": whole}, {"gradient": total}) == {}
        orders.append(steps[0][2])
    assert not torch.equal(orders[0], orders[1])


@pytest.mark.parametrize("case", cases(episodes=True))
def test_slots_in_any_order_learn_the_same(case: Case) -> None:
    case = case.having(minibatch_size=None, num_epochs=1)
    rollout = in_float64(case.rollout())
    order = torch.tensor([2, 0, 3, 1])
    place = order.argsort()
    index = rollout.final_index.clone()
    index[:, 1] = place[index[:, 1]]
    mixed = replace(
        rollout,
        columns={name: map_leaves(lambda x: x[:, order], column) for name, column in rollout.columns.items()},
        last_obs=map_leaves(lambda x: x[order], rollout.last_obs),
        final_index=index,
        state_in=None if rollout.state_in is None else map_leaves(lambda x: x[:, order], rollout.state_in),
    )
    before, after = (trace_of(case.learner(), each) for each in (rollout, mixed))
    assert differences(before, after) == {}


@pytest.mark.parametrize("case", cases(episodes=False))
def test_rows_of_a_batch_in_any_order_learn_the_same(case: Case) -> None:
    batch = case.batches(1)[0]
    in_sequences = Columns.NEXT_ROWS in batch
    count = batch[Columns.STARTS].shape[1] if in_sequences else len(batch[Columns.REWARDS])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    mixed = mixed_sequences(batch, order) if in_sequences else tree.map_structure(lambda x: x[order], batch)

    def silent(self: Any, module_id: str, batch: Any, num_actions: int) -> Tensor:
        """Noise that does not depend on the place of a row."""
        rewards = batch[Columns.REWARDS]
        width = self.module[module_id].num_dist_inputs
        return rewards.new_zeros(num_actions, *rewards.shape, width // 2 if NOISE_HALF else width)

    learners = [case.learner() for _ in range(2)]
    if isinstance(learners[0], ActionCriticLearner):
        for learner in learners:
            quiet(learner)
    before, after = (
        trace_of(learner, with_ids([each])) for learner, each in zip(learners, (batch, mixed), strict=True)
    )
    assert differences(before, after) == {}
    del silent
