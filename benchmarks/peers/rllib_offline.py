"""Updates per second of RLlib's BC on a table of CartPole's steps, or of its CQL on random numbers.

    /path/to/python -m benchmarks.peers.rllib_offline bc FOLDER 2000    # of an environment with requirements/rllib.txt
    /path/to/python -m benchmarks.peers.rllib_offline cql FOLDER 100

FOLDER has the Parquet files that ``benchmarks.offline`` and ``benchmarks.bare_offline`` write. The nets, the batch and
the optimizer's settings are those of ours. RLlib turns the table into batches once, before the first update, which is
not counted. Ray gets four CPUs, since this takes two and reading needs another. One call of `train()` takes half
of the updates, so that they share its cost.
"""

import json
import sys
import time
from importlib import import_module
from typing import Any

import torch


def bc() -> Any:
    """Return the config of BC."""
    config: Any = import_module("ray.rllib.algorithms.bc").BCConfig()
    env = import_module("gymnasium").make("CartPole-v1")
    config.environment(observation_space=env.observation_space, action_space=env.action_space)
    config.training(lr=3e-4, train_batch_size_per_learner=256, grad_clip=0.5, grad_clip_by="global_norm")
    return config.rl_module(model_config=nets(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))


def cql() -> Any:
    """Return the config of CQL, with the published number of actions per row."""
    config: Any = import_module("ray.rllib.algorithms.cql").CQLConfig()
    config.environment("HalfCheetah-v5")  # whose spaces the random numbers have; it is not played
    config.training(bc_iters=0, num_actions=10, min_q_weight=5.0, train_batch_size_per_learner=256, tau=0.005)
    config.training(actor_lr=1e-4, critic_lr=3e-4, alpha_lr=3e-4, lr=None, twin_q=True)
    return config.rl_module(model_config=nets(fcnet_hiddens=[256, 256], fcnet_activation="relu"))


def nets(**settings: Any) -> Any:
    """Return the settings of nets."""
    return import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig(**settings)


def updates_per_second(algorithm: str, folder: str, num_updates: int) -> float:
    """Return the updates per second after a first call of `train()`."""
    torch.set_num_threads(1)
    import_module("ray").init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    config = {"bc": bc, "cql": cql}[algorithm]()
    config.env_runners(num_env_runners=0).learners(num_learners=0)
    config.offline_data(input_=[folder], dataset_num_iters_per_learner=num_updates // 2)
    built = config.debugging(seed=1, log_level="ERROR").build_algo()
    built.train()
    start = time.perf_counter()
    built.train()
    built.train()
    seconds = time.perf_counter() - start
    built.stop()
    return num_updates // 2 * 2 / seconds


if __name__ == "__main__":
    print(json.dumps({"updates_per_s": updates_per_second(sys.argv[1], sys.argv[2], int(sys.argv[3]))}))
