"""PPO on thousands of carts in one tensor, next to `bare_tensors` and `peers.rsl_rl`.

    python -m benchmarks.ours_tensors carts 500000

Same rows, nets, minibatches, epochs and coefficients; what is not part of the bare arithmetic (observation and value
normalisation) is turned off. Steps per second are env steps per second of CPU time.
"""

from dataclasses import replace
from typing import Any

from algorithms.ppo import PPOConfig
from benchmarks import ours_ppo
from benchmarks.jobs import TENSOR_JOBS, TensorJob, main
from benchmarks.tensor_envs import Carts, timed
from catalog import DefaultModelConfig


def config(job: TensorJob, carts: Carts, seed: int) -> PPOConfig:
    """The job in our words."""
    made = ours_ppo.config(job, seed).environment(lambda env_config: carts).learners(torch_num_threads=1)
    model = DefaultModelConfig.from_any(made.model_config)
    return made.rl_module(model_config=replace(model, fcnet_hiddens=job.hiddens, fcnet_activation="elu"))


def train(job: TensorJob, total_steps: int, seed: int) -> dict[str, Any]:
    """Train for `total_steps` env steps, at least one iteration more than the warm-up. `curve` is the mean return of
    the episodes that ended in each iteration."""
    carts = Carts(job.num_envs)
    with config(job, carts, seed).build() as algorithm:

        def iteration() -> float:
            algorithm.train()
            return carts.mean_return()

        return timed(job, total_steps, iteration)


if __name__ == "__main__":
    main(train, __doc__, TENSOR_JOBS)
