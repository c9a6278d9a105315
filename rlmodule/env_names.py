"""What the name of an env would import, found without importing anything."""

from __future__ import annotations

import functools
import re
from importlib import metadata

import gymnasium as gym

# Distributions whose env modules anyone may name: PettingZoo, and the particle envs that left it.
_ZOO = ("pettingzoo", "mpe2")
_OURS = "rlmodule.agents.cartpoles"
_VERSIONED_MODULE = re.compile(r"(?:pettingzoo\.[a-z_]+|mpe2)\.[a-z0-9_]+_v[0-9]+")


def imports_unknown_code(name: str) -> bool:
    """Return whether making the env ``name`` would import a module that the name chooses: any module path, except that
    of an installed PettingZoo env, and any id with a module before a colon."""
    if ":" in name:
        return True
    return "." in name and name not in gym.registry and not is_zoo_module(name)


def is_zoo_module(name: str) -> bool:
    """Return whether ``name`` is the import path of this library's env of several agents, or of one of PettingZoo or
    mpe2 (``"mpe2.simple_spread_v3"``) that is installed. The files of these distributions decide, not those of the
    working directory."""
    if name == _OURS:
        return True
    return bool(_VERSIONED_MODULE.fullmatch(name)) and name in _installed_zoo_modules()


def is_zoo_id(name: str) -> bool:
    """Return whether ``name`` is an id of ``pettingzoo.make`` (``"classic/rps-v2"``) of an installed env."""
    return is_zoo_module(f"pettingzoo.{name.replace('/', '.').replace('-v', '_v')}")


@functools.cache
def _installed_zoo_modules() -> frozenset[str]:
    """Return the import paths of all Python files of the installed distributions of PettingZoo and mpe2."""
    modules = set[str]()
    for distribution in _ZOO:
        try:
            files = metadata.files(distribution) or []
        except metadata.PackageNotFoundError:
            continue
        modules.update(".".join(file.with_suffix("").parts) for file in files if file.suffix == ".py")
    return frozenset(modules)
