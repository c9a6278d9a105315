"""An env whose actions mean something else at each step; only their vectors tell what."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

PUSHES = np.array([[0.9, -0.2], [-0.1, 0.7]], np.float32)
"""The vectors of pushing left and of pushing right."""


class ParametricCartPole(gym.Env[Any, Any]):
    """CartPole whose two pushes lie in random slots, others at each step, some of them several times.

    Args:
        slots: Number of actions.
        masked: Whether the rest of the slots is forbidden, with random vectors; else there is no rest and no mask.
    """

    def __init__(self, slots: int = 6, masked: bool = True) -> None:
        self.cart, self.slots, self.masked = gym.wrappers.TimeLimit(CartPoleEnv(), 500), slots, masked
        fields: dict[str, spaces.Space[Any]] = {
            "cart": self.cart.observation_space,
            "avail_actions": spaces.Box(-1, 1, (slots, 2), np.float32),
        }
        if masked:
            fields["action_mask"] = spaces.MultiBinary(slots)
        self.observation_space, self.action_space = spaces.Dict(fields), spaces.Discrete(slots)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        obs, info = self.cart.reset(seed=seed)
        return self._deal(obs), info

    def step(self, action: Any) -> Any:
        assert self.allowed[action], f"slot {action} is forbidden"
        obs, *rest = self.cart.step(int(self.pushes[action]))
        return self._deal(obs), *rest

    def _deal(self, cart: np.ndarray) -> dict[str, np.ndarray]:
        rng = self.np_random
        count = int(rng.integers(2, self.slots + 1)) if self.masked else self.slots
        order = rng.permutation(self.slots)  # the first holds a push to the left, the second one to the right
        self.pushes = rng.integers(2, size=self.slots)
        self.pushes[order[:2]] = 0, 1
        self.allowed = np.zeros(self.slots, bool)
        self.allowed[order[:count]] = True
        vectors = PUSHES[self.pushes]
        vectors[~self.allowed] = rng.uniform(-1, 1, (self.slots - count, 2))
        obs = {"cart": cart, "avail_actions": vectors}
        return obs | {"action_mask": self.allowed.astype(np.int8)} if self.masked else obs
