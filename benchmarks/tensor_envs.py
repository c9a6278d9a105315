"""CartPole and Pendulum for thousands of envs at once, as tensors.

The dynamics are those of Gymnasium's CartPole-v1, pushed by a force between -10 and 10, and of Pendulum-v1. An env that
ends begins again in the same step, and its last observation is in ``info["final_obs"]``. The first episode of each env
begins at a random age, so that not all episodes end in the same step.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from benchmarks.jobs import WARM_UP, TensorJob

X_LIMIT, ANGLE_LIMIT = 2.4, math.radians(12)  # of CartPole-v1


class TensorEnvs(VectorEnv):
    """Many copies of an env in one tensor.

    Args:
        num_envs: Number of envs.
        num_inputs: Size of an observation.
        max_action: Largest size of the only action.
        length: Steps until a time limit truncates an episode.

    Attributes:
        finished: The returns of the episodes that ended, a tensor for each step.
    """

    def __init__(self, num_envs: int, num_inputs: int, max_action: float, length: int) -> None:
        self.num_envs, self.length, self.max_action = num_envs, length, max_action
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (num_inputs,), np.float32)
        self.single_action_space = spaces.Box(-max_action, max_action, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.generator = torch.Generator()
        self.finished: list[Tensor] = []

    @abstractmethod
    def draw_states(self) -> Tensor:
        """Return a state that begins an episode for each env, ``[N, ...]``."""

    @abstractmethod
    def move(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states after ``action`` ``[N]``, the rewards ``[N]``, and which episodes terminated ``[N]``."""

    @abstractmethod
    def observe(self, state: Tensor) -> Tensor:
        """Return the observations of ``state``, ``[N, num_inputs]``."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state = self.draw_states()
        self.returns = torch.zeros(self.num_envs)
        self.age = torch.randint(self.length, (self.num_envs,), generator=self.generator)
        return self.observe(self.state), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        moved, rewards, terminated = self.move(actions[:, 0].clamp(-self.max_action, self.max_action))
        self.age += 1
        truncated = (self.age >= self.length) & ~terminated
        ended = terminated | truncated
        self.returns += rewards
        self.finished.append(self.returns[ended])
        self.returns.masked_fill_(ended, 0.0)
        self.state = torch.where(ended[:, None], self.draw_states(), moved)
        self.age.masked_fill_(ended, 0)
        return self.observe(self.state), rewards, terminated, truncated, {"final_obs": self.observe(moved)}

    def mean_return(self) -> float:
        """Return the mean return of the episodes that ended since the last call; NaN if none did."""
        finished = torch.cat(self.finished)
        self.finished.clear()
        return round(float(finished.mean()), 1)


def pushed(state: Tensor, force: Tensor) -> Tensor:
    """Return the states of carts 0.02 s after ``state`` ``[N, 4]`` under a ``force`` ``[N]`` in newtons."""
    _, speed, angle, spin = state.unbind(1)
    cos, sin = angle.cos(), angle.sin()
    push = (force + 0.05 * spin.square() * sin) / 1.1
    spin_up = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos.square() / 1.1))
    speed_up = push - 0.05 * spin_up * cos / 1.1
    return state + 0.02 * torch.stack([speed, speed_up, spin, spin_up], 1)


def fallen(state: Tensor) -> Tensor:
    """Return which carts have left the track or dropped their pole, ``[N]``."""
    return (state[:, 0].abs() > X_LIMIT) | (state[:, 2].abs() > ANGLE_LIMIT)


class Carts(TensorEnvs):
    """CartPole with a continuous force, of which 1 is 10 newtons.

    Args:
        num_envs: Number of envs.
        positions_only: Whether observations leave out the two speeds, which a memory can find.
    """

    def __init__(self, num_envs: int, positions_only: bool = False) -> None:
        self.seen = [0, 2] if positions_only else [0, 1, 2, 3]
        super().__init__(num_envs, len(self.seen), max_action=1.0, length=500)

    def draw_states(self) -> Tensor:
        return torch.rand(self.num_envs, 4, generator=self.generator) * 0.1 - 0.05

    def move(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        moved = pushed(self.state, 10.0 * action)
        return moved, torch.ones(self.num_envs), fallen(moved)

    def observe(self, state: Tensor) -> Tensor:
        return state if len(self.seen) == 4 else state[:, self.seen]


class Pendulums(TensorEnvs):
    """Pendulum with a torque between -2 and 2.

    Args:
        num_envs: Number of envs.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, 3, max_action=2.0, length=200)

    def draw_states(self) -> Tensor:
        scale = torch.tensor([math.pi, 1.0])
        return (torch.rand(self.num_envs, 2, generator=self.generator) * 2 - 1) * scale

    def move(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, spin = self.state.unbind(1)
        from_top = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = from_top.square() + 0.1 * spin.square() + 0.001 * action.square()
        spin = (spin + 0.05 * (15.0 * angle.sin() + 3.0 * action)).clamp(-8.0, 8.0)
        moved = torch.stack([angle + 0.05 * spin, spin], 1)
        return moved, -cost, torch.zeros(self.num_envs, dtype=torch.bool)

    def observe(self, state: Tensor) -> Tensor:
        angle, spin = state.unbind(1)
        return torch.stack([angle.cos(), angle.sin(), spin], 1)


def timed(job: TensorJob, total_steps: int, iteration: Callable[[], float]) -> dict[str, Any]:
    """Call `iteration`, which returns a mean return, as often as makes `total_steps`, and time it after the warm-up."""
    curve = [iteration() for _ in range(WARM_UP)]
    started = time.process_time()
    iterations = max(1, -(-total_steps // job.batch_size) - WARM_UP)
    curve += [iteration() for _ in range(iterations)]
    took = time.process_time() - started
    return {"steps_per_s": round(iterations * job.batch_size / took, 1), "late_return": curve[-1], "curve": curve}


gym.register("Pendulums-v0", vector_entry_point="benchmarks.tensor_envs:Pendulums")
gym.register("PositionCarts-v0", vector_entry_point="benchmarks.tensor_envs:Carts", kwargs={"positions_only": True})
