"""PPO learns, with its defaults: two small goals always, and every row of `docs/learning.md` where there is time."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import pytest

from benchmarks.learning import GOALS, Goal, train_apart

# Env id, budget in env steps, and the mean return of 20 greedy episodes that every one of the seeds must reach.
SMALL_GOALS = [
    ("CartPole-v1", 60_000, 400.0, (0, 1)),
    ("Pendulum-v1", 60_000, -600.0, (0,)),
]
SEEDS = 5
WORKERS = 2


@pytest.mark.parametrize(("env_id", "budget", "least", "seeds"), SMALL_GOALS, ids=[goal[0] for goal in SMALL_GOALS])
def test_the_defaults_learn(env_id: str, budget: int, least: float, seeds: tuple[int, ...]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = list(pool.map(partial(train_apart, Goal("PPO", env_id, budget, least)), seeds))
    assert all(run.env_steps <= budget for run in runs)
    assert min(run.figure for run in runs) >= least, [str(run) for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", list(GOALS["PPO"]))
def test_the_defaults_reach_every_goal(env_id: str) -> None:
    goal = GOALS["PPO"][env_id]
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = list(pool.map(partial(train_apart, goal), range(SEEDS)))
    assert median(run.figure for run in runs) >= goal.floor, [str(run) for run in runs]
