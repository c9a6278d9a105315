"""The policies of several agents: their ids, and the spec of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Space

from catalog.explain.explain import short_space
from rlmodule.agents.errors import unknown
from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.agents.policy import MultiAgentPolicy
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import EpisodeLearnerConfig

Spaces = Mapping[AgentID, Space[Any]]


def specs_of(config: EpisodeLearnerConfig, observation_spaces: Spaces, action_spaces: Spaces) -> MultiRLModuleSpec:
    """Return the specs of the policies that ``config`` names, for agents with these spaces.

    Raises:
        ValueError: If there is no policy or none is trained, a setting names an unknown policy or maps an agent to one,
            an agent has no policy, or the agents of a policy have different spaces.
        TypeError: If the function ``policies`` returns anything but policies.
    """
    agents = list(observation_spaces)
    specs = _specs_by_id(config, agents)
    where = type(config).__name__
    trained = config.policies_to_train
    for name, ids in (
        ("policies_to_train", () if trained is None or callable(trained) else trained),
        ("policy_overrides", config.policy_overrides),
    ):
        for policy_id in ids:
            if policy_id not in specs:
                raise unknown(f"{where}.{name}", "policies", specs, policy_id, "Name a policy that exists.")
    if not any(map(config.is_trained, specs)):
        raise ValueError(
            f"{where}.policies_to_train: expected at least one of {', '.join(specs)}, got none. Train one, or call "
            "evaluate() of an algorithm that was trained."
        )
    for name, where_it_is in config.shared_parts.items():
        for place in where_it_is if isinstance(where_it_is, list) else ():
            if (policy_id := place.partition(".")[0]) not in specs:
                raise unknown(f"{where}.shared_parts[{name!r}]", "policies", specs, policy_id, "Name one that exists.")
    functions = config.policy_mapping_fn, config.for_evaluation().policy_mapping_fn
    maps = [PolicyMap(agents, [*specs], function).static for function in functions]
    filled = {}
    for policy_id, spec in specs.items():
        mapped = [agent for agent in agents if any(map_ and map_[agent] == policy_id for map_ in maps)]
        named = [agent for agent in agents if str(agent) == policy_id]
        spaces = [(observation_spaces[agent], action_spaces[agent]) for agent in mapped or named or agents]
        others = [each for each in spaces if each != spaces[0]]
        if others and (spec.observation_space is None or spec.action_space is None):
            got = " and ".join(f"({', '.join(map(short_space, pair))})" for pair in (spaces[0], others[0]))
            raise ValueError(
                f"policy {policy_id!r}: expected agents with the same spaces, got {got}. Map agents with different "
                "spaces to different policies; with a function policy_mapping_fn, which may map any agent to any "
                "policy, name the spaces: policies={id: RLModuleSpec(observation_space=..., action_space=...)}."
            )
        filled[policy_id] = spec.filled(config.get_rl_module_spec(*spaces[0]))
    return MultiRLModuleSpec(filled, config.shared_parts)


def policies_of(algorithm: Algorithm, generator: torch.Generator) -> MultiAgentPolicy:
    """Return the policies of a run, which act with its current weights."""
    runners: Any = algorithm.env_runner_group
    config: Any = algorithm.config
    agents = list(runners.observation_space)
    policy_map = PolicyMap(agents, [*runners.module], config.policy_mapping_fn)
    return MultiAgentPolicy(runners.module, agents, policy_map, generator)


def _specs_by_id(config: EpisodeLearnerConfig, agents: Sequence[AgentID]) -> dict[str, RLModuleSpec]:
    """Return the spec of each policy: the one in ``config``, or an empty one if it only names the policy."""
    where, policies = f"{type(config).__name__}.policies", config.policies
    if callable(policies):
        values = type(config).overrides(policies=policies(list(agents)))
        policies, where = values["policies"], f"{where}, the result of the function"
        if policies is None or callable(policies):
            raise TypeError(
                f"{where}: expected 'shared', 'own', ids, or specs by id, got {policies!r}. Return one of these."
            )
    if policies == "shared":
        policies = [DEFAULT_MODULE_ID]
    elif policies == "own":
        policies = [str(agent) for agent in agents]
    specs = dict(policies) if isinstance(policies, Mapping) else {name: RLModuleSpec() for name in policies or ()}
    if not specs or "timers" in specs:
        got = "none" if not specs else "'timers', a section of the result"
        raise ValueError(f"{where}: expected at least one policy, not named 'timers', got {got}. Choose other ids.")
    if len(specs) < len(policies or ()):
        raise ValueError(f"{where}: expected ids that differ, got {policies}. Name each policy once.")
    return specs
