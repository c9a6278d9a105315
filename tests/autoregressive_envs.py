"""An environment that a policy of independent parts cannot play well."""

from typing import Any

import gymnasium as gym
import numpy as np


class Vault(gym.Env[np.ndarray, dict[str, Any]]):
    """A step opens a door with a key. It pays if the key is that of the door and the door is not the one last chosen,
    where the guard stands. Nothing is observed.

    Let the policy choose door ``d`` with probability ``p(d)`` and key ``k`` of it with ``q(k | d)``. The guard's door
    was drawn from ``p`` as well, independently, so that a step succeeds with probability
    ``Σ p(d) · (1 - p(d)) · q(d | d)``.

    - Parts that depend on each other: ``q(d | d) = 1`` and ``p(d) = 1/n`` give ``1 - 1/n``, the most that
      ``1 - Σ p(d)²`` can be. Steps pay so that this is a return of 1.
    - Independent parts: ``q(d | d) = q(d)``, and ``Σ q(d) · p(d) · (1 - p(d)) ≤ max p(d) · (1 - p(d)) ≤ 1/4``, which is
      a return of at most ``n / (4 (n - 1))``: 1/3 of 4 doors. It is reached with ``p(d) = 1/2`` and ``q(d) = 1``.

    (In the first step the guard stands anywhere, as if after a uniform ``p``.)
    """

    def __init__(self, doors: int = 4, length: int = 16) -> None:
        self.doors, self.length = doors, length
        self.observation_space = gym.spaces.Box(0, 1, (1,))
        self.action_space = gym.spaces.Dict([("door", gym.spaces.Discrete(doors)), ("key", gym.spaces.Discrete(doors))])
        self.guarded = self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.guarded, self.steps = int(self.np_random.integers(self.doors)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        door, key = int(action["door"]), int(action["key"])
        opens = key == door != self.guarded
        self.guarded, self.steps = door, self.steps + 1
        reward = self.doors / (self.doors - 1) / self.length if opens else 0.0
        return np.zeros(1, np.float32), reward, self.steps == self.length, False, {}
