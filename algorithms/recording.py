"""Record data sets: of episodes that the policies of a run play, or of the steps in its replay buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algorithms.algorithm import Algorithm
from algorithms.off_policy.algorithm import ReplayAlgorithm
from algorithms.replay.ring import START, TERMINATED, TRUNCATED, Ring
from algorithms.run.evaluation import FRAGMENT
from catalog.base import Tree
from rlmodule.data.columns import Columns
from rlmodule.data.dataset import Dataset
from rlmodule.data.rollout import Rollout, entry_of, map_leaves
from rlmodule.groups.env_runner_group import LocalEnvRunnerGroup
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID


class Steps(NamedTuple):
    """Steps of one agent in one env, in order of time.

    Attributes:
        observations: What the module saw before each step, a tree of arrays ``[S, ...]``.
        following: What it saw after each step.
        actions: The actions as the module's distribution samples them.
        rewards, terminated, truncated, starts: One entry per step, ``[S]``. ``starts`` marks the first steps of
            episodes.
    """

    observations: Tree
    following: Tree
    actions: Tree
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    starts: np.ndarray


def record(
    algorithm: Algorithm,
    *,
    num_episodes: int | None = None,
    num_env_steps: int | None = None,
    explore: bool = False,
    show: Callable[[int], None] = lambda done: None,
) -> dict[str, Dataset]:
    """Play as in evaluations in new envs, and return the data set of each policy by its id. In a multi-agent run, these
    are the policies in ``policies_to_train``.

    Args:
        algorithm: The run whose policies play.
        num_episodes: Episodes to play. Each env plays an equal share, since the first to end would be short ones.
        num_env_steps: Env steps to play over all envs, instead of episodes. Those that have not ended then count as
            truncated.
        explore: Whether to sample actions instead of taking the most likely ones.
        show: Called with the number of episodes or steps so far.

    Raises:
        ValueError: If not exactly one of ``num_episodes`` and ``num_env_steps`` is given and at least 1, the run has no
            env, or no episode has ended.
    """
    given = [count for count in (num_episodes, num_env_steps) if count is not None]
    if len(given) != 1 or given[0] < 1:
        raise ValueError(
            "record(): expected one of num_episodes and num_env_steps, at least 1, got "
            f"{num_episodes} and {num_env_steps}."
        )
    (count,) = given
    config = algorithm.config.for_evaluation()
    if config.env is None:
        raise ValueError(
            "record(): expected a run with an env, got one that learns from data alone. Name it: "
            "from_checkpoint(path, env='CartPole-v1')."
        )
    settings = config.for_runners()
    settings.records_final_obs = "ended"  # a data set has what followed every episode, also after terminal steps
    settings.is_multi_agent = config.is_multi_agent
    settings.num_envs_per_env_runner = num_envs = min(settings.num_envs_per_env_runner, count)
    wanted = np.full(num_envs, np.inf) if num_episodes is None else np.diff(np.arange(num_envs + 1) * count // num_envs)
    group = LocalEnvRunnerGroup(settings, run_seed=algorithm.run_seed, role="evaluation_env")
    parts: dict[str, dict[tuple[int, ...], list[Steps]]] = defaultdict(lambda: defaultdict(list))
    ended, steps, fragment = np.zeros(num_envs, np.int64), 0, FRAGMENT
    try:
        algorithm.build_modules_of(group)
        runner: Any = group.local_runner
        if config.is_multi_agent:
            runner.set_policies([*filter(config.is_trained, runner.module)], None)
            # an episode of the env ends a rollout, so no later steps of its agents are in it
            fragment = FRAGMENT if num_episodes is None else 1
        while (ended < wanted).any() if num_env_steps is None else steps < num_env_steps:
            rows = fragment if num_env_steps is None else min(fragment, -(-(num_env_steps - steps) // num_envs))
            rollout = runner.sample(rows, explore=explore)
            # slots of several agents change from rollout to rollout, so steps are kept by env and agent
            for module_id, of_module, keys in _modules_of(rollout):
                for slot, key in enumerate(keys):
                    if ended[key[0]] < wanted[key[0]]:
                        parts[module_id][key].append(_steps_of(of_module, slot))
            np.add.at(ended, rollout.stats["episode_slots"], 1)
            steps += rollout.num_env_steps
            show(int(np.minimum(ended, wanted).sum()) if num_env_steps is None else min(steps, num_env_steps))
    finally:
        group.stop()
    most = None if num_episodes is None or config.is_multi_agent else wanted.astype(int).tolist()
    return {
        module_id: _dataset(algorithm, module_id, map(_joined, by_key.values()), most, num_env_steps is not None)
        for module_id, by_key in parts.items()
    }


def record_replay(algorithm: Algorithm) -> dict[str, Dataset]:
    """Return the steps in the replay buffers of a run as a data set for each policy, by its id. Rewards are clipped if
    ``clip_rewards`` clips them for learning.

    Raises:
        ValueError: If the run has no replay buffer with steps in it.
    """
    replays = algorithm.replays if isinstance(algorithm, ReplayAlgorithm) else {}
    found = {name: replay.ring for name, replay in replays.items() if replay.num_transitions}
    if not found:
        raise ValueError(
            "record_replay(): expected a run with steps in a replay buffer, got one of "
            f"{type(algorithm).__name__}. Save one with replay_in_checkpoints=True, or record episodes."
        )
    return {
        module_id: _dataset(algorithm, module_id, _columns_of(ring, replays[module_id].kept_rows), None, True)
        for module_id, ring in found.items()
    }


def _modules_of(rollout: Any) -> Iterable[tuple[str, Rollout, Sequence[tuple[int, ...]]]]:
    """Yield the id, the rollout and the keys of the slots of each module that acted: the env, and of several agents
    also the agent."""
    if isinstance(rollout, Rollout):
        yield DEFAULT_MODULE_ID, rollout, [(env,) for env in range(rollout.shape[1])]
        return
    for module_id, of_module in rollout.items():
        yield module_id, of_module, [*map(tuple, rollout.slots[module_id].tolist())]


def _steps_of(rollout: Rollout, slot: int) -> Steps:
    rows = rollout.valid[:, slot]

    def of_slot(column: Tree) -> Tree:
        return map_leaves(lambda x: x[rows, slot].numpy(force=True), column)

    names = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.STARTS)
    obs, actions, *flat = (of_slot(rollout[name]) for name in (Columns.OBS, Columns.ACTIONS, *names))
    return Steps(obs, of_slot(rollout.following_observations()), actions, *flat)


def _columns_of(ring: Ring, kept_rows: int) -> Iterable[Steps]:
    """Yield the stored steps of each column of a ring, the oldest first."""
    for column, written in enumerate(ring.written.tolist()):
        numbers = np.arange(max(0, written - kept_rows), written)
        places = numbers % ring.rows * ring.num_columns + column
        obs, actions = ring.obs.at(places), ring.actions.at(places)
        yield Steps(
            observations=map_leaves(Tensor.numpy, obs),
            following=map_leaves(Tensor.numpy, _following(ring, places, obs)),
            actions=map_leaves(Tensor.numpy, actions),
            rewards=ring.rewards.take(places),
            terminated=ring.has(TERMINATED, places),
            truncated=ring.has(TRUNCATED, places),
            starts=ring.has(START, places),
        )


def _following(ring: Ring, places: np.ndarray, obs: Tree) -> Tree:
    """Return what followed the steps at ``places``. After a terminated step, of which the ring does not know it, repeat
    the observation before, which is in ``obs``."""
    lost = torch.from_numpy(np.flatnonzero(ring.has(TERMINATED, places) & (ring.obs.finals.index.take(places) < 0)))
    return map_leaves(lambda after, before: after.index_copy_(0, lost, before[lost]), ring.obs.following(places), obs)


def _joined(parts: Sequence[Steps]) -> Steps:
    return Steps(*(map_leaves(lambda *x: np.concatenate(x), *column) for column in zip(*parts, strict=True)))


def _dataset(
    algorithm: Algorithm, module_id: str, columns: Iterable[Steps], most: Sequence[int] | None, keeps_open: bool
) -> Dataset:
    """Return the data set of a module.

    Args:
        algorithm: The run.
        module_id: Id of the module.
        columns: Steps of agents in envs.
        most: Number of episodes of each of ``columns``; None for all.
        keeps_open: Whether episodes count that have not ended.
    """
    chosen, lengths = list[Steps](), list[np.ndarray]()
    for number, steps in enumerate(columns):
        ends = steps.terminated | steps.truncated
        ends[:-1] |= steps.starts[1:]  # an episode that was cut has no flag at its end
        if keeps_open and len(ends):
            ends[-1] = True
        after = np.flatnonzero(ends)[: None if most is None else most[number]] + 1
        if len(after):
            chosen.append(Steps(*(entry_of(column, slice(after[-1])) for column in steps)))
            lengths.append(np.diff(after, prepend=0))
    if not chosen:
        raise ValueError(
            f"record(): expected an episode of {module_id!r} that ends, got none. Record env steps instead."
        )
    steps, offsets = _joined(chosen), np.append(0, np.cumsum(np.concatenate(lengths)))
    last, module = offsets[1:] - 1, algorithm.get_module(module_id)
    terminated = steps.terminated[last]
    with torch.no_grad():
        actions = module.action_converter.forward(map_leaves(torch.from_numpy, steps.actions))
    return Dataset(
        module.env_part(steps.observations),
        module.env_part(entry_of(steps.following, last)),
        map_leaves(Tensor.numpy, actions),
        steps.rewards,
        offsets,
        terminated,
        ~terminated,
        observation_space=module.observation_space,
        action_space=module.action_space,
        env=algorithm.config.env if isinstance(algorithm.config.env, str) else None,
        where="record()",
    )
