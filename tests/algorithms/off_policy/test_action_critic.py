"""The noise of actions in updates: that of one learner, however many learners share the rows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from algorithms.sac import SACConfig, SACLearner
from rlmodule import Columns
from rlmodule.learning.sharding import spans

ID = "default_policy"
ROWS_IN_SETTINGS = 20
BOX = spaces.Box(-1, 1, (2,), np.float32)
MIXED = spaces.Dict(push=BOX, turn=spaces.Discrete(3))


def learner_of(action_space: spaces.Space = BOX, **model_config: Any) -> SACLearner:
    model_config = {"fcnet_hiddens": [4]} | model_config
    config = SACConfig(
        train_batch_size_per_learner=ROWS_IN_SETTINGS,
        num_steps_sampled_before_learning_starts=64,
        model_config=model_config,
    )
    spec = config.get_rl_module_spec(spaces.Box(-1, 1, (3,), np.float32), action_space)
    return SACLearner(config, spec.as_multi(), run_seed=1)


def noise_of(learner: SACLearner, rank: int, size: int, shape: tuple[int, ...]) -> Tensor:
    """The noise of one of ``size`` learners in a gradient step, for rows of ``shape``."""
    learner.generator.manual_seed(5)
    learner.collective = SimpleNamespace(rank=rank, size=size)  # type: ignore[assignment]
    learner.before_gradient_step(ID)
    return learner.draw_noise(ID, {Columns.REWARDS: torch.zeros(shape)}, num_actions=2)


def shares_of(learner: SACLearner, total: int, size: int, steps: tuple[int, ...] = ()) -> Tensor:
    """The noise of all learners that have rows, side by side."""
    lengths = [end - begin for begin, end in spans(total, size)]
    parts = [noise_of(learner, rank, size, (*steps, rows)) for rank, rows in enumerate(lengths) if rows]
    return torch.cat(parts, -2)


def check_rows_differ(noise: Tensor) -> None:
    rows = noise.flatten(0, -2)
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize("total", [1, 2, 3, 32, 37, 38, 39, 40, 41])
@pytest.mark.parametrize("action_space", [BOX, MIXED], ids=["Box", "Dict"])
def test_two_learners_draw_the_noise_of_one_whatever_the_size_of_the_batch(
    total: int, action_space: spaces.Space
) -> None:
    learner = learner_of(action_space)
    one = noise_of(learner, 0, 1, (total,))
    assert one.shape[:2] == (2, total)
    check_rows_differ(one)
    assert torch.equal(shares_of(learner, total, 2), one)


@pytest.mark.parametrize("total", [2, 3, 5, 37, 59, 60, 61])
def test_three_learners_draw_the_noise_of_one_if_the_group_says_how_many_rows_there_are(total: int) -> None:
    learner = learner_of()
    one = noise_of(learner, 0, 1, (total,))
    learner.num_in_batch = total
    assert torch.equal(shares_of(learner, total, 3), one)


@pytest.mark.parametrize("total", [4, 5, 7])
def test_learners_draw_the_noise_of_one_for_sequences(total: int) -> None:
    learner = learner_of(use_gru=True, max_seq_len=4)
    one = noise_of(learner, 0, 1, (4, total))
    check_rows_differ(one)
    assert torch.equal(shares_of(learner, total, 2, (4,)), one)


def test_noise_that_is_drawn_twice_in_a_step_differs() -> None:
    learner = learner_of()
    first, batch = noise_of(learner, 0, 1, (37,)), {Columns.REWARDS: torch.zeros(37)}
    check_rows_differ(torch.cat([first, learner.draw_noise(ID, batch, num_actions=2)]))
    assert torch.equal(noise_of(learner, 0, 1, (37,)), first)
