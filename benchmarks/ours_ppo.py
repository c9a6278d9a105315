"""The jobs of `bare_ppo` and `bare_lstm`, trained by `algorithms.ppo` through its public interface.

    python -m benchmarks.ours_ppo cartpole 60000
    python -m benchmarks.ours_ppo learners 60000    # with two learners, next to peers.rllib
    python -m benchmarks.ours_ppo agents-own 40000  # with four agents in each env, next to peers.rllib

Same nets, batch, minibatches, epochs and coefficients; what is not part of the bare arithmetic (observation and value
normalisation) is turned off. Steps per second count whole calls of `train()` after the first two. With several agents,
the steps are those of envs, and the return is the sum over agents.
"""

import time
from dataclasses import replace

from algorithms import AlgorithmConfig
from algorithms.ppo import PPOConfig
from benchmarks.jobs import AGENTS_JOBS, JOBS, PONG_JOBS, SHARED_JOBS, WARM_UP, Job, main
from catalog import DefaultModelConfig
from rlmodule.agents.cartpoles import CartPoles


def config(job: Job, seed: int) -> PPOConfig:
    """The job in our words."""
    model = DefaultModelConfig(
        fcnet_hiddens=(64, 64),
        fcnet_activation="tanh",
        vf_share_layers=job.seq_len is not None,
        free_log_std=True,
        normalize_observations=False,
        normalize_values=False,
        normalize_actions=False,
    )
    if job.seq_len is not None:
        model = replace(model, use_lstm=True, lstm_cell_size=64, max_seq_len=job.seq_len)
    if job.is_atari:
        model = replace(model, conv_filters="nature", vf_share_layers=True)
    parts = max(1, job.num_learners)
    config = (
        PPOConfig()
        .environment(job.env_id)
        .env_runners(num_envs_per_env_runner=job.num_envs)
        .learners(num_learners=job.num_learners, torch_num_threads=job.num_threads if job.is_atari else None)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            lambda_=job.lambda_,
            clip_param=job.clip_param,
            train_batch_size_per_learner=job.batch_size // parts,
            minibatch_size=job.minibatch_size // parts,
            num_epochs=job.num_epochs,
            entropy_coeff=job.entropy_coeff,
            vf_loss_coeff=job.vf_loss_coeff,
            grad_clip=job.grad_clip,
            clip_rewards="sign" if job.is_atari else None,
        )
        .rl_module(model_config=model)
        .debugging(seed=seed)
    )
    if job.num_agents > 1:
        config.environment(CartPoles, env_config={"num_agents": job.num_agents})
        config.multi_agent(policies="shared" if job.shares_module else "own")
    return config


def timed(config: AlgorithmConfig, total_steps: int) -> dict[str, float]:
    """Train for `total_steps` env steps (at least one iteration more than the warm-up); keys as those of `bare_ppo`."""
    with config.build() as algorithm:
        for _ in range(WARM_UP):
            algorithm.train()
        before = algorithm.env_steps
        started = time.perf_counter()
        result = algorithm.train()
        while algorithm.env_steps < total_steps:
            result = algorithm.train()
        took = time.perf_counter() - started
        steps = algorithm.env_steps - before
    return {
        "steps_per_s": round(steps / took, 1),
        "late_return": round(float(result["env_runners"]["episode_return_mean"]), 1),
    }


def train(job: Job, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `bare_ppo.train` and `bare_lstm.train`."""
    return timed(config(job, seed), total_steps)


if __name__ == "__main__":
    main(train, __doc__, JOBS | SHARED_JOBS | PONG_JOBS | AGENTS_JOBS)
