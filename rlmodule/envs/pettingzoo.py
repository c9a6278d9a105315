"""Envs of PettingZoo by name. Its packages are imported only to look for a name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym

from rlmodule.envs.atari import is_atari


def maker_of(name: str) -> Callable[..., Any] | None:
    """Return the function that makes the env ``name``, an id of ``pettingzoo.make`` or a module; None if no env has it.

    Raises:
        ImportError: If a package is missing, or any other error of the import.
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


def is_known(name: str) -> bool:
    """Return whether an env has this name, in a package that is installed."""
    with contextlib.suppress(Exception):
        return maker_of(name) is not None
    return False


def is_of_gymnasium(name: str) -> bool:
    """Return whether ``name`` is an id of Gymnasium."""
    return name in gym.registry or is_atari(name)
