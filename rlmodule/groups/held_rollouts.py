"""Save the rollouts that env runners sampled ahead and nobody has taken yet, and restore them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.agents.episode import AgentEpisode, MultiAgentEpisode
from rlmodule.agents.multi_rollout import MultiRollout
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, allocate_observations, as_tensors
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.modules.recurrent import initial_states
from rlmodule.modules.rl_module import RLModule

logger = logging.getLogger(__name__)

FLAGS = (Columns.VALID, Columns.STARTS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
"""Columns of one bool per row."""
_LEFT_OUT = object()


def get_held(group: EnvRunnerGroup, num_steps: int) -> dict[str, Any]:
    """Return the rollouts of ``num_steps`` steps that ``group`` holds, for :func:`set_held`, as dicts and lists of
    tensors and plain values."""
    in_order = sorted(group.held, key=lambda rollout: rollout.first_env_index)  # they arrive in any order
    rollouts = [state_of(rollout) for rollout in in_order]
    return {"num_steps": num_steps, "num_envs": group.num_envs_per_runner, "rollouts": rollouts}


def set_held(group: EnvRunnerGroup, state: Mapping[str, Any], num_steps: int) -> None:
    """Let ``group`` hold the rollouts of a ``state`` from :func:`get_held`, after its own state was restored.

    If rollouts now have another number of steps, or runners another number of envs, or there are fewer runners, the
    saved ones fit nowhere. Their steps then count as lost, and new episodes begin, so that replay joins no steps across
    the gap.

    Raises:
        KeyError, TypeError, ValueError: If the state is not that of rollouts of the group's modules.
    """
    saved = state["rollouts"]
    first_envs = range(0, group.num_envs, group.num_envs_per_runner)
    has_envs = all(rollout["first_env_index"] in first_envs for rollout in saved)
    if has_envs and (state["num_steps"], state["num_envs"]) == (num_steps, group.num_envs_per_runner):
        group.held = [_restored(rollout, group.module) for rollout in saved]
        return
    lost = sum(rollout["num_env_steps"] for rollout in saved)
    group.num_env_steps_lost["moved"] += lost
    group.reset()
    logger.warning(
        "checkpoint: expected rollouts of %d steps from %d of %d envs each, as the runners sample them now, got %d of "
        "%s steps from %s envs that were sampled ahead. Their %d env steps are lost, and new episodes begin.",
        num_steps, group.num_envs_per_runner, group.num_envs, len(saved), state["num_steps"], state["num_envs"], lost,
    )  # fmt: skip


def _restored(state: Mapping[str, Any], module: Any) -> Rollout | MultiRollout:
    return multi_rollout_from(state, module) if "modules" in state else rollout_from(state, module)


def state_of(rollout: Rollout | MultiRollout) -> dict[str, Any]:
    """Return a rollout as dicts and lists of tensors and plain values, for :func:`rollout_from`. Arrays are copied,
    since those from another process cannot be written to.

    Entries of ``episode_infos`` other than numbers, text, arrays, and dicts of these are left out.
    """
    state: dict[str, Any] = {
        "policy_version": rollout.policy_version,
        "first_env_index": rollout.first_env_index,
        "num_env_steps": rollout.num_env_steps,
        "stats": _saved_stats(rollout.stats),
    }
    if isinstance(rollout, MultiRollout):
        modules = {module_id: state_of(part) for module_id, part in rollout.modules.items()}
        slots = {module_id: torch.tensor(slots) for module_id, slots in rollout.slots.items()}
        return state | {"modules": modules, "slots": slots}
    # The leaves of trees as lists: a checkpoint keeps no tuples, and the module knows the structure.
    state["columns"] = {name: tree.flatten(column) for name, column in rollout.columns.items()}
    for name in ("last_obs", "final_obs", "state_in"):
        state[name] = tree.flatten(getattr(rollout, name))
    return state | {"final_index": rollout.final_index, "finals_known": rollout.finals_known}


def rollout_from(state: Mapping[str, Any], module: RLModule) -> Rollout:
    """Return the rollout of ``module`` with a ``state`` from :func:`state_of`.

    Raises:
        KeyError, ValueError: If the state is not that of a rollout of this module.
    """
    columns, final_index = state["columns"], state["final_index"]
    (valid,) = columns[Columns.VALID]
    steps, slots = valid.shape
    num_finals = len(final_index)
    no_obs = as_tensors(allocate_observations(module.input_space, 0))
    inputs = torch.zeros(0, module.num_dist_inputs)
    no_flags = torch.zeros(0, dtype=torch.bool)
    no_actions = module.action_dist_cls.from_logits(inputs).to_deterministic().sample()
    # column -> what a row of it is like
    rows: dict[str, Tree] = dict.fromkeys(FLAGS, no_flags)
    rows |= {Columns.OBS: no_obs, Columns.ACTIONS: no_actions, Columns.ACTION_DIST_INPUTS: inputs}
    rows |= dict.fromkeys((Columns.REWARDS, Columns.ACTION_LOGP), torch.zeros(0))

    def restored(name: str, leaves: Sequence[Tensor], like: Tree, *leading: int) -> Tree:
        """Return ``leaves`` as a tree like ``like`` ``[..., *shape]``, with ``leading`` in place of its first dim."""
        expected = [(leaf.dtype, (*leading, *leaf.shape[1:])) for leaf in tree.flatten(like)]
        got = [(leaf.dtype, tuple(leaf.shape)) for leaf in leaves]
        if got != expected:
            raise ValueError(f"rollout, {name}: expected {expected}, got {got}")
        return tree.unflatten_as(like, leaves)

    if (final_index < 0).any() or (final_index >= torch.tensor([steps, slots])).any():
        raise ValueError(f"rollout, final_index: expected steps below {steps} and slots below {slots}")
    if not isinstance(state["finals_known"], bool):
        raise ValueError(f"rollout, finals_known: expected true or false, got {state['finals_known']!r}")
    state_in = None
    if module.is_stateful():
        count = -(-steps // module.max_seq_len)
        state_in = restored("state_in", state["state_in"], initial_states(module, 0), count, slots)
    return Rollout(
        columns={name: restored(name, leaves, rows[name], steps, slots) for name, leaves in columns.items()},
        last_obs=restored("last_obs", state["last_obs"], no_obs, slots),
        final_index=final_index,
        final_obs=restored("final_obs", state["final_obs"], no_obs, num_finals),
        state_in=state_in,
        policy_version=state["policy_version"],
        first_env_index=state["first_env_index"],
        stats=_restored_stats(state["stats"]),
        finals_known=state["finals_known"],
    )


def multi_rollout_from(state: Mapping[str, Any], modules: Mapping[str, RLModule]) -> MultiRollout:
    """Return the rollout of ``modules`` with a ``state`` from :func:`state_of`, without the rows of modules that are
    not among these.

    Raises:
        KeyError, ValueError: If the state is not that of a rollout of these modules.
    """
    kept = [module_id for module_id in state["modules"] if module_id in modules]
    return MultiRollout(
        modules={module_id: rollout_from(state["modules"][module_id], modules[module_id]) for module_id in kept},
        slots={module_id: state["slots"][module_id].numpy() for module_id in kept},
        num_env_steps=state["num_env_steps"],
        policy_version=state["policy_version"],
        first_env_index=state["first_env_index"],
        stats=_restored_stats(state["stats"]),
    )


def _saved_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``stats`` of a rollout without the seconds of its phases, and with pairs in place of dicts, whose keys
    may be the ids of agents, which are not always text."""
    saved: dict[str, Any] = {}
    for name, value in stats.items():
        if isinstance(value, float):
            continue
        if name == "episode_infos":
            saved[name] = [_storable(info) for info in value]
        elif name == "multi_agent_episodes":
            saved[name] = [episode.get_ended() for episode in value]
        elif isinstance(value, np.ndarray):
            saved[name] = torch.tensor(value)
        else:
            saved[name] = [*value.items()] if isinstance(value, Mapping) else value
    return saved


def _restored_stats(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stats that :func:`_saved_stats` saved."""
    stats: dict[str, Any] = {}
    for name, value in saved.items():
        if name == "episode_infos":
            stats[name] = [_stored(info) for info in value]
        elif name == "multi_agent_episodes":
            stats[name] = [MultiAgentEpisode.from_ended(*fields) for fields in value]
        elif name == "agent_episodes":
            stats[name] = [AgentEpisode(*fields) for fields in value]
        elif isinstance(value, Tensor):
            stats[name] = value.numpy()
        else:
            stats[name] = dict(value) if isinstance(value, list) else value
    return stats


def _storable(info: Any) -> Any:
    """Return an info, or a part of one, as plain values and tensors; dicts as pairs, since keys may not be text."""
    if isinstance(info, Mapping):
        parts = [[key, _storable(part)] for key, part in info.items()]
        return {"items": [pair for pair in parts if pair[1] is not _LEFT_OUT]}
    if isinstance(info, np.ndarray) and info.dtype.kind in "biuf":
        return torch.tensor(info)
    return info if isinstance(info, bool | int | float | str | None) else _LEFT_OUT


def _stored(saved: Any) -> Any:
    """Return what :func:`_storable` saved."""
    if isinstance(saved, Mapping):
        return {key: _stored(part) for key, part in saved["items"]}
    return saved.numpy() if isinstance(saved, Tensor) else saved
