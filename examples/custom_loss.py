"""Add a term to PPO's loss: pull the policy's logits towards zero.

Run it as ``python examples/custom_loss.py``.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from algorithms.ppo import PPOConfig, PPOLearner
from rlmodule import Batch, Columns, Metrics

LOGIT_PENALTY = 0.001


class LogitPenaltyLearner(PPOLearner):
    """PPO whose policy stays away from extreme logits."""

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        penalty = fwd_out[Columns.ACTION_DIST_INPUTS].square().mean()
        # what is returned here shows up in the result under the same name, averaged over the minibatches
        return loss + LOGIT_PENALTY * penalty, metrics | {"logit_penalty": penalty}


config = PPOConfig().environment("CartPole-v1").learners(learner_class=LogitPenaltyLearner).debugging(seed=1)

with config.build() as algo:
    result = algo.learn(num_env_steps=100_000, target_return=400, progress=True)
    print(f"mean squared logit: {result['learners']['default_policy']['logit_penalty']:.3f}")
