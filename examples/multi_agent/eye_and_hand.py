"""Agents with different spaces: one sees an image and chooses a word, the other hears it and moves continuously.

Run it as ``python examples/multi_agent/eye_and_hand.py``.
"""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from algorithms.ppo import PPOConfig
from rlmodule import RLModuleSpec
from rlmodule.agents import MultiAgentEnv

SIZE = 16


class EyeAndHand(MultiAgentEnv):
    """A light shines in one of four corners. The eye names the corner, the hand moves to it."""

    possible_agents = ("eye", "hand")

    def __init__(self) -> None:
        self.observation_spaces = {"eye": Box(0, 255, (SIZE, SIZE, 1), np.uint8), "hand": Box(-1, 1, (6,))}
        self.action_spaces = {"eye": Discrete(4), "hand": Box(-0.25, 0.25, (2,))}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None or "rng" not in vars(self):
            self.rng = np.random.default_rng(seed)
        self.corner, self.steps = int(self.rng.integers(4)), 0
        self.light = np.array([self.corner % 2, self.corner // 2]) - 0.5  # in the middle of a quarter
        self.hand, self.word = np.zeros(2, np.float32), np.zeros(4, np.float32)
        return self.observe(), {}

    def observe(self) -> dict[str, np.ndarray]:
        image = self.rng.integers(0, 100, (SIZE, SIZE, 1), dtype=np.uint8)
        row, column = ((self.light + 1) / 2 * SIZE).astype(int)
        image[row - 2 : row + 2, column - 2 : column + 2] = 255
        return {"eye": image, "hand": np.concatenate([self.hand, self.word])}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        self.word = np.eye(4, dtype=np.float32)[actions["eye"]]
        self.hand = (self.hand + actions["hand"]).clip(-1, 1).astype(np.float32)
        away = float(np.linalg.norm(self.light - self.hand))
        rewards = {"eye": float(actions["eye"] == self.corner), "hand": -away}
        return self.observe(), rewards, {}, {"__all__": self.steps == 20}, {}


specs = {"eye": RLModuleSpec(model_config={"conv_filters": [[16, 4, 2], [32, 3, 2]]}), "hand": RLModuleSpec()}
config = PPOConfig().environment(EyeAndHand).debugging(seed=1)
config.multi_agent(policies=specs, policy_overrides={"hand": {"gamma": 0.9, "lr": 1e-3}})
with config.build() as algo:
    print(algo.explain())
    algo.learn(num_env_steps=40_000, progress=True)
    for agent, mean in algo.evaluate()["env_runners"]["agent_episode_returns_mean"].items():
        print(f"{agent}: {mean:.1f}, of {20 if agent == 'eye' else 0} at most")
