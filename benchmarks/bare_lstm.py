"""Recurrent PPO as one plain loop over tensors: the arithmetic of `bare_ppo` around a net with a memory.

    python -m benchmarks.bare_lstm lstm 60000

Policy and value head share two layers of 64 tanh units and an LSTM of 64 cells after them. Each env's state runs along
with it and is zeroed where an episode ends. Training uses sequences of `seq_len` steps, each resumed with the state
that was there when it was sampled, and zeroed again at the starts of episodes inside it; a minibatch has as many
sequences as make its rows. True final observations are valued with the state of their own episode.
"""

from collections import deque
from itertools import pairwise

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.bare_ppo import Actor, Finals, Storage, estimate, loss, num_inputs, start, timed
from benchmarks.jobs import JOBS, Job, main

CELLS = 64

State = tuple[Tensor, Tensor]  # hidden and cell, `[1, B, CELLS]` each, as `nn.LSTM` has them


class Net(nn.Module):
    """What both heads share, and the heads; actions are discrete."""

    def __init__(self, env: SyncVectorEnv):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(num_inputs(env), 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.core = nn.LSTM(64, CELLS)
        self.actor = Actor(env, lambda _, num_out: nn.Linear(CELLS, num_out))
        self.critic = nn.Linear(CELLS, 1)

    def step(self, obs: Tensor, state: State) -> tuple[Tensor, State]:
        """Latents `[B, CELLS]` of one observation of each row, and the states after it."""
        latent, state = self.core(self.body(obs)[None], state)
        return latent[0], state

    def unroll(self, obs: Tensor, goes_on: Tensor, state: State) -> Tensor:
        """Latents `[S, B, CELLS]` of sequences; the core runs in one call between steps at which any row starts again.

        Args:
            obs: `[S, B, …]`.
            goes_on: 0 where a step begins an episode, else 1, `[S, B]`; that of the first step is not looked at.
            state: Before the first step.
        """
        x, latents = self.body(obs), []
        begins = (goes_on[1:].amin(1) == 0).nonzero().flatten() + 1
        for begin, end in pairwise([0, *begins.tolist(), len(x)]):
            if begin:
                state = state[0] * goes_on[begin, :, None], state[1] * goes_on[begin, :, None]
            latent, state = self.core(x[begin:end], state)
            latents.append(latent)
        return torch.cat(latents)


class Memory(Storage):
    """Columns of one batch, and the states `[T / S, N, CELLS]` that its sequences resume with."""

    def __init__(self, env: SyncVectorEnv, job: Job):
        super().__init__(env, job.fragment)
        self.seq_len = job.seq_len or job.fragment
        self.hidden, self.cell = torch.zeros(2, job.fragment // self.seq_len, env.num_envs, CELLS)

    def goes_on(self) -> Tensor:
        """0 where an episode ended in the step before, else 1, `[T, N]`."""
        ended = torch.maximum(self.terminated, self.truncated)
        return 1 - torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])

    def fold(self, column: Tensor) -> Tensor:
        """`[T, N, …]` as sequences `[S, T / S · N, …]`."""
        return column.unflatten(0, (-1, self.seq_len)).transpose(0, 1).flatten(1, 2)

    def unfold(self, column: Tensor) -> Tensor:
        """`[S, T / S · N]` as `[T, N]`."""
        return column.unflatten(1, (-1, self.hidden.shape[1])).transpose(0, 1).flatten(0, 1)

    def states(self) -> State:
        """Those of the sequences in the order of `fold`."""
        return self.hidden.flatten(0, 1)[None], self.cell.flatten(0, 1)[None]


def collect(
    env: SyncVectorEnv,
    net: Net,
    store: Memory,
    obs: Tensor,
    state: State,
    running: NDArray[np.float64],
    late: deque[float],
) -> tuple[Tensor, State, Finals, list[State]]:
    """Fill `store`; as that of `bare_ppo`, and the states before `obs` and the final observations."""
    finals: Finals = []
    final_states: list[State] = []
    rewards, terminated, truncated = store.views
    with torch.inference_mode():
        for t in range(len(rewards)):
            if t % store.seq_len == 0:
                store.hidden[t // store.seq_len], store.cell[t // store.seq_len] = state[0][0], state[1][0]
            latent, state = net.step(obs, state)
            out = net.actor.net(latent)
            action = net.actor.sample(out)
            store.obs[t] = obs
            store.actions[t] = action
            store.logp[t] = net.actor.logp_entropy(out, action)[0]
            after, rewards[t], terminated[t], truncated[t], info = env.step(action.numpy())
            running += rewards[t]
            ended = np.logical_or(terminated[t], truncated[t])
            if ended.any():
                for n in ended.nonzero()[0]:
                    late.append(float(running[n]))
                    running[n] = 0.0
                    if not terminated[t, n]:
                        finals.append((t, n, torch.from_numpy(info["final_obs"][n].astype(np.float32))))
                        final_states.append((state[0][:, [n]], state[1][:, [n]]))
                    state[0][:, n] = state[1][:, n] = 0
            obs = torch.from_numpy(after.astype(np.float32))
    return obs, state, finals, final_states


def advantages_and_targets(
    job: Job, net: Net, store: Memory, obs: Tensor, state: State, finals: Finals, final_states: list[State]
) -> tuple[Tensor, Tensor]:
    """Standardised advantages and value targets, both `[T, N]`, from one pass over the sequences and one step more."""
    with torch.no_grad():
        latents = net.unroll(store.fold(store.obs), store.fold(store.goes_on()), store.states())
        rows = torch.cat([obs, *(final[None] for _, _, final in finals)])
        hidden, cell = (torch.cat(parts, 1) for parts in zip(state, *final_states, strict=True))
        after, _ = net.step(rows, (hidden, cell))
        values = store.unfold(net.critic(latents).squeeze(-1))
        return estimate(job, store, values, net.critic(after).squeeze(-1), finals)


def update(
    job: Job, net: Net, optimizer: torch.optim.Optimizer, columns: list[Tensor], goes_on: Tensor, states: State
) -> None:
    """All epochs over one batch of sequences; as that of `bare_ppo`, but `columns` are `[S, B, …]`."""
    params = [*net.parameters()]
    size = job.minibatch_size // len(goes_on)
    for _ in range(job.num_epochs):
        for rows in torch.randperm(goes_on.shape[1]).split(size):
            obs, actions, old_logp, advantages, targets = (column[:, rows] for column in columns)
            latent = net.unroll(obs, goes_on[:, rows], (states[0][:, rows], states[1][:, rows]))
            outputs = *net.actor.logp_entropy(net.actor.net(latent), actions), net.critic(latent).squeeze(-1)
            optimizer.zero_grad()
            loss(job, *outputs, old_logp, advantages, targets).backward()
            nn.utils.clip_grad_norm_(params, job.grad_clip)
            optimizer.step()


def train(job: Job, total_steps: int, seed: int) -> dict[str, float]:
    """Train for `total_steps` env steps (at least one iteration more than the warm-up).

    Returns:
        As `benchmarks.bare_ppo.train`.
    """
    env, obs = start(job, seed)
    net = Net(env)
    optimizer = torch.optim.Adam(net.parameters(), lr=job.lr, eps=1e-5, fused=True)
    store = Memory(env, job)
    state = torch.zeros(1, job.num_envs, CELLS), torch.zeros(1, job.num_envs, CELLS)
    running, late = np.zeros(job.num_envs), deque[float](maxlen=50)

    def iteration() -> None:
        nonlocal obs, state
        obs, state, finals, final_states = collect(env, net, store, obs, state, running, late)
        advantages, targets = advantages_and_targets(job, net, store, obs, state, finals, final_states)
        columns = [store.fold(x) for x in (store.obs, store.actions, store.logp, advantages, targets)]
        update(job, net, optimizer, columns, store.fold(store.goes_on()), store.states())

    steps_per_s = timed(job, total_steps, iteration)
    env.close()
    return {"steps_per_s": steps_per_s, "late_return": round(float(np.mean(late)), 1) if late else float("nan")}


if __name__ == "__main__":
    main(train, __doc__, {name: job for name, job in JOBS.items() if job.seq_len is not None})
