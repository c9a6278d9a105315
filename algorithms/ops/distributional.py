"""Distributional Q-learning: distributions of returns over fixed atoms."""

import torch
from torch import Tensor


def project_onto_support(probs: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """Project the distribution of ``reward + discount · return`` onto the atoms of the return (Bellemare et al. 2017,
    Algorithm 1).

    The probability of a value between two atoms is divided between them by distance, which keeps the mean. Values
    outside the support go to its first or last atom. The sum of the probabilities is unchanged.

    Args:
        probs: Probabilities of the atoms of the return, ``[B, K]``.
        rewards: ``[B]``.
        discounts: ``[B]``, 0 after termination.
        support: The return that each atom stands for, ``[K]``, in ascending order.

    Returns:
        Probabilities of the same atoms, ``[B, K]``.
    """
    moved = torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), support).clamp_(support[0], support[-1])
    # Search among the atoms instead of dividing by their distance: a value equal to an atom then goes to it exactly.
    above = torch.searchsorted(support, moved).clamp_min_(1)
    below = above - 1
    low, high = support.take(below), support.take(above)
    to_above = probs * ((moved - low) / (high - low))
    return torch.zeros_like(probs).scatter_add_(-1, below, probs - to_above).scatter_add_(-1, above, to_above)
