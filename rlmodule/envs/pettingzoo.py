"""Functions that find PettingZoo envs by name. PettingZoo is imported only to look up a name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym

from rlmodule.envs.atari import is_atari


def maker_of(name: str) -> Callable[..., Any] | None:
    """Return the function that makes the PettingZoo env ``name``, or None if no env has this name. The name is an id of
    ``pettingzoo.make`` or the import path of a Python module.

    Raises:
        ImportError: If a package is missing. Any other error of the import is also raised.
    """
    if is_of_gymnasium(name):
        return None
    if "/" in name:
        zoo = import_module("pettingzoo")
        unknown = import_module("pettingzoo.env_registry.exceptions").PettingZooRegistryError
        for kind in ("parallel", "aec"):
            with contextlib.suppress(unknown):
                return functools.partial(zoo.make, kind, zoo.spec(kind, name))
    found = vars(import_module(name)) if "." in name else {}
    return found.get("parallel_env", found.get("env"))


def is_of_gymnasium(name: str) -> bool:
    """Return whether ``name`` is an id of a Gymnasium env or of an Atari game."""
    return name in gym.registry or is_atari(name)
