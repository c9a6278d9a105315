"""SAC learns: a small goal always, the rest where there is time."""

from collections.abc import Callable

import pytest

from algorithms.sac import SACConfig
from benchmarks.learning import GOALS, Goal
from tests.learning.greedy import greedy_return


def test_the_preset_learns_to_swing_up() -> None:
    config = SACConfig.preset("Pendulum-v1").debugging(seed=0).evaluation(evaluation_interval=1, evaluation_duration=5)
    assert greedy_return(config, 8_000, -600.0) >= -600  # an untrained policy has -1,200


@pytest.mark.slow
@pytest.mark.parametrize("env_id", list(GOALS["SAC"]))
def test_every_goal_is_reached(env_id: str, check_reached: Callable[[Goal], None]) -> None:
    check_reached(GOALS["SAC"][env_id])
