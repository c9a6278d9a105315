"""Returns and advantages over ``[T, N]`` columns: ``T`` steps, ``N`` independent slots."""

import torch
from torch import Tensor


def discounted_suffix_sum(x_t: Tensor, decay_t: Tensor) -> Tensor:
    """``y_t = x_t + decay_t · y_{t+1}`` with ``y_T = 0``, along the first axis.

    Runs in ``log2 T`` whole-array steps, since two spans of the recursion join into one of the same form
    (Hillis & Steele 1986).

    Args:
        x_t: ``[T, ...]``.
        decay_t: ``[T, ...]``.
    """
    y, decay = x_t, decay_t
    span = 1
    while span < x_t.shape[0]:
        y = torch.cat([torch.addcmul(y[:-span], decay[:-span], y[span:]), y[-span:]])
        decay = torch.cat([decay[:-span] * decay[span:], decay[-span:]])
        span *= 2
    return y


def generalized_advantages(
    r_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    *,
    terminated_t: Tensor,
    truncated_t: Tensor,
    valid_t: Tensor,
    gamma: float,
    lambda_: float,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), ``[T, N]``; 0 on invalid rows.

    Args:
        r_t: Rewards ``[T, N]``.
        v_t: Values of the observations acted on ``[T, N]``.
        v_tp1: Values of the observations that followed, within the same episode ``[T, N]``.
        terminated_t: bool: nothing follows.
        truncated_t: bool: something follows (``v_tp1``), but in another row.
        valid_t: bool: the row is a transition.
        gamma: Discount per step.
        lambda_: 0 trusts the values (one-step TD error), 1 the rewards (Monte Carlo).
    """
    delta_t = r_t + gamma * v_tp1.masked_fill(terminated_t, 0.0) - v_t
    goes_on_t = valid_t & ~terminated_t & ~truncated_t
    return discounted_suffix_sum(delta_t.masked_fill(~valid_t, 0.0), goes_on_t.to(r_t.dtype) * (gamma * lambda_))
