"""Terms of policy-gradient losses. Arguments are columns ``[B]``."""

import torch
from torch import Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return PPO's clipped surrogate objective of each row ``[B]``, to be maximised (Schulman et al. 2017, eq. 7).

    ``ratio`` is the action's probability under the current policy, divided by that under the policy that acted.
    """
    surrogate, clipped = ratio * advantages, ratio.detach().clamp(1 - clip, 1 + clip) * advantages
    return torch.where(clipped < surrogate, clipped, surrogate)  # the clipped term, where it is less, is constant


def clipped_value_error(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Return the squared error of each row ``[B]``: that of the value or of the clipped value, whichever is larger.

    The clipped value is the value moved to within ``clip`` of the old value. All arguments have the same unit.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.max((values - targets).square(), (clipped - targets).square())


def linear_beyond(delta: float, squared: Tensor) -> Tensor:
    """Return twice the Huber loss of each row ``[B]``, given the squared errors ``[B]``. Errors of a magnitude above
    ``delta`` count linearly, smaller errors squared."""
    sizes = squared.clamp_min(delta**2).sqrt()  # never the root of 0, whose gradient is infinite
    return torch.where(squared > delta**2, 2 * delta * sizes - delta**2, squared)


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the scalar ``1 - Var(targets - predictions) / Var(targets)``, at most 1, or 0 if all targets are equal."""
    variance = targets.var(unbiased=False)
    unexplained = (targets - predictions).var(unbiased=False)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp_min(1e-12), torch.zeros_like(variance))


def k3_divergence(log_ratio: Tensor) -> Tensor:
    """Return the "k3" estimate of KL(old ‖ new) in each row ``[B]``, never negative (Schulman 2020, "Approximating KL
    Divergence"). ``log_ratio`` is ``log(new(a) / old(a))`` of an action ``a`` drawn from the old policy, ``[B]``.
    """
    return log_ratio.expm1() - log_ratio
