"""The jobs of `bare_sac`, trained by `algorithms.sac` through its public interface.

    python -m benchmarks.ours_sac sac-pendulum 10000

Same nets, replay, batches and updates. Steps per second count whole calls of `train()` after the first two.
"""

from algorithms.sac import SACConfig
from benchmarks.jobs import SAC_JOBS, SACJob, main
from benchmarks.ours_ppo import WARM_UP, timed


def config(job: SACJob, seed: int) -> SACConfig:
    """The job in our words."""
    return (
        SACConfig()
        .environment(job.env_id)
        .env_runners(num_envs_per_env_runner=job.num_envs)
        .learners(torch_num_threads=job.num_threads)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            tau=job.tau,
            train_batch_size_per_learner=job.batch_size,
            training_intensity=job.batch_size,
            num_steps_sampled_before_learning_starts=job.learning_starts,
        )
        .replay(replay_capacity=job.capacity)
        .rl_module(model_config={"normalize_observations": False})
        .reporting(num_env_steps_per_iteration=job.warm_up // WARM_UP)
        .debugging(seed=seed)
    )


def train(job: SACJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `bare_sac.train`."""
    return timed(config(job, seed), total_steps)


if __name__ == "__main__":
    main(train, __doc__, SAC_JOBS)
