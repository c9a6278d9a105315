"""Rock, paper, scissors against past selves: no single strategy wins, and the average over the run plays each a third.

Against itself alone, a policy chases its own tail: paper beats yesterday's rock, then scissors beat paper. In a league
it has to do well against all its earlier versions. The average of its strategies approaches the equilibrium, although
the latest one keeps moving.

Run it as ``python examples/multi_agent/rock_paper_scissors.py``.
"""

import argparse
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from algorithms.league import League
from algorithms.ppo import PPOConfig
from rlmodule.agents import MultiAgentEnv

MOVES = ("rock", "paper", "scissors")


class RockPaperScissors(MultiAgentEnv):
    """Two players show a move at the same time. The winner gets 1, the loser -1."""

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.observation_spaces = {agent: spaces.Box(0.0, 1.0, (1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(3) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._observe(), {}

    def step(self, actions: dict[str, int]) -> Any:
        won = (0.0, 1.0, -1.0)[(actions["left"] - actions["right"]) % 3]
        return self._observe(), {"left": won, "right": -won}, {"__all__": True}, {}, {}

    def _observe(self) -> dict[str, np.ndarray]:
        return {agent: np.ones(1, np.float32) for agent in self.possible_agents}


def average_strategy(num_iterations: int, seed: int) -> np.ndarray:
    """Train in a league. Return the probability of each move, averaged over all iterations."""
    config = (
        PPOConfig()
        .environment(RockPaperScissors)
        .env_runners(num_envs_per_env_runner=32)
        .multi_agent(policies="shared", league=League(every=1, max_snapshots=20, self_play=0.0, newest=0.0, power=1.0))
        .training(train_batch_size_per_learner=256, minibatch_size=64, num_epochs=4, lr=0.01, entropy_coeff=0.1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=seed)
    )
    strategies = list[np.ndarray]()
    with config.build() as algo:
        for _ in range(num_iterations):
            algo.train()
            logits = algo.get_module().forward_inference({"obs": torch.ones(1, 1)})["action_dist_inputs"]
            strategies.append(logits[0].softmax(-1).numpy())
    return np.mean(strategies, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=150)
    found = average_strategy(parser.parse_args().iterations, seed=1)
    print(", ".join(f"{move} {share:.2f}" for move, share in zip(MOVES, found, strict=True)))
