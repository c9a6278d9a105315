"""PPO from pixels as one plain loop: `bare_ppo`'s arithmetic with the CNN of Mnih et al. 2015 under both heads.

    python -m benchmarks.bare_pong pong 6000

What `bare_ppo` says of itself holds here, but for the threads that the job names. Frames are stored as bytes, and
rewards are learned from by their sign.
"""

from collections import deque
from math import sqrt
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from benchmarks.bare_ppo import Finals, Storage, estimate, loss, timed
from benchmarks.jobs import PONG_JOBS, Job, main


class Net(nn.Module):
    """Logits `[B, actions]` and values `[B]` of stacks of frames `[B, 4, H, W]`."""

    def __init__(self, env: Any):
        super().__init__()
        shape = env.single_observation_space.shape
        convs = nn.Conv2d(shape[0], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1)
        self.convs = nn.Sequential(*convs, nn.ReLU(), nn.Flatten())
        width = self.convs(torch.zeros(1, *shape)).shape[1]
        self.body = nn.Sequential(self.convs, nn.Linear(width, 512), nn.ReLU())
        self.pi, self.vf = nn.Linear(512, int(env.single_action_space.n)), nn.Linear(512, 1)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, {"pi.weight": 0.01, "vf.weight": 1.0}.get(name, sqrt(2)))

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.body(frames.contiguous(memory_format=torch.channels_last) / 255)
        return self.pi(latent), self.vf(latent).squeeze(-1)


def collect(
    env: Any, net: Net, store: Storage, obs: Tensor, running: np.ndarray, late: deque[float]
) -> tuple[Tensor, Finals]:
    """Fill `store`, from `obs` on; as that of `bare_ppo`."""
    finals: Finals = []
    rewards, terminated, truncated = store.views
    with torch.inference_mode():
        for t in range(len(rewards)):
            log_probs = net(obs)[0].log_softmax(-1)
            action = (log_probs - torch.empty_like(log_probs).exponential_().log()).argmax(-1)
            store.obs[t], store.actions[t] = obs, action
            store.logp[t] = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
            after, paid, terminated[t], truncated[t], info = env.step(action.numpy())
            rewards[t] = np.sign(paid)
            running += paid
            for n in np.logical_or(terminated[t], truncated[t]).nonzero()[0]:
                late.append(float(running[n]))
                running[n] = 0.0
                if not terminated[t, n]:
                    finals.append((t, n, torch.from_numpy(info["final_obs"][n])))
            obs = torch.from_numpy(after)
    return obs, finals


def update(job: Job, net: Net, optimizer: torch.optim.Optimizer, columns: list[Tensor]) -> None:
    """All epochs over one batch; `columns` as those of `bare_ppo`."""
    for _ in range(job.num_epochs):
        for rows in torch.randperm(job.batch_size).split(job.minibatch_size):
            obs, actions, old_logp, advantages, targets = (column[rows] for column in columns)
            logits, values = net(obs)
            log_probs = logits.log_softmax(-1)
            logp = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
            entropy = -(log_probs.exp() * log_probs).sum(-1)
            optimizer.zero_grad()
            loss(job, logp, entropy, values, old_logp, advantages, targets).backward()
            nn.utils.clip_grad_norm_(net.parameters(), job.grad_clip)
            optimizer.step()


def train(job: Job, total_steps: int, seed: int) -> dict[str, float]:
    """Train for `total_steps` env steps; returns as `benchmarks.bare_ppo.train`."""
    torch.set_num_threads(job.num_threads)
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"reward_clipping": False, "autoreset_mode": AutoresetMode.SAME_STEP}
    env: Any = gym.make_vec(f"ale_py:{job.env_id}", job.num_envs, "vector_entry_point", **settings)
    obs = torch.from_numpy(env.reset(seed=seed)[0])
    net, store = Net(env), Storage(env, job.fragment)
    store.obs = store.obs.to(torch.uint8)
    optimizer = torch.optim.Adam(net.parameters(), lr=job.lr, eps=1e-5, fused=True)
    running, late = np.zeros(job.num_envs), deque[float](maxlen=50)

    def iteration() -> None:
        nonlocal obs
        obs, finals = collect(env, net, store, obs, running, late)
        with torch.no_grad():
            rows = torch.cat([store.obs.flatten(0, 1), obs, *(final[None] for _, _, final in finals)])
            values, after = net(rows)[1].split([store.rewards.numel(), len(rows) - store.rewards.numel()])
            advantages, targets = estimate(job, store, values.view(store.rewards.shape), after, finals)
        columns = [store.obs, store.actions, store.logp, advantages, targets]
        update(job, net, optimizer, [column.flatten(0, 1) for column in columns])

    steps_per_s = timed(job, total_steps, iteration)
    env.close()
    return {"steps_per_s": steps_per_s, "late_return": round(float(np.mean(late)), 1) if late else float("nan")}


if __name__ == "__main__":
    main(train, __doc__, PONG_JOBS)
