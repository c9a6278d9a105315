"""Action noise: one stream per env, in blocks that nobody can tell from one long draw."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from catalog import Categorical, DiagGaussian, Distribution, MultiDistribution
from rlmodule.sampling.action_noise import BLOCK_NUMBERS, BLOCK_ROWS, ActionNoise

SPACE = spaces.Dict([("z", spaces.Discrete(3)), ("a", spaces.Box(-1, 1, (2,), np.float32))])
CASES = {"choices": (Categorical, 5), "numbers": (DiagGaussian, 4), "nested": (MultiDistribution.bind(SPACE), 7)}


def noise_for(case: str = "choices", num_envs: int = 2) -> ActionNoise:
    noise = ActionNoise([np.random.default_rng(env) for env in range(num_envs)])
    noise.use(*CASES[case])
    return noise


def taken(noise: ActionNoise, num: int) -> torch.Tensor:
    return torch.stack([noise.take() for _ in range(num)])


def test_each_env_has_the_noise_of_its_own_stream() -> None:
    rows = taken(noise_for(num_envs=3), 2 * BLOCK_ROWS + 10)
    for env in range(3):
        alone = Categorical.draw_noise(np.random.default_rng(env), len(rows), 5)
        assert torch.equal(rows[:, env], alone)


def test_blocks_of_wide_noise_are_short() -> None:
    drawn: list[int] = []

    class Noting(Categorical):
        @classmethod
        def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> torch.Tensor:
            drawn.append(steps)
            return super().draw_noise(rng, steps, input_dim)

    for width, rows in ((2, BLOCK_ROWS), (BLOCK_NUMBERS // 10, 10), (2 * BLOCK_NUMBERS, 1)):
        noise = ActionNoise([np.random.default_rng(0)])
        noise.use(Noting, width)
        drawn.clear()
        taken(noise, 1)
        assert drawn == [rows]


def taken_at_own_pace(noise: ActionNoise, acting: np.ndarray) -> list[list[torch.Tensor]]:
    """What each env had used after the rows of ``acting`` ``[T, N]``."""
    rows = [noise.take_own(row) for row in acting]
    return [[row[env] for row, on in zip(rows, acting[:, env], strict=True) if on] for env in range(acting.shape[1])]


@pytest.mark.parametrize("case", CASES)
def test_envs_that_act_less_often_use_less(case: str) -> None:
    acting = np.random.default_rng(0).random((3 * BLOCK_ROWS, 2)) < [0.9, 0.4]
    together = taken(noise_for(case), len(acting))
    for env, rows in enumerate(taken_at_own_pace(noise_for(case), acting)):
        used = torch.stack(rows)
        assert torch.equal(used, together[: len(used), env])


def test_a_distribution_that_draws_for_itself_gets_none() -> None:
    class Own(Categorical):
        @classmethod
        def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Any:
            return Distribution.draw_noise(rng, steps, input_dim)

    noise = noise_for()
    noise.use(Own, 5)
    assert not noise.is_drawn
