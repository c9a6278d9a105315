"""Rollouts of scripted randomness, and the same experience as plain lists, one env after the other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from algorithms.replay import ReplayBuffer
from rlmodule import Columns, Rollout


@dataclass
class Step:
    """What one env went through in one row; a stack is the list of the numbers of its frames, oldest first."""

    stack: list[int]
    action: int
    reward: float
    following: list[int]
    terminated: bool
    ended: bool
    valid: bool
    start: bool


class Stream:
    """``num_envs`` envs whose frames are numbered, so that no two observations are alike.

    ``mode`` is ``"same_step"``, ``"next_step"``, or ``"unknown_finals"``: as in the same step, but the true final
    observation of a truncated episode is unknown, so that the episode ends one step earlier. ``axis`` is where frames
    are stacked in an observation, or None for observations of one frame.
    """

    def __init__(self, seed: int, num_envs: int, *, mode: str = "same_step", frames: int = 1, axis: int | None = None):
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.mode, self.frames, self.axis = num_envs, mode, frames, axis
        self.steps: list[list[Step]] = [[] for _ in range(num_envs)]
        self.space = spaces.Box(-np.inf, np.inf, self.observe([0] * frames).shape, np.float32)
        self.action_space = spaces.Discrete(5)
        self._count = 0
        self._stacks: list[list[int]] = [[]] * num_envs
        self._starts = [True] * num_envs
        self._to_reset = [False] * num_envs
        # number of the last step of an episode that only the next valid row shows to have ended
        self._last_of_episode: list[int | None] = [None] * num_envs

    def observe(self, stack: list[int]) -> np.ndarray:
        frames = np.stack([np.array([i, -i, 3], np.float32) for i in stack])
        return frames[0] if self.axis is None else np.moveaxis(frames, 0, self.axis)

    def _frame(self) -> int:
        self._count += 1
        return self._count

    def _reset(self) -> list[int]:
        first = self._frame()
        padding = [
            [first] * (self.frames - 1),
            [0] * (self.frames - 1),
            [self._frame() for _ in range(self.frames - 1)],
        ]
        return [*padding[self.rng.integers(3)], first]

    def rollout(self, num_steps: int, restart: float = 0.0) -> Rollout:
        """The next rows; with the probability ``restart`` each env is restarted before them."""
        rows: list[list[Step]] = [[] for _ in range(self.num_envs)]
        final_index, finals = [], []
        for n in range(self.num_envs):
            if not self._stacks[n] or self.rng.random() < restart:
                if self.steps[n] and self.steps[n][-1].valid:
                    self._last_of_episode[n] = len(self.steps[n]) - 1
                self._stacks[n], self._starts[n], self._to_reset[n] = self._reset(), True, False
            for t in range(num_steps):
                rows[n].append(self._step(n))
                step = rows[n][-1]
                if step.valid and step.ended and not step.terminated:
                    final_index.append((t, n))
                    finals.append(self.observe(step.stack if self.mode == "unknown_finals" else step.following))
            self.steps[n] += rows[n]
        rollout = self._pack(rows, num_steps, final_index, finals)
        if self.mode == "unknown_finals":
            rollout = dataclasses.replace(rollout, finals_known=False).cut_before_unknown()
            self._end_earlier(num_steps)
        for n, steps in enumerate(self.steps):
            last = self._last_of_episode[n]
            if last is not None and any(step.valid for step in steps[-num_steps:]):
                steps[last].ended, self._last_of_episode[n] = True, None
        return rollout

    def _end_earlier(self, num_steps: int) -> None:
        """Leave out the truncated steps among the last ``num_steps``, and end their episodes before them."""
        for n, steps in enumerate(self.steps):
            first = len(steps) - num_steps
            for i in range(first, len(steps)):
                if steps[i].ended and not steps[i].terminated:
                    steps[i].valid = False
                    if i > first and not steps[i].start:
                        steps[i - 1].ended = True
                    elif i and not steps[i].start:
                        self._last_of_episode[n] = i - 1

    def _step(self, n: int) -> Step:
        stack, start = self._stacks[n], self._starts[n]
        self._starts[n] = False
        if self._to_reset[n]:
            self._to_reset[n], self._starts[n], self._stacks[n] = False, True, self._reset()
            return Step(stack, 0, 0.0, [], False, True, False, start)
        following = [*stack[1:], self._frame()]
        terminated, truncated = (bool(x) for x in self.rng.random(2) < 0.15)
        ended = terminated or truncated
        self._stacks[n] = following
        if ended and self.mode != "next_step":
            self._stacks[n], self._starts[n] = self._reset(), True
        elif ended:
            self._to_reset[n] = True
        reward = float(np.float32(self.rng.normal()))
        return Step(stack, int(self.rng.integers(5)), reward, following, terminated, ended, True, start)

    def _pack(self, rows: list[list[Step]], num_steps: int, index: list[Any], finals: list[np.ndarray]) -> Rollout:
        def column(name: str, dtype: type) -> torch.Tensor:
            values = [[getattr(rows[n][t], name) for n in range(self.num_envs)] for t in range(num_steps)]
            return torch.from_numpy(np.array(values, dtype))

        obs = [[self.observe(rows[n][t].stack) for n in range(self.num_envs)] for t in range(num_steps)]
        terminateds, valid = column("terminated", bool), column("valid", bool)
        return Rollout(
            columns={
                Columns.OBS: torch.from_numpy(np.array(obs)),
                Columns.ACTIONS: column("action", np.int64),
                Columns.REWARDS: column("reward", np.float32),
                Columns.TERMINATEDS: terminateds,
                Columns.TRUNCATEDS: column("ended", bool) & ~terminateds & valid,
                Columns.VALID: valid,
                Columns.STARTS: column("start", bool),
            },
            last_obs=torch.from_numpy(np.stack([self.observe(stack) for stack in self._stacks])),
            final_index=torch.tensor(index, dtype=torch.int64).reshape(-1, 2),
            final_obs=torch.from_numpy(np.array(finals, np.float32).reshape(-1, *self.space.shape)),
        )

    def window(self, n: int, i: int, n_step: int, gamma: float) -> tuple[float, list[int], float, int]:
        """Discounted reward, what followed, discount and number of steps of the window from step ``i`` of env ``n``."""
        steps, total, k = self.steps[n], 0.0, 0
        while True:
            step = steps[i + k]
            total += gamma**k * step.reward
            k += 1
            if k == n_step or step.ended or i + k == len(steps) or not steps[i + k].valid:
                return total, step.following, 0.0 if step.terminated else gamma**k, k


def add_in_parts(buffer: ReplayBuffer, stream: Stream, steps: int, restart: float = 0.0) -> None:
    """Add ``steps`` more rows of ``stream`` in rollouts that fit into the ring."""
    for begin in range(0, steps, buffer.rows - 1):
        buffer.add(stream.rollout(min(buffer.rows - 1, steps - begin), restart))
