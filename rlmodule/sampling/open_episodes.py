"""Functions that save the open episodes of an env runner, and continue them in the same or another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tree
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.rollout import map_leaves
from rlmodule.modules.recurrent import initial_states
from rlmodule.modules.rl_module import RLModule


def describe_row(row: Mapping[str, Any], memory: Tree | None, slot: int) -> dict[str, Any]:
    """Return what a runner needs from ``row`` and ``memory`` to continue the env in ``slot``.

    Args:
        row: The last row of a fragment, see :meth:`RolloutStorage.last_row`.
        memory: The states ``[N, ...]`` of a recurrent module; None for other modules.
        slot: Index of the env in the runner.

    Returns:
        A dict with ``obs``; ``previous``, a dict with the earlier steps that the module sees by field name; and
        ``memory``. Each value, and each value in ``previous``, is the list of the slot's leaves, see
        :func:`leaves_of`. ``memory`` is empty for other than recurrent modules.
    """
    return {
        "obs": leaves_of(row["obs"], slot),
        "previous": {name: leaves_of(rows, slot) for name, rows in row["previous"].items()},
        "memory": [] if memory is None else leaves_of(memory, slot),
    }


def leaves_of(rows: Tree, slot: int) -> list[Tensor]:
    """Return the leaves of entry ``slot`` of ``rows``, a tree of arrays or tensors ``[N, ...]``."""
    return [torch.as_tensor(leaf[slot]).clone() for leaf in tree.flatten(rows)]


def join_rows(
    env: VectorEnv, module: RLModule, no_obs: Tree, saved: Sequence[Mapping[str, Any]], obs: Sequence[Any]
) -> tuple[dict[str, Any], Tree | None]:
    """Return the row with which the next fragment begins, and the states of a recurrent module (None for other
    modules).

    Args:
        env: The vector env.
        module: The module that acts.
        no_obs: Empty observations of the module, a tree ``[0, ...]`` that gives the shapes and dtypes.
        saved: For each env, the result of :func:`describe_row` with the entry ``length``, the number of steps of the
            open episode so far; an empty dict if the env begins a new episode.
        obs: The current observation of each env, with which it continues its episode or begins a new one.
    """
    num, space = len(saved), env.single_observation_space
    previous = dict[str, Tree]()
    for name in module.past_view.steps:
        previous[name] = map_leaves(lambda x: np.zeros((num, *x.shape[1:]), x.numpy().dtype), no_obs[name])
        fill(previous[name], [episode.get("previous", {}).get(name, []) for episode in saved])
    memory = None
    if module.is_stateful():
        memory = initial_states(module, num)
        fill(memory, [episode.get("memory", []) for episode in saved])
    whole_obs = concatenate(space, obs, create_empty_array(space, num))
    starts = np.array([not episode.get("length") for episode in saved])
    return {"obs": whole_obs, "starts": starts, "ended": False, "previous": previous}, memory


def fill(rows: Tree, saved: Sequence[Sequence[Tensor]]) -> None:
    """Copy saved leaves into ``rows``, a tree of arrays or tensors ``[N, ...]``. ``saved`` has the result of
    :func:`leaves_of` for each slot. If it is empty, the slot stays unchanged."""
    for slot, leaves in enumerate(saved):
        for whole, leaf in zip(tree.flatten(rows), leaves, strict=False):
            torch.as_tensor(whole)[slot] = leaf
