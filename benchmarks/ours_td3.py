"""The jobs of `bare_td3`, trained by `algorithms.td3` through its public interface.

    python -m benchmarks.ours_td3 td3-pendulum 10000

Same nets, replay, batches and updates. Steps per second count whole calls of `train()` after the first two.
"""

from algorithms.td3 import TD3Config
from benchmarks.jobs import TD3_JOBS, TD3Job, main
from benchmarks.ours_ppo import WARM_UP, timed


def config(job: TD3Job, seed: int) -> TD3Config:
    """The job in our words."""
    return (
        TD3Config()
        .environment(job.env_id)
        .env_runners(num_envs_per_env_runner=job.num_envs)
        .learners(torch_num_threads=job.num_threads)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            tau=job.tau,
            policy_delay=job.policy_delay,
            target_noise=job.target_noise,
            target_noise_clip=job.target_noise_clip,
            exploration_noise=job.exploration_noise,
            train_batch_size_per_learner=job.batch_size,
            training_intensity=job.batch_size,
            num_steps_sampled_before_learning_starts=job.learning_starts,
        )
        .replay(replay_capacity=job.capacity)
        .reporting(num_env_steps_per_iteration=job.warm_up // WARM_UP)
        .debugging(seed=seed)
    )


def train(job: TD3Job, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `bare_td3.train`."""
    return timed(config(job, seed), total_steps)


if __name__ == "__main__":
    main(train, __doc__, TD3_JOBS)
