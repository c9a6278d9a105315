"""The jobs in RLlib, through its public interface.

    /path/to/python -m benchmarks.peers.rllib learners 60000    # of an environment with requirements/rllib.txt

Same env, nets, batch, minibatches, epochs and coefficients. Its DQN has a replay of episodes, the only kind that its
new stack takes. Pong is prepared by the wrappers that RLlib offers for it, one env at a time.
"""

import time
from importlib import import_module
from typing import Any

import torch

from benchmarks.jobs import (
    AGENTS_JOBS,
    DQN_JOBS,
    JOBS,
    PONG_JOBS,
    SHARED_JOBS,
    STREAM_JOBS,
    WARM_UP,
    DQNJob,
    Job,
    StreamJob,
    main,
)

STREAM_ITERATION = 2_000
"""Least env steps per iteration of algorithms that stream."""


def train(job: Job | DQNJob | StreamJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `benchmarks.ours_ppo.train`, `benchmarks.ours_dqn.train` and `benchmarks.ours_stream.train`."""
    torch.set_num_threads(job.num_threads)
    import_module("ray").init(include_dashboard=False, log_to_driver=False)
    config = {DQNJob: dqn, Job: ppo, StreamJob: stream}[type(job)](job)
    algorithm = config.debugging(seed=seed, log_level="ERROR").build_algo()
    steps = [0]
    result: dict[str, Any] = {}
    started = 0.0
    while steps[-1] < total_steps or len(steps) < WARM_UP + 2:
        if len(steps) == WARM_UP + 1:
            started = time.perf_counter()
        result = algorithm.train()
        steps.append(int(result["env_runners"]["num_env_steps_sampled_lifetime"]))
    took = time.perf_counter() - started
    algorithm.stop()
    return {
        "steps_per_s": round((steps[-1] - steps[WARM_UP]) / took, 1),
        "late_return": round(float(result["env_runners"].get("episode_return_mean", float("nan"))), 1),
    }


def ppo(job: Job) -> Any:
    """The job in their words."""
    parts = max(1, job.num_learners)
    config = (
        import_module("ray.rllib.algorithms.ppo")
        .PPOConfig()
        .environment(job.env_id)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=job.num_envs, rollout_fragment_length=job.fragment)
        .learners(num_learners=job.num_learners, num_cpus_per_learner=1)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            lambda_=job.lambda_,
            clip_param=job.clip_param,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            train_batch_size_per_learner=job.batch_size // parts,
            minibatch_size=job.minibatch_size // parts,
            num_epochs=job.num_epochs,
            entropy_coeff=job.entropy_coeff,
            vf_loss_coeff=job.vf_loss_coeff,
            grad_clip=job.grad_clip,
            grad_clip_by="global_norm",
        )
        .rl_module(model_config=_nets(job))
    )
    if job.num_agents > 1:
        return _with_agents(config, job)
    if not job.is_atari:
        return config
    stack = import_module("ray.rllib.connectors.env_to_module.frame_stacking").FrameStackingEnvToModule
    stack_to_learn = import_module("ray.rllib.connectors.learner.frame_stacking").FrameStackingLearner
    import_module("ray.tune.registry").register_env("prepared", _prepared)
    config.environment("prepared", env_config={"id": job.env_id}, clip_rewards=True)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: stack(num_frames=4))
    return config.training(learner_connector=lambda obs, act: stack_to_learn(num_frames=4))


def _with_agents(config: Any, job: Job) -> Any:
    envs = import_module("ray.rllib.examples.envs.classes.multi_agent")
    names = ["shared"] if job.shares_module else [f"of_{agent}" for agent in range(job.num_agents)]
    config.environment(envs.MultiAgentCartPole, env_config={"num_agents": job.num_agents})
    return config.multi_agent(
        policies=set(names),
        policy_mapping_fn=lambda agent, episode, **_: names[agent % len(names)],
    )


def _nets(job: Job) -> Any:
    model = import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig
    if job.is_atari:
        filters = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
        return model(conv_filters=filters, head_fcnet_hiddens=[512], conv_activation="relu", vf_share_layers=True)
    if job.seq_len is None:
        return model(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    memory = {"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": job.seq_len}
    return model(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=True, **memory)


def _prepared(env_config: dict[str, Any]) -> Any:
    """One env of frames 84 × 84, grey."""
    import_module("ale_py")  # which registers its environments
    wrap = import_module("ray.rllib.env.wrappers.atari_wrappers").wrap_atari_for_new_api_stack
    env = import_module("gymnasium").make(env_config["id"], frameskip=1)
    return wrap(env, dim=84, framestack=None)


def dqn(job: DQNJob) -> Any:
    """The job in their words."""
    model = import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig
    return (
        import_module("ray.rllib.algorithms.dqn")
        .DQNConfig()
        .environment(job.env_id)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=job.num_envs, rollout_fragment_length=1)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            double_q=True,
            dueling=False,
            n_step=1,
            td_error_loss_fn="huber",
            epsilon=[[0, 1.0], [job.explore_steps, job.final_epsilon]],
            train_batch_size_per_learner=job.batch_size,
            num_steps_sampled_before_learning_starts=job.learning_starts,
            target_network_update_freq=job.target_update_freq,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": job.capacity},
            grad_clip=job.grad_clip,
        )
        .reporting(min_sample_timesteps_per_iteration=job.warm_up // WARM_UP, min_time_s_per_iteration=0)
        .rl_module(model_config=model(fcnet_hiddens=[64, 64], fcnet_activation="relu", head_fcnet_hiddens=[]))
    )


def stream(job: StreamJob) -> Any:
    """The job in their words."""
    model = import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig
    config: Any = getattr(import_module(f"ray.rllib.algorithms.{job.algorithm}"), f"{job.algorithm.upper()}Config")()
    config.environment(job.env_id).env_runners(
        num_env_runners=job.num_runners,
        num_envs_per_env_runner=job.num_envs,
        rollout_fragment_length=job.fragment,
    ).learners(num_learners=job.num_learners, num_cpus_per_learner=1).training(
        lr=job.lr,
        gamma=job.gamma,
        train_batch_size_per_learner=job.batch_size,
        entropy_coeff=job.entropy_coeff,
        vf_loss_coeff=job.vf_loss_coeff,
        grad_clip=job.grad_clip,
        grad_clip_by="global_norm",
    ).rl_module(model_config=model(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)).reporting(
        min_sample_timesteps_per_iteration=STREAM_ITERATION, min_time_s_per_iteration=0
    )
    if job.algorithm == "appo":
        config.training(
            clip_param=job.clip_param,
            use_kl_loss=False,
            circular_buffer_num_batches=1,
            circular_buffer_iterations_per_batch=1,
        )
    return config


if __name__ == "__main__":
    main(train, __doc__, {**JOBS, **SHARED_JOBS, **DQN_JOBS, **PONG_JOBS, **AGENTS_JOBS, **STREAM_JOBS})
