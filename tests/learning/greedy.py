"""What a training reaches, for as little as it takes to see it."""

from typing import Any

from algorithms import AlgorithmConfig


def greedy_return(config: AlgorithmConfig, budget: int, target: float) -> float:
    """Mean return of the greedy episodes of an evaluation: the first such mean in training that is at least ``target``,
    else the one when ``budget`` env steps are spent."""
    with config.build() as algorithm:
        result: dict[str, Any] = algorithm.learn(num_env_steps=budget, target_return=target)
        assert algorithm.env_steps <= budget
    return result["evaluation"]["env_runners"]["episode_return_mean"]
