"""PPO learns, with its defaults: a small goal always, and every row of `docs/learning.md` where there is time."""

from collections.abc import Callable

import pytest

from algorithms.ppo import PPOConfig
from benchmarks.learning import GOALS, Goal
from tests.learning.greedy import greedy_return

# Env id, budget in env steps, and the mean return of 20 greedy episodes that the run must reach. It takes 4,096 steps,
# 12,288 with seed 0, and 36,864.
SMALL_GOALS = [
    ("CartPole-v1", 40_000, 400.0, 1),
    pytest.param("CartPole-v1", 40_000, 400.0, 0, marks=pytest.mark.slow),
    pytest.param("Pendulum-v1", 60_000, -600.0, 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("env_id", "budget", "least", "seed"), SMALL_GOALS)
def test_the_defaults_learn(env_id: str, budget: int, least: float, seed: int) -> None:
    config = PPOConfig(env=env_id, seed=seed).evaluation(evaluation_interval=2)
    assert greedy_return(config, budget, least) >= least


@pytest.mark.slow
@pytest.mark.parametrize("env_id", list(GOALS["PPO"]))
def test_the_defaults_reach_every_goal(env_id: str, check_reached: Callable[[Goal], None]) -> None:
    check_reached(GOALS["PPO"][env_id])
