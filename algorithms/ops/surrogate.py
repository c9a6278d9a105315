"""Terms of policy-gradient losses. Arguments are columns ``[B]``."""

import torch
from torch import Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return PPO's clipped surrogate objective of each row ``[B]``, to be maximised (Schulman et al. 2017, eq. 7).

    ``ratio`` is the probability of the action under the current policy over that under the acting policy.
    """
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped_value_error(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Return the squared error of each row ``[B]``: of the value or of the clipped value, whichever is larger.

    The clipped value differs from the old value by at most ``clip``. Arguments are ``[B]``, all in the same
    unit.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.max((values - targets).square(), (clipped - targets).square())


def linear_beyond(delta: float, squared: Tensor) -> Tensor:
    """Return twice the Huber loss of each row, given squared errors ``[B]``: errors beyond ``delta`` count linearly."""
    sizes = squared.clamp_min(delta**2).sqrt()  # never the root of 0, whose gradient is infinite
    return torch.where(squared > delta**2, 2 * delta * sizes - delta**2, squared)


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return ``1 - Var(targets - predictions) / Var(targets)``: 1 is perfect, 0 as good as a constant."""
    variance = targets.var(unbiased=False)
    unexplained = (targets - predictions).var(unbiased=False)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp_min(1e-12), torch.zeros_like(variance))


def k3_divergence(log_ratio: Tensor) -> Tensor:
    """Return the estimate "k3" of KL(old ‖ new) (Schulman 2020, "Approximating KL Divergence"), never negative.
    ``log_ratio`` is ``log(new / old)`` of an action drawn from old, ``[B]``.
    """
    return log_ratio.expm1() - log_ratio
