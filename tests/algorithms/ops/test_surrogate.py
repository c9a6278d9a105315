"""The pieces of the losses, against numbers worked by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.ops.surrogate import clipped_surrogate, clipped_value_error, explained_variance, k3_divergence

FLOATS = st.floats(-5, 5, allow_subnormal=False)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.1, 2.0, 2.2, 2.0),
        (1.5, 2.0, 2.4, 0.0),  # pays no more than 1.2 would, and pulls no further
        (0.5, 2.0, 1.0, 2.0),  # a good action made rarer is a loss in full
        (1.5, -2.0, -3.0, -2.0),  # so is a bad one made likelier
        (0.5, -2.0, -1.6, 0.0),
        (0.9, -2.0, -1.8, -2.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate(ratio: float, advantage: float, objective: float, slope: float) -> None:
    r = torch.tensor([ratio], requires_grad=True)
    got = clipped_surrogate(r, torch.tensor([advantage]), 0.2)
    (gradient,) = torch.autograd.grad(got.sum(), r)
    torch.testing.assert_close(got, torch.tensor([objective]))
    torch.testing.assert_close(gradient, torch.tensor([slope]))


@given(st.floats(0.01, 5), FLOATS, st.floats(0.01, 0.9))
def test_clipping_never_promises_more(ratio: float, advantage: float, clip: float) -> None:
    r, a = torch.tensor([ratio]), torch.tensor([advantage])
    assert clipped_surrogate(r, a, clip) <= r * a


@pytest.mark.parametrize(
    ("value", "old", "target", "error", "slope"),
    [
        (2.0, 2.0, 3.0, 1.0, -2.0),
        (2.4, 2.0, 3.0, 0.36, -1.2),
        (3.0, 2.0, 3.0, 0.25, 0.0),  # right, but it went there too fast: held at 2.5
        (2.0, 4.0, 2.0, 2.25, 0.0),  # the same downwards: held at 3.5
        (4.0, 2.0, 0.0, 16.0, 8.0),  # the wrong way: the error in full
    ],
)
def test_clipped_value_error(value: float, old: float, target: float, error: float, slope: float) -> None:
    v = torch.tensor([value], requires_grad=True)
    got = clipped_value_error(v, torch.tensor([old]), torch.tensor([target]), 0.5)
    (gradient,) = torch.autograd.grad(got.sum(), v)
    torch.testing.assert_close(got, torch.tensor([error]))
    torch.testing.assert_close(gradient, torch.tensor([slope]))


@pytest.mark.parametrize(
    ("predictions", "targets", "expected"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0),
        ([6.0, 7.0, 8.0], [1.0, 2.0, 3.0], 1.0),  # an offset explains nothing away
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], 0.0),
        ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], -3.0),  # errors -2, 0, 2: four times the variance
        ([1.0, 2.0, 3.0], [5.0, 5.0, 5.0], 0.0),
    ],
)
def test_explained_variance(predictions: list[float], targets: list[float], expected: float) -> None:
    got = explained_variance(torch.tensor(predictions), torch.tensor(targets))
    assert float(got) == pytest.approx(expected, abs=1e-6)


def test_k3_by_hand() -> None:
    # r - 1 - log r of 1.5, 1 and 0.5
    expected = torch.tensor([0.5 - math.log(1.5), 0.0, -0.5 - math.log(0.5)])
    torch.testing.assert_close(k3_divergence(torch.tensor([1.5, 1.0, 0.5]).log()), expected)


@given(FLOATS)
def test_k3_is_never_negative(log_ratio: float) -> None:
    assert k3_divergence(torch.tensor([log_ratio], dtype=torch.float64)) >= 0


def test_k3_is_an_estimate_of_the_divergence() -> None:
    old, new = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    # its mean over the actions of the old policy, in full
    got = (old * k3_divergence((new / old).log())).sum()
    torch.testing.assert_close(got, (old * (old / new).log()).sum())
