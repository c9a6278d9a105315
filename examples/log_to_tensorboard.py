"""Train twice with numbers of your own, and watch both runs in TensorBoard.

Run it as ``python examples/log_to_tensorboard.py``; meanwhile, in another shell, ``tensorboard --logdir runs``.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from algorithms import Algorithm, FinishedEpisode
from algorithms.ppo import PPOConfig, PPOLearner
from rlmodule import Batch, Columns, Metrics


class WatchedLearner(PPOLearner):
    """PPO that reports how large the policy's logits are: learners/default_policy/logit_size."""

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        return loss, metrics | {"logit_size": fwd_out[Columns.ACTION_DIST_INPUTS].detach().abs().mean()}


def log_full_length(algorithm: Algorithm, episode: FinishedEpisode) -> None:
    """The share of episodes that lasted to the time limit: custom_metrics/full_length."""
    algorithm.metrics.log_value("full_length", episode.length == 500)


runs = Path("runs", f"compare-{time.strftime('%Y%m%d-%H%M%S')}")
for lr in (3e-4, 1e-3):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(lr=lr)
        .learners(learner_class=WatchedLearner)
        .evaluation(evaluation_interval=2)
        .callbacks(on_episode_end=log_full_length)
        .reporting(run_dir=str(runs / f"lr-{lr:g}"))
        .debugging(seed=1)
    )
    with config.build() as algo:
        algo.learn(num_env_steps=40_000, progress=True)

print("Logged:", *sorted(str(path.parent) for path in runs.rglob("events.out.tfevents*")))
