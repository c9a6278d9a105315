"""PPO on thousands of carts in one tensor as one plain loop: `bare_ppo`'s arithmetic without copies to arrays.

    python -m benchmarks.bare_tensors carts 500000

Steps per second are env steps per second of CPU time.
"""

import itertools
from typing import Any

import torch
from torch import nn

from benchmarks.bare_ppo import Actor, Finals, Storage, advantages_and_targets, update
from benchmarks.jobs import TENSOR_JOBS, TensorJob, main
from benchmarks.tensor_envs import Carts, timed


def mlp(job: TensorJob, num_in: int, num_out: int) -> nn.Sequential:
    """Layers of ELU units and a linear one."""
    sizes = [num_in, *job.hiddens]
    hidden = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ELU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], num_out))


def train(job: TensorJob, total_steps: int, seed: int) -> dict[str, Any]:
    """The same as `ours_tensors.train`."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = Carts(job.num_envs)
    obs, _ = env.reset(seed=seed)
    actor, critic = Actor(env, lambda num_in, num_out: mlp(job, num_in, num_out)), mlp(job, obs.shape[1], 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=job.lr, eps=1e-5, fused=True)
    store = Storage(env, job.fragment)

    def iteration() -> float:
        nonlocal obs
        finals: Finals = []
        with torch.inference_mode():
            for t in range(job.fragment):
                out = actor.net(obs)
                action = actor.sample(out)
                store.obs[t], store.actions[t] = obs, action
                store.logp[t] = actor.logp_entropy(out, action)[0]
                obs, store.rewards[t], terminated, truncated, info = env.step(action)
                store.terminated[t], store.truncated[t] = terminated, truncated
                finals += [(t, slot, info["final_obs"][slot]) for slot in truncated.nonzero()[:, 0].tolist()]
        advantages, targets = advantages_and_targets(job, critic, store, obs, finals)
        columns = [store.obs, store.actions, store.logp, advantages, targets]
        update(job, actor, critic, optimizer, [column.flatten(0, 1) for column in columns])
        return env.mean_return()

    return timed(job, total_steps, iteration)


if __name__ == "__main__":
    main(train, __doc__, TENSOR_JOBS)
