"""SAC as one plain loop over tensors: what the arithmetic costs when there is no framework around it.

    python -m benchmarks.bare_sac sac-pendulum 10000

Everything that SAC needs is here and nothing else: actions of a squashed Gaussian, envs that reset in the same step and
give the true final observation, a ring of transitions, and one update per env step from rows drawn uniformly. An update
is the soft target of two target critics, the losses of critics, policy and temperature (Haarnoja et al. 2018, "Soft
Actor-Critic Algorithms and Applications") in one backward pass, a fused Adam for each, and moved target critics.
Both critics are one batched product per layer. Eager, on one CPU thread.
"""

import copy
import math
import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.bare_dqn import Ring
from benchmarks.bare_ppo import HALF_LOG_2PI, num_inputs, start
from benchmarks.jobs import SAC_JOBS, SACJob, main

WIDTH = 256
LOG_2 = math.log(2)

Batch = tuple[Tensor, ...]  # observations, actions, rewards, next observations, 1 where the episode terminated


class Critics(nn.Module):
    """Two nets of observation and action, of two layers of 256 ReLU units each, with weights `[2, in, out]`."""

    def __init__(self, num_in: int):
        super().__init__()
        layers = [[nn.Linear(a, b) for _ in range(2)] for a, b in ((num_in, WIDTH), (WIDTH, WIDTH), (WIDTH, 1))]
        weights = [torch.stack([linear.weight.detach().T for linear in pair]).contiguous() for pair in layers]
        biases = [torch.stack([linear.bias.detach() for linear in pair]).unsqueeze(1) for pair in layers]
        self.weights, self.biases = nn.ParameterList(weights), nn.ParameterList(biases)

    def forward(self, obs: Tensor, actions: Tensor, frozen: bool = False) -> Tensor:
        """The values `[2, B]`; `frozen` gives a gradient to the actions alone."""
        x = torch.cat([obs, actions], -1).expand(2, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias.detach(), x, weight.detach()) if frozen else torch.baddbmm(bias, x, weight)
            x = x if i == 2 else F.relu(x)
        return x.squeeze(-1)


def policy_net(num_in: int, num_actions: int) -> nn.Sequential:
    """Two layers of 256 ReLU units, and means and log standard deviations."""
    return nn.Sequential(
        nn.Linear(num_in, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2 * num_actions)
    )


def draw(out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Squashed actions, and their log-densities."""
    mean, log_std = out.chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    before = mean + log_std.exp() * noise
    slope = 2 * (LOG_2 - before - F.softplus(-2 * before))
    logp = (-0.5 * noise.square() - log_std - HALF_LOG_2PI - slope).sum(-1)
    return before.tanh(), logp


class Agent:
    """The nets and their optimizers.

    Args:
        num_in: Numbers of an observation.
        num_actions: Numbers of an action.
        lr: Learning rate of all three.
    """

    def __init__(self, num_in: int, num_actions: int, lr: float):
        self.num_actions = num_actions
        self.policy, self.critics = policy_net(num_in, num_actions), Critics(num_in + num_actions)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        groups = [*self.policy.parameters()], [*self.critics.parameters()], [self.log_alpha]
        self.optimizers = [torch.optim.Adam(group, lr=lr, fused=True) for group in groups]
        self.moving = [[p.detach() for p in net.parameters()] for net in (self.target, self.critics)]

    def loss(self, job: SACJob, batch: Batch, noise: Tensor) -> Tensor:
        """The sum of the losses of critics, policy and temperature; `noise` is `[2, B, num_actions]`."""
        obs, actions, rewards, next_obs, terminated = batch
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            following, logp = draw(self.policy(next_obs), noise[1])
            soft = self.target(next_obs, following).amin(0) - alpha * logp
            aims = rewards + job.gamma * (1 - terminated) * soft
        critic_loss = 0.5 * (self.critics(obs, actions) - aims).square().sum(0).mean()
        drawn, logp = draw(self.policy(obs), noise[0])
        policy_loss = (alpha * logp - self.critics(obs, drawn, frozen=True).amin(0)).mean()
        alpha_loss = (self.log_alpha * (self.num_actions - logp.detach())).mean()
        return critic_loss + policy_loss + alpha_loss

    def update(self, job: SACJob, batch: Batch, noise: Tensor) -> None:
        """One gradient step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.loss(job, batch, noise).backward()
        for optimizer in self.optimizers:
            optimizer.step()
        theirs, mine = self.moving
        torch._foreach_lerp_(theirs, mine, job.tau)  # pyright: ignore[reportPrivateImportUsage]


class FloatRing(Ring):
    """A `Ring` whose actions are vectors of floats."""

    def __init__(self, capacity: int, num_inputs: int, num_actions: int):
        super().__init__(capacity, num_inputs)
        obs, _, *others = self.columns
        self.columns = (obs, torch.zeros(capacity, num_actions), *others)
        self.views = [column.numpy() for column in self.columns]


def collect(
    env: SyncVectorEnv, obs: NDArray, actions: NDArray, ring: Ring, running: NDArray[np.float64], late: deque[float]
) -> NDArray:
    """One vector step into `ring`, from `obs` on; `actions` lie in (-1, 1). Returns the next observations."""
    space = env.single_action_space
    assert isinstance(space, Box)
    after, rewards, terminated, truncated, info = env.step(actions * space.high)
    running += rewards
    true_after, ended = after, terminated | truncated
    if ended.any():
        true_after = after.copy()
        for n in ended.nonzero()[0]:
            true_after[n] = info["final_obs"][n]
            late.append(float(running[n]))
            running[n] = 0.0
    ring.add(obs, actions, rewards, true_after, terminated)
    return after


def train(job: SACJob, total_steps: int, seed: int) -> dict[str, float]:
    """Train for `total_steps` env steps (at least one vector step more than the warm-up); keys as in `bare_ppo`."""
    env, first_obs = start(job, seed)
    space = env.single_action_space
    assert isinstance(space, Box)
    num_actions, rng = int(np.prod(space.shape)), np.random.default_rng(seed)
    agent = Agent(num_inputs(env), num_actions, job.lr)
    ring, obs = FloatRing(job.capacity, num_inputs(env), num_actions), first_obs.numpy()
    running, late = np.zeros(job.num_envs), deque[float](maxlen=50)
    steps, started = 0, 0.0
    while steps < max(total_steps, job.warm_up + job.num_envs):
        if steps == job.warm_up:
            started = time.perf_counter()
        noise = torch.from_numpy(rng.standard_normal((job.num_envs, num_actions), np.float32))
        with torch.inference_mode():
            mean, log_std = agent.policy(torch.from_numpy(obs).float()).chunk(2, -1)
            actions = torch.addcmul(mean, log_std.clamp(-20, 2).exp(), noise).tanh().numpy()
        obs = collect(env, obs, actions, ring, running, late)
        steps += job.num_envs
        for _ in range(job.num_envs if steps >= job.learning_starts else 0):
            noise = rng.standard_normal((2, job.batch_size, num_actions), np.float32)
            agent.update(job, ring.sample(job.batch_size, rng), torch.from_numpy(noise))
    took = time.perf_counter() - started
    env.close()
    late_return = round(float(np.mean(late)), 1) if late else float("nan")
    return {"steps_per_s": round((steps - job.warm_up) / took, 1), "late_return": late_return}


if __name__ == "__main__":
    main(train, __doc__, SAC_JOBS)
