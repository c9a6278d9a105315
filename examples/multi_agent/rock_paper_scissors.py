"""Rock, paper, scissors in a league: the strategy moves on and on, and its average over the run plays each a third.

Against past selves a policy must not give any move away: what it plays too often, a later version beats. The latest
strategy never rests, but the average of all of them approaches the equilibrium.

Run it as ``python examples/multi_agent/rock_paper_scissors.py``.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from algorithms import League
from algorithms.ppo import PPOConfig
from rlmodule.agents import MultiAgentEnv


class RockPaperScissors(MultiAgentEnv):
    """Two players show a move at the same time. The winner gets 1, the loser -1."""

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.observation_spaces = {agent: spaces.Box(0.0, 1.0, (1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(3) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return dict.fromkeys(self.possible_agents, np.ones(1, np.float32)), {}

    def step(self, actions: dict[str, int]) -> Any:
        won = (0.0, 1.0, -1.0)[(actions["left"] - actions["right"]) % 3]
        return self.reset()[0], {"left": won, "right": -won}, {"__all__": True}, {}, {}


strategies = list[np.ndarray]()


def note_strategy(algorithm: Any, result: dict[str, Any]) -> None:
    logits = algorithm.get_module().forward_inference({"obs": torch.ones(1, 1)})["action_dist_inputs"]
    strategies.append(logits[0].softmax(-1).numpy())


config = (
    PPOConfig(env=RockPaperScissors, seed=1, num_envs_per_env_runner=32)
    .multi_agent(policies="shared", league=League(every=1, max_snapshots=10, self_play=0.0, newest=0.0, power=1.0))
    .training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=4, lr=0.01, entropy_coeff=0.2)
    .rl_module(model_config={"fcnet_hiddens": [8]})
    .callbacks(on_train_result=note_strategy)
)
with config.build() as algo:
    algo.learn(num_env_steps=12_800)
for move, share in zip(("rock", "paper", "scissors"), np.mean(strategies, 0), strict=True):
    print(f"{move}: {share:.2f}")
