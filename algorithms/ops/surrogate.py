"""Pieces of policy-gradient losses, per row: ``[B]`` in, ``[B]`` or a scalar out."""

import torch
from torch import Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO's pessimistic objective per row (Schulman et al. 2017, eq. 7); to be maximised."""
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped_value_error(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Squared error per row, the larger of that of the value and of the value held within ``±clip`` of the old one."""
    held = old_values + (values - old_values).clamp(-clip, clip)
    return torch.max((values - targets).square(), (held - targets).square())


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:
    """``1 - Var(targets - predictions) / Var(targets)``: 1 is perfect, 0 as good as the mean; 0 if they are equal."""
    variance = targets.var(unbiased=False)
    unexplained = (targets - predictions).var(unbiased=False)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp_min(1e-12), torch.zeros_like(variance))


def k3_divergence(log_ratio: Tensor) -> Tensor:
    """Low-variance, never negative estimate of KL(old ‖ new) per row from samples of old (Schulman 2020, "k3")."""
    return log_ratio.expm1() - log_ratio
