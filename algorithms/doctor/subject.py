"""The envs that are examined, all with the methods of an env of several agents, and how they are played."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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

_SEED = 7


class OneAgent:
    """An env of one agent with the methods and attributes of :class:`rlmodule.agents.guard.AgentEnvGuard`."""

    def __init__(self, guard: EnvGuard) -> None:
        self._guard, self.acting, self.is_over = guard, [AGENT], True
        self.action_spaces = {AGENT: guard.action_space}
        self.close = guard.close

    def reset(self, *, seed: int | None) -> Any:
        result = self._guard.reset(seed=seed)
        self.is_over = False
        return tuple({AGENT: part} for part in result)

    def step(self, actions: Mapping[str, Any]) -> Any:
        result = self._guard.step(actions[AGENT])
        self.is_over = result[2] or result[3]
        return tuple({AGENT: part} for part in result)


def envs_of(config: AlgorithmConfig) -> Sequence[Any]:
    """Make envs of ``config``, at least two, in guards. If they have several agents and ``config`` has no policies, set
    one for each agent. Of a ready vector env, which has no single envs, return none."""
    source: Any = config.env
    if not config.is_multi_agent:
        if is_atari(source):  # which stands for a ready vector env, while this makes single games with the same frames
            source = lambda _: config.make_env()  # noqa: E731
        try:
            made = make_vector_env(source, config.env_config, max(2, config.num_envs_per_env_runner), "sync")
        except (TypeError, ValueError) as error:
            if SEVERAL_AGENTS not in str(error):
                raise
        else:
            return [OneAgent(guard) for guard in made.envs] if isinstance(made, SyncEnvs) else []  # type: ignore[arg-type]
        config.update({"policies": "own"})
    from rlmodule.agents.make import make_agent_envs  # imports much that only several agents need

    return make_agent_envs(source, config.env_config, 2)


class Moment(NamedTuple):
    """What one reset or step of an env returned, and its seconds."""

    obs: dict[Any, Any]
    rewards: dict[Any, float]
    is_over: bool
    is_cut: bool
    is_step: bool
    seconds: float

    def digest(self) -> list[list[bytes]]:
        """Return the bytes of the observations, and those of the rewards and flags."""
        return [[to_array(leaf).tobytes() for leaf in tree.flatten(part)] for part in (self.obs, self[1:-1])]


def action_of(space: Space[Any], obs: Any, share: float | None) -> Any:
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


def moments(env: Any, *, share: float | None = None, action_seed: int = 0) -> Iterator[Moment]:
    """Play episodes, always with the same seed of the env, and yield each reset and step.

    Args:
        env: An env of several agents, in its guard.
        share: See :func:`_at_bounds`; None plays at random.
        action_seed: Seed of the actions.

    Raises:
        ValueError: If an observation or a reward is not finite.
    """
    action_spaces = copy.deepcopy(env.action_spaces)  # which envs may share
    for number, space in enumerate(action_spaces.values()):
        space.seed(action_seed + number)
    obs: dict[Any, Any] = {}
    for number in itertools.count():
        is_step = number > 0 and not env.is_over
        actions = {agent: action_of(action_spaces[agent], obs[agent], share) for agent in env.acting if is_step}
        start = perf_counter()
        if is_step:
            obs, rewards, _, truncateds, _ = env.step(actions)
        else:
            obs, rewards, truncateds = env.reset(seed=None if number else _SEED)[0], {}, {}
        seconds = perf_counter() - start
        for path, value, index in wrong_numbers({"obs": obs, "rewards": rewards}, None):
            raise not_finite(f"after {number} resets and steps, {path}", value, index)
        yield Moment(obs, rewards, env.is_over, any(truncateds.values()), is_step, seconds)
