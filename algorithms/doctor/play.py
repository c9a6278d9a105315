"""How an env is played: at random, or with extreme actions."""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import tree
from gymnasium import Space, spaces

from rlmodule.envs.checks import not_finite, to_array, wrong_numbers


@dataclass(frozen=True)
class Moment:
    """What one reset or step of an env returned, and how long it took. Two are equal if the env returned the same.

    Attributes:
        obs: Hash of the observations of all agents.
        rewards: Rewards of all agents, none in a reset.
        is_over: Whether the episode ended.
        is_cut: Whether an agent was truncated.
        step: Number of the step in its episode, 0 for a reset.
        total: Sum of all rewards of the episode so far.
        largest: The largest number in the observations, without its sign.
        seconds: How long the call of the env took.
    """

    obs: int
    rewards: tuple[float, ...]
    is_over: bool
    is_cut: bool
    step: int
    total: float
    largest: float
    seconds: float = field(compare=False)


def random_action(space: Space[Any], obs: Any) -> Any:
    """Return a random action that the mask in ``obs``, if any, allows."""
    if isinstance(obs, Mapping) and "action_mask" in obs:
        mask = np.asarray(obs["action_mask"], np.int8)
        if isinstance(space, spaces.Discrete):
            return space.sample(mask)
        if isinstance(space, spaces.MultiDiscrete):
            return space.sample(tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
    return space.sample()


def narrow(space: Space[Any], share: float) -> None:
    """Narrow each Box in ``space`` to one of its corners: each number to its upper bound with probability ``share``,
    else to its lower one. A number without that bound stays as it is."""
    for box in tree.flatten(space):
        if isinstance(box, spaces.Box):
            bounds = np.where(box.np_random.random(box.shape) < share, box.high, box.low)
            is_bounded = np.isfinite(bounds)
            box.low[is_bounded] = box.high[is_bounded] = bounds[is_bounded]


def moments(
    env: Any, *, share: float | None = None, most: int = 150, seconds: float = math.inf, action_seed: int = 0
) -> Iterator[Moment]:
    """Play episodes at random, always with the same seeds of the env, and yield each reset and step.

    Args:
        env: An env of one agent or of several, in its guard.
        share: Share of the numbers in actions that are at their upper bounds, the others being at their lower ones.
            None draws between the bounds.
        most: Number of resets and steps.
        seconds: Time after which the play ends earlier, but not before the first step.
        action_seed: Seed of the actions.

    Raises:
        ValueError: If an observation or a reward is not finite.
    """
    is_single = isinstance(env, gym.Env)
    space: Any = copy.deepcopy(env.action_space if is_single else spaces.Dict(env.action_spaces))  # envs may share it
    space.seed(action_seed)
    if share is not None:
        narrow(space, share)
    until = perf_counter() + seconds
    step, total, is_over, actions = 0, 0.0, True, None
    for number in range(most):
        start = perf_counter()
        if is_over:
            step, total = 0, 0.0
            obs, _ = env.reset(seed=number)
            rewards = terminateds = truncateds = ()
        else:
            step += 1
            obs, rewards, terminateds, truncateds, _ = env.step(actions)
        end = perf_counter()
        for path, value, index in wrong_numbers({"obs": obs, "rewards": rewards}):
            raise not_finite(f"after {number} resets and steps, {path}", value, index)
        rewards = tuple(tree.flatten(rewards))
        total += sum(rewards)
        leaves = [to_array(leaf) for leaf in tree.flatten(obs)]
        digest = hash(tuple(leaf.tobytes() for leaf in leaves))
        largest = max((np.abs(leaf).max(initial=0) for leaf in leaves if leaf.dtype.kind == "f"), default=0.0)
        is_cut = any(tree.flatten(truncateds))
        if is_single:
            is_over = is_cut or bool(terminateds)
            actions = random_action(space, obs)
        else:
            is_over = env.is_over
            actions = {agent: random_action(space[agent], obs[agent]) for agent in env.acting}
        yield Moment(digest, rewards, is_over, is_cut, step, total, largest, end - start)
        if step and end > until:
            return
