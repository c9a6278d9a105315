"""The jobs in Stable-Baselines3 (and sb3-contrib for recurrent nets), through their public interface.

    /path/to/python -m benchmarks.peers.sb3 cartpole 60000    # of an environment with requirements/sb3.txt

Same env, nets, batch, minibatches, epochs and coefficients. Where it has no such setting its own way stands: it
standardises advantages per minibatch, and its Adam is not fused.
"""

import time
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.jobs import (
    DQN_JOBS,
    JOBS,
    PONG_JOBS,
    SAC_JOBS,
    TD3_JOBS,
    WARM_UP,
    DQNJob,
    Job,
    SACJob,
    TD3Job,
    main,
)


def train(job: Job | DQNJob | SACJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `benchmarks.ours_ppo.train`, `benchmarks.ours_dqn.train` and those of SAC and TD3."""
    torch.set_num_threads(job.num_threads)
    if isinstance(job, Job):
        model, warm_up = ppo(job, seed), WARM_UP * job.batch_size
    else:
        model = dqn(job, total_steps, seed) if isinstance(job, DQNJob) else sac_or_td3(job, seed)
        warm_up = job.warm_up
    clock = _clock(warm_up)
    model.learn(max(total_steps, 2 * warm_up), callback=clock)
    took = time.perf_counter() - clock.started
    late = [float(episode["r"]) for episode in model.ep_info_buffer][-50:]
    return {
        "steps_per_s": round((model.num_timesteps - clock.steps_before) / took, 1),
        "late_return": round(sum(late) / len(late), 1) if late else float("nan"),
    }


def ppo(job: Job, seed: int) -> Any:
    """The job in their words."""
    settings: dict[str, Any] = {
        "learning_rate": job.lr,
        "n_steps": job.fragment,
        "batch_size": job.minibatch_size,
        "n_epochs": job.num_epochs,
        "gamma": job.gamma,
        "gae_lambda": job.lambda_,
        "clip_range": job.clip_param,
        "ent_coef": job.entropy_coeff,
        "vf_coef": job.vf_loss_coeff,
        "max_grad_norm": job.grad_clip,
        "seed": seed,
        "device": "cpu",
    }
    env_util = import_module("stable_baselines3.common.env_util")
    if job.is_atari:
        import_module("ale_py")  # which registers its environments
        skips = {"frameskip": 1}  # its own wrapper skips, too
        atari = env_util.make_atari_env(job.env_id, n_envs=job.num_envs, seed=seed, env_kwargs=skips)
        env = import_module("stable_baselines3.common.vec_env").VecFrameStack(atari, n_stack=4)
        return import_module("stable_baselines3").PPO("CnnPolicy", env, **settings)
    env = env_util.make_vec_env(job.env_id, n_envs=job.num_envs, seed=seed)
    if job.seq_len is None:
        nets = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": nn.Tanh}
        return import_module("stable_baselines3").PPO("MlpPolicy", env, policy_kwargs=nets, **settings)
    # the LSTM reads the observation itself; there is no net before it
    nets = {"net_arch": [64, 64], "lstm_hidden_size": 64, "shared_lstm": True, "enable_critic_lstm": False}
    return import_module("sb3_contrib").RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=nets, **settings)


def dqn(job: DQNJob, total_steps: int, seed: int) -> Any:
    """The job in their words."""
    env = import_module("stable_baselines3.common.env_util").make_vec_env(job.env_id, n_envs=job.num_envs, seed=seed)
    return import_module("stable_baselines3").DQN(
        "MlpPolicy",
        env,
        learning_rate=job.lr,
        buffer_size=job.capacity,
        learning_starts=job.learning_starts,
        batch_size=job.batch_size,
        gamma=job.gamma,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=job.target_update_freq,
        exploration_fraction=min(1.0, job.explore_steps / total_steps),
        exploration_final_eps=job.final_epsilon,
        max_grad_norm=job.grad_clip,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": nn.ReLU},
        seed=seed,
        device="cpu",
    )


def sac_or_td3(job: SACJob, seed: int) -> Any:
    """The job in their words."""
    env = import_module("stable_baselines3.common.env_util").make_vec_env(job.env_id, n_envs=job.num_envs, seed=seed)
    settings: dict[str, Any] = {
        "learning_rate": job.lr,
        "buffer_size": job.capacity,
        "learning_starts": job.learning_starts,
        "batch_size": job.batch_size,
        "gamma": job.gamma,
        "tau": job.tau,
        "train_freq": 1,
        "gradient_steps": -1,  # as many updates as env steps
        "policy_kwargs": {"net_arch": [256, 256], "activation_fn": nn.ReLU},
        "seed": seed,
        "device": "cpu",
    }
    sb3 = import_module("stable_baselines3")
    if not isinstance(job, TD3Job):
        return sb3.SAC("MlpPolicy", env, **settings)
    noise = import_module("stable_baselines3.common.noise")
    size = env.action_space.shape[0]
    each = noise.NormalActionNoise(np.zeros(size), job.exploration_noise * np.ones(size))
    return sb3.TD3(
        "MlpPolicy",
        env,
        policy_delay=job.policy_delay,
        target_policy_noise=job.target_noise,
        target_noise_clip=job.target_noise_clip,
        action_noise=noise.VectorizedActionNoise(each, job.num_envs),
        **settings,
    )


def _clock(warm_up: int) -> Any:
    """A callback that notes when the first `warm_up` steps, and what was learned from them, are over."""

    class Clock(import_module("stable_baselines3.common.callbacks").BaseCallback):
        started = steps_before = 0.0

        def _on_rollout_start(self) -> None:
            if not self.started and self.num_timesteps >= warm_up:
                self.started, self.steps_before = time.perf_counter(), self.num_timesteps

        def _on_step(self) -> bool:
            return True

    return Clock()


if __name__ == "__main__":
    main(train, __doc__, {**JOBS, **DQN_JOBS, **PONG_JOBS, **SAC_JOBS, **TD3_JOBS})
