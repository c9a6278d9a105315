"""TD3 and DDPG learn: a small goal always, the rest where there is time."""

from collections.abc import Callable

import pytest

from algorithms.td3 import TD3Config
from benchmarks.learning import GOALS, Goal
from tests.learning.greedy import greedy_return


def test_the_preset_learns_to_swing_up() -> None:
    config = TD3Config.preset("Pendulum-v1").debugging(seed=0).evaluation(evaluation_interval=1, evaluation_duration=5)
    assert greedy_return(config, 10_000, -600.0) >= -600  # an untrained policy has -1,200


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "key"), [(algo, key) for algo in ("TD3", "DDPG") for key in GOALS[algo]])
def test_every_goal_is_reached(algo: str, key: str, check_reached: Callable[[Goal], None]) -> None:
    check_reached(GOALS[algo][key])
