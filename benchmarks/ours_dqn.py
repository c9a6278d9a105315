"""The job of `bare_dqn`, trained by `algorithms.dqn` through its public interface.

    python -m benchmarks.ours_dqn dqn 40000

Same net, replay, batches, target copies and exploration, in rollouts of one vector step with one update after each.
Steps per second count whole calls of `train()`, of 1,000 env steps each, after the first two.
"""

from algorithms.dqn import DQNConfig
from benchmarks.jobs import DQN_JOBS, DQNJob, main
from benchmarks.ours_ppo import WARM_UP, timed


def config(job: DQNJob, seed: int) -> DQNConfig:
    """The job in our words."""
    return (
        DQNConfig()
        .environment(job.env_id)
        .env_runners(num_envs_per_env_runner=job.num_envs)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            double_q=True,
            n_step=1,
            td_error_loss_fn="huber",
            epsilon=[[0, 1.0], [job.explore_steps, job.final_epsilon]],
            train_batch_size_per_learner=job.batch_size,
            training_intensity=None,  # one update after each vector step
            num_steps_sampled_before_learning_starts=job.learning_starts,
            target_network_update_freq=job.target_update_freq,
            grad_clip=job.grad_clip,
        )
        .replay(replay_capacity=job.capacity)
        .rl_module(
            model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "relu", "normalize_observations": False}
        )
        .reporting(num_env_steps_per_iteration=job.warm_up // WARM_UP)
        .debugging(seed=seed)
    )


def train(job: DQNJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `bare_dqn.train`."""
    return timed(config(job, seed), total_steps)


if __name__ == "__main__":
    main(train, __doc__, DQN_JOBS)
