"""The jobs of IMPALA and APPO, next to those of `benchmarks.peers.rllib`.

    python -m benchmarks.ours_stream impala 100000

Same nets, envs, runners, rollouts, batches and coefficients; observation and value normalisation are turned off. Steps
per second count whole calls of `train()` after the first two.
"""

from algorithms import AlgorithmConfig
from algorithms.appo import APPOConfig
from algorithms.impala import IMPALAConfig
from benchmarks.jobs import STREAM_JOBS, StreamJob, main
from benchmarks.ours_ppo import timed
from catalog import DefaultModelConfig


def config(job: StreamJob, seed: int) -> AlgorithmConfig:
    """The job in our words."""
    model = DefaultModelConfig(
        fcnet_hiddens=(64, 64),
        fcnet_activation="tanh",
        vf_share_layers=False,
        normalize_observations=False,
        normalize_values=False,
    )
    config = IMPALAConfig() if job.algorithm == "impala" else APPOConfig().training(clip_param=job.clip_param)
    return (
        config.environment(job.env_id)
        .env_runners(
            num_env_runners=job.num_runners,
            num_envs_per_env_runner=job.num_envs,
            rollout_fragment_length=job.fragment,
        )
        .learners(num_learners=job.num_learners)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            lambda_=1.0,
            train_batch_size_per_learner=job.batch_size,
            minibatch_size=None,
            num_epochs=1,
            entropy_coeff=job.entropy_coeff,
            vf_loss_coeff=job.vf_loss_coeff,
            grad_clip=job.grad_clip,
        )
        .reporting(num_env_steps_per_iteration=2_000)
        .rl_module(model_config=model)
        .debugging(seed=seed)
    )


def train(job: StreamJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `benchmarks.ours_ppo.train`."""
    return timed(config(job, seed), total_steps)


if __name__ == "__main__":
    main(train, __doc__, STREAM_JOBS)
