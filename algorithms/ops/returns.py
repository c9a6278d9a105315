"""Discounted sums and advantages over columns ``[T, N]`` of ``T`` steps in ``N`` envs."""

import torch
from torch import Tensor


def discounted_suffix_sum(x_t: Tensor, decay_t: Tensor) -> Tensor:
    """Return ``y_t = x_t + decay_t · y_{t+1}`` with ``y_T = 0``, along the first axis of ``[T, ...]``.

    Two adjacent spans combine into a span of the same form, so ``log2 T`` passes suffice (Hillis & Steele 1986).
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
    """Return generalised advantage estimates ``[T, N]`` (GAE, Schulman et al. 2016, eq. 16); 0 in invalid rows.

    Args:
        r_t: Rewards ``[T, N]``.
        v_t: Values of the observations ``[T, N]``.
        v_tp1: Values of the next observations ``[T, N]``, at the end of an episode those of the true final observation.
        terminated_t: bool ``[T, N]``: the step ended the episode by termination, so its next value does not count.
        truncated_t: bool ``[T, N]``: the step was truncated. Its next value counts, but not the next row's advantage.
        valid_t: bool ``[T, N]``: the row is a transition.
        gamma: Discount per step.
        lambda_: 0 gives one-step TD errors, which rely on the values; 1 gives Monte Carlo returns minus the values.
    """
    delta_t = r_t + gamma * v_tp1.masked_fill(terminated_t, 0.0) - v_t
    goes_on_t = valid_t & ~terminated_t & ~truncated_t
    return discounted_suffix_sum(delta_t.masked_fill(~valid_t, 0.0), goes_on_t.to(r_t.dtype) * (gamma * lambda_))


def vtrace(
    log_ratio_t: Tensor,
    r_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    *,
    terminated_t: Tensor,
    truncated_t: Tensor,
    valid_t: Tensor,
    gamma: float,
    lambda_: float,
    rho_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return V-trace value targets ``[T, N]`` and advantages ``[T, N]``, which are 0 in invalid rows (Espeholt et al.
    2018, eq. 1 and section 4.2). With ratios of 1, the advantages are generalised advantage estimates.

    Args:
        log_ratio_t: Log-probability ``[T, N]`` of each action under the policy that learns, minus that under the policy
            that acted.
        r_t, v_t, v_tp1, terminated_t, truncated_t, valid_t, gamma: See :func:`generalized_advantages`.
        lambda_: Factor of the weights of later steps (remark 2); 1 gives the targets of the paper.
        rho_clip: Largest weight of a step's own TD error, which decides the policy whose values are learned.
        pg_rho_clip: Largest weight of an advantage.
    """
    ratio = log_ratio_t.masked_fill(~valid_t, 0.0).exp()  # 0 · inf would be NaN
    delta_t = (r_t + gamma * v_tp1.masked_fill(terminated_t, 0.0) - v_t).masked_fill(~valid_t, 0.0)
    goes_on_t = (valid_t & ~terminated_t & ~truncated_t).to(r_t.dtype) * (gamma * lambda_)
    correction = discounted_suffix_sum(ratio.clamp(max=rho_clip) * delta_t, goes_on_t * ratio.clamp(max=1.0))
    next_correction = torch.cat([correction[1:], torch.zeros_like(correction[:1])])
    advantages = ratio.clamp(max=pg_rho_clip) * (delta_t + goes_on_t * next_correction)
    return v_t + correction, advantages
