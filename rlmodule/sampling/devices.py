"""The device that a runner acts on: that of the tensors of its envs, or the CPU."""

from typing import Any

import torch
import tree
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from rlmodule.envs.checks import describe


def tensors_on(env: VectorEnv, mode: AutoresetMode, seed: int) -> torch.device | None:
    """Return the device of the tensors that ``env.reset(seed=seed)`` returns, or None if it returns arrays.

    Raises:
        TypeError: If ``reset`` returns no tuple of two.
        ValueError: If the env returns both arrays and tensors, or returns tensors and has no autoreset.
    """
    if isinstance(env, SyncVectorEnv | AsyncVectorEnv):  # these always return arrays
        return None
    name = type(env.unwrapped).__name__
    result = env.reset(seed=seed)
    if not isinstance(result, tuple) or len(result) != 2:
        remedy = "Return obs, {} from reset(); see gymnasium.vector.VectorEnv.reset."
        raise TypeError(f"{name}.reset(): expected a tuple (obs, info), got {describe(result)}. {remedy}")
    obs, _ = result
    device = next((leaf.device for leaf in tree.flatten(obs) if isinstance(leaf, Tensor)), None)
    if device is None:
        return None
    check_device(f"{name}.reset()", obs, device)
    if mode is AutoresetMode.DISABLED:
        raise ValueError(
            f"autoreset mode of {name}, which returns tensors: expected SAME_STEP or NEXT_STEP, got "
            f"{mode}. Reset envs within step(), in the step that ends their episode or in the next."
        )
    return device


def check_device(where: str, value: Any, device: torch.device) -> None:
    """Raise ValueError unless all leaves of the tree ``value`` are tensors on ``device``."""
    for leaf in tree.flatten(value):
        if not isinstance(leaf, Tensor) or leaf.device != device:
            got = f"a tensor on {leaf.device}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__} among them"
            raise ValueError(
                f"{where}: expected tensors on {device} alone, got {got}. Make all observations, "
                "rewards and flags tensors there, or all of them arrays."
            )
