"""PPO as one plain loop over tensors: what the arithmetic costs when there is no framework around it.

    python -m benchmarks.bare_ppo cartpole 60000

Everything that PPO needs is here and nothing else: all columns are stored, envs reset in the same step and give the
true final observation, one value pass covers the batch, its bootstrap rows and those final observations, then come GAE,
minibatches reshuffled every epoch, the clipped surrogate (Schulman et al. 2017, eq. 7), the squared value error,
entropy, clipping by the global norm and a fused Adam with eps 1e-5. Eager, on one CPU thread. Advantages are
standardised once over the whole batch, with the population's standard deviation (`unbiased=False`), not per minibatch.
"""

import time
from collections import deque
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.jobs import JOBS, WARM_UP, DQNJob, Job, SACJob, main

HALF_LOG_2PI = 0.9189385332046727

Finals = list[tuple[int, int, Tensor]]  # (step, env, observation): where episodes were cut off, and what was seen last


def gae(rewards: Tensor, values: Tensor, next_values: Tensor, ended: Tensor, gamma: float, lambda_: float) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), `[T, N]` like every argument.

    Args:
        rewards: What each step gave.
        values: The value of the observation before each step.
        next_values: That of the observation after it: 0 if the episode terminated, the true final observation's if it
            was truncated.
        ended: 1 where an episode ended either way, so that nothing flows back from the next one; else 0.
        gamma: Discount.
        lambda_: Between one-step errors (0) and whole returns (1).
    """
    deltas = (rewards + gamma * next_values - values).numpy()
    carry = (gamma * lambda_ * (1 - ended)).numpy()
    advantages = np.empty_like(deltas)
    running = np.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        running = deltas[t] + carry[t] * running
        advantages[t] = running
    return torch.from_numpy(advantages)


def mlp(num_in: int, num_out: int) -> nn.Sequential:
    """Two layers of 64 tanh units and a linear one."""
    return nn.Sequential(nn.Linear(num_in, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_out))


def num_inputs(env: VectorEnv) -> int:
    """How many numbers an observation has."""
    return int(np.prod(env.single_observation_space.shape or ()))


class Actor(nn.Module):
    """The policy net; of continuous actions it is the mean, with a free log standard deviation.

    Args:
        env: What it acts in.
        make: Makes the net, given the number of its inputs (those of an observation) and outputs.
    """

    def __init__(self, env: VectorEnv, make: Callable[[int, int], nn.Module] = mlp):
        super().__init__()
        space = env.single_action_space
        self.discrete = isinstance(space, gym.spaces.Discrete)
        num_out = int(space.n) if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape or ()))
        self.net = make(num_inputs(env), num_out)
        self.log_std = None if self.discrete else nn.Parameter(torch.zeros(num_out))

    def sample(self, out: Tensor) -> Tensor:
        """An action per row: Gumbel-max for discrete ones, mean plus scaled noise for continuous ones."""
        if self.log_std is None:
            return (out - torch.empty_like(out).exponential_().log()).argmax(-1)
        return out + self.log_std.exp() * torch.randn_like(out)

    def logp_entropy(self, out: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The log-density of `actions` and the entropy, per row, where the net gave `out`."""
        if self.log_std is None:
            logp = out.log_softmax(-1)
            return logp.gather(-1, actions.unsqueeze(-1)).squeeze(-1), -(logp.exp() * logp).sum(-1)
        z = (actions - out) / self.log_std.exp()
        entropy = (self.log_std + 0.5 + HALF_LOG_2PI).sum().expand(out.shape[:-1])
        return (-0.5 * z * z - self.log_std - HALF_LOG_2PI).sum(-1), entropy


class Storage:
    """The columns of one batch, `[T, N, …]`, and numpy views on those that the envs fill."""

    def __init__(self, env: VectorEnv, fragment: int):
        rows = (fragment, env.num_envs)
        space = env.single_action_space
        discrete = isinstance(space, gym.spaces.Discrete)
        self.obs = torch.zeros(*rows, *(env.single_observation_space.shape or ()))
        self.actions = torch.zeros(rows, dtype=torch.long) if discrete else torch.zeros(*rows, *(space.shape or ()))
        self.logp, self.rewards, self.terminated, self.truncated = (torch.zeros(rows) for _ in range(4))
        self.views = [column.numpy() for column in (self.rewards, self.terminated, self.truncated)]


def collect(
    env: SyncVectorEnv, actor: Actor, store: Storage, obs: Tensor, running: NDArray[np.float64], late: deque[float]
) -> tuple[Tensor, Finals]:
    """Fill `store`, from `obs` on; the observation after the last step and those that truncation would lose."""
    finals: Finals = []
    rewards, terminated, truncated = store.views
    low, high = (torch.from_numpy(b) for b in _bounds(env.single_action_space))
    with torch.inference_mode():
        for t in range(len(rewards)):
            out = actor.net(obs)
            action = actor.sample(out)
            store.obs[t] = obs
            store.actions[t] = action
            store.logp[t] = actor.logp_entropy(out, action)[0]
            sent = action if actor.discrete else torch.clamp(action, low, high)
            after, rewards[t], terminated[t], truncated[t], info = env.step(sent.numpy())
            running += rewards[t]
            ended = np.logical_or(terminated[t], truncated[t])
            if ended.any():
                for n in ended.nonzero()[0]:
                    late.append(float(running[n]))
                    running[n] = 0.0
                    if not terminated[t, n]:
                        finals.append((t, n, torch.from_numpy(info["final_obs"][n].astype(np.float32))))
            obs = torch.from_numpy(after.astype(np.float32))
    return obs, finals


def _bounds(space: gym.Space) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    none = np.zeros(0, np.float32)
    return (space.low, space.high) if isinstance(space, gym.spaces.Box) else (none, none)


def advantages_and_targets(
    job: Job, critic: nn.Module, store: Storage, obs: Tensor, finals: Finals
) -> tuple[Tensor, Tensor]:
    """Standardised advantages and value targets, both `[T, N]`, from one pass of the critic."""
    with torch.no_grad():
        rows = torch.cat([store.obs.flatten(0, 1), obs, *(final[None] for _, _, final in finals)])
        values, after = critic(rows).squeeze(-1).split([store.rewards.numel(), len(obs) + len(finals)])
    return estimate(job, store, values.view(store.rewards.shape), after, finals)


def estimate(job: Job, store: Storage, values: Tensor, after: Tensor, finals: Finals) -> tuple[Tensor, Tensor]:
    """Standardised advantages and value targets, both `[T, N]`.

    Args:
        job: Gives discount and lambda.
        store: What happened.
        values: Values of the observations, `[T, N]`.
        after: Those of the observations after the last step, then of the final ones, `[N + len(finals)]`.
        finals: Where those belong.
    """
    last, cut = after.split([values.shape[1], len(finals)])
    ended = torch.maximum(store.terminated, store.truncated)
    next_values = torch.cat([values[1:], last[None]]) * (1 - ended)
    for (t, n, _), value in zip(finals, cut, strict=True):
        next_values[t, n] = value
    advantages = gae(store.rewards, values, next_values, ended, job.gamma, job.lambda_)
    targets = advantages + values
    return (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8), targets


def update(job: Job, actor: Actor, critic: nn.Module, optimizer: torch.optim.Optimizer, columns: list[Tensor]) -> None:
    """All epochs over one batch; `columns` are obs, actions, old logp, advantages and value targets, `[B, …]`."""
    params = [*actor.parameters(), *critic.parameters()]
    for _ in range(job.num_epochs):
        for rows in torch.randperm(job.batch_size).split(job.minibatch_size):
            obs, actions, old_logp, advantages, targets = (column[rows] for column in columns)
            outputs = *actor.logp_entropy(actor.net(obs), actions), critic(obs).squeeze(-1)
            optimizer.zero_grad()
            loss(job, *outputs, old_logp, advantages, targets).backward()
            nn.utils.clip_grad_norm_(params, job.grad_clip)
            optimizer.step()


def loss(
    job: Job, logp: Tensor, entropy: Tensor, values: Tensor, old_logp: Tensor, advantages: Tensor, targets: Tensor
) -> Tensor:
    """What is minimised over rows of any shape: clipped surrogate, value error and entropy, weighted."""
    ratio = (logp - old_logp).exp()
    clipped = ratio.clamp(1 - job.clip_param, 1 + job.clip_param)
    surrogate = torch.min(ratio * advantages, clipped * advantages).mean()
    value_error = (values - targets).square().mean()
    return job.vf_loss_coeff * value_error - surrogate - job.entropy_coeff * entropy.mean()


def train(job: Job, total_steps: int, seed: int) -> dict[str, float]:
    """Train for `total_steps` env steps (at least one iteration more than the warm-up).

    Returns:
        `steps_per_s`, env steps per second after the warm-up, and `late_return`, the mean of the last 50 episodes (NaN
        if none ended).
    """
    env, obs = start(job, seed)
    actor, critic = Actor(env), mlp(num_inputs(env), 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=job.lr, eps=1e-5, fused=True)
    store = Storage(env, job.fragment)
    running, late = np.zeros(job.num_envs), deque[float](maxlen=50)

    def iteration() -> None:
        nonlocal obs
        obs, finals = collect(env, actor, store, obs, running, late)
        advantages, targets = advantages_and_targets(job, critic, store, obs, finals)
        columns = [store.obs, store.actions, store.logp, advantages, targets]
        update(job, actor, critic, optimizer, [column.flatten(0, 1) for column in columns])

    steps_per_s = timed(job, total_steps, iteration)
    env.close()
    return {"steps_per_s": steps_per_s, "late_return": round(float(np.mean(late)), 1) if late else float("nan")}


def start(job: Job | DQNJob | SACJob, seed: int) -> tuple[SyncVectorEnv, Tensor]:
    """Seed torch, keep it to one thread, and make the envs; they and their first observations."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = SyncVectorEnv([lambda: gym.make(job.env_id)] * job.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    return env, torch.from_numpy(env.reset(seed=seed)[0].astype(np.float32))


def timed(job: Job, total_steps: int, iteration: Callable[[], None]) -> float:
    """Env steps per second of as many iterations as make `total_steps`, after the warm-up."""
    iterations = max(WARM_UP + 1, -(-total_steps // job.batch_size))
    for _ in range(WARM_UP):
        iteration()
    started = time.perf_counter()
    for _ in range(iterations - WARM_UP):
        iteration()
    return round((iterations - WARM_UP) * job.batch_size / (time.perf_counter() - started), 1)


if __name__ == "__main__":
    main(train, __doc__, {name: job for name, job in JOBS.items() if job.seq_len is None})
