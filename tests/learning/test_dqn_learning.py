"""DQN learns, with its defaults and with each part of Rainbow: a small goal always, the rest where there is time."""

from collections.abc import Callable

import pytest

from algorithms.dqn import DQNConfig
from benchmarks.learning import GOALS, Goal
from tests.learning.greedy import greedy_return


@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_the_defaults_learn(seed: int) -> None:
    config = DQNConfig(env="CartPole-v1", seed=seed).evaluation(evaluation_interval=1)
    assert greedy_return(config, 15_000, 200.0) >= 200  # it takes 4,000 steps, and 5,000


@pytest.mark.slow
@pytest.mark.parametrize("env_id", list(GOALS["DQN"]))
def test_every_goal_is_reached(env_id: str, check_reached: Callable[[Goal], None]) -> None:
    check_reached(GOALS["DQN"][env_id])


@pytest.mark.slow
@pytest.mark.parametrize("part", list(GOALS["DQN-parts"]))
def test_each_part_of_rainbow_alone_solves_cartpole(part: str, check_reached: Callable[[Goal], None]) -> None:
    check_reached(GOALS["DQN-parts"][part])
