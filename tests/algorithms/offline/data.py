"""Data sets for tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlmodule import Dataset
from rlmodule.data.episode import Episode


def balance(obs: np.ndarray) -> int:
    """Balance CartPole: an expert that is a line of code."""
    return int(3 * obs[2] + obs[3] + 0.1 * obs[0] + 0.5 * obs[1] > 0)


def cartpole(episodes: int = 20, *, random: float = 0.0, seed: int = 0) -> Dataset:
    """Return episodes of CartPole by :func:`balance`, of whose actions a share is random."""
    env, rng = gym.make("CartPole-v1"), np.random.default_rng(seed)
    played = []
    for number in range(episodes):
        episode = Episode()
        episode.add_reset(env.reset(seed=1000 * seed + number)[0])
        while not episode.is_finished:
            action: Any = balance(episode.get_observations(-1)) if rng.random() >= random else int(rng.integers(2))
            obs, reward, terminated, truncated, _ = env.step(action)
            episode.add_step(action, obs, float(reward), terminated, truncated)
        played.append(episode)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return Dataset.from_episodes(played, **spaces, env="CartPole-v1")


def noise(num_steps: int = 60, *, seed: int = 0) -> Dataset:
    """Return random episodes of 2 to 7 steps with two numbers to see, of which one counts the steps, and three
    choices. Some episodes terminate, some time out."""
    rng = np.random.default_rng(seed)
    ends = np.zeros(num_steps, bool)
    last = np.cumsum(rng.integers(2, 8, num_steps)) - 1
    ends[last[last < num_steps]] = ends[-1] = True
    terminals = ends & (rng.random(num_steps) < 0.5)
    observations = rng.normal(size=(num_steps, 2)).astype(np.float32)
    following = np.concatenate([observations[1:], observations[:1]])
    following[ends] = rng.normal(size=(ends.sum(), 2))
    return Dataset.from_arrays(
        observations,
        rng.integers(3, size=num_steps),
        rng.normal(size=num_steps),
        terminals=terminals,
        timeouts=ends & ~terminals,
        next_observations=following,
        action_space=gym.spaces.Discrete(3),
    )
