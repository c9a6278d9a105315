"""The jobs in TorchRL, through its public interface.

    /path/to/python -m benchmarks.peers.torchrl cartpole 60000    # of an environment with requirements/torchrl.txt

Same env, nets, batch, minibatches, epochs and coefficients, put together as its own PPO and DQN examples do: a
collector over envs in one process, GAE on the batch, a replay buffer that draws minibatches without replacement.
"""

import time
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium as gym
import torch
from torch import nn
from torch.distributions import Categorical

from benchmarks.jobs import DQN_JOBS, JOBS, WARM_UP, DQNJob, Job, main


def make_env(env_id: str) -> Any:
    """One env, whose episodes are counted."""
    envs = import_module("torchrl.envs")
    env = envs.GymEnv(env_id, categorical_action_encoding=True)
    floats = [envs.DoubleToFloat(in_keys=["observation"])] * (
        env.observation_spec["observation"].dtype is torch.float64
    )
    return envs.TransformedEnv(env, envs.Compose(*floats, envs.RewardSum(), envs.StepCounter()))


def make_envs(job: Job | DQNJob, seed: int) -> Any:
    """All envs, one after the other in this process."""
    env = import_module("torchrl.envs").SerialEnv(job.num_envs, partial(make_env, job.env_id))
    env.set_seed(seed)
    return env


def mlp(num_in: int, num_out: int, activation: type[nn.Module]) -> nn.Module:
    """Two layers of 64 units and a linear one."""
    return import_module("torchrl.modules").MLP(num_in, num_out, num_cells=[64, 64], activation_class=activation)


def ppo(job: Job, total_steps: int, seed: int) -> tuple[float, float]:
    """Steps per second after the warm-up, and the mean return of the last episodes."""
    nets, td = import_module("torchrl.modules"), import_module("tensordict.nn")
    objectives, data = import_module("torchrl.objectives"), import_module("torchrl.data")
    env, space = make_envs(job, seed), gym.make(job.env_id)
    num_in = int(space.observation_space.shape[0])  # type: ignore[index]  # a Box
    is_discrete = isinstance(space.action_space, gym.spaces.Discrete)
    if isinstance(space.action_space, gym.spaces.Discrete):
        body, keys = mlp(num_in, int(space.action_space.n), nn.Tanh), ["logits"]
        how: dict[str, Any] = {"distribution_class": Categorical}
    else:
        num_out = int(space.action_space.shape[0])  # type: ignore[index]  # a Box
        body, keys = (
            nn.Sequential(mlp(num_in, num_out, nn.Tanh), td.AddStateIndependentNormalScale(num_out)),
            ["loc", "scale"],
        )
        bounds = {"low": torch.tensor(space.action_space.low), "high": torch.tensor(space.action_space.high)}  # type: ignore[attr-defined]
        how = {"distribution_class": nets.TanhNormal, "distribution_kwargs": {**bounds, "tanh_loc": False}}
    actor = nets.ProbabilisticActor(
        td.TensorDictModule(body, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=env.full_action_spec_unbatched.to("cpu"),
        return_log_prob=True,
        default_interaction_type=import_module("torchrl.envs").ExplorationType.RANDOM,
        **how,
    )
    critic = nets.ValueOperator(mlp(num_in, 1, nn.Tanh), in_keys=["observation"])
    advantages = objectives.value.GAE(
        gamma=job.gamma, lmbda=job.lambda_, value_network=critic, average_gae=True, vectorized=True
    )
    loss_of = objectives.ClipPPOLoss(
        actor_network=actor,
        critic_network=critic,
        clip_epsilon=job.clip_param,
        loss_critic_type="l2",
        entropy_coeff=job.entropy_coeff,
        critic_coeff=job.vf_loss_coeff,
        entropy_bonus=is_discrete or job.entropy_coeff > 0,
    )
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=job.lr, eps=1e-5)
    collector = import_module("torchrl.collectors").Collector(
        env, actor, frames_per_batch=job.batch_size, total_frames=-1, device="cpu"
    )
    buffer = data.TensorDictReplayBuffer(
        storage=data.LazyTensorStorage(job.batch_size),
        sampler=data.SamplerWithoutReplacement(),
        batch_size=job.minibatch_size,
    )
    iterations, started, late = max(WARM_UP + 1, -(-total_steps // job.batch_size)), 0.0, float("nan")
    collected = iter(collector)
    for iteration in range(iterations):
        if iteration == WARM_UP:
            started = time.perf_counter()
        batch = next(collected)
        ended = batch["next", "episode_reward"][batch["next", "done"]]
        late = float(ended[-50:].mean()) if len(ended) else late
        with torch.no_grad():
            advantages(batch)
        flat = batch.reshape(-1)
        for _ in range(job.num_epochs):
            buffer.empty()
            buffer.extend(flat)
            for _ in range(job.batch_size // job.minibatch_size):
                losses = loss_of(buffer.sample())
                parts = [losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy") if name in losses]
                loss = torch.stack(parts).sum()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_of.parameters(), job.grad_clip)
                optimizer.step()
    took = time.perf_counter() - started
    collector.shutdown()
    return (iterations - WARM_UP) * job.batch_size / took, late


def dqn(job: DQNJob, total_steps: int, seed: int) -> tuple[float, float]:
    """Steps per second after the warm-up, and the mean return of the last episodes."""
    nets, td = import_module("torchrl.modules"), import_module("tensordict.nn")
    objectives, data = import_module("torchrl.objectives"), import_module("torchrl.data")
    env, space = make_envs(job, seed), gym.make(job.env_id)
    num_in, num_out = int(space.observation_space.shape[0]), int(space.action_space.n)  # type: ignore
    spec = env.full_action_spec_unbatched.to("cpu")["action"]
    actor = nets.QValueActor(mlp(num_in, num_out, nn.ReLU), in_keys=["observation"], spec=spec)
    explore = nets.EGreedyModule(
        annealing_num_steps=job.explore_steps, eps_init=1.0, eps_end=job.final_epsilon, spec=spec
    )
    loss_of = objectives.DQNLoss(actor, loss_function="smooth_l1", delay_value=True, double_dqn=True)
    loss_of.make_value_estimator(gamma=job.gamma)
    update_target = objectives.HardUpdate(loss_of, value_network_update_interval=job.target_update_freq // job.num_envs)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=job.lr)
    collector = import_module("torchrl.collectors").Collector(
        env,
        td.TensorDictSequential(actor, explore),
        frames_per_batch=job.num_envs,
        total_frames=-1,
        init_random_frames=job.learning_starts,
        device="cpu",
    )
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(job.capacity), batch_size=job.batch_size)
    steps, started, late = 0, 0.0, float("nan")
    collected = iter(collector)
    while steps < max(total_steps, 2 * job.warm_up):
        if not started and steps >= job.warm_up:
            started = time.perf_counter()
        batch = next(collected).reshape(-1)
        ended = batch["next", "episode_reward"][batch["next", "done"]]
        late = float(ended.mean()) if len(ended) else late
        explore.step(batch.numel())
        buffer.extend(batch)
        steps += batch.numel()
        if steps < job.learning_starts:
            continue
        loss = loss_of(buffer.sample())["loss"]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(loss_of.parameters(), job.grad_clip)
        optimizer.step()
        update_target.step()
    took = time.perf_counter() - started
    collector.shutdown()
    return (steps - job.warm_up) / took, late


def train(job: Job | DQNJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `benchmarks.ours_ppo.train` and `benchmarks.ours_dqn.train`."""
    torch.manual_seed(seed)
    torch.set_num_threads(job.num_threads)
    steps_per_s, late = dqn(job, total_steps, seed) if isinstance(job, DQNJob) else ppo(job, total_steps, seed)
    return {"steps_per_s": round(steps_per_s, 1), "late_return": round(late, 1)}


if __name__ == "__main__":
    main(train, __doc__, {**{name: job for name, job in JOBS.items() if job.seq_len is None}, **DQN_JOBS})
