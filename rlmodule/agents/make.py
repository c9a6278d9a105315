"""Function that makes multi-agent envs from a class, a factory, or a name from PettingZoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from catalog.copies import mutable_copy
from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.pettingzoo import adapted
from rlmodule.envs.make import check_alike, install_remedy, name_of
from rlmodule.envs.pettingzoo import is_of_gymnasium, maker_of
from rlmodule.envs.restarting import made_in_tries
from rlmodule.envs.shared_counter import SharedCounter

AgentEnvSource: TypeAlias = str | Callable[..., Any]
"""Source of multi-agent envs: a class that is called as ``cls(**env_config)``; a factory ``fn(env_config)``; an id of
``pettingzoo.make`` (``"butterfly/pistonball-v6"``); or an import path of a Python module with ``parallel_env`` or
``env`` (``"mpe2.simple_spread_v3"``). Each makes a `MultiAgentEnv`, or a parallel or AEC env of PettingZoo."""

# Packages that the extra "multiagent" of catalog-rl installs.
_EXTRA = ("pettingzoo", "mpe2")


def make_agent_envs(
    source: AgentEnvSource,
    env_config: Mapping[str, Any],
    num_envs: int,
    *,
    first_env_index: int = 0,
    step_counter: SharedCounter | None = None,
    like: AgentEnvGuard | None = None,
    tries: int = 1,
) -> list[AgentEnvGuard]:
    """Make `num_envs` multi-agent envs, each wrapped in a guard. A PettingZoo env is first wrapped in an adapter.

    Args:
        source: See `AgentEnvSource`. It is called once per env, each time with a new deep copy of ``env_config``.
        env_config: Settings for the env.
        num_envs: Number of envs, 1 or more.
        first_env_index: Index of the first env in the run, for error texts.
        step_counter: Counts the steps of the envs.
        like: Env whose agents and spaces all envs must have. None compares with the first env that is made.
        tries: Number of times to try to make each env, if making it raises.

    Raises:
        ValueError: If a name is invalid, if the agents or spaces of the envs differ, or if an env
            lacks the space of an agent.
        TypeError: If `source` made anything but a multi-agent env.
        ImportError: If the env needs a package that is not installed; names the command that installs it.
        RuntimeError: If making the env raised; the text has the type and message of that error.
    """
    where = f"env {name_of(source)}"
    made, guards = list[Any](), list[AgentEnvGuard]()
    try:
        for index in range(first_env_index, first_env_index + num_envs):
            # a new copy in each try
            made.append(made_in_tries(lambda: _make(source, mutable_copy(dict(env_config)), where), tries))
            if made[-1] is made[0] and guards:
                remedy = "Construct the env inside the factory."
                raise ValueError(f"{where}: expected a new env from each call, got the same one. {remedy}")
            guards.append(AgentEnvGuard(adapted(made[-1], where), index, step_counter))
            first = like or guards[0]
            for name in ("possible_agents", "observation_spaces", "action_spaces"):
                found, expected = getattr(guards[-1], name), getattr(first, name)
                check_alike(f"env {index}, {name}", found, f"env {first.env_index}", expected)
    except Exception:
        for env in made:
            with suppress(Exception):  # the refusal matters more, and it may be no env
                env.close()
        raise
    return guards


def _make(source: AgentEnvSource, config: dict[str, Any], where: str) -> Any:
    remedy = "A class is called as cls(**env_config), a factory with one dict, as in lambda env_config: MyEnv()."
    try:
        if isinstance(source, type):
            return source(**config)
        if not isinstance(source, str):
            return source(config)
        remedy = "Check env_config against the arguments of the env."
        if (maker := maker_of(source)) is not None:
            return maker(**config)
    except Exception as error:
        text = str(error).rstrip(".?")
        missing = error if isinstance(error, ImportError) else error.__cause__  # PettingZoo wraps it
        if isinstance(missing, ImportError):
            remedy = 'Run: pip install "catalog-rl[multiagent]"' if missing.name in _EXTRA else install_remedy(missing)
            raise ImportError(f"{where}: expected its packages, got {text}. {remedy}") from error
        raise RuntimeError(f"{where}: expected an env, got {type(error).__name__}: {text}. {remedy}") from error
    raise _unknown_name(source, where)


def _unknown_name(name: str, where: str) -> ValueError:
    if is_of_gymnasium(name):
        remedy = "Leave .multi_agent() out: it is for envs of several agents."
        return ValueError(f"{where}: expected an env of several agents, got an id of Gymnasium. {remedy}")
    remedy = (
        "Use an id of pettingzoo.make(), such as 'classic/rps-v2', or the path of a module with parallel_env() or "
        "env(), such as 'mpe2.simple_spread_v3'."
    )
    return ValueError(f"{where}: expected the name of an env of several agents, got an unknown one. {remedy}")
