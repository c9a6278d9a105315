"""How an env is played: at random, or with extreme actions."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
import tree
from gymnasium import Space, spaces

from catalog.spaces import map_spaces
from rlmodule.envs.checks import not_finite, to_array, wrong_numbers

AGENT = "agent"
"""The name that the only agent of an env gets."""

_SEED = 7
_PROCESS = psutil.Process()


class Moment(NamedTuple):
    """What one reset or step of an env returned, and what it took.

    Attributes:
        obs: Hash of the observations of all agents.
        rewards: Rewards by agent, none in a reset.
        is_over, is_cut: Whether the episode ended, and whether an agent was truncated.
        is_step: Whether it was a step.
        largest: The largest number in the observations, without its sign.
        seconds: How long the call of the env took.
        memory: Bytes of the process after it.
    """

    obs: int
    rewards: dict[Any, float]
    is_over: bool
    is_cut: bool
    is_step: bool
    largest: float
    seconds: float
    memory: int

    @property
    def returned(self) -> tuple[Any, ...]:
        """All that the env returned, which another play may repeat."""
        return self[:4]


def action_spaces_of(env: Any) -> Mapping[Any, Space[Any]]:
    """Return the action spaces of an env of one agent or of several, by agent."""
    return {AGENT: env.action_space} if isinstance(env, gym.Env) else env.action_spaces


def moments(env: Any, *, share: float | None = None, action_seed: int = 0) -> Iterator[Moment]:
    """Play episodes, always with the same seed of the env, and yield each reset and step.

    Args:
        env: An env of one agent or of several, in its guard.
        share: See :func:`_at_bounds`; None plays at random.
        action_seed: Seed of the actions.

    Raises:
        ValueError: If an observation or a reward is not finite.
    """
    is_single = isinstance(env, gym.Env)
    action_spaces = copy.deepcopy(action_spaces_of(env))  # which envs may share
    for number, space in enumerate(action_spaces.values()):
        space.seed(action_seed + number)
    obs: dict[Any, Any] = {}
    is_over = True
    for number in itertools.count():
        is_step = not is_over
        acting = [AGENT] if is_single else env.acting
        actions: Any = {agent: _action(action_spaces[agent], obs[agent], share) for agent in acting if is_step}
        start = perf_counter()
        if is_step:
            result = env.step(actions[AGENT] if is_single else actions)
        else:
            result = env.reset(seed=None if number else _SEED)
        seconds = perf_counter() - start
        if is_single:
            result = [{AGENT: part} for part in result]
        obs, rewards, terminateds, truncateds = result[:4] if is_step else (result[0], {}, {}, {})
        for path, value, index in wrong_numbers({"obs": obs, "rewards": rewards}, None):
            raise not_finite(f"after {number} resets and steps, {path}", value, index)
        is_cut = any(truncateds.values())
        is_over = is_cut or any(terminateds.values()) if is_single else env.is_over
        leaves = [*map(to_array, tree.flatten(obs))]
        largest = max((np.abs(leaf).max(initial=0) for leaf in leaves if leaf.dtype.kind == "f"), default=0.0)
        digest = hash(tuple(leaf.tobytes() for leaf in leaves))
        yield Moment(digest, rewards, is_over, is_cut, is_step, largest, seconds, _PROCESS.memory_info().rss)


def _action(space: Space[Any], obs: Any, share: float | None) -> Any:
    """Return a random action that the mask in ``obs``, if any, allows. With a ``share``, see :func:`_at_bounds`."""
    if share is not None:
        return map_spaces(partial(_at_bounds, share), space)
    if not isinstance(obs, Mapping) or "action_mask" not in obs:
        return space.sample()
    mask: Any = (np.asarray(obs["action_mask"]) != 0).astype(np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        mask = tuple(np.split(mask, np.cumsum(space.nvec)[:-1]))
    return space.sample(mask) if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else space.sample()


def _at_bounds(share: float, space: Space[Any]) -> Any:
    """Return an action with each number of a Box at its upper bound with probability ``share``, else at the lower one,
    and at random where there is no bound."""
    if not isinstance(space, spaces.Box):
        return space.sample()
    bounds = np.where(space.np_random.random(space.shape) < share, space.high, space.low)
    return np.where(np.isfinite(bounds), bounds, space.sample())
