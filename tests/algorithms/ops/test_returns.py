"""Returns and advantages, against numbers worked by hand and against slow loops that follow the definitions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms.ops.returns import discounted_suffix_sum, generalized_advantages, vtrace

SHAPES = {"steps": st.integers(1, 40), "slots": st.integers(1, 4), "seed": st.integers(0, 2**32 - 1)}
NAN = float("nan")


@settings(deadline=None)
@given(**SHAPES)
def test_suffix_sum_is_the_recursion(steps: int, slots: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, decay = rng.normal(size=(2, steps, slots))
    decay[rng.random((steps, slots)) < 0.2] = 0
    expected = np.zeros((steps + 1, slots))
    for t in reversed(range(steps)):
        expected[t] = x[t] + decay[t] * expected[t + 1]
    got = discounted_suffix_sum(torch.from_numpy(x), torch.from_numpy(decay))
    np.testing.assert_allclose(got.numpy(), expected[:-1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 127, 128, 129])
def test_suffix_sum_at_powers_of_two_and_around(steps: int) -> None:
    ones = torch.ones(steps, 1, dtype=torch.float64)
    torch.testing.assert_close(discounted_suffix_sum(ones, ones)[:, 0], torch.arange(steps, 0, -1.0).double())


def test_suffix_sum_leaves_its_arguments_alone_and_takes_more_axes() -> None:
    x, decay = torch.randn(5, 2, 3), torch.rand(5, 2, 3)
    before = x.clone(), decay.clone()
    got = discounted_suffix_sum(x, decay)
    assert torch.equal(x, before[0])
    assert torch.equal(decay, before[1])
    torch.testing.assert_close(got[:, 1, 2], discounted_suffix_sum(x[:, 1, 2], decay[:, 1, 2]))


# --- by hand: gamma = lambda = 0.5, so errors further on count 0.25 per step ---------------------------------------


def advantages(
    values_after: list[float],
    *,
    rewards: tuple[float, ...] = (1, 2, 3),
    terminated: tuple[int, ...] = (),
    truncated: tuple[int, ...] = (),
    invalid: tuple[int, ...] = (),
) -> list[float]:
    """Of one slot of three steps with the values 10, 20 and 30."""
    flags = torch.zeros(3, 3, 1, dtype=torch.bool)
    for flag, rows in zip(flags, (terminated, truncated, invalid), strict=True):
        flag[list(rows)] = True
    got = generalized_advantages(
        torch.tensor(rewards)[:, None].float(),
        torch.tensor([10.0, 20.0, 30.0])[:, None],
        torch.tensor(values_after)[:, None],
        terminated_t=flags[0],
        truncated_t=flags[1],
        valid_t=~flags[2],
        gamma=0.5,
        lambda_=0.5,
    )
    return got[:, 0].tolist()


def test_an_episode_that_the_fragment_cuts() -> None:
    # errors: 1 + 0.5·20 - 10 = 1;  2 + 0.5·30 - 20 = -3;  3 + 0.5·40 - 30 = -7, bootstrapped from what follows
    # sums:   1 + 0.25·(-4.75);      -3 + 0.25·(-7);         -7
    assert advantages([20, 30, 40]) == [-0.1875, -4.75, -7.0]


def test_termination_has_no_future() -> None:
    # errors: 1;  2 + 0 - 20 = -18, whatever is said to follow;  -7.  Nothing flows back over the end.
    assert advantages([20, 999, 40], terminated=(1,)) == [1 + 0.25 * -18, -18.0, -7.0]


def test_truncation_has_a_future_of_its_own() -> None:
    # errors: 1;  2 + 0.5·6 - 20 = -15 with 6 the value of the true final observation;  -7.  Nothing flows back either.
    assert advantages([20, 6, 40], truncated=(1,)) == [1 + 0.25 * -15, -15.0, -7.0]


def test_terminated_and_truncated_at_once_has_ended() -> None:
    assert advantages([20, 999, 40], terminated=(1,), truncated=(1,)) == [-3.5, -18.0, -7.0]


def test_a_reset_row_is_zero_and_does_not_leak() -> None:
    # row 0 ends: 1 + 0 - 10 = -9.  Row 1 is no transition, whatever it holds.  Row 2: -7.
    assert advantages([20, NAN, 40], rewards=(1, NAN, 3), terminated=(0,), invalid=(1,)) == [-9.0, 0.0, -7.0]
    # cut off instead, with 6 as the value of the true final observation: 1 + 0.5·6 - 10 = -6
    assert advantages([6, 30, 40], truncated=(0,), invalid=(1,)) == [-6.0, 0.0, -7.0]


def test_padding_after_an_open_chunk_is_zero_and_does_not_leak() -> None:
    # row 0 is the last of its chunk and bootstraps from 20: 1 + 0.5·20 - 10 = 1
    assert advantages([20, NAN, NAN], rewards=(1, NAN, NAN), invalid=(1, 2)) == [1.0, 0.0, 0.0]


# --- random data -----------------------------------------------------------------------------------------------------


@dataclass
class Data:
    rewards: np.ndarray
    values: np.ndarray
    after: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray

    def tensors(self) -> dict[str, Tensor]:
        names = ("r_t", "v_t", "v_tp1", "terminated_t", "truncated_t", "valid_t")
        return {name: torch.from_numpy(x) for name, x in zip(names, vars(self).values(), strict=True)}

    def chunks(self) -> list[tuple[int, int, int]]:
        """Slot, first row and row after the last of every piece of an episode."""
        steps, slots = self.valid.shape
        found = []
        for slot in range(slots):
            start = 0
            for row in range(steps):
                if not self.valid[row, slot]:
                    start = row + 1
                    continue
                closed = self.terminated[row, slot] or self.truncated[row, slot]
                if closed or row + 1 == steps or not self.valid[row + 1, slot]:
                    found.append((slot, start, row + 1))
                    start = row + 1
        return found

    def bootstrap(self, row: int, slot: int) -> float:
        return 0.0 if self.terminated[row, slot] else self.after[row, slot]


def random_data(steps: int, slots: int, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    rewards, values, after = rng.normal(size=(3, steps, slots))
    terminated, truncated, invalid = rng.random((3, steps, slots)) < 0.15
    terminated &= ~invalid
    truncated &= ~invalid
    # inside an episode, what follows a step is the next row
    goes_on = ~(terminated | truncated | invalid)[:-1] & ~invalid[1:]
    after[:-1][goes_on] = values[1:][goes_on]
    return Data(rewards, values, after, terminated, truncated, ~invalid)


def per_episode(data: Data, gamma: float, lambda_: float) -> np.ndarray:
    """Eq. 16 as a sum, episode by episode; 0 in other rows."""
    out = np.zeros_like(data.rewards)
    for slot, start, stop in data.chunks():
        errors = [
            data.rewards[k, slot] + gamma * data.bootstrap(k, slot) - data.values[k, slot] for k in range(start, stop)
        ]
        for t in range(stop - start):
            out[start + t, slot] = sum((gamma * lambda_) ** (k - t) * errors[k] for k in range(t, stop - start))
    return out


@settings(deadline=None)
@given(**SHAPES, gamma=st.sampled_from([0.0, 0.9, 1.0]), lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_advantages_are_the_sum_over_each_episode(
    steps: int, slots: int, seed: int, gamma: float, lambda_: float
) -> None:
    data = random_data(steps, slots, seed)
    got = generalized_advantages(**data.tensors(), gamma=gamma, lambda_=lambda_)
    np.testing.assert_allclose(got.numpy(), per_episode(data, gamma, lambda_), rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(**SHAPES)
def test_lambda_one_gives_monte_carlo_returns(steps: int, slots: int, seed: int) -> None:
    data, gamma = random_data(steps, slots, seed), 0.9
    got = (generalized_advantages(**data.tensors(), gamma=gamma, lambda_=1.0) + torch.from_numpy(data.values)).numpy()
    for slot, start, stop in data.chunks():
        future = data.bootstrap(stop - 1, slot)
        for row in reversed(range(start, stop)):
            future = data.rewards[row, slot] + gamma * future
            np.testing.assert_allclose(got[row, slot], future, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(**SHAPES)
def test_lambda_zero_gives_one_step_errors(steps: int, slots: int, seed: int) -> None:
    data, gamma = random_data(steps, slots, seed), 0.9
    got = generalized_advantages(**data.tensors(), gamma=gamma, lambda_=0.0).numpy()
    errors = data.rewards + gamma * np.where(data.terminated, 0, data.after) - data.values
    np.testing.assert_allclose(got, np.where(data.valid, errors, 0), rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(**SHAPES)
def test_what_invalid_rows_hold_does_not_matter(steps: int, slots: int, seed: int) -> None:
    data = random_data(steps, slots, seed)
    clean = generalized_advantages(**data.tensors(), gamma=0.9, lambda_=0.9)
    dirty: dict[str, Any] = data.tensors()
    for name in ("r_t", "v_t", "v_tp1"):
        dirty[name] = dirty[name].masked_fill(~dirty["valid_t"], NAN)
    got = generalized_advantages(**dirty, gamma=0.9, lambda_=0.9)
    assert torch.equal(got, clean)
    assert not got[~dirty["valid_t"]].any()


# --- V-trace ---------------------------------------------------------------------------------------------------------


def vtrace_by_recursion(
    data: Data, log_ratio: np.ndarray, gamma: float, lambda_: float, rho_clip: float, pg_rho_clip: float
) -> tuple[np.ndarray, np.ndarray]:
    """Remark 1 of the paper, backwards through each episode; values and 0 in other rows."""
    targets, advantages = data.values.copy(), np.zeros_like(data.values)
    ratio = np.exp(log_ratio)
    for slot, start, stop in data.chunks():
        target_after = data.bootstrap(stop - 1, slot)
        for row in reversed(range(start, stop)):
            after = data.bootstrap(row, slot)
            value, reward = data.values[row, slot], data.rewards[row, slot]
            rho, c = min(rho_clip, ratio[row, slot]), min(1.0, ratio[row, slot])
            target_error = target_after - after
            error = reward + gamma * after - value
            targets[row, slot] = value + rho * error + gamma * lambda_ * c * target_error
            advantages[row, slot] = min(pg_rho_clip, ratio[row, slot]) * (error + gamma * lambda_ * target_error)
            target_after = targets[row, slot]
    return targets, advantages


@settings(deadline=None)
@given(
    **SHAPES,
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lambda_=st.sampled_from([0.0, 0.95, 1.0]),
    rho_clip=st.sampled_from([0.5, 1.0, 3.0]),
    pg_rho_clip=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_vtrace_is_the_recursion(
    steps: int, slots: int, seed: int, gamma: float, lambda_: float, rho_clip: float, pg_rho_clip: float
) -> None:
    data = random_data(steps, slots, seed)
    log_ratio = np.random.default_rng(seed + 1).normal(size=(steps, slots))
    got = vtrace(
        torch.from_numpy(log_ratio),
        **data.tensors(),
        gamma=gamma,
        lambda_=lambda_,
        rho_clip=rho_clip,
        pg_rho_clip=pg_rho_clip,
    )
    for column, expected in zip(
        got, vtrace_by_recursion(data, log_ratio, gamma, lambda_, rho_clip, pg_rho_clip), strict=True
    ):
        np.testing.assert_allclose(column.numpy(), expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(**SHAPES, lambda_=st.sampled_from([0.0, 0.95, 1.0]))
def test_vtrace_of_the_policy_that_acted_is_gae(steps: int, slots: int, seed: int, lambda_: float) -> None:
    data = random_data(steps, slots, seed)
    targets, advantages = vtrace(torch.zeros(steps, slots).double(), **data.tensors(), gamma=0.9, lambda_=lambda_)
    expected = generalized_advantages(**data.tensors(), gamma=0.9, lambda_=lambda_)
    assert torch.equal(targets, torch.from_numpy(data.values) + expected)
    torch.testing.assert_close(advantages, expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(**SHAPES, rubbish=st.sampled_from([NAN, float("inf"), -float("inf"), 1e300]))
def test_what_invalid_rows_hold_does_not_matter_to_vtrace(steps: int, slots: int, seed: int, rubbish: float) -> None:
    data = random_data(steps, slots, seed)
    log_ratio = np.random.default_rng(seed + 1).normal(size=(steps, slots))
    clean = vtrace(torch.from_numpy(log_ratio), **data.tensors(), gamma=0.9, lambda_=0.95)
    log_ratio[~data.valid] = rubbish
    data.rewards[~data.valid] = rubbish
    data.after[~data.valid | data.terminated] = rubbish
    got = vtrace(torch.from_numpy(log_ratio), **data.tensors(), gamma=0.9, lambda_=0.95)
    for expected, column in zip(clean, got, strict=True):
        assert torch.equal(column, expected)
    assert not got[1][~torch.from_numpy(data.valid)].any()


def test_vtrace_by_hand() -> None:
    # gamma 0.5, lambda 1, ratios 2, 0.5 and 1, cut at 1; values 10, 20, 30 and 40 at the end
    # errors:  1 + 0.5·20 - 10 = 1;  2 + 0.5·30 - 20 = -3;  3 + 0.5·40 - 30 = -7
    # targets: 30 - 7 = 23;  20 + 0.5·(-3) + 0.5·0.5·(-7) = 16.75;  10 + 1·1 + 0.5·1·(-3.25) = 9.375
    # advantages: -7;  0.5·(-3 + 0.5·(-7)) = -3.25;  1·(1 + 0.5·(-3.25)) = -0.625
    none = torch.zeros(3, 1, dtype=torch.bool)
    targets, advantages = vtrace(
        torch.tensor([2.0, 0.5, 1.0]).log()[:, None],
        torch.tensor([1.0, 2.0, 3.0])[:, None],
        torch.tensor([10.0, 20.0, 30.0])[:, None],
        torch.tensor([20.0, 30.0, 40.0])[:, None],
        terminated_t=none,
        truncated_t=none,
        valid_t=~none,
        gamma=0.5,
        lambda_=1.0,
    )
    assert targets[:, 0].tolist() == [9.375, 16.75, 23.0]
    assert advantages[:, 0].tolist() == [-0.625, -3.25, -7.0]
