"""Vector envs of tensors: a CartPole that computes with torch, and any other vector env made to speak tensors."""

from typing import Any

import numpy as np
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from torch import Tensor

from benchmarks.tensor_envs import ANGLE_LIMIT, X_LIMIT, fallen, pushed


class TensorCartPole(VectorEnv):
    """Gymnasium's CartPole (Barto et al. 1983) for all envs at once, on any device, where nothing waits for it.

    What it returns is its own memory, which the next step overwrites, as simulators do it.
    """

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        max_steps: int = 500,
    ) -> None:
        self.num_envs, self.device, self.max_steps = num_envs, torch.device(device), max_steps
        self.metadata = {"autoreset_mode": autoreset_mode}
        high = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
        self.single_observation_space = spaces.Box(-high, high)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-np.tile(high, (num_envs, 1)), np.tile(high, (num_envs, 1)))
        self.action_space = spaces.MultiDiscrete([2] * num_envs)
        self.generator = torch.Generator(self.device)
        self.state = torch.zeros(num_envs, 4, device=self.device)
        self.age = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.ended = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.rewards = torch.zeros(num_envs, device=self.device)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state.copy_(self._fresh())
        self.age.zero_()
        self.ended.zero_()
        return self.state, {}

    def _fresh(self) -> Tensor:
        return torch.rand(self.state.shape, generator=self.generator, device=self.device) * 0.1 - 0.05

    def step(self, actions: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        moved = self._moved(torch.as_tensor(actions, device=self.device))
        next_step = self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        resets = self.ended.clone()
        self.age += 1
        terminateds = fallen(moved)
        truncateds = self.age >= self.max_steps
        self.rewards.fill_(1.0)
        if next_step:
            terminateds, truncateds = terminateds & ~resets, truncateds & ~resets
            self.rewards.masked_fill_(resets, 0.0)
        self.ended.copy_(terminateds | truncateds)
        fresh_now = resets if next_step else self.ended
        self.state.copy_(torch.where(fresh_now[:, None], self._fresh(), moved))
        self.age.masked_fill_(fresh_now, 0)
        info = {} if next_step else {"final_obs": moved, "_final_obs": self.ended}
        return self.state, self.rewards, terminateds, truncateds, info

    def _moved(self, actions: Tensor) -> Tensor:
        return pushed(self.state, 10.0 * (2.0 * actions - 1.0))


class InTensors(VectorWrapper):
    """A vector env of arrays whose observations, rewards, flags and final observations are tensors."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return _in_tensors(obs), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert all(isinstance(part, Tensor) for part in tree.flatten(actions))
        obs, rewards, terminateds, truncateds, info = self.env.step(tree.map_structure(np.asarray, actions))
        if "final_obs" in info:
            finals = [
                obs_ if obs_ is not None else self.single_observation_space.sample() for obs_ in info["final_obs"]
            ]
            info = {**info, "final_obs": tree.map_structure(lambda *x: torch.as_tensor(np.stack(x)), *finals)}
        return _in_tensors(obs), *map(torch.as_tensor, (rewards, terminateds, truncateds)), info


def _in_tensors(obs: Any) -> Any:
    return tree.map_structure(lambda x: torch.as_tensor(np.array(x)), obs)
