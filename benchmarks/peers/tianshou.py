"""The jobs in Tianshou, through its public interface.

    /path/to/python -m benchmarks.peers.tianshou cartpole 60000    # of an environment with requirements/tianshou.txt

Same env, nets, batch, minibatches, epochs and coefficients; envs in one process (`DummyVectorEnv`, as its examples
have it for small ones).
"""

import time
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from benchmarks.jobs import DQN_JOBS, JOBS, WARM_UP, DQNJob, Job, main


class Clock:
    """Notes when the first `warm_up` steps, and what was learned from them, are over."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up, self.started, self.steps_before = warm_up, 0.0, 0

    def __call__(self, epoch: int, steps: int) -> None:
        if not self.started and steps >= self.warm_up:
            self.started, self.steps_before = time.perf_counter(), steps


def train(job: Job | DQNJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `benchmarks.ours_ppo.train` and `benchmarks.ours_dqn.train`."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(job.num_threads)
    clock = Clock(job.warm_up if isinstance(job, DQNJob) else WARM_UP * job.batch_size)
    each = [gym.wrappers.RecordEpisodeStatistics(gym.make(job.env_id), buffer_length=6) for _ in range(job.num_envs)]
    envs = import_module("tianshou.env").DummyVectorEnv([partial(_same, env) for env in each])
    envs.seed(seed)
    spaces, steps = (each[0].observation_space, each[0].action_space), max(total_steps, 2 * clock.warm_up)
    if isinstance(job, DQNJob):
        result = dqn(job, envs, *spaces, steps, clock)
    else:
        result = ppo(job, envs, *spaces, steps, clock)
    took = time.perf_counter() - clock.started
    late = [episode for env in each for episode in env.return_queue]
    envs.close()
    return {
        "steps_per_s": round((result.train_step - clock.steps_before) / took, 1),
        "late_return": round(float(np.mean(late)), 1) if late else float("nan"),
    }


def _same(env: gym.Env) -> gym.Env:
    return env


def net(observation_space: gym.Space, activation: type[nn.Module], num_out: int = 0) -> Any:
    """Two layers of 64 units, and a linear one if it has outputs."""
    common = import_module("tianshou.utils.net.common")
    shape = observation_space.shape
    return common.Net(state_shape=shape, action_shape=num_out, hidden_sizes=[64, 64], activation=activation)


def normal(mean_and_std: tuple[torch.Tensor, torch.Tensor]) -> Distribution:
    """Independent normal distributions."""
    return Independent(Normal(*mean_and_std), 1)


def logits(values: torch.Tensor) -> Distribution:
    """A categorical distribution."""
    return Categorical(logits=values)


def ppo(job: Job, envs: Any, observation_space: gym.Space, action_space: gym.Space, steps: int, clock: Clock) -> Any:
    """The job in their words."""
    modelfree = "tianshou.algorithm.modelfree"
    is_discrete = isinstance(action_space, gym.spaces.Discrete)
    kind = import_module(f"tianshou.utils.net.{'discrete' if is_discrete else 'continuous'}")
    body, critic_body = net(observation_space, nn.Tanh), net(observation_space, nn.Tanh)
    if is_discrete:
        actor = kind.DiscreteActor(preprocess_net=body, action_shape=action_space.n, softmax_output=False)
        critic = kind.DiscreteCritic(preprocess_net=critic_body)
    else:
        actor = kind.ContinuousActorProbabilistic(preprocess_net=body, action_shape=action_space.shape, unbounded=True)
        critic = kind.ContinuousCritic(preprocess_net=critic_body)
    policy = import_module(f"{modelfree}.reinforce").ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=logits if is_discrete else normal,
        action_space=action_space,
        action_scaling=False,
        action_bound_method=None if is_discrete else "clip",
    )
    algorithm = import_module(f"{modelfree}.ppo").PPO(
        policy=policy,
        critic=critic,
        optim=import_module("tianshou.algorithm.optim").AdamOptimizerFactory(lr=job.lr, eps=1e-5),
        eps_clip=job.clip_param,
        vf_coef=job.vf_loss_coeff,
        ent_coef=job.entropy_coeff,
        max_grad_norm=job.grad_clip,
        gae_lambda=job.lambda_,
        gamma=job.gamma,
        max_batchsize=job.batch_size,
    )
    data = import_module("tianshou.data")
    params = import_module("tianshou.trainer").OnPolicyTrainerParams(
        training_collector=data.Collector(algorithm, envs, data.VectorReplayBuffer(job.batch_size, job.num_envs)),
        max_epochs=1,
        epoch_num_steps=steps,
        collection_step_num_env_steps=job.batch_size,
        update_step_num_repetitions=job.num_epochs,
        batch_size=job.minibatch_size,
        training_fn=clock,
        test_collector=None,
        verbose=False,
        show_progress=False,
    )
    return algorithm.run_training(params)


def dqn(job: DQNJob, envs: Any, observation_space: gym.Space, action_space: Any, steps: int, clock: Clock) -> Any:
    """The job in their words."""
    modelfree = import_module("tianshou.algorithm.modelfree.dqn")
    policy = modelfree.DiscreteQLearningPolicy(
        model=net(observation_space, nn.ReLU, int(action_space.n)), action_space=action_space, eps_training=1.0
    )
    algorithm = modelfree.DQN(
        policy=policy,
        optim=import_module("tianshou.algorithm.optim").AdamOptimizerFactory(lr=job.lr),
        gamma=job.gamma,
        is_double=True,
        huber_loss_delta=1.0,
        target_update_freq=job.target_update_freq // job.num_envs,  # counted in updates
    )
    data = import_module("tianshou.data")
    buffer = data.VectorReplayBuffer(job.capacity, job.num_envs)
    collector = data.Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=job.learning_starts, random=True)

    def explore_less(epoch: int, taken: int) -> None:
        policy.set_eps_training(max(1 + (job.final_epsilon - 1) * taken / job.explore_steps, job.final_epsilon))
        clock(epoch, taken)

    params = import_module("tianshou.trainer").OffPolicyTrainerParams(
        training_collector=collector,
        max_epochs=1,
        epoch_num_steps=steps,
        collection_step_num_env_steps=job.num_envs,
        update_step_num_gradient_steps_per_sample=1 / job.num_envs,
        batch_size=job.batch_size,
        training_fn=explore_less,
        test_collector=None,
        verbose=False,
        show_progress=False,
    )
    return algorithm.run_training(params)


if __name__ == "__main__":
    main(train, __doc__, {**{name: job for name, job in JOBS.items() if job.seq_len is None}, **DQN_JOBS})
