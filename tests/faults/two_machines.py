"""A training on whatever machines the cluster has: ``python -m tests.faults.two_machines FOLDER HOW``.

HOW is "runners", with two of them, each of which takes a machine, or "learners", with two of both. Ends when there is a
file ``end`` in the folder. Writes to a file ``said``, after each iteration: where workers are, how many are well, what
was lost, and digests of the weights.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch

from algorithms.ppo import PPOConfig
from rlmodule.groups.remote_learner_group import RemoteLearnerGroup

CPUS = 3
"""Of each machine: for one runner and one learner, which takes 2."""
FIRST = 3
"""Of how many iterations the weights are written."""


def config(how: str) -> PPOConfig:
    settings = (
        PPOConfig(env="CartPole-v1", seed=1)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=2, env_step_timeout_s=5)
        .training(train_batch_size_per_learner=256, minibatch_size=64)
    )
    if how == "learners":
        return settings.learners(num_learners=2, num_cpus_per_learner=2, learner_timeout_s=5)
    return settings.env_runners(num_cpus_per_env_runner=CPUS).fault_tolerance(ignore_env_runner_failures=True)


def digest(module: torch.nn.Module) -> str:
    weights = torch.cat([value.flatten() for value in module.state_dict().values()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def main(folder: Path, how: str) -> None:
    if "RAY_ADDRESS" not in os.environ:
        ray.init("local", num_cpus=2 * CPUS, include_dashboard=False, object_store_memory=150_000_000)
    with config(how).build() as algorithm:
        weights, learners = [], algorithm.learner_group
        groups: list[Any] = [algorithm.env_runner_group.workers]
        if isinstance(learners, RemoteLearnerGroup):
            groups.append(learners.workers)
        while True:
            result = algorithm.train()
            weights.append(digest(algorithm.get_module()))
            message = {
                "iterations": result["training_iteration"],
                "where": [[process.address for process in group._processes] for group in groups],
                "weights": weights[:FIRST],
                "workers": result["workers"],
            }
            new = folder / "said.new"
            new.write_text(json.dumps(message))
            new.rename(folder / "message")
            if (folder / "end").exists():
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
