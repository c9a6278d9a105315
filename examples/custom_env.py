"""An environment of your own, from nothing: a class of Gymnasium's kind, checked and trained.

Run it as ``python examples/custom_env.py``.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from algorithms.ppo import PPOConfig


class Catch(gym.Env):
    """A ball falls, one row a step. Be below it when it lands: 1 if you are, -1 if not."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, size: int = 8, render_mode: str | None = None) -> None:
        self.size, self.render_mode = size, render_mode
        self.observation_space = gym.spaces.Box(0, 1, (3,), np.float32)  # row and column of the ball, the catcher
        self.action_space = gym.spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)  # which makes self.np_random: all chance must come from there
        self.row = 0
        self.ball, self.catcher = (int(column) for column in self.np_random.integers(self.size, size=2))
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.row += 1
        self.catcher = min(max(self.catcher + int(action) - 1, 0), self.size - 1)
        landed = self.row == self.size - 1
        reward = (1.0 if self.ball == self.catcher else -1.0) if landed else 0.0
        return self.observe(), reward, landed, False, {}

    def observe(self) -> np.ndarray:
        return np.array([self.row, self.ball, self.catcher], np.float32) / (self.size - 1)

    def render(self) -> np.ndarray:
        pixels = np.zeros((self.size, self.size, 3), np.uint8)
        pixels[-1, self.catcher] = 0, 120, 255
        pixels[self.row, self.ball] += np.array([255, 80, 0], np.uint8)
        return pixels.repeat(32, 0).repeat(32, 1)  # [H, W, 3]


check_env(Catch(), skip_render_check=True)  # Gymnasium's own test of the rules

config = PPOConfig().environment(Catch, env_config={"size": 8}).evaluation(evaluation_duration=200)
with config.debugging(seed=1).build() as algo:
    algo.learn(num_env_steps=60_000, progress=True)
    print(f"balls caught less balls missed, of each: {algo.evaluate()['env_runners']['episode_return_mean']:.2f}")
