"""Distributions of returns over fixed atoms."""

import torch
from torch import Tensor


def project_onto_support(probs: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """The distribution of ``reward + discount · return``, on the atoms that the one of the return is on (Bellemare et
    al. 2017, Algorithm 1).

    What falls between two atoms is divided between them by distance, which keeps the mean; what falls outside goes to
    the first or last one. The probabilities sum to what they did.

    Args:
        probs: Probabilities of the atoms of the return ``[B, K]``.
        rewards: ``[B]``.
        discounts: ``[B]``; 0 where nothing follows.
        support: Return of each atom ``[K]``, in ascending order.

    Returns:
        Probabilities ``[B, K]``.
    """
    moved = torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), support).clamp_(support[0], support[-1])
    # searched among the atoms rather than computed from their distance: one that is hit gets all, without rounding
    above = torch.searchsorted(support, moved).clamp_min_(1)
    below = above - 1
    low, high = support.take(below), support.take(above)
    to_above = probs * ((moved - low) / (high - low))
    return torch.zeros_like(probs).scatter_add_(-1, below, probs - to_above).scatter_add_(-1, above, to_above)
