"""Actions of a policy that SAC's losses value: drawn ones, or all joint actions."""

from typing import NamedTuple

from torch import Tensor

from catalog.base import Tree
from catalog.distributions.categorical import Choices
from rlmodule.modules.rl_module import RLModule


class Actions(NamedTuple):
    """Actions of a policy: one drawn for each observation, or all joint actions.

    Attributes:
        drawn: The drawn actions ``[B, ...]``, with a gradient; None if all joint actions are used.
        logp: Log-probabilities of the drawn actions ``[B]``, or of all joint actions ``[B, actions]``.
        probs: The probabilities of all joint actions ``[B, actions]``; None if actions are drawn.
    """

    drawn: Tree | None
    logp: Tensor
    probs: Tensor | None = None

    @classmethod
    def of(cls, module: RLModule, inputs: Tensor, noise: Tensor | None) -> "Actions":
        """Return the actions of the distributions of ``module`` with the inputs ``inputs`` ``[B, W]``. Draw one
        action per row, with a gradient, from ``noise`` ``[B, ...]``, which :meth:`Distribution.draw_noise` returned.
        If ``noise`` is None, take all joint actions; the space must be discrete."""
        dist = module.action_dist_cls.from_logits(inputs)
        if noise is not None:
            return cls(*dist.rsample_with_logp(noise))
        assert isinstance(dist, Choices)
        logp = dist.joint_log_probs()
        return cls(None, logp, logp.exp())

    def mean(self, values: Tensor) -> Tensor:
        """Return the expectation ``[B]`` of ``values`` under the policy; ``values`` have the shape of ``logp``. The
        result is exact if all joint actions are used. For drawn actions, return ``values`` themselves as the
        estimate."""
        return values if self.probs is None else (self.probs * values).sum(-1)
