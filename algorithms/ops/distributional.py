"""Targets and losses of action values, whether a net predicts mean returns, atoms or quantiles of returns."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from catalog.return_heads import Atoms, Quantiles, ReturnHead


def take_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the outputs ``[B, *shape]`` of the ``actions`` ``[B]`` from those of all actions, ``[B, A, *shape]``."""
    index = actions.unsqueeze(-1)
    if outputs.dim() == 2:
        return outputs.gather(-1, index).squeeze(-1)
    return outputs.take_along_dim(index.unsqueeze(-1), -2).squeeze(-2)


def least_returns(head: ReturnHead, outputs: Tensor, dropped: int = 0) -> Tensor:
    """Return the outputs of the most pessimistic return among those of several critics, for targets that do not
    overestimate.

    These are the least of the means (Fujimoto et al. 2018, eq. 10), or the atoms of the critic with the least mean. Of
    quantiles, they are those of all critics together, without the largest (Kuznetsov et al. 2020, "Controlling
    Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile Critics", eq. 10).

    Args:
        head: What the outputs mean.
        outputs: ``[critics, B, *head.shape]``.
        dropped: Number of quantiles to leave out per critic.

    Returns:
        ``[B, *head.shape]``; for quantiles ``[B, critics·(K - dropped)]``, in ascending order.
    """
    if isinstance(head, Quantiles):
        pool = outputs.movedim(0, 1).flatten(1).sort(-1).values
        return pool[:, : pool.shape[-1] - dropped * len(outputs)]
    if isinstance(head, Atoms):
        least = head.mean(outputs).argmin(0)
        return outputs.take_along_dim(least[None, :, None], 0).squeeze(0)
    return outputs.amin(0)


def return_targets(
    head: ReturnHead, outputs: Tensor, rewards: Tensor, discounts: Tensor, penalty: Tensor | None = None
) -> Tensor:
    """Return the targets of action values: ``reward + discount · (return - penalty)``.

    Args:
        head: What the outputs mean.
        outputs: Outputs that describe the return after the step, ``[B, *shape]``, maybe with another number of
            quantiles than ``head`` has.
        rewards: ``[B]``.
        discounts: ``[B]``, 0 after termination.
        penalty: What to subtract from the return, ``[B]``, such as SAC's α·log π; None for nothing.

    Returns:
        Returns of the shape of ``outputs``; for atoms, their probabilities.
    """
    if isinstance(head, Atoms):
        returns = head.support if penalty is None else head.support - penalty.unsqueeze(-1)
        return project_onto_support(outputs.softmax(-1), rewards, discounts, head.support, returns)
    if isinstance(head, Quantiles):
        rewards, discounts = rewards.unsqueeze(-1), discounts.unsqueeze(-1)
        penalty = None if penalty is None else penalty.unsqueeze(-1)
    return torch.addcmul(rewards, discounts, outputs if penalty is None else outputs - penalty)


def return_losses(
    head: ReturnHead, outputs: Tensor, targets: Tensor, distance: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of predicted returns, their mean values, and their TD errors.

    The loss of a number is its ``distance`` from the target. That of atoms is the KL divergence from the target
    distribution (Bellemare et al. 2017, Algorithm 1), and that of quantiles is :func:`quantile_huber`.

    Args:
        head: What the outputs mean.
        outputs: Outputs for the actions taken, ``[..., B, *head.shape]``.
        targets: Results of :func:`return_targets`.
        distance: Returns the losses of numbers from predictions and targets.

    Returns:
        Losses ``[..., B]``; values and TD errors ``[..., B]``, without gradient. The TD error is the value minus the
        mean target; for atoms it is the loss, which is 0 where the distribution is right.
    """
    values = head.mean(outputs.detach())
    if isinstance(head, Atoms):
        # The KL has the gradient of the paper's cross-entropy, and is 0 at the target, as a priority should be.
        log_probs = outputs.log_softmax(-1)
        losses = functional.kl_div(log_probs, targets.expand_as(log_probs), reduction="none").sum(-1)
        return losses, values, losses.detach()
    if isinstance(head, Quantiles):
        return quantile_huber(outputs, targets), values, values - targets.mean(-1)
    return distance(outputs, targets), values, values - targets


def half_squared_error(values: Tensor, targets: Tensor) -> Tensor:
    """Return half the square of each error, in the shape of ``values``."""
    return 0.5 * (values - targets).square()


def squared_error(values: Tensor, targets: Tensor) -> Tensor:
    """Return the square of each error, in the shape of ``values``."""
    return (values - targets).square()


def quantile_huber(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Return the quantile Huber loss, the mean over all pairs of a quantile and a target (Dabney et al. 2018, eq. 10,
    with κ = 1, divided by the number of quantiles).

    A pair costs ``|τ - (target < quantile)|`` times the Huber loss of its distance. The sum over targets is a quadratic
    function of the quantile between the places where a target changes sides, so sums of sorted targets give it exactly
    with work for K + M numbers instead of K·M pairs.

    Args:
        quantiles: Predictions ``[..., B, K]`` for the probabilities ``τ = (i + ½) / K``.
        targets: Samples of the return, ``[B, M]``, that count the same.

    Returns:
        Losses ``[..., B]``.
    """
    num_quantiles, num_targets = quantiles.shape[-1], targets.shape[-1]
    # float64: near returns of -1,500, differences of sums in float32 are off by a percent
    ordered = targets.double().sort(-1).values
    sums = functional.pad(ordered.cumsum(-1), (1, 0))
    squares = functional.pad(ordered.square().cumsum(-1), (1, 0))
    q = quantiles.double().movedim(-2, 0).flatten(1).contiguous()  # [B, all quantiles of a row]
    at = q.detach()
    # numbers of targets: more than 1 below the quantile, below it, and at most 1 above it
    far_below = torch.searchsorted(ordered, at - 1)
    below = torch.searchsorted(ordered, at)
    not_far_above = torch.searchsorted(ordered, at + 1, right=True)

    def squared(first: Tensor, end: Tensor) -> Tensor:
        """Return half the sum of the squared distances to targets ``first`` to before ``end``."""
        linear = sums.gather(-1, end) - sums.gather(-1, first)
        square = squares.gather(-1, end) - squares.gather(-1, first)
        return 0.5 * (square - 2 * q * linear + (end - first) * q.square())

    total_above = sums[:, -1:] - sums.gather(-1, not_far_above)
    losses_below = far_below * (q - 0.5) - sums.gather(-1, far_below) + squared(far_below, below)
    losses_above = total_above - (num_targets - not_far_above) * (q + 0.5) + squared(below, not_far_above)
    probs = (torch.arange(num_quantiles, dtype=q.dtype, device=q.device) + 0.5) / num_quantiles
    probs = probs.repeat(q.shape[-1] // num_quantiles)
    losses = (1 - probs) * losses_below + probs * losses_above
    per_row = losses.unflatten(-1, quantiles.movedim(-2, 0).shape[1:]).mean(-1) / num_targets
    return per_row.movedim(0, -1).to(quantiles.dtype)


def project_onto_support(
    probs: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor, returns: Tensor | None = None
) -> Tensor:
    """Project the distribution of ``reward + discount · return`` onto the atoms of the return (Bellemare et al. 2017,
    Algorithm 1).

    The probability of a value between two atoms is divided between them by distance, which keeps the mean. Values
    outside the support go to its first or last atom. The sum of the probabilities is unchanged.

    Args:
        probs: Probabilities of the atoms of the return, ``[B, K]``.
        rewards: ``[B]``.
        discounts: ``[B]``, 0 after termination.
        support: The return that each atom stands for, ``[K]``, in ascending order.
        returns: The return of each atom after the step, ``[B, K]``, if it differs from ``support``.

    Returns:
        Probabilities of the same atoms, ``[B, K]``.
    """
    returns = support if returns is None else returns
    moved = torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), returns).clamp_(support[0], support[-1])
    # Search among the atoms instead of dividing by their distance: a value equal to an atom then goes to it exactly.
    above = torch.searchsorted(support, moved).clamp_min_(1)
    below = above - 1
    low, high = support.take(below), support.take(above)
    to_above = probs * ((moved - low) / (high - low))
    return torch.zeros_like(probs).scatter_add_(-1, below, probs - to_above).scatter_add_(-1, above, to_above)
