"""The jobs as CleanRL writes them: one file, one loop, nothing hidden. Our own words for its arithmetic and order.

    python -m benchmarks.peers.cleanrl cartpole 60000    # of an environment with requirements/cleanrl.txt

CleanRL is read, not imported, so there is nothing to install. What makes it differ from `benchmarks.bare_ppo`: envs
behind a wrapper that records episodes, tensors made of lists and arrays at every step, an actor and a critic called
apart for every step, distributions as objects, GAE as a loop over tensors, indices shuffled by NumPy, advantages
standardised per minibatch, and reports of the KL and clip fraction by `.item()` for every minibatch. For DQN: one ring
of arrays, a batch of new tensors for each update.
"""

import random
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from benchmarks.jobs import DQN_JOBS, JOBS, WARM_UP, DQNJob, Job, main


def layer(num_in: int, num_out: int, gain: float = 2**0.5) -> nn.Linear:
    """A dense layer that starts orthogonal."""
    linear = nn.Linear(num_in, num_out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(num_in: int, num_out: int, gain: float) -> nn.Sequential:
    """Two layers of 64 tanh units and a linear one."""
    return nn.Sequential(layer(num_in, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, num_out, gain))


class Agent(nn.Module):
    """Separate nets for actions and values."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        num_in = int(np.prod(envs.single_observation_space.shape or ()))
        space = envs.single_action_space
        self.discrete = isinstance(space, gym.spaces.Discrete)
        num_out = int(space.n) if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape or ()))
        self.critic, self.actor = mlp(num_in, 1, 1.0), mlp(num_in, num_out, 0.01)
        self.log_std = nn.Parameter(torch.zeros(1, num_out))

    def value(self, obs: Tensor) -> Tensor:
        """The value of each observation."""
        return self.critic(obs)

    def act(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """An action, new or given, its log-probability, the entropy and the value."""
        out = self.actor(obs)
        if self.discrete:
            choice = Categorical(logits=out)
            action = choice.sample() if action is None else action
            return action, choice.log_prob(action), choice.entropy(), self.critic(obs)
        normal = Normal(out, self.log_std.expand_as(out).exp())
        action = normal.sample() if action is None else action
        return action, normal.log_prob(action).sum(1), normal.entropy().sum(1), self.critic(obs)


def make_envs(job: Job | DQNJob, seed: int) -> gym.vector.SyncVectorEnv:
    """Envs that record their episodes, and clip continuous actions."""

    def make() -> gym.Env:
        env = gym.wrappers.RecordEpisodeStatistics(gym.make(job.env_id))
        return gym.wrappers.ClipAction(env) if isinstance(env.action_space, gym.spaces.Box) else env

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(job.num_threads)
    return gym.vector.SyncVectorEnv([make] * job.num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def note_episodes(info: dict, late: deque[float]) -> None:
    """Keep the returns of the episodes that ended."""
    if "final_info" in info and "episode" in info["final_info"]:
        episodes = info["final_info"]["episode"]
        late.extend(float(r) for r, ended in zip(episodes["r"], episodes["_r"], strict=True) if ended)


def ppo(job: Job, total_steps: int, seed: int) -> tuple[float, deque[float]]:
    """Steps per second after the warm-up, and the last returns."""
    envs = make_envs(job, seed)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=job.lr, eps=1e-5)
    rows = (job.fragment, job.num_envs)
    all_obs = torch.zeros(rows + (envs.single_observation_space.shape or ()))
    all_actions = torch.zeros(rows + (envs.single_action_space.shape or ()))
    all_logp, all_rewards, all_ended, all_values = (torch.zeros(rows) for _ in range(4))
    late, started, iterations = deque[float](maxlen=50), 0.0, max(WARM_UP + 1, -(-total_steps // job.batch_size))
    obs, ended = torch.Tensor(envs.reset(seed=seed)[0]), torch.zeros(job.num_envs)
    for iteration in range(iterations):
        if iteration == WARM_UP:
            started = time.perf_counter()
        for step in range(job.fragment):
            all_obs[step], all_ended[step] = obs, ended
            with torch.no_grad():
                action, logp, _, value = agent.act(obs)
                all_values[step] = value.flatten()
            all_actions[step], all_logp[step] = action, logp
            after, reward, terminated, truncated, info = envs.step(action.numpy())
            all_rewards[step] = torch.tensor(reward).view(-1)
            obs, ended = torch.Tensor(after), torch.Tensor(np.logical_or(terminated, truncated))
            note_episodes(info, late)
        with torch.no_grad():
            advantages, carry, following = torch.zeros(rows), torch.zeros(job.num_envs), agent.value(obs).flatten()
            going_on = 1.0 - ended
            for t in reversed(range(job.fragment)):
                delta = all_rewards[t] + job.gamma * following * going_on - all_values[t]
                advantages[t] = carry = delta + job.gamma * job.lambda_ * going_on * carry
                following, going_on = all_values[t], 1.0 - all_ended[t]
        columns = [all_obs, all_actions, all_logp, advantages, advantages + all_values]
        update(job, agent, optimizer, [column.flatten(0, 1) for column in columns])
    took = time.perf_counter() - started
    envs.close()
    return (iterations - WARM_UP) * job.batch_size / took, late


def update(job: Job, agent: Agent, optimizer: torch.optim.Optimizer, columns: list[Tensor]) -> list[float]:
    """All epochs over one batch; the clip fractions."""
    order, clip_fractions = np.arange(job.batch_size), []
    for _ in range(job.num_epochs):
        np.random.shuffle(order)
        for start in range(0, job.batch_size, job.minibatch_size):
            rows = order[start : start + job.minibatch_size]
            obs, actions, old_logp, advantages, targets = (column[rows] for column in columns)
            _, logp, entropy, value = agent.act(obs, actions)
            log_ratio = logp - old_logp
            ratio = log_ratio.exp()
            with torch.no_grad():
                ((ratio - 1) - log_ratio).mean()
                clip_fractions.append(((ratio - 1.0).abs() > job.clip_param).float().mean().item())
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            clipped = torch.clamp(ratio, 1 - job.clip_param, 1 + job.clip_param)
            policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
            value_loss = ((value.view(-1) - targets) ** 2).mean()
            loss = policy_loss - job.entropy_coeff * entropy.mean() + value_loss * job.vf_loss_coeff
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), job.grad_clip)
            optimizer.step()
    return clip_fractions


def dqn(job: DQNJob, total_steps: int, seed: int) -> tuple[float, deque[float]]:
    """Steps per second after the warm-up, and the last returns."""
    envs = make_envs(job, seed)
    num_in = int(np.prod(envs.single_observation_space.shape or ()))
    num_actions = int(envs.single_action_space.n)  # type: ignore[attr-defined]  # a Discrete

    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(num_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_actions))

    online, target = net(), net()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=job.lr)
    slots = job.capacity // job.num_envs
    kept_obs, kept_next = (np.zeros((slots, job.num_envs, num_in), np.float32) for _ in range(2))
    kept_actions = np.zeros((slots, job.num_envs), np.int64)
    kept_rewards, kept_ended = (np.zeros((slots, job.num_envs), np.float32) for _ in range(2))
    late, started, steps, place = deque[float](maxlen=50), 0.0, 0, 0
    obs, _ = envs.reset(seed=seed)
    while steps < max(total_steps, 2 * job.warm_up):
        if not started and steps >= job.warm_up:
            started = time.perf_counter()
        epsilon = max(1 + (job.final_epsilon - 1) * steps / job.explore_steps, job.final_epsilon)
        if random.random() < epsilon:
            actions = np.array([envs.single_action_space.sample() for _ in range(job.num_envs)])
        else:
            actions = online(torch.Tensor(obs)).argmax(1).numpy()
        after, rewards, terminated, truncated, info = envs.step(actions)
        note_episodes(info, late)
        true_after = after.copy()
        for n in np.flatnonzero(truncated):
            true_after[n] = info["final_obs"][n]
        at = place % slots
        kept_obs[at], kept_next[at], kept_actions[at] = obs, true_after, actions
        kept_rewards[at], kept_ended[at] = rewards, terminated
        obs, place, before, steps = after, place + 1, steps, steps + job.num_envs
        if steps < job.learning_starts:
            continue
        drawn = (
            np.random.randint(0, min(place, slots), job.batch_size),
            np.random.randint(0, job.num_envs, job.batch_size),
        )
        columns = (kept_obs, kept_actions, kept_rewards, kept_ended, kept_next)
        now, acted, rewarded, ended, following = (torch.tensor(column[drawn]) for column in columns)
        with torch.no_grad():
            goal = rewarded + job.gamma * target(following).max(1).values * (1 - ended)
        loss = nn.functional.mse_loss(goal, online(now).gather(1, acted[:, None]).squeeze())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if steps // job.target_update_freq > before // job.target_update_freq:
            for new, old in zip(online.parameters(), target.parameters(), strict=True):
                old.data.copy_(new.data)
    took = time.perf_counter() - started
    envs.close()
    return (steps - job.warm_up) / took, late


def train(job: Job | DQNJob, total_steps: int, seed: int) -> dict[str, float]:
    """The same as `benchmarks.bare_ppo.train` and `benchmarks.bare_dqn.train`."""
    steps_per_s, late = dqn(job, total_steps, seed) if isinstance(job, DQNJob) else ppo(job, total_steps, seed)
    return {"steps_per_s": round(steps_per_s, 1), "late_return": round(float(np.mean(late)), 1) if late else np.nan}


if __name__ == "__main__":
    main(train, __doc__, {**{name: job for name, job in JOBS.items() if job.seq_len is None}, **DQN_JOBS})
