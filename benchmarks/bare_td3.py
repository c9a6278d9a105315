"""TD3 as one plain loop over tensors: what the arithmetic costs when there is no framework around it.

    python -m benchmarks.bare_td3 td3-pendulum 10000

Everything that TD3 needs is here and nothing else: deterministic actions with noise, envs that reset in the same step
and give the true final observation, a ring of transitions, and one update per env step from rows drawn uniformly. An
update is the clipped double-Q target with noise on the target policy's actions, the loss of both critics, in every
second update that of the policy, too (Fujimoto et al. 2018, Algorithm 1), a fused Adam for each, and then a step of the
target nets. Both critics are one batched product per layer. Eager, on one CPU thread.
"""

import copy
import time
from collections import deque

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from benchmarks.bare_ppo import num_inputs, start
from benchmarks.bare_sac import WIDTH, Batch, Critics, FloatRing, collect
from benchmarks.jobs import TD3_JOBS, TD3Job, main


class Agent:
    """The nets and their optimizers.

    Args:
        num_in: Numbers of an observation.
        num_actions: Numbers of an action.
        lr: Learning rate of both.
    """

    def __init__(self, num_in: int, num_actions: int, lr: float):
        hidden = nn.Linear(num_in, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        self.policy = nn.Sequential(*hidden, nn.Linear(WIDTH, num_actions), nn.Tanh())
        self.critics, self.num_updates = Critics(num_in + num_actions), 0
        self.target_policy, self.target_critics = (
            copy.deepcopy(net).requires_grad_(False) for net in (self.policy, self.critics)
        )
        groups = [*self.critics.parameters()], [*self.policy.parameters()]
        self.of_critics, self.of_policy = (torch.optim.Adam(group, lr=lr, fused=True) for group in groups)
        targets = [*self.target_critics.parameters(), *self.target_policy.parameters()]
        self.moving = [p.detach() for p in targets], [p.detach() for group in groups for p in group]

    def critic_loss(self, job: TD3Job, batch: Batch, noise: Tensor) -> Tensor:
        """The squared errors of both critics; `noise` is standard normal, `[B, num_actions]`."""
        obs, actions, rewards, next_obs, terminated = batch
        with torch.no_grad():
            added = (job.target_noise * noise).clamp(-job.target_noise_clip, job.target_noise_clip)
            following = (self.target_policy(next_obs) + added).clamp(-1, 1)
            aims = rewards + job.gamma * (1 - terminated) * self.target_critics(next_obs, following).amin(0)
        return (self.critics(obs, actions) - aims).square().sum(0).mean()

    def update(self, job: TD3Job, batch: Batch, noise: Tensor) -> None:
        """One gradient step of the critics, and in every second of policy and target nets."""
        self.num_updates += 1
        loss, learns = self.critic_loss(job, batch, noise), self.num_updates % job.policy_delay == 0
        self.of_critics.zero_grad()
        if learns:
            self.of_policy.zero_grad()
            loss = loss - self.critics(batch[0], self.policy(batch[0]), frozen=True)[0].mean()
        loss.backward()
        self.of_critics.step()
        if learns:
            self.of_policy.step()
            torch._foreach_lerp_(*self.moving, job.tau)  # pyright: ignore[reportPrivateImportUsage]


def train(job: TD3Job, total_steps: int, seed: int) -> dict[str, float]:
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
        scale = 1.0 if steps < job.learning_starts else job.exploration_noise
        noise = torch.from_numpy(rng.standard_normal((job.num_envs, num_actions), np.float32))
        with torch.inference_mode():
            means = agent.policy(torch.from_numpy(obs).float())
            actions = torch.add(means, noise, alpha=scale).clamp(-1, 1).numpy()
        obs = collect(env, obs, actions, ring, running, late)
        steps += job.num_envs
        for _ in range(job.num_envs if steps >= job.learning_starts else 0):
            noise = rng.standard_normal((job.batch_size, num_actions), np.float32)
            agent.update(job, ring.sample(job.batch_size, rng), torch.from_numpy(noise))
    took = time.perf_counter() - started
    env.close()
    late_return = round(float(np.mean(late)), 1) if late else float("nan")
    return {"steps_per_s": round((steps - job.warm_up) / took, 1), "late_return": late_return}


if __name__ == "__main__":
    main(train, __doc__, TD3_JOBS)
