"""Open episodes: how a runner that was saved in the middle of them continues them, in this process or in another."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tree
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.rollout import allocate_observations, map_leaves
from rlmodule.modules.recurrent import initial_states
from rlmodule.modules.rl_module import RLModule

MOST_STEPS = 100_000
"""Most actions that are kept of an episode. A longer one is cut when its run is resumed, unless its env has a state."""

logger = logging.getLogger("rlmodule.envs.make")


class ActionHistory:
    """Keeps the actions of episodes that have not ended. It holds references to rows that were filled anyway."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, list[np.ndarray]]] = deque()  # the first step, and leaves [T, N, ...]

    def add(self, step: int, actions: Tree, oldest: int) -> None:
        """Add the sampled ``actions`` ``[T, N, ...]`` from ``step`` on; drop those from before the ``oldest`` step."""
        self._blocks.append((step, tree.flatten(actions)))
        oldest = max(oldest, step - MOST_STEPS)
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1][0]) <= oldest:
            self._blocks.popleft()

    def of(self, slot: int, began: int) -> list[Tensor]:
        """Return the leaves ``[t, ...]`` of the actions of one env since the step ``began``, or as many as are kept."""
        blocks = [(step, leaves) for step, leaves in self._blocks if step + len(leaves[0]) > began]
        of_leaves = zip(*([x[max(0, began - step) :, slot] for x in leaves] for step, leaves in blocks), strict=True)
        return [torch.from_numpy(np.concatenate(parts)) for parts in of_leaves]

    def set(self, step: int, actions: Sequence[Sequence[Tensor]]) -> None:
        """Replace what is kept by the ``actions`` of each env, leaves ``[t, ...]`` that end before ``step``; no leaves
        for an env whose actions are not needed."""
        self._blocks.clear()
        if longest := max(len(leaf) for leaves in actions for leaf in [*leaves, ()][:1]):
            template = next(leaves for leaves in actions if leaves)
            block = [np.zeros((longest, len(actions), *x.shape[1:]), x.numpy().dtype) for x in template]
            for slot, leaves in enumerate(actions):
                for kept, leaf in zip(block, leaves, strict=False):
                    kept[longest - len(leaf) :, slot] = leaf
            self._blocks.append((step - longest, block))

    def sent(self, module: RLModule, env: VectorEnv, actions: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
        """Return the ``actions`` passed to :meth:`set` as the envs got them: for each env, one per step.

        They are converted row by row, as they were when they were sampled, so that they are equal bit for bit.
        """
        sent: list[list[Any]] = [[] for _ in actions]
        lengths = [len(leaves[0]) if leaves else 0 for leaves in actions]
        for _, block in self._blocks:
            rows, template = len(block[0]), allocate_observations(module.action_space, 0)
            for t in range(rows):
                action = tree.unflatten_as(template, [torch.from_numpy(x[t]) for x in block])
                fitted = map_leaves(Tensor.numpy, module.action_converter(action))
                each = fitted if isinstance(fitted, np.ndarray) else iterate(env.action_space, fitted)
                for todo, length, one in zip(sent, lengths, each, strict=True):
                    if rows - t <= length:
                        todo.append(one)
        return sent


def describe_row(row: Mapping[str, Any], memory: Tree | None, slot: int) -> dict[str, Any]:
    """Return what a runner needs of one env to continue from ``row``, as lists of tensors.

    Args:
        row: The last row of a fragment, see :meth:`RolloutStorage.last_row`.
        memory: The states of a recurrent module ``[N, ...]``.
        slot: The env.
    """

    def leaves_of(rows: Tree) -> list[Tensor]:
        return [torch.as_tensor(leaf[slot]).clone() for leaf in tree.flatten(rows)]

    return {
        "obs": leaves_of(row["obs"]),
        "previous": {name: leaves_of(rows) for name, rows in row["previous"].items()},
        "memory": [] if memory is None else leaves_of(memory),
    }


def join_rows(
    env: VectorEnv, module: RLModule, no_obs: Tree, saved: Sequence[Mapping[str, Any]], obs: Sequence[Any]
) -> tuple[dict[str, Any], Tree | None]:
    """Return the row with which the next fragment begins, and the states of a recurrent module.

    Args:
        env: The vector env.
        module: The module that acts.
        no_obs: Observations of the module ``[0, ...]``.
        saved: Of each env, what :func:`describe_row` returned and its ``length``; empty for one that begins an episode.
        obs: The observation of each env.
    """
    num, space = len(saved), env.single_observation_space
    previous = dict[str, Tree]()
    for name in module.past_view.steps:
        previous[name] = map_leaves(lambda x: np.zeros((num, *x.shape[1:]), x.numpy().dtype), no_obs[name])
        _fill(previous[name], [one.get("previous", {}).get(name, []) for one in saved])
    memory = None
    if module.is_stateful():
        memory = initial_states(module, num)
        _fill(memory, [one.get("memory", []) for one in saved])
    whole_obs = concatenate(space, obs, create_empty_array(space, num))
    starts = np.array([not one.get("length") for one in saved])
    return {"obs": whole_obs, "starts": starts, "ended": False, "previous": previous}, memory


def _fill(rows: Tree, saved: Sequence[Sequence[Tensor]]) -> None:
    """Copy the ``saved`` leaves of each env, if it has any, into the tree ``rows`` ``[N, ...]``."""
    for slot, leaves in enumerate(saved):
        for whole, leaf in zip(tree.flatten(rows), leaves, strict=False):
            torch.as_tensor(whole)[slot] = leaf
