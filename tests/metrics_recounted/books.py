"""Envs that keep their own books, in files, so that envs of other processes do so, too."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlmodule.agents.multi_agent_env import ALL, MultiAgentEnv

OBS = gym.spaces.Box(-9.0, 9.0, (3,), np.float32)


class Book:
    """Writes what happens in one env to a file of its own in ``folder``."""

    def __init__(self, folder: str) -> None:
        self._file = (Path(folder) / f"{uuid.uuid4()}.jsonl").open("w", encoding="utf-8")

    def write(self, kind: str, **entry: Any) -> None:
        entry |= {"kind": kind, "when": time.monotonic_ns()}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Books:
    """The books of all envs in ``folder``, as they are now."""

    def __init__(self, folder: Path) -> None:
        lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
        self._entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in sorted(lines, key=lambda line: line["when"]):
            self._entries[line["kind"]].append(line)

    @property
    def steps(self) -> int:
        """Number of steps of all envs."""
        return len(self._entries["step"])

    @property
    def returns(self) -> list[float]:
        """Returns of the episodes that ended, in order of time."""
        return [line["total"] for line in self._entries["episode"]]

    @property
    def lengths(self) -> list[int]:
        return [line["length"] for line in self._entries["episode"]]

    @property
    def agent_returns(self) -> dict[str, list[float]]:
        """Returns of the lives of each agent that ended."""
        found: dict[str, list[float]] = defaultdict(list)
        for line in self._entries["death"]:
            found[line["agent"]].append(line["total"])
        return found

    @property
    def agent_lengths(self) -> dict[str, list[int]]:
        """Numbers of actions in these lives."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self._entries["death"]:
            found[line["agent"]].append(line["length"])
        return found

    @property
    def agent_steps(self) -> Counter[str]:
        """Number of actions of each agent that had their results."""
        return Counter(line["agent"] for line in self._entries["acted"])


class Walk(gym.Env[Any, Any]):
    """Walks whose episodes have different lengths and end in both ways.

    Args:
        folder: Where to keep the books.
    """

    observation_space, action_space = OBS, gym.spaces.Discrete(3)

    def __init__(self, folder: str) -> None:
        self.book = Book(folder)
        self.is_reset = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.limit, self.total = 0, int(self.np_random.integers(2, 8)), 0.0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # quarters, which sums hold exactly
        reward = float(self.np_random.integers(-8, 9)) / 4
        self.length += 1
        self.total += reward
        is_over = self.length == self.limit
        self.book.write("step")
        if is_over:
            self.book.write("episode", total=self.total, length=self.length)
        return self._obs(), reward, is_over and self.limit % 2 == 0, is_over and self.limit % 2 == 1, {}

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def close(self) -> None:
        self.book.close()


class Glide(Walk):
    """The same with continuous actions."""

    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


class WithResets:
    """Makes vector envs that reset in a step of their own.

    Args:
        env: The class of their envs.
        num_envs: Number of envs.
    """

    def __init__(self, env: type[Walk], num_envs: int) -> None:
        self.env, self.num_envs = env, num_envs

    def __call__(self, config: dict[str, Any]) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: self.env(**config)] * self.num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


class Crowd(MultiAgentEnv):
    """Agents on different clocks: the first acts in each step, the second pauses and earns meanwhile, the third dies
    and comes back.

    Args:
        folder: Where to keep the books; None keeps none.
        is_reversed: Whether results name the agents in reverse order.
    """

    possible_agents: Sequence[str] = ("steady", "lazy", "mortal")
    action: ClassVar[gym.Space[Any]] = gym.spaces.Discrete(3)

    def __init__(self, folder: str | None = None, is_reversed: bool = False) -> None:
        self.observation_spaces = dict.fromkeys(self.possible_agents, OBS)
        self.action_spaces = dict.fromkeys(self.possible_agents, self.action)
        self.book = None if folder is None else Book(folder)
        self.is_reversed = is_reversed
        self.rng = np.random.default_rng()

    def _write(self, kind: str, **entry: Any) -> None:
        if self.book is not None:
            self.book.write(kind, **entry)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.limit, self.total = 0, int(self.rng.integers(4, 12)), 0.0
        # the return and the number of actions of agents in play, and those whose last action has no result yet
        self.lives = {agent: [0.0, 0] for agent in self.possible_agents}
        self.waiting: set[str] = set()
        return self._in_order({agent: self._obs() for agent in self.possible_agents}), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        self._write("step")
        for agent in actions:
            assert agent in self.lives
            self.lives[agent][1] += 1
            self.waiting.add(agent)
        is_over = self.t == self.limit
        rewards, ends, obs = {}, {}, {}
        for agent, life in self.lives.items():
            rewards[agent] = float(self.rng.integers(-8, 9)) / 4
            life[0] += rewards[agent]
            self.total += rewards[agent]
            dies = agent == "mortal" and self.rng.random() < 0.3
            ends[agent] = dies and not is_over
            pauses = agent == "lazy" and self.rng.random() < 0.6
            if not pauses or dies or is_over:
                obs[agent] = self._obs()
        if "mortal" not in self.lives and not is_over and self.rng.random() < 0.5:
            obs["mortal"] = self._obs()
            self.lives["mortal"] = [0.0, 0]
        for agent in sorted(self.waiting & obs.keys()):
            self._write("acted", agent=agent)
        self.waiting -= obs.keys()
        for agent in [agent for agent in self.lives if is_over or ends.get(agent)]:
            total, length = self.lives.pop(agent)
            self._write("death", agent=agent, total=total, length=length)
        if is_over:
            self._write("episode", total=self.total, length=self.t)
        terminateds = self._in_order(ends) | {ALL: is_over and self.limit % 2 == 0}
        return self._in_order(obs), self._in_order(rewards), terminateds, {ALL: is_over and self.limit % 2 == 1}, {}

    def _in_order(self, by_agent: dict[str, Any]) -> dict[str, Any]:
        ordered = [agent for agent in self.possible_agents if agent in by_agent]
        return {agent: by_agent[agent] for agent in (reversed(ordered) if self.is_reversed else ordered)}

    def _obs(self) -> Any:
        return self.rng.uniform(-1, 1, 3).astype(np.float32)

    def close(self) -> None:
        if self.book is not None:
            self.book.close()


class Flock(Crowd):
    """The same with continuous actions."""

    action = Glide.action_space
