"""Nets with a memory remember: they balance a pole whose velocities are hidden, which a net without memory cannot."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from algorithms.ppo import PPOConfig
from tests.learning.greedy import greedy_return

BATCH = 1024
# Of ten runs (two kinds, five seeds) the slowest evaluates at 200 or more after 14,336 steps, at 400 or more after
# 20,480. Without memory five runs of 40,960 steps stay below 50.
SOON, LATER = 20 * BATCH, 30 * BATCH
MEMORIES = {"LSTM": {"use_lstm": True}, "GRU": {"use_gru": True}, "attention": {"use_attention": True}}
# At a learning rate of 1e-3 some runs of attention stay below 400 for twice as long. At this one the slowest of
# four evaluates at 200 or more after 12,288 steps, at 400 or more after 20,480.
LR_OF_ATTENTION = 5e-4


class PositionsOnly(gym.ObservationWrapper):
    """CartPole without its velocities."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Box)
        high = env.observation_space.high[[0, 2]]
        self.observation_space = gym.spaces.Box(-high, high)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def reached(model_config: dict[str, Any], seed: int, *, budget: int, target: float) -> float:
    lr = LR_OF_ATTENTION if "use_attention" in model_config else 1e-3
    config = (
        PPOConfig()
        .environment(lambda env_config: PositionsOnly(gym.make("CartPole-v1")))
        .training(lr=lr, train_batch_size_per_learner=BATCH, minibatch_size=128, num_epochs=8)
        .rl_module(model_config=model_config)
        .evaluation(evaluation_interval=2)
        .debugging(seed=seed)
    )
    return greedy_return(config, budget, target)


@pytest.mark.parametrize("memory", MEMORIES)
def test_memory_soon_shows(memory: str) -> None:
    assert reached(MEMORIES[memory], 0, budget=SOON, target=120) >= 120


def test_without_memory_nothing_is_learned_soon() -> None:
    assert reached({}, 0, budget=SOON // 2, target=100) < 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("memory", MEMORIES)
def test_memory_makes_up_for_hidden_velocities(memory: str, seed: int) -> None:
    assert reached(MEMORIES[memory], seed, budget=LATER, target=400) >= 400


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_without_memory_the_pole_falls(seed: int) -> None:
    assert reached({}, seed, budget=LATER, target=100) < 100
