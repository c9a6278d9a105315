"""Parts of an action that depend on each other: a door must be a surprise, and the key must be that of the door.

Run it as ``python examples/autoregressive_actions.py``.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from algorithms.ppo import PPOConfig

DOORS, STEPS = 4, 16


class Vault(gym.Env):
    """Each step tries a key on a door. A guard stands at the door that was tried last, and nothing is observed.

    Doors that cannot be foretold, each with its key, open in 3 of 4 steps: a return of 1. If the key is drawn without
    knowing the door, it is the right one only as far as the door can be foretold, and 1/3 is the best possible.
    """

    observation_space = Box(0, 1, (1,))
    action_space = Dict([("door", Discrete(DOORS)), ("key", Discrete(DOORS))])

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**options)
        self.guarded, self.steps = int(self.np_random.integers(DOORS)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        opens = action["key"] == action["door"] != self.guarded
        self.guarded, self.steps = int(action["door"]), self.steps + 1
        reward = DOORS / (DOORS - 1) / STEPS if opens else 0.0
        return np.zeros(1, np.float32), reward, self.steps == STEPS, False, {}


for autoregressive in (False, True):
    config = (
        PPOConfig()
        .environment(Vault)
        .env_runners(num_envs_per_env_runner=16)
        .training(train_batch_size_per_learner=1024, minibatch_size=512, num_epochs=8, lr=0.01)
        .rl_module(model_config={"autoregressive_actions": autoregressive})
        .debugging(seed=1)
    )
    with config.build() as algo:
        result = algo.learn(num_env_steps=20_000, progress=True)
    how = "each part knows those before it" if autoregressive else "independent parts"
    print(f"{how}: mean return {result['env_runners']['episode_return_mean']:.2f}")
