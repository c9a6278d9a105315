"""Updates per second of IQL, TD3+BC and CQL next to bare loops with the same nets, batches and arithmetic.

    python -m benchmarks.bare_offline [--jobs iql td3_bc cql] [--pairs 5] [--rllib PYTHON]

The two take turns in one process on one thread, and RLlib's CQL takes turns with them in its own. The data are random:
only the speed counts.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from algorithms.iql import IQLConfig
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from benchmarks.offline import write_table
from benchmarks.run import child
from rlmodule import Dataset

OBS, ACT, ROWS, BATCH, WIDTH = 17, 6, 20_000, 256, 256
GAMMA, TAU, NUM_ACTIONS = 0.99, 0.005, 10


def random_data() -> Dataset:
    """Return episodes of random numbers, with the shapes of HalfCheetah's."""
    rng = np.random.default_rng(0)
    ends = np.arange(ROWS) % 1000 == 999
    return Dataset.from_arrays(
        rng.normal(size=(ROWS, OBS)).astype(np.float32),
        rng.uniform(-0.9, 0.9, (ROWS, ACT)).astype(np.float32),
        rng.normal(size=ROWS),
        terminals=ends,
        timeouts=None,
        action_space=gym.spaces.Box(-1, 1, (ACT,)),
    )


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a net with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )


class Loop:
    """The parts that the bare loops share: data, critics and optimizers.

    Args:
        dataset: The data.
        num_outputs: Outputs of the policy.
    """

    def __init__(self, dataset: Dataset, num_outputs: int) -> None:
        following = np.concatenate([dataset.observations[1:], dataset.observations[:1]])
        terminals = np.arange(ROWS) % 1000 == 999
        columns = dataset.observations, dataset.actions, dataset.rewards, following, terminals
        self.columns = [torch.from_numpy(np.asarray(column, np.float32)) for column in columns]
        self.actor = mlp(OBS, num_outputs)
        self.critics = nn.ModuleList([mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)])
        self.targets = copy.deepcopy(self.critics)
        self.optimizers = [
            torch.optim.Adam(net.parameters(), lr=3e-4, fused=True) for net in (self.actor, self.critics)
        ]

    def draw(self) -> list[Tensor]:
        """Return a batch."""
        rows = torch.randint(ROWS, (BATCH,))
        return [column[rows] for column in self.columns]

    def values(self, critics: Any, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values of the critics, ``[2, B]``."""
        x = torch.cat([obs, actions], -1)
        return torch.stack([critic(x).squeeze(-1) for critic in critics])

    def move_targets(self) -> None:
        """Move the target critics."""
        move(self.targets, self.critics)


def move(target: nn.Module, net: nn.Module) -> None:
    """Move a target net."""
    theirs, mine = list[Tensor](target.parameters()), list[Tensor](net.parameters())
    with torch.no_grad():
        torch._foreach_lerp_(theirs, mine, TAU)  # pyright: ignore[reportPrivateImportUsage]


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def bare_iql(dataset: Dataset, num_updates: int) -> None:
    """Train IQL."""
    loop, value, log_std = Loop(dataset, ACT), mlp(OBS, 1), nn.Parameter(torch.zeros(ACT))
    loop.optimizers[0].add_param_group({"params": [log_std]})
    of_value = torch.optim.Adam(value.parameters(), lr=3e-4, fused=True)
    for _ in range(num_updates):
        obs, actions, rewards, next_obs, terminals = loop.draw()
        with torch.no_grad():
            least = loop.values(loop.targets, obs, actions).amin(0)
            aims = rewards + GAMMA * (1 - terminals) * value(next_obs).squeeze(-1)
        advantages = least - value(obs).squeeze(-1)
        descend(of_value, (torch.where(advantages > 0, 0.7, 0.3) * advantages.square()).mean())
        values = loop.values(loop.critics, obs, actions)
        descend(loop.optimizers[1], mse_loss(values, aims.expand_as(values)))
        weights = (3 * advantages.detach()).exp().clamp(max=100)
        logp = torch.distributions.Normal(loop.actor(obs), log_std.exp(), validate_args=False).log_prob(actions).sum(-1)
        descend(loop.optimizers[0], -(weights * logp).mean())
        loop.move_targets()


def bare_td3_bc(dataset: Dataset, num_updates: int) -> None:
    """Train TD3+BC."""
    loop = Loop(dataset, ACT)
    target_actor = copy.deepcopy(loop.actor)
    for update in range(num_updates):
        obs, actions, rewards, next_obs, terminals = loop.draw()
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(actions)).clamp(-0.5, 0.5)
            following = (target_actor(next_obs).tanh() + noise).clamp(-1, 1)
            aims = rewards + GAMMA * (1 - terminals) * loop.values(loop.targets, next_obs, following).amin(0)
        values = loop.values(loop.critics, obs, actions)
        descend(loop.optimizers[1], mse_loss(values, aims.expand_as(values)))
        if update % 2 == 0:
            own = loop.actor(obs).tanh()
            q = loop.critics[0](torch.cat([obs, own], -1))
            descend(loop.optimizers[0], -2.5 * q.mean() / q.abs().mean().detach() + mse_loss(own, actions))
            loop.move_targets()
            move(target_actor, loop.actor)


def drawn(actor: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions of a squashed Gaussian and their log-probabilities."""
    mean, log_std = actor(obs).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False)
    before = normal.rsample()
    actions = before.tanh()
    return actions, (normal.log_prob(before) - (1 - actions.square() + 1e-6).log()).sum(-1)


def bare_cql(dataset: Dataset, num_updates: int) -> None:
    """Train SAC with the loss of CQL."""
    loop, log_alpha = Loop(dataset, 2 * ACT), nn.Parameter(torch.zeros(()))
    of_alpha = torch.optim.Adam([log_alpha], lr=3e-4, fused=True)
    for _ in range(num_updates):
        obs, actions, rewards, next_obs, terminals = loop.draw()
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            following, logp = drawn(loop.actor, next_obs)
            least = loop.values(loop.targets, next_obs, following).amin(0) - alpha * logp
            aims = rewards + GAMMA * (1 - terminals) * least
            many, many_next = (x.repeat_interleave(NUM_ACTIONS, 0) for x in (obs, next_obs))
            uniform = torch.rand(len(many), ACT) * 2 - 1
            parts = [(uniform, torch.full((len(many),), -ACT * math.log(2))), drawn(loop.actor, many)]
            parts.append(drawn(loop.actor, many_next))
        values = loop.values(loop.critics, obs, actions)
        others = [
            (loop.values(loop.critics, many, action) - density).unflatten(-1, (-1, NUM_ACTIONS))
            for action, density in parts
        ]
        gap = torch.cat(others, -1).logsumexp(-1) - values
        descend(loop.optimizers[1], mse_loss(values, aims.expand_as(values)) + 5 * gap.sum(0).mean())
        own, logp = drawn(loop.actor, obs)
        least = loop.values(loop.critics, obs, own).amin(0)
        descend(loop.optimizers[0], (alpha * logp - least).mean())
        descend(of_alpha, -(log_alpha * (logp.detach() - ACT)).mean())
        loop.move_targets()


def rllib_cql(dataset: Dataset, python: str) -> float:
    """Return the updates per second of RLlib's CQL."""
    with tempfile.TemporaryDirectory() as folder:
        write_table(dataset, Path(folder) / "steps.parquet")
        return child("-m", "benchmarks.peers.rllib_offline", "cql", folder, "20", python=python)["updates_per_s"]


_NETS = {"model_config": {"fcnet_hiddens": [WIDTH, WIDTH], "normalize_observations": False}}
JOBS: dict[str, tuple[Callable[[Dataset, int], None], Callable[..., Any], int]] = {
    "iql": (bare_iql, IQLConfig, 1000),
    "td3_bc": (bare_td3_bc, TD3Config.td3_bc, 1000),
    "cql": (bare_cql, SACConfig.cql, 50),
}
"""Name → bare loop, config and number of updates."""


def main() -> None:
    """Print the ratios of alternating runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rllib", help="interpreter of an environment that has RLlib")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = random_data()
    for job in args.jobs:
        bare, config, num_updates = JOBS[job]
        ratios = []
        of_rllib = []
        made = config(data=dataset, seed=1, torch_num_threads=1, num_updates_per_iteration=num_updates, **_NETS)
        with made.build() as algorithm:
            for pair in range(args.pairs + 1):
                begin = time.perf_counter()
                bare(dataset, num_updates)
                between = time.perf_counter()
                algorithm.learn(num_updates=num_updates)
                end = time.perf_counter()
                if pair:  # the first is a warm-up
                    ratios.append((between - begin) / (end - between))
                    rates = num_updates / (between - begin), num_updates / (end - between)
                    print(f"{job}: bare loop {rates[0]:,.1f}/s, ours {rates[1]:,.1f}/s", flush=True)
                    if args.rllib is not None and job == "cql":
                        rate = rllib_cql(dataset, args.rllib)
                        of_rllib.append(rates[1] / rate)
                        print(f"{job}: RLlib {rate:,.2f}/s, ratio {of_rllib[-1]:.1f}", flush=True)
        print(f"{job}: median ratio to the bare loop {statistics.median(ratios):.2f}", flush=True)
        if of_rllib:
            print(f"{job}: median ratio to RLlib {statistics.median(of_rllib):.1f}", flush=True)


if __name__ == "__main__":
    main()
