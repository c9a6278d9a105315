"""Check what was read from a checkpoint before anything is built or restored from it: a file must not ask for more than
it holds state for, and its state must be that of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import tree

from rlmodule.modules.spec import largest_setting, most_units

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig

# Largest number of envs that a checkpoint may ask for if the envs return tensors.
MOST_TENSOR_ENVS = 1_000_000

# Largest number of envs that a checkpoint without their state may ask for.
MOST_ENVS = 10_000

MOST_THREADS = 1_000

# Setting that no saved state limits → the largest value that a checkpoint may have for it.
MOST = {"torch_num_threads": MOST_THREADS, "num_learners": 1_000, "evaluation_num_envs": MOST_ENVS}
MOST_AGENTS = 10_000

# Largest count of steps, updates or episodes of a run, at which 64-bit floats still tell neighbours apart.
MOST_STEPS = 2**53

# What the state of an open episode has, which a new algorithm has none of: before its first step, of one env, and of
# several agents.
EPISODE: dict[str, Any] = {"seed": 0, "number": 0}
EPISODE_OF_ENV = EPISODE | {"obs": [], "return": 0.0, "length": 0}
EPISODE_OF_AGENTS = EPISODE | {"length": 0, "return": 0.0, "returns": [0.0], "earned": [0.0]}
EPISODE_OF_AGENTS |= {name: [] for name in ("in_play", "policies", "finished", "rows")}

# What the state of a rollout that was sampled ahead has, besides what the module that acted in it checks.
_INTS = torch.zeros(0, dtype=torch.int64)
HELD_ROLLOUT: dict[str, Any] = {
    "policy_version": 0,
    "first_env_index": 0,
    "num_env_steps": 0,
    "stats": {"episode_returns": torch.zeros(0).double(), "episode_lengths": _INTS, "episode_slots": _INTS},
}


def check_weights(content: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return all tensors of the modules in ``content``, which was read from a checkpoint.

    Raises:
        KeyError: If a module that ``content["modules"]`` lists has no state.
        ValueError: If a weight that is listed there is missing, or is NaN or infinite; names it.
    """
    state = content["state"]
    saved = state["learners"]["module"]
    for module_id in content["modules"] | state.get("policies", {"added": {}})["added"]:
        state_of_module = saved[module_id]
        for name in content["modules"][module_id]["parameters"]:
            weights = state_of_module.get(name)
            if weights is None or not weights.isfinite().all():
                got = "none" if weights is None else "NaN or infinite ones"
                raise ValueError(f"{name} of {module_id!r}: expected finite weights, got {got}")
    return [leaf for leaf in tree.flatten(saved) if isinstance(leaf, torch.Tensor)]


def check_sizes(
    content: Mapping[str, Any], config: AlgorithmConfig, given: Mapping[str, Any], weights: Sequence[torch.Tensor]
) -> None:
    """Check that the saved settings do not ask for more envs than the checkpoint has state for, for wider layers than
    its own (see :func:`rlmodule.modules.spec.most_units`), or for more agents, threads or processes than
    :data:`MOST_AGENTS` and :data:`MOST` allow.

    Args:
        content: The content of the checkpoint.
        config: The settings to check.
        given: Settings that the caller passed, which are not checked.
        weights: All tensors of the checkpoint's modules.

    Raises:
        ValueError: If a setting asks for more; names it.
    """
    state = content["state"]
    settings = vars(config)
    # name of a setting → what it asks for, and what is allowed
    limits = {name: (settings[name] or 0, most) for name, most in MOST.items()}
    if "num_env_runners" not in given:
        num_envs = max(1, config.num_env_runners) * config.num_envs_per_env_runner
        limits["num_envs_per_env_runner"] = num_envs, _num_envs(state["env_runners"])
    if state["evaluation"] is not None:
        limits["evaluation_num_envs"] = config.evaluation_num_envs or 0, _num_envs(state["evaluation"])
    if "agents" in content:
        for name in {"env_config", "evaluation_env_config"} - given.keys():
            num_agents = (settings[name] or {}).get("num_agents")
            if isinstance(num_agents, int):  # the env decides what it means
                limits[f"{name}['num_agents']"] = num_agents, MOST_AGENTS
    for name in ("model_config", "rl_module_spec", *config.net_settings):
        limits[name] = largest_setting(content["config"].get(name)), most_units(weights)
    for name, (count, most) in limits.items():
        if name not in given and count > most:
            raise ValueError(f"expected {name} of at most {most:,}, got {count:,}")


def _num_envs(state: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the largest number of envs that settings may ask for if ``state`` holds the state of each env by index:
    as many as it holds, or :data:`MOST_ENVS` if it holds none, as in a run without envs, or :data:`MOST_TENSOR_ENVS` if
    the envs return tensors."""
    on_device = any(env.get("generator", {}).get("draws", "arrays") != "arrays" for env in state.values())
    return MOST_TENSOR_ENVS if on_device else len(state) or MOST_ENVS  # envs that return tensors share one state


def check_state(content: Mapping[str, Any], algorithm: Algorithm, given: Mapping[str, Any]) -> None:
    """Check the saved state before any of it is restored, against the state of ``algorithm``, which is new.

    The check is here and not where each part is restored, because those restore what fits and leave the rest: other
    modules may be trained now, and runners may have other envs.

    Args:
        content: The content of the checkpoint.
        algorithm: The algorithm that was built from it.
        given: Settings that the caller passed.

    Raises:
        ValueError: If an entry is missing or of another kind; names the first.
    """
    state = content["state"]
    saved, modules = state["learners"]["module"], dict(algorithm.learner_group.module.items())
    if saved.keys() != modules.keys():
        raise ValueError(
            f"expected its policies {', '.join(saved)}, got {', '.join(modules)}. Call add_policy() and "
            "remove_policy() after the load"
        )
    for module_id, module in modules.items():
        module.check_state(saved[module_id])
    built = algorithm.get_state()
    if "data" in given and "data" not in state:  # the run had none so far
        built.pop("data", None)
    started: frozenset[str] = frozenset()
    if "policies_to_train" in given:
        started = frozenset(built["learners"]["num_gradient_steps"]) - state["learners"]["num_gradient_steps"].keys()
    _check_kinds(state, built, "state", started)
    if not 1 <= state["num_threads"] <= MOST_THREADS:
        raise ValueError(f"state/num_threads: expected 1 to {MOST_THREADS:,}, got {state['num_threads']:,}")
    for i, rollout in enumerate(state.get("held_rollouts", {"rollouts": ()})["rollouts"]):
        _check_kinds(rollout, HELD_ROLLOUT, f"state/held_rollouts/rollouts/{i}")
    for index, env in state["env_runners"].items():
        episode: Mapping[str, Any] = EPISODE_OF_ENV
        if "agents" in content:
            has_begun = "obs" in env.get("episode", {})
            episode = EPISODE_OF_AGENTS if has_begun else EPISODE
        _check_kinds(env, {"episode": episode}, f"state/env_runners/{index}")


def _check_kinds(saved: Any, built: Any, path: str, started: frozenset[str] = frozenset()) -> None:
    """Check that ``saved``, the part at ``path`` of a saved state, fits ``built``, the same part of a new state.

    Args:
        saved: A part of a saved state.
        built: The same part of the state of a new run.
        path: Where the part is, for error messages.
        started: Ids of policies that the caller trains from now on, which have no state of a learner yet.

    Raises:
        ValueError: If a type differs, a number is no possible count, or an entry is missing that every state has; names
            the first such entry.
    """
    in_optimizer = path.startswith("state/learners/optimizers/")
    is_bool = isinstance(built, bool)
    # what may be None has numbers or names
    kind: Any = Mapping | int | float | None
    for possible in (torch.Tensor, Mapping, list | tuple, int | float, str):
        if isinstance(built, possible):
            kind = possible
    if not isinstance(saved, kind) or isinstance(saved, bool) != is_bool:
        raise ValueError(f"{path}: expected a value like {built!s:.50}, got {saved!s:.50}")
    if isinstance(built, torch.Tensor):
        # modules check the tensors of their own state
        in_module = path.startswith(("state/learners/module/", "state/learners/target/"))
        if (saved.dtype != built.dtype and not in_module) or (in_optimizer and saved.shape != built.shape):
            expected, got = (f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in (built, saved))
            raise ValueError(f"{path}: expected {expected}, got {got}")
    elif isinstance(built, Mapping):
        for name, part in built.items():
            if name == "replay":  # the buffer checks its own state
                continue
            if str(name) in saved:
                _check_kinds(saved[str(name)], part, f"{path}/{name}", started)
            elif name == "steps_owed":  # a run without an env, which may go on with one, has none
                continue
            elif _has_all_entries(path) and str(name).partition(".")[0] not in started:
                raise ValueError(f"{path}/{name}: expected a value like {part!s:.50}, got nothing")
    elif isinstance(built, list | tuple):
        if in_optimizer and len(saved) != len(built):
            raise ValueError(f"{path}: expected {len(built)} values, got {len(saved)}")
        for i, (saved_item, built_item) in enumerate(zip(saved, built, strict=False)):
            _check_kinds(saved_item, built_item, f"{path}/{i}", started)
    elif isinstance(built, int | float) and not is_bool:
        _check_number(saved, built, path)


def _has_all_entries(path: str) -> bool:
    """Return whether the saved state at ``path`` must have each entry that a new state has there. In other places, the
    entries depend on the envs, or on what has happened in the run."""
    if path.startswith("state/learners"):
        return "param_groups" not in path
    is_held_rollout = path.startswith("state/held_rollouts/")
    return path in ("state", "state/metrics") or path.endswith("/episode") or is_held_rollout


def _check_number(saved: float, built: float, path: str) -> None:
    """Check a number of a saved state. A count, which is an int in ``built``, must be one in ``saved``, too, of at most
    :data:`MOST_STEPS`. Any other number must be finite.

    Raises:
        ValueError: If the number is another; names ``path``.
    """
    if "/block_start/" in path or "/rng/" in path:  # words of a random generator, which checks them
        return
    is_count = isinstance(built, int)
    if is_count and not (isinstance(saved, int) and abs(saved) <= MOST_STEPS):
        raise ValueError(f"{path}: expected an int of at most {MOST_STEPS:,}, got {saved!s:.50}")
    if not math.isfinite(saved):
        raise ValueError(f"{path}: expected a finite number, got {saved}")
