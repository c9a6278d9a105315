"""PPO learns with actions from a Beta distribution."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from algorithms.ppo import PPOConfig
from tests.learning.greedy import greedy_return


class Aim(gym.Env[np.ndarray, np.ndarray]):
    """One shot: what lies at x in (-1, 1) is hit from 3 + x and loses the squared distance; the bounds are 2 and 4."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(2, 4, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.at, {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action)
        return self.at, -float((action - 3 - self.at).item() ** 2), True, False, {}


def config(env: Any) -> PPOConfig:
    return PPOConfig(env=env, seed=0).rl_module(model_config={"custom_action_dist": "Beta"})


@pytest.mark.end_to_end
def test_it_learns_to_aim_up_to_the_bounds() -> None:
    aiming = config(Aim).training(train_batch_size_per_learner=512, lr=1e-3).evaluation(evaluation_interval=4)
    # to shoot at the middle loses 1/3
    assert greedy_return(aiming.evaluation(evaluation_duration=100), 15_000, -0.01) >= -0.01


@pytest.mark.slow
def test_it_learns_pendulum() -> None:
    assert greedy_return(config("Pendulum-v1").evaluation(evaluation_interval=5), 300_000, -250.0) >= -250.0
