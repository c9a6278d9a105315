"""TD3 and DDPG learn: a small goal always, the rest where there is time."""

from statistics import median

import pytest

from algorithms.td3 import TD3Config
from benchmarks.learning import GOALS
from tests.learning.greedy import greedy_return
from tests.learning.test_dqn_learning import SEEDS, runs


def test_the_preset_learns_to_swing_up() -> None:
    config = TD3Config.preset("Pendulum-v1").debugging(seed=0).evaluation(evaluation_interval=1, evaluation_duration=5)
    assert greedy_return(config, 10_000, -600.0) >= -600  # an untrained policy has -1,200


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "key"), [(algo, key) for algo in ("TD3", "DDPG") for key in GOALS[algo]])
def test_every_goal_is_reached(algo: str, key: str) -> None:
    goal = GOALS[algo][key]
    figures = runs(goal, min(SEEDS, goal.most_seeds))
    assert median(figures) >= goal.floor, figures
