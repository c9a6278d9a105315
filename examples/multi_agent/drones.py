"""Agents that come and go: drones start at any time, land, and start again later in the same episode of the env.

Run it as ``python examples/multi_agent/drones.py``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from algorithms.ppo import PPOConfig
from rlmodule.agents import AgentID, MultiAgentEnv


class Drones(MultiAgentEnv):
    """Each drone flies along a line to its pad, where its flight ends. One that rests is called again at some time."""

    def __init__(self, num_drones: int = 6) -> None:
        self.possible_agents = [f"drone_{i}" for i in range(num_drones)]
        self.observation_spaces = dict.fromkeys(self.possible_agents, Box(-1, 1, (1,)))  # the way to its pad
        self.action_spaces = dict.fromkeys(self.possible_agents, Discrete(3))  # back, stay, forth

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None or "rng" not in vars(self):
            self.rng = np.random.default_rng(seed)
        self.flying, self.steps = dict[AgentID, int](), 0
        self.call(self.possible_agents[:2])
        return self.observe(self.flying), {}

    def call(self, drones: Sequence[AgentID]) -> None:
        for drone in drones:
            self.flying[drone] = int(self.rng.choice([-1, 1]) * self.rng.integers(3, 11))

    def observe(self, drones: Any) -> dict[AgentID, np.ndarray]:
        return {drone: np.array([self.flying[drone] / 10], np.float32).clip(-1, 1) for drone in drones}

    def step(self, actions: dict[AgentID, int]) -> Any:
        self.steps += 1
        for drone, action in actions.items():
            self.flying[drone] -= action - 1
        landed = {drone: True for drone, way in self.flying.items() if way == 0}
        rewards = {drone: 1.0 if drone in landed else -0.1 for drone in actions}
        last = self.observe(landed)  # what a drone sees as it lands
        resting = [drone for drone in self.possible_agents if drone not in self.flying]
        self.flying = {drone: way for drone, way in self.flying.items() if drone not in landed}
        over = self.steps == 100
        self.call([drone for drone in resting if not over and self.rng.random() < 0.1])
        if not self.flying and not over:  # the episode of the env would end with nobody in play
            self.call(resting[:1])
        return self.observe(self.flying) | last, rewards, landed, {"__all__": over}, {}


config = PPOConfig().environment(Drones).multi_agent(policies="shared").debugging(seed=1)
with config.build() as algo:
    played = algo.learn(num_env_steps=30_000, progress=True)["env_runners"]
    for drone, mean in played["agent_episode_returns_mean"].items():
        steps = played["num_agent_steps_sampled_lifetime"][drone]
        print(f"{drone}: {mean:.2f} per flight, of 0.45 at most, after {steps:,} of its own steps")
