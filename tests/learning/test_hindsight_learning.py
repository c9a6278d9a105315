"""Hindsight finds goals that random actions do not: a few bits always, the row of the paper where there is time."""

import pytest

from algorithms.dqn import DQNConfig
from examples.hindsight.bit_flip import BitFlip


def reached(num_bits: int, ratio: float, num_env_steps: int, seed: int) -> float:
    """Share of the goals that greedy episodes reach after ``num_env_steps``."""
    config = (
        DQNConfig(seed=seed)
        .environment(BitFlip, env_config={"num_bits": num_bits})
        .training(lr=1e-3, gamma=0.98, n_step=1)
        .rl_module(model_config={"flatten_observations": True})
        .replay(her_ratio=ratio)
        .evaluation(evaluation_duration=200)
    )
    with config.build() as algorithm:
        algorithm.learn(num_env_steps=num_env_steps)
        result = algorithm.evaluate()["env_runners"]
    return result["episode_return_mean"] + result["episode_len_mean"]  # the last step alone costs nothing


def test_eight_bits_are_flipped() -> None:
    assert reached(8, 0.8, 4_000, seed=1) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_fifteen_bits_are_flipped_in_hindsight_alone(seed: int) -> None:
    assert reached(15, 0.8, 20_000, seed) >= 0.95
    assert reached(15, 0.0, 20_000, seed) <= 0.05
