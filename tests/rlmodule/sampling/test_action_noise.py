"""Action noise: one stream per env, in blocks that nobody can tell from one long draw."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from catalog import Categorical, DiagGaussian, Distribution, MultiDistribution
from rlmodule.sampling.random_streams import BLOCK_NUMBERS, BLOCK_ROWS, ActionNoise

SPACE = spaces.Dict([("z", spaces.Discrete(3)), ("a", spaces.Box(-1, 1, (2,), np.float32))])
CASES = {"choices": (Categorical, 5), "numbers": (DiagGaussian, 4), "nested": (MultiDistribution.bind(SPACE), 7)}


def noise_for(case: str = "choices", num_envs: int = 2) -> ActionNoise:
    noise = ActionNoise([np.random.default_rng(env) for env in range(num_envs)])
    noise.use(*CASES[case])
    return noise


def taken(noise: ActionNoise, *portions: int) -> torch.Tensor:
    rows: list[torch.Tensor] = []
    for num in portions:
        more = noise.take(num)
        assert more is not None
        assert len(more) == num
        rows += more
    return torch.stack(rows) if rows else torch.empty(0)


def test_each_env_has_the_noise_of_its_own_stream() -> None:
    rows = taken(noise_for(num_envs=3), 10)
    for env in range(3):
        alone = Categorical.draw_noise(np.random.default_rng(env), 10, 5)
        assert torch.equal(rows[:, env], alone)


@given(case=st.sampled_from(sorted(CASES)), portions=st.lists(st.integers(0, 300), max_size=6))
def test_portions_of_any_size_are_parts_of_one_draw(case: str, portions: list[int]) -> None:
    whole = taken(noise_for(case), sum(portions) + 1)
    assert torch.equal(taken(noise_for(case), *portions, 1), whole)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("used", [0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS + 5])
def test_state_round_trip_goes_on_within_the_block(case: str, used: int) -> None:
    noise, other = noise_for(case), noise_for(case)
    taken(noise, used)
    taken(other, 7)
    state = json.loads(json.dumps(noise.get_state()))
    rest = taken(noise, 200)
    other.set_state(state)
    assert other.get_state() == state
    assert torch.equal(taken(other, 200), rest)
    late = ActionNoise([np.random.default_rng(9), np.random.default_rng(9)])
    late.set_state(state)
    late.use(*CASES[case])  # as a runner whose state is set before its module
    assert torch.equal(taken(late, 200), rest)


def test_to_ask_for_the_state_changes_nothing() -> None:
    noise = noise_for()
    rows = [taken(noise, 50), (noise.get_state(), taken(noise, 200))[1]]
    assert torch.equal(torch.cat(rows), taken(noise_for(), 250))


def test_another_distribution_goes_on_at_the_same_place() -> None:
    noise, narrow = noise_for(), noise_for()
    taken(noise, 30)
    noise.use(Categorical, 2)
    narrow.use(Categorical, 2)
    assert torch.equal(taken(noise, 300), taken(narrow, 330)[30:])
    wide, same = noise_for(), noise_for()
    taken(wide, 100)
    for changed in (wide, same):
        changed.use(Categorical, BLOCK_NUMBERS // 40)  # in blocks of 40 rows, so that row 100 is in the third
    assert torch.equal(taken(wide, 5), taken(same, 105)[100:])


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
    rows = [noise.take_of(np.arange(len(row)), row) for row in acting]
    return [[row[env] for row, on in zip(rows, acting[:, env], strict=True) if on] for env in range(acting.shape[1])]


@pytest.mark.parametrize("case", CASES)
def test_envs_that_act_less_often_use_less(case: str) -> None:
    acting = np.random.default_rng(0).random((3 * BLOCK_ROWS, 2)) < [0.9, 0.4]
    noise, other, together = noise_for(case), noise_for(case), taken(noise_for(case), len(acting))
    begun = taken_at_own_pace(noise, acting[:170])
    state = json.loads(json.dumps(noise.get_state()))
    rest = taken_at_own_pace(noise, acting[170:])
    other.set_state(state)
    assert other.get_state() == state
    resumed = taken_at_own_pace(other, acting[170:])
    for env in range(2):
        used = torch.stack(begun[env] + rest[env])
        assert torch.equal(used, together[: len(used), env])
        assert torch.equal(torch.stack(resumed[env]), torch.stack(rest[env]))


def test_envs_that_advance_together_go_on_from_the_foremost() -> None:
    noise, states = noise_for(), [noise_for(num_envs=1).get_state() for _ in range(2)]
    noise.set_state([state[0] | {"used": used} for state, used in zip(states, (3, 40), strict=True)])
    noise.use(*CASES["choices"])
    alone = taken(noise_for(num_envs=1), 50)
    assert torch.equal(taken(noise, 10), alone[40:].expand(-1, 2, -1))


def test_a_distribution_that_draws_for_itself_gets_none() -> None:
    class Own(Categorical):
        @classmethod
        def draw_noise(cls, rng: np.random.Generator, steps: int, input_dim: int) -> Any:
            return Distribution.draw_noise(rng, steps, input_dim)

    noise = noise_for()
    before = noise.get_state()
    noise.use(Own, 5)
    assert not noise.is_drawn
    assert noise.get_state() == before
