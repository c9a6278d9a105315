"""The projection of distributions against a loop over atoms, and numbers worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms.ops.distributional import project_onto_support

SUPPORT = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
UNIFORM = torch.full((1, 5), 0.2)


def project(probs: Tensor, reward: float, discount: float, support: Tensor = SUPPORT) -> list[float]:
    return project_onto_support(probs, torch.tensor([reward]), torch.tensor([discount]), support)[0].tolist()


def one_atom(place: int) -> Tensor:
    return torch.eye(5)[place : place + 1]


def by_atom(probs: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, support: np.ndarray) -> np.ndarray:
    """One atom of one row after the other, in double precision."""
    out = np.zeros(probs.shape)
    for row in range(len(probs)):
        for atom in range(len(support)):
            moved = min(max(rewards[row] + discounts[row] * support[atom], support[0]), support[-1])
            place = (moved - support[0]) / (support[-1] - support[0]) * (len(support) - 1)
            low = min(math.floor(place), len(support) - 2)
            out[row, low] += probs[row, atom] * (1 - (place - low))
            out[row, low + 1] += probs[row, atom] * (place - low)
    return out


@pytest.mark.parametrize(
    ("probs", "reward", "discount", "expected"),
    [
        (one_atom(3), 0.25, 0.5, [0, 0, 0.25, 0.75, 0]),  # 0.25 + 0.5·1 = 0.75
        (one_atom(3), 0.0, 0.0, [0, 0, 1, 0, 0]),  # terminated: the reward alone
        (one_atom(3), -1.5, 0.0, [0.5, 0.5, 0, 0, 0]),
        (one_atom(4), 9.0, 1.0, [0, 0, 0, 0, 1]),  # above the last atom
        (one_atom(0), -9.0, 1.0, [1, 0, 0, 0, 0]),
        (UNIFORM, 1.0, 1.0, [0, 0.2, 0.2, 0.2, 0.4]),
        # -2, -1, 0, 1, 2 → -1, -0.5, 0, 0.5, 1: halves go to either side
        (UNIFORM, 0.0, 0.5, [0, 0.3, 0.4, 0.3, 0]),
    ],
)
def test_worked_by_hand(probs: Tensor, reward: float, discount: float, expected: list[float]) -> None:
    assert project(probs, reward, discount) == pytest.approx(expected)


@pytest.mark.parametrize("num_atoms", [2, 11, 51, 201])
@pytest.mark.parametrize("bounds", [(-10.0, 10.0), (0.0, 0.7), (-3.3, 200.1)])
def test_atoms_that_are_hit_get_all(num_atoms: int, bounds: tuple[float, float]) -> None:
    support, probs = torch.linspace(*bounds, num_atoms), torch.rand(4, num_atoms).softmax(-1)
    assert torch.equal(project_onto_support(probs, torch.zeros(4), torch.ones(4), support), probs)
    everything = project_onto_support(torch.eye(num_atoms), support, torch.zeros(num_atoms), support)
    assert torch.equal(everything, torch.eye(num_atoms))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, atoms = draw(st.integers(1, 5)), draw(st.integers(2, 20))
    low = draw(st.floats(-20, 20))
    support = np.linspace(low, low + draw(st.floats(0.5, 30)), atoms)
    probs = rng.dirichlet(np.ones(atoms), rows)
    rewards = rng.normal(0, draw(st.sampled_from([0.1, 3.0, 50.0])), rows)
    return probs, rewards, rng.choice([0.0, 0.5, 0.99, 1.0], rows), support


@settings(deadline=None)
@given(problems())
def test_equals_the_loop_over_atoms(problem: tuple[np.ndarray, ...]) -> None:
    got = project_onto_support(*(torch.from_numpy(x) for x in problem)).numpy()
    np.testing.assert_allclose(got, by_atom(*problem), atol=1e-9)


@settings(deadline=None)
@given(problems())
def test_mass_and_within_the_bounds_the_mean_are_kept(problem: tuple[np.ndarray, ...]) -> None:
    probs, rewards, discounts, support = (torch.from_numpy(x).float() for x in problem)
    got = project_onto_support(probs, rewards, discounts, support)
    assert (got >= -1e-7).all()
    torch.testing.assert_close(got.sum(-1), probs.sum(-1))
    moved = (rewards[:, None] + discounts[:, None] * support).clamp(support[0], support[-1])
    torch.testing.assert_close((got * support).sum(-1), (probs * moved).sum(-1), rtol=1e-4, atol=1e-4)


def test_arguments_stay_as_they_are() -> None:
    arguments = torch.rand(3, 5), torch.rand(3), torch.rand(3), SUPPORT.clone()
    before = [x.clone() for x in arguments]
    project_onto_support(*arguments)
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))
