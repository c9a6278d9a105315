"""TensorStorage: what one call of an env runner fills from an env that computes with torch, on the env's device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import tree
from gymnasium.vector import AutoresetMode
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.rollout import map_leaves, write_row
from rlmodule.envs.infos import last_infos
from rlmodule.modules.rl_module import RLModule
from rlmodule.sampling.storage import RolloutStorage


class TensorStorage(RolloutStorage):
    """Tensors on the env's device.

    Filling the rows only queues work there: the host runs ahead of a GPU and never waits for it. Which episodes were
    truncated, whether all is finite and whether a mask left a choice is found at the end, in one copy to the host.
    """

    __slots__ = ()

    @staticmethod
    def _as_env_gives(tensors: Tree) -> Tree:
        return tensors

    @staticmethod
    def _copied(value: Any) -> Any:
        return value.clone()

    def write_step(self, t: int, obs: Tree, rewards: Any, terminateds: Any, truncateds: Any) -> None:
        if t == 0:
            check_device(f"{self.env_name}.step()", (obs, rewards, terminateds, truncateds), self.rewards.device)
        RolloutStorage.write_step(self, t, obs, rewards, terminateds, truncateds)

    def note_finals(self, t: int, info: Mapping[str, Any]) -> None:
        # Read with every step: whether an episode was truncated is not known on the host.
        if "final_obs" not in info:
            return
        self.rows_with_finals.append(t)
        if self.final_obs is None:
            check_device(f"{self.env_name}.step(), info['final_obs']", info["final_obs"], self.rewards.device)
            self.final_obs = map_leaves(lambda x: torch.empty_like(x[1:]), self.env_obs)
        write_row(self.final_obs, t, info["final_obs"])

    def note_infos(self, t: int, info: Mapping[str, Any]) -> None:
        names = info.keys() if self.mode is AutoresetMode.NEXT_STEP else info.keys() & {"final_info"}
        self.infos.append({name: tree.map_structure(_copy, info[name]) for name in names})

    def episode_infos(self, ended: np.ndarray) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = []
        for row in np.flatnonzero(ended.any(1)) if self.infos else ():
            info = {name: tree.map_structure(_as_array, part) for name, part in self.infos[row].items()}
            infos += last_infos(info, ended[row], self.mode is AutoresetMode.SAME_STEP)
        return infos

    def num_acting(self, t: int) -> int:
        return len(self.starts[t])

    def _check(self, module: RLModule, first_step: int, first_env: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        floats = [leaf for leaf in tree.flatten(self.env_obs) if leaf.is_floating_point()]
        stuck = self.valid.new_zeros(1, 1)
        if module.action_mask is not None:
            stuck = module.action_mask.rows_without_choice(map_leaves(lambda x: x[:-1], self.env_obs)) & self.valid
        wrong = torch.stack([stuck.any(), *(~leaf.isfinite().all() for leaf in (*floats, self.rewards))]).any()
        parts = [self.rewards, self.terminateds, self.truncateds, wrong]
        on_host = torch.cat([part.flatten().view(torch.uint8) for part in parts]).cpu().numpy()
        if on_host[-1]:
            self.check(module, first_step, first_env)
        shape, size = self.rewards.shape, self.rewards.numel()
        flags = on_host[4 * size : -1].view(bool).reshape(2, *shape)
        return on_host[: 4 * size].view(np.float32).reshape(shape), flags[0], flags[1]


def check_device(where: str, value: Any, device: torch.device) -> None:
    """Refuse a tree in which not all leaves are tensors on ``device``."""
    for leaf in tree.flatten(value):
        if not isinstance(leaf, Tensor) or leaf.device != device:
            got = f"a tensor on {leaf.device}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__} among them"
            raise ValueError(
                f"{where}: expected tensors on {device} alone, got {got}. Make all observations, "
                "rewards and flags tensors there, or all of them arrays."
            )


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _as_array(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, Tensor) else value
