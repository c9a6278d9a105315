"""DQN as one plain loop over tensors: what the arithmetic costs when there is no framework around it.

    python -m benchmarks.bare_dqn dqn 40000

Everything that DQN needs is here and nothing else: epsilon-greedy actions, envs that reset in the same step and give
the true final observation, a ring of transitions, and one update per vector step from rows drawn uniformly. An update
is the double-Q target (van Hasselt et al. 2016, eq. 4) from a target net that is copied now and then, the Huber loss,
clipping by the global norm and a fused Adam. Eager, on one CPU thread.
"""

import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.spaces import Discrete
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.bare_ppo import num_inputs, start
from benchmarks.jobs import DQN_JOBS, DQNJob, main

Columns = tuple[Tensor, ...]  # observations, actions, rewards, next observations, 1 where the episode terminated


class Ring:
    """The last `capacity` transitions, stored as tensors and written through numpy views of them.

    Args:
        capacity: A multiple of the number of rows that are added at a time.
        num_inputs: Numbers in an observation.
    """

    def __init__(self, capacity: int, num_inputs: int):
        self.capacity, self.head, self.size = capacity, 0, 0
        self.columns: Columns = (
            torch.zeros(capacity, num_inputs),
            torch.zeros(capacity, dtype=torch.long),
            torch.zeros(capacity),
            torch.zeros(capacity, num_inputs),
            torch.zeros(capacity),
        )
        self.views = [column.numpy() for column in self.columns]

    def add(self, *rows: NDArray) -> None:
        """Overwrite the oldest transitions; `rows` are the columns of the new ones, in the order of `Columns`."""
        after = self.head + len(rows[0])
        for view, new in zip(self.views, rows, strict=True):
            view[self.head : after] = new
        self.size = max(self.size, after)
        self.head = after % self.capacity

    def sample(self, batch_size: int, rng: np.random.Generator) -> Columns:
        """Transitions drawn uniformly, with replacement."""
        rows = torch.from_numpy(rng.integers(0, self.size, batch_size))
        return tuple(column.index_select(0, rows) for column in self.columns)


def mlp(num_in: int, num_out: int) -> nn.Sequential:
    """Two layers of 64 ReLU units and a linear one."""
    return nn.Sequential(nn.Linear(num_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_out))


def choose(q: nn.Module, obs: NDArray, epsilon: float, num_actions: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Per env the best action, or with probability `epsilon` any."""
    with torch.inference_mode():
        actions = q(torch.from_numpy(obs)).argmax(-1).numpy()
    explores = rng.random(len(obs)) < epsilon
    return np.where(explores, rng.integers(0, num_actions, len(obs)), actions) if explores.any() else actions


def loss(job: DQNJob, q: nn.Module, target: nn.Module, columns: Columns) -> Tensor:
    """The mean Huber loss of the double-Q errors of a batch."""
    obs, actions, rewards, next_obs, terminated = columns
    with torch.no_grad():
        best = q(next_obs).argmax(-1, keepdim=True)
        aims = rewards + job.gamma * (1 - terminated) * target(next_obs).gather(-1, best).squeeze(-1)
    return F.smooth_l1_loss(q(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1), aims)


def update(
    job: DQNJob, q: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, params: list[Tensor], batch: Columns
) -> None:
    """One gradient step."""
    optimizer.zero_grad()
    loss(job, q, target, batch).backward()
    nn.utils.clip_grad_norm_(params, job.grad_clip)
    optimizer.step()


def collect(
    env: SyncVectorEnv,
    obs: NDArray,
    actions: NDArray[np.int64],
    ring: Ring,
    running: NDArray[np.float64],
    late: deque[float],
) -> NDArray:
    """One vector step into `ring`, from `obs` on; returns the next observations."""
    after, rewards, terminated, truncated, info = env.step(actions)
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


def train(job: DQNJob, total_steps: int, seed: int) -> dict[str, float]:
    """Train for `total_steps` env steps (at least one vector step more than the warm-up); keys as in `bare_ppo`."""
    env, first_obs = start(job, seed)
    space = env.single_action_space
    assert isinstance(space, Discrete)
    num_actions, rng = int(space.n), np.random.default_rng(seed)
    q, target = mlp(num_inputs(env), num_actions), mlp(num_inputs(env), num_actions)
    target.load_state_dict(q.state_dict())
    params: list[Tensor] = [*q.parameters()]
    optimizer = torch.optim.Adam(params, lr=job.lr, fused=True)
    ring, obs = Ring(job.capacity, num_inputs(env)), first_obs.numpy()
    running, late = np.zeros(job.num_envs), deque[float](maxlen=50)
    steps, copied, started = 0, 0, 0.0
    while steps < max(total_steps, job.warm_up + job.num_envs):
        if steps == job.warm_up:
            started = time.perf_counter()
        epsilon = max(job.final_epsilon, 1 - (1 - job.final_epsilon) * steps / job.explore_steps)
        obs = collect(env, obs, choose(q, obs, epsilon, num_actions, rng), ring, running, late)
        steps += job.num_envs
        if steps >= job.learning_starts:
            update(job, q, target, optimizer, params, ring.sample(job.batch_size, rng))
            if steps - copied >= job.target_update_freq:
                target.load_state_dict(q.state_dict())
                copied = steps
    took = time.perf_counter() - started
    env.close()
    late_return = round(float(np.mean(late)), 1) if late else float("nan")
    return {"steps_per_s": round((steps - job.warm_up) / took, 1), "late_return": late_return}


if __name__ == "__main__":
    main(train, __doc__, DQN_JOBS)
