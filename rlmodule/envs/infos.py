"""Functions that extract the ``info`` of single envs from the ``info`` of a vector env."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor


def last_infos(info: Mapping[str, Any], ended: np.ndarray, resets_at_once: bool) -> list[dict[str, Any]]:
    """Return the ``info`` of the last step of the episodes that ended, one dict for each env that ``ended`` marks, as a
    single env would have returned it.

    Numbers become Python numbers. Arrays, tensors, lists and dicts are copied, since the env that returned them may
    write into them.

    Args:
        info: The ``info`` of a vector step. A value with one entry per env is split between the envs. An env that a
            mask ``_key`` next to ``key`` does not mark gets no entry ``key``. Any other value belongs to all envs.
        ended: Whether the episode of each env ended in this step, ``[N]`` bool.
        resets_at_once: Whether the env resets within the step. If so, ``info`` describes the next episodes, and its
            entry ``final_info`` the episodes that ended.
    """
    if resets_at_once:
        info = info.get("final_info", {})
    return [_part_of(info, slot, len(ended)) for slot in np.flatnonzero(ended).tolist()]


def _part_of(value: Any, slot: int, num_envs: int) -> Any:
    """Return the part of ``value``, an entry of a vector env's info, that belongs to the env in ``slot``."""
    if not isinstance(value, Mapping):
        return own_value(value[slot] if _is_by_env(value, num_envs) else value)
    names = {f"_{key}" for key in value}
    masks = {key: part for key, part in value.items() if key in names and _is_by_env(part, num_envs)}
    return {
        key: _part_of(part, slot, num_envs)
        for key, part in value.items()
        if key not in masks and (f"_{key}" not in masks or masks[f"_{key}"][slot])
    }


def _is_by_env(value: Any, num_envs: int) -> bool:
    if isinstance(value, np.ndarray | Tensor):
        return tuple(value.shape[:1]) == (num_envs,)
    return isinstance(value, list | tuple) and len(value) == num_envs


def own_value(value: Any) -> Any:
    """Copy the arrays, tensors, lists, tuples and dicts in ``value``, so that no env can change them. Numbers in arrays
    and tensors without dimensions become Python numbers. Other objects are not copied."""
    if isinstance(value, np.generic | np.ndarray | Tensor) and value.ndim == 0:
        return value.item()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(own_value(item) for item in value)
    if isinstance(value, dict):
        return {key: own_value(item) for key, item in value.items()}
    return value
