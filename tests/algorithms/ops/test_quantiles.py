"""The quantile Huber loss against a loop over pairs, and numbers worked by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms.ops.distributional import least_returns, quantile_huber, return_losses, return_targets, squared_error
from catalog.return_heads import Atoms, Number, Quantiles


def by_pair(quantiles: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss ``[C, B]`` and its gradient ``[C, B, K]``, one pair after the other."""
    num_critics, rows, num = quantiles.shape
    losses, grads = np.zeros((num_critics, rows)), np.zeros(quantiles.shape)
    for critic, row, place in np.ndindex(*quantiles.shape):
        quantile = quantiles[critic, row, place]
        for target in targets[row]:
            error = target - quantile
            weight = abs((place + 0.5) / num - (target < quantile)) / (num * targets.shape[1])
            losses[critic, row] += weight * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5)
            grads[critic, row, place] -= weight * np.clip(error, -1, 1)
    return losses, grads


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from([0.0, 40.0, -1500.0]),
    st.sampled_from([0.01, 1.0, 30.0]),
    st.integers(0, 10**6),
)
def test_loss_and_gradient_are_those_of_all_pairs(
    num_critics: int, rows: int, num: int, num_targets: int, centre: float, spread: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    quantiles = (centre + spread * rng.standard_normal((num_critics, rows, num))).astype(np.float32)
    targets = (centre + spread * rng.standard_normal((rows, num_targets))).astype(np.float32)
    predicted = torch.from_numpy(quantiles).requires_grad_()
    losses = quantile_huber(predicted, torch.from_numpy(targets))
    (grads,) = torch.autograd.grad(losses.sum(), predicted)
    expected, slopes = by_pair(quantiles.astype(np.float64), targets.astype(np.float64))
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(grads.numpy(), slopes, rtol=1e-5, atol=1e-7)


def test_ties_of_quantiles_and_targets_cost_nothing() -> None:
    same = torch.tensor([[2.0, 2.0, 2.0]], requires_grad=True)
    losses = quantile_huber(same, torch.full((1, 4), 2.0))
    (grads,) = torch.autograd.grad(losses.sum(), same)
    assert losses.tolist() == [0.0]
    assert grads.tolist() == [[0.0, 0.0, 0.0]]


def test_one_quantile_is_half_the_huber_loss() -> None:
    values, targets = torch.randn(9, 1) * 3, torch.randn(9, 1) * 3
    huber = torch.nn.functional.smooth_l1_loss(values, targets, reduction="none").squeeze(-1)
    torch.testing.assert_close(quantile_huber(values, targets), huber / 2)


def test_the_least_loss_is_at_the_quantiles_of_the_targets() -> None:
    """Far from each other, the targets 0, 10, ..., 90 have the quantiles ¼ and ¾ between 20 and 30, and 70 and 80."""
    targets = torch.arange(0.0, 100.0, 10.0).unsqueeze(0)
    quantiles = torch.tensor([[50.0, 50.0]], requires_grad=True)
    for _ in range(3000):
        (grad,) = torch.autograd.grad(quantile_huber(quantiles, targets).sum(), quantiles)
        with torch.no_grad():
            quantiles -= 20 * grad
    low, high = quantiles[0].tolist()
    assert low == pytest.approx(20, abs=1)
    assert high == pytest.approx(70, abs=1)


def test_the_least_returns_of_numbers_atoms_and_quantiles() -> None:
    numbers = torch.tensor([[1.0, 5.0], [3.0, 2.0]])  # two critics, two rows
    assert least_returns(Number(), numbers).tolist() == [1.0, 2.0]
    quantiles = torch.tensor([[[3.0, 9.0, 1.0]], [[2.0, 8.0, 7.0]]])  # two critics, one row
    assert least_returns(Quantiles(3), quantiles).tolist() == [[1, 2, 3, 7, 8, 9]]
    assert least_returns(Quantiles(3), quantiles, dropped=2).tolist() == [[1, 2]]
    logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[0.0, 9.0], [9.0, 0.0]]])  # two critics, two rows
    least = least_returns(Atoms(torch.tensor([-1.0, 1.0])), logits)
    assert least.tolist() == [[9.0, 0.0], [9.0, 0.0]]


@pytest.mark.parametrize("penalty", [None, torch.tensor([0.5, -1.0])])
def test_targets_of_quantiles_are_the_discounted_quantiles(penalty: Tensor | None) -> None:
    outputs, rewards, discounts = (
        torch.tensor([[1.0, 2.0], [3.0, 5.0]]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([0.5, 0]),
    )
    expected = [[1.5, 2.0], [2.0, 2.0]] if penalty is None else [[1.25, 1.75], [2.0, 2.0]]
    assert return_targets(Quantiles(2), outputs, rewards, discounts, penalty).tolist() == expected


def test_td_errors_are_differences_of_means() -> None:
    outputs, targets = torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 3.0, 6.0]])
    _, values, errors = return_losses(Quantiles(2), outputs, targets, squared_error)
    assert (values.tolist(), errors.tolist()) == ([2.0], [-1.0])
    losses, values, errors = return_losses(Number(), torch.tensor([4.0]), torch.tensor([1.0]), squared_error)
    assert (losses.tolist(), values.tolist(), errors.tolist()) == ([9.0], [4.0], [3.0])
