"""The envs that are examined, all with the methods of an env of several agents, and how they are played."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import tree
from gymnasium import Space, spaces

from algorithms.config import AlgorithmConfig
from catalog.spaces import map_spaces
from rlmodule.envs.atari import is_atari
from rlmodule.envs.checks import SEVERAL_AGENTS, EnvGuard, not_finite, to_array, wrong_numbers
from rlmodule.envs.make import make_vector_env
from rlmodule.envs.sync_vector_env import SyncEnvs

AGENT = "agent"
"""The name that the only agent of an env gets."""

Pick = Callable[[Space[Any], Any], Any]
"""Function that chooses an action of a space, given the observation."""


class OneAgent:
    """An env of one agent with the methods and attributes of :class:`rlmodule.agents.guard.AgentEnvGuard`."""

    def __init__(self, guard: EnvGuard) -> None:
        self._guard, self.acting, self.is_over = guard, [AGENT], True
        self.observation_spaces = {AGENT: guard.observation_space}
        self.action_spaces = {AGENT: guard.action_space}

    @property
    def has_time_limit(self) -> bool:
        spec = self._guard.spec
        return spec is not None and spec.max_episode_steps is not None

    def reset(self, *, seed: int | None) -> Any:
        obs, info = self._guard.reset(seed=seed)
        self.is_over = False
        return {AGENT: obs}, {AGENT: info}

    def step(self, actions: Mapping[str, Any]) -> Any:
        result = self._guard.step(actions[AGENT])
        self.is_over = result[2] or result[3]
        return tuple({AGENT: part} for part in result)

    def close(self) -> None:
        self._guard.close()


def envs_of(config: AlgorithmConfig) -> list[Any]:
    """Make envs of ``config``, at least two, in guards. If they have several agents and ``config`` has no policies, set
    one policy for all, or one for each if their spaces differ. A ready vector env has no single envs: return none."""
    if not config.is_multi_agent:
        # A name of an Atari game stands for a ready vector env; this makes single games with the same frames.
        source: Any = (lambda env_config: config.make_env(**env_config)) if is_atari(config.env) else config.env
        try:
            made = make_vector_env(source, config.env_config, max(2, config.num_envs_per_env_runner), "sync")
        except (TypeError, ValueError) as error:
            if SEVERAL_AGENTS not in str(error):
                raise
        else:
            return [OneAgent(guard) for guard in made.envs] if isinstance(made, SyncEnvs) else []  # type: ignore[arg-type]
    from rlmodule.agents.make import make_agent_envs  # imports much that only several agents need

    guards = make_agent_envs(config.env, config.env_config, 2)  # type: ignore[arg-type]
    if not config.is_multi_agent:
        first, *others = zip(guards[0].observation_spaces.values(), guards[0].action_spaces.values(), strict=True)
        config.update({"policies": "shared" if all(other == first for other in others) else "own"})
    return guards


class Moment(NamedTuple):
    """What one reset or step of an env returned, and its seconds."""

    is_step: bool
    obs: dict[Any, Any]
    rewards: dict[Any, float]
    is_over: bool
    is_cut: bool
    seconds: float

    def digest(self) -> Any:
        """Return what tells this moment from others."""
        leaves = tuple(to_array(leaf).tobytes() for leaf in tree.flatten(self.obs))
        return leaves, tuple(self.rewards.values()), self.is_over, self.is_cut


def at_random(space: Space[Any], obs: Any) -> Any:
    """Return a random action that the mask in ``obs``, if any, allows."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    if mask is None or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.sample()
    masks = [mask] if isinstance(space, spaces.Discrete) else np.split(mask, np.cumsum(space.nvec)[:-1])
    if not all(map(np.any, masks)):
        raise ValueError("obs['action_mask']: expected an action that is allowed, got a mask that forbids all.")
    masks = tuple(np.asarray(mask != 0, np.int8) for mask in masks)
    return space.sample(masks[0] if isinstance(space, spaces.Discrete) else masks)  # type: ignore[arg-type]


def at_corners(share: float) -> Pick:
    """Return a function that picks each number of a Box at its upper bound with probability ``share``, else at the
    lower one. It picks at random where there is no bound, and in other spaces."""

    def leaf(space: Space[Any]) -> Any:
        if not isinstance(space, spaces.Box):
            return space.sample()
        bounds = np.where(space.np_random.random(space.shape) < share, space.high, space.low)
        return np.where(np.isfinite(bounds), bounds, space.sample())

    return lambda space, obs: map_spaces(leaf, space)


def moments(env: Any, seed: int, pick: Pick = at_random, action_seed: int = 0) -> Iterator[Moment]:
    """Play episodes, and yield each reset and step. All is determined by the two seeds.

    Raises:
        ValueError: If an observation or a reward is not finite, or a mask forbids all.
    """
    action_spaces = copy.deepcopy(env.action_spaces)  # which envs may share
    for number, space in enumerate(action_spaces.values()):
        space.seed(action_seed + number)
    next_seed, steps = seed, 0
    while True:
        start = perf_counter()
        obs, _ = env.reset(seed=next_seed)
        next_seed = None
        yield _finite(env, Moment(False, obs, {}, False, False, perf_counter() - start), steps)
        while not env.is_over:
            actions = {agent: pick(action_spaces[agent], obs[agent]) for agent in env.acting}
            start = perf_counter()
            obs, rewards, _, truncateds, _ = env.step(actions)
            seconds = perf_counter() - start
            steps += 1
            yield _finite(env, Moment(True, obs, rewards, env.is_over, any(truncateds.values()), seconds), steps)


def _finite(env: Any, moment: Moment, steps: int) -> Moment:
    """Return ``moment``. Raise ValueError if a number in it is not finite."""
    for agent, obs in moment.obs.items():
        for path, number, index in wrong_numbers(obs, env.observation_spaces[agent]):
            raise not_finite(f"step {steps}, obs{path}", number, index)
    for reward in moment.rewards.values():
        if not np.isfinite(reward):
            raise not_finite(f"step {steps}, reward", reward, ())
    return moment
