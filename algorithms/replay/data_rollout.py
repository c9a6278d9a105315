"""Turn a data set into a rollout, which a replay buffer can store."""

from __future__ import annotations

import logging

import numpy as np
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution
from catalog.distributions.nested import at, leaf_classes
from catalog.past import OBS, PREV_ACTION, PREV_OBS, PREV_REWARD
from catalog.spaces import to_tensor
from rlmodule.data.columns import Columns
from rlmodule.data.dataset import Dataset
from rlmodule.data.rollout import Rollout, map_leaves
from rlmodule.modules.rl_module import RLModule

logger = logging.getLogger("algorithms.replay")

EPS = 1e-3
"""Distance from the bounds that actions of data keep where the policy cannot reach the bounds."""


def data_rollout(dataset: Dataset, module: RLModule) -> Rollout:
    """Return all ``S`` steps of ``dataset`` as a rollout ``[S, 1]``, one episode after another, with everything that
    ``module`` sees and with actions as its distribution samples them.

    The rollout has the final observations of all episodes. An episode that the data cut off counts as truncated.
    """
    first, end = dataset.offsets[:-1], dataset.offsets[1:]
    num_steps = dataset.num_steps
    with torch.no_grad():
        actions = module.action_converter.inverse(map_leaves(to_tensor, dataset.actions))
    rewards = to_tensor(dataset.rewards)
    steps = np.arange(num_steps)
    begins = np.repeat(first, end - first)
    obs, final_obs = map_leaves(to_tensor, dataset.observations), map_leaves(to_tensor, dataset.final_observations)
    earlier = {PREV_OBS: obs, PREV_ACTION: actions, PREV_REWARD: rewards}
    # in a run, env runners record what a module sees of earlier steps; here it follows from the columns
    if past := module.past_view.steps:
        obs, final_obs = {OBS: obs}, {OBS: final_obs}
        for name, count in past.items():
            obs[name] = _entries_before(earlier[name], steps, begins, count)
            final_obs[name] = _entries_before(earlier[name], end, first, count)
    starts, terminateds, truncateds = torch.zeros(3, num_steps, dtype=torch.bool)
    last, terminated = torch.from_numpy(end - 1), to_tensor(dataset.terminated)
    starts[first] = True
    terminateds[last], truncateds[last] = terminated, ~terminated
    columns = {
        Columns.OBS: obs,
        Columns.ACTIONS: actions,
        Columns.REWARDS: rewards,
        Columns.TERMINATEDS: terminateds,
        Columns.TRUNCATEDS: truncateds,
        Columns.STARTS: starts,
        Columns.VALID: torch.ones(num_steps, dtype=torch.bool),
    }
    return Rollout(
        columns=map_leaves(lambda x: x.unsqueeze(1), columns),
        last_obs=map_leaves(lambda x: x[-1:], final_obs),
        final_index=torch.stack([last, torch.zeros_like(last)], 1),
        final_obs=final_obs,
    )


def inside_bounds(rollout: Rollout, dist_cls: type[Distribution]) -> Rollout:
    """Move those actions of ``rollout`` inside the bounds, in place, that ``dist_cls`` cannot reach, and warn of it.
    Their log-probability would be that of a policy with no noise at all. Return ``rollout``."""
    actions = rollout[Columns.ACTIONS]
    if issubclass(dist_cls, AutoregressiveDistribution) and dist_cls.parts:
        dist_cls = dist_cls.independent
    for keys, leaf_cls in leaf_classes(dist_cls):
        leaf = at(actions, keys)
        num_outside = int((leaf.abs() > 1 - EPS).sum()) if leaf_cls.bounded else 0
        if num_outside:
            leaf.clamp_(-1 + EPS, 1 - EPS)
            logger.warning(
                "data: %s numbers of actions lie on the bounds, which %s cannot reach: they are moved inside by %g of "
                "the range [-1, 1]. A DiagGaussian, the default, takes them as they are.",
                f"{num_outside:,}",
                leaf_cls.__name__,
                EPS,
            )
    return rollout


def _entries_before(column: Tree, steps: np.ndarray, begins: np.ndarray, count: int) -> Tree:
    """Return the entries of ``column`` ``[S, ...]`` that belong to the ``count`` steps before each of ``steps``
    ``[K]``, zeros before the first step of the episode, which is in ``begins`` ``[K]``.

    Returns:
        A tree of tensors ``[K, ...]`` for one step, or ``[K, count, ...]`` for several, the oldest first.
    """
    index = steps[:, None] - np.arange(count, 0, -1)
    is_known = torch.from_numpy(index >= begins[:, None])
    where = torch.from_numpy(np.maximum(index, 0))

    def take(leaf: Tensor) -> Tensor:
        entries = leaf[where]
        entries[~is_known] = 0
        return entries[:, 0] if count == 1 else entries

    return tree.map_structure(take, column)
