"""Updates per second of RLlib's BC on a table of CartPole's steps.

    /path/to/python -m benchmarks.peers.rllib_offline FOLDER 2000    # of an environment with requirements/rllib.txt

FOLDER has the Parquet files that ``benchmarks.offline`` writes. The nets, the batch and the optimizer's settings are
those of our BC. RLlib turns the table into batches once, before the first update, which is not counted. Ray is told of
four CPUs, since this takes two and reading needs another. One call of `train()` takes half of the updates, so that they
share its cost.
"""

import json
import sys
import time
from importlib import import_module
from typing import Any

import torch


def updates_per_second(folder: str, num_updates: int) -> float:
    """Return the updates per second after a first call of `train()`."""
    torch.set_num_threads(1)
    import_module("ray").init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    model = import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig
    config: Any = import_module("ray.rllib.algorithms.bc").BCConfig()
    env = import_module("gymnasium").make("CartPole-v1")
    config.environment(observation_space=env.observation_space, action_space=env.action_space)
    config.env_runners(num_env_runners=0).learners(num_learners=0)
    config.offline_data(input_=[folder], dataset_num_iters_per_learner=num_updates // 2)
    config.training(lr=3e-4, train_batch_size_per_learner=256, grad_clip=0.5, grad_clip_by="global_norm")
    config.rl_module(model_config=model(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))
    algorithm = config.debugging(seed=1, log_level="ERROR").build_algo()
    algorithm.train()
    start = time.perf_counter()
    algorithm.train()
    algorithm.train()
    seconds = time.perf_counter() - start
    algorithm.stop()
    return num_updates // 2 * 2 / seconds


if __name__ == "__main__":
    print(json.dumps({"updates_per_s": updates_per_second(sys.argv[1], int(sys.argv[2]))}))
