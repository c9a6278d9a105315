"""Connect four of PettingZoo: one policy plays both seats, its moves masked, and then plays against a random player.

The preset has one policy for both seats, flattens the board, and keeps the entropy high: a policy that always plays the
same moves against itself meets few positions.

Run it as ``python examples/multi_agent/connect_four.py``.
"""

from typing import Any

import numpy as np
import pettingzoo

from algorithms import Algorithm
from algorithms.ppo import PPOConfig

config = PPOConfig.preset("classic/connect_four-v3").debugging(seed=1)
rng = np.random.default_rng(1)


def play(algo: Algorithm, seat: str) -> float:
    """The reward of the policy in ``seat``, for a game against a player that draws its moves."""
    env: Any = pettingzoo.make("aec", "classic/connect_four-v3")
    state = None
    env.reset(seed=int(rng.integers(2**31)))
    while True:
        agent = env.agent_selection
        obs, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            return float(env.rewards[seat])
        if agent == seat:
            actions, state = algo.policies.act({agent: obs}, state)
            env.step(actions[agent])
        else:
            env.step(rng.choice(np.flatnonzero(obs["action_mask"])))


with config.build() as algo:
    for moves in (0, 40_000):
        if moves:
            algo.learn(num_env_steps=40_000, progress=True)
        for seat in ("player_0", "player_1"):
            print(f"{moves:,} moves, {seat}: wins {np.mean([play(algo, seat) == 1 for _ in range(50)]):.0%}")
