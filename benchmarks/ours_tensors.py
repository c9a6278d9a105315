"""PPO on thousands of carts in one tensor, next to `bare_tensors` and `peers.rsl_rl`.

    python -m benchmarks.ours_tensors carts 500000

Same rows, nets, minibatches, epochs and coefficients; what is not part of the bare arithmetic (observation and value
normalisation) is turned off. Steps per second are env steps per second of CPU time.
"""

from typing import Any

from algorithms.ppo import PPOConfig
from benchmarks.jobs import TENSOR_JOBS, TensorJob, main
from benchmarks.tensor_envs import Carts, timed


def config(job: TensorJob, carts: Carts, seed: int) -> PPOConfig:
    """The job in our words."""
    model = {
        "fcnet_hiddens": job.hiddens,
        "fcnet_activation": "elu",
        "vf_share_layers": False,
        "free_log_std": True,
        "normalize_observations": False,
        "normalize_values": False,
    }
    return (
        PPOConfig()
        .environment(lambda env_config: carts)
        .env_runners(num_envs_per_env_runner=job.num_envs)
        .learners(torch_num_threads=1)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            lambda_=job.lambda_,
            clip_param=job.clip_param,
            train_batch_size_per_learner=job.batch_size,
            minibatch_size=job.minibatch_size,
            num_epochs=job.num_epochs,
            entropy_coeff=job.entropy_coeff,
            vf_loss_coeff=job.vf_loss_coeff,
            grad_clip=job.grad_clip,
        )
        .rl_module(model_config=model)
        .debugging(seed=seed)
    )


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
