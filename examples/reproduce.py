"""Reproduce a run bit by bit from its seed, go on from its checkpoint, and report several seeds.

Run it as ``python examples/reproduce.py``.
"""

from math import sqrt
from statistics import mean, stdev

import torch

from algorithms import Algorithm
from algorithms.ppo import PPOConfig

T_95 = {3: 4.303, 5: 2.776, 10: 2.262}
"""Student's t by number of seeds: the mean ± t · deviation / √n is the 95 % confidence interval of the mean."""

config = PPOConfig().environment("CartPole-v1").evaluation(evaluation_duration=50)


def weights(algo: Algorithm) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in algo.get_module().parameters()])


def trained(seed: int) -> torch.Tensor:
    with config.copy().debugging(seed=seed).build() as algo:
        algo.learn(num_env_steps=4096)
        algo.save(f"runs/reproduce/seed-{seed}")
        return weights(algo)


def gone_on(seed: int) -> torch.Tensor:
    with Algorithm.from_checkpoint(f"runs/reproduce/seed-{seed}") as algo:
        algo.learn(num_env_steps=4096)
        return weights(algo)


print("the same seed twice, equal weights:   ", torch.equal(trained(seed=1), trained(seed=1)))
print("another seed, equal weights:          ", torch.equal(trained(seed=1), trained(seed=2)))
print("gone on from a checkpoint twice, equal:", torch.equal(gone_on(seed=1), gone_on(seed=1)))

returns = []
for seed in (1, 2, 3, 4, 5):
    with config.copy().debugging(seed=seed).build() as algo:
        algo.learn(num_env_steps=12_000, progress=True)
        returns.append(algo.evaluate()["env_runners"]["episode_return_mean"])
interval = T_95[len(returns)] * stdev(returns) / sqrt(len(returns))
print(f"evaluations after 12,000 steps: {', '.join(f'{x:.1f}' for x in returns)}")
print(f"mean and 95 % confidence interval over {len(returns)} seeds: {mean(returns):.1f} ± {interval:.1f}")
