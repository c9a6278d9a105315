"""How an env is played: at random, or with extreme actions."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
import tree
from gymnasium import Space, spaces

from catalog.spaces import map_spaces
from rlmodule.envs.checks import not_finite, to_array, wrong_numbers

TRACE = 150
"""Number of resets and steps in which two plays of an env are compared, and of a play with extreme actions."""

_SEED = 7
_PROCESS = psutil.Process()


class Moment(NamedTuple):
    """What one reset or step of an env returned, and what it took. Another play may repeat the first four.

    Attributes:
        obs: Hash of the observations of all agents.
        rewards: Rewards of all agents, none in a reset.
        is_step: Whether it was a step.
        is_cut: Whether an agent was truncated.
        largest: The largest number in the observations, without its sign.
        seconds: How long the call of the env took.
        memory: Bytes of the process after it.
    """

    obs: int
    rewards: tuple[float, ...]
    is_step: bool
    is_cut: bool
    largest: float
    seconds: float
    memory: int


def random_action(space: Space[Any], obs: Any) -> Any:
    """Return a random action that the mask in ``obs``, if any, allows."""
    is_masked = isinstance(obs, Mapping) and "action_mask" in obs
    if not is_masked or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.sample()
    mask: Any = (np.asarray(obs["action_mask"]) != 0).astype(np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        mask = tuple(np.split(mask, np.cumsum(space.nvec)[:-1]))
    return space.sample(mask)


def extreme_action(share: float, space: Space[Any], obs: Any) -> Any:
    """Return an action with each number of a Box at its upper bound with probability ``share``, else at the lower one,
    and at random where there is no bound, whatever ``obs`` is."""

    def at_bounds(leaf: Space[Any]) -> Any:
        if not isinstance(leaf, spaces.Box):
            return leaf.sample()
        bounds = np.where(leaf.np_random.random(leaf.shape) < share, leaf.high, leaf.low)
        return np.where(np.isfinite(bounds), bounds, leaf.sample())

    return map_spaces(at_bounds, space)


def moments(
    env: Any,
    choose: Callable[[Any, Any], Any] = random_action,
    *,
    most: int = TRACE,
    seconds: float = math.inf,
    action_seed: int = 0,
) -> Iterator[Moment]:
    """Play episodes, always with the same seed of the env, and yield each reset and step.

    Args:
        env: An env of one agent or of several, in its guard.
        choose: Returns an agent's action from its action space and observation.
        most: Number of resets and steps.
        seconds: Time after which the play ends earlier, but not before the first step.
        action_seed: Seed of the actions.

    Raises:
        ValueError: If an observation or a reward is not finite.
    """
    is_single = isinstance(env, gym.Env)
    space: Any = copy.deepcopy(env.action_space if is_single else spaces.Dict(env.action_spaces))  # envs may share it
    space.seed(action_seed)
    until = perf_counter() + seconds
    is_over, actions = True, None
    for number in range(most):
        is_step = not is_over
        start = perf_counter()
        result = env.step(actions) if is_step else env.reset(seed=None if number else _SEED)
        end = perf_counter()
        obs, rewards, terminateds, truncateds = result[:4] if is_step else (result[0], (), (), ())
        for path, value, index in wrong_numbers({"obs": obs, "rewards": rewards}, None):
            raise not_finite(f"after {number} resets and steps, {path}", value, index)
        is_cut = any(tree.flatten(truncateds))
        is_over = is_cut or any(tree.flatten(terminateds)) if is_single else env.is_over
        leaves = [to_array(leaf) for leaf in tree.flatten(obs)]
        digest = hash(tuple(leaf.tobytes() for leaf in leaves))
        largest = max((np.abs(leaf).max(initial=0) for leaf in leaves if leaf.dtype.kind == "f"), default=0.0)
        memory = _PROCESS.memory_info().rss
        yield Moment(digest, tuple(tree.flatten(rewards)), is_step, is_cut, largest, end - start, memory)
        if is_step and end > until:
            return
        # after the last step of an episode, nothing takes them
        actions = choose(space, obs) if is_single else {agent: choose(space[agent], obs[agent]) for agent in env.acting}
