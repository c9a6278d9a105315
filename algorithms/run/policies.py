"""The policies of a multi-agent run: their ids and specs, and how they are added and removed during the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space

from algorithms.run.league import Standings
from catalog.explain.explain import short_space
from catalog_rl import unknown
from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.agents.policy import MultiAgentPolicy
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.encoding import Decoder, encode
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.multi_agent_config import MultiAgentConfig

Spaces = Mapping[AgentID, Space[Any]]
Weights = Mapping[str, torch.Tensor] | None
Origin = dict[str, Any] | None
"""How a policy was added: ``of``, the id of the initial policy with the same nets, or ``spec``, the encoded spec of its
nets; and ``train``, whether it is trained. None for an initial policy."""


def specs_of(config: MultiAgentConfig, observation_spaces: Spaces, action_spaces: Spaces) -> MultiRLModuleSpec:
    """Return the specs of the policies that ``config`` names, for agents with these spaces.

    Raises:
        ValueError: If ``config`` names no policy, no policy is trained, a setting names an unknown policy or maps an
            agent to an unknown policy, an agent has no policy, or the agents of a policy have different spaces.
        TypeError: If the function ``policies`` returns anything but policies.
    """
    agents = list(observation_spaces)
    specs = _specs_by_id(config, agents)
    where = type(config).__name__
    in_settings: dict[str, Iterable[str]] = {"policy_overrides": config.policy_overrides}
    if isinstance(config.policies_to_train, list):
        in_settings["policies_to_train"] = config.policies_to_train
    for name, places in (config.shared_parts or {}).items():
        if isinstance(places, list):
            in_settings[f"shared_parts[{name!r}]"] = [place.partition(".")[0] for place in places]
    for name, policy_ids in in_settings.items():
        for policy_id in policy_ids:
            if policy_id not in specs:
                raise unknown(f"{where}.{name}", "policies", specs, policy_id, "Name a policy that exists.")
    maps = [PolicyMap(agents, [*specs], config.policy_mapping_fn)]
    judged_by = config.evaluation_policy_mapping_fn
    # with evaluation_env_config, the env may have other agents
    if judged_by is not None and config.evaluation_env_config is None:
        maps.append(PolicyMap(agents, [*specs], judged_by, "evaluation_policy_mapping_fn"))
    mapped: dict[str, dict[AgentID, None]] = {policy_id: {} for policy_id in specs}
    for policy_map in maps:
        trial = MultiAgentEpisode(0, 0, agents, policy_map, np.zeros(len(agents)))
        for agent in agents:
            mapped[trial.join(agent)][agent] = None
    # a function may map agents to other policies in later episodes
    static = maps[0].static
    if not any(map(config.is_trained, acting := [*dict.fromkeys(static.values() if static else specs)])):
        expected = f"at least one policy that agents act with ({', '.join(acting)})"
        got = "none. Train one, or call evaluate() of an algorithm that was trained."
        raise ValueError(f"{where}.policies_to_train: expected {expected}, got {got}")
    filled = {}
    for policy_id, spec in specs.items():
        named = [agent for agent in agents if str(agent) == policy_id]
        its_agents = [*mapped[policy_id]] or named or agents
        spaces = [(observation_spaces[agent], action_spaces[agent]) for agent in its_agents]
        others = [space for space in spaces if space != spaces[0]]
        if others and (spec.observation_space is None or spec.action_space is None):
            got = " and ".join(f"({', '.join(map(short_space, pair))})" for pair in (spaces[0], others[0]))
            raise ValueError(
                f"policy {policy_id!r}: expected agents with the same spaces, got {got}. Map agents with different "
                "spaces to different policies, or, if policy_mapping_fn maps no agent to the policy in the first "
                "episode, name the spaces: policies={id: RLModuleSpec(observation_space=..., action_space=...)}."
            )
        filled[policy_id] = config.for_module(policy_id).get_rl_module_spec(*spaces[0], spec)
    return MultiRLModuleSpec(filled, config.shared_parts or {})


def policies_of(algorithm: Algorithm, generator: torch.Generator) -> MultiAgentPolicy:
    """Return the policies of a run, which act with its current weights and draw actions from ``generator``."""
    runners: Any = algorithm.env_runner_group
    config: Any = algorithm.config
    agents = list(runners.observation_space)
    policy_map = PolicyMap(agents, [*runners.module], config.policy_mapping_fn)
    return MultiAgentPolicy(runners.module, agents, policy_map, generator)


def evaluated_policies_of(algorithm: Algorithm) -> MultiAgentPolicy:
    """Return the policies of a run for the agents and with the mapping of its evaluations."""
    runners: Any = algorithm.env_runner_group
    config: Any = algorithm.config.for_evaluation()
    agents = list(config.spaces_of()[0])
    policy_map = PolicyMap(agents, [*_specs_by_id(config, [*runners.observation_space])], config.policy_mapping_fn)
    policy_map.update([*runners.module], None)  # with those that were added
    return MultiAgentPolicy(runners.module, agents, policy_map)


def columns_of(algorithm: Algorithm, policy_id: str) -> np.ndarray:
    """Return the column of each env and agent in the replay buffer of a policy, int64 ``[envs, agents]``; -1 for agents
    that never act with the policy. If the mapping depends on the episode, all agents with the policy's spaces have a
    column."""
    runners: Any = algorithm.env_runner_group
    config: Any = algorithm.config
    module, seen, acts = algorithm.get_module(policy_id), runners.observation_space, runners.action_space
    static = algorithm.policies.policy_map.static
    spaces = module.observation_space, module.action_space
    may = [(seen[agent], acts[agent]) == spaces if static is None else static[agent] == policy_id for agent in seen]
    return np.where(may, np.arange(config.num_envs)[:, None] * sum(may) + np.cumsum(may) - 1, -1)


class PolicyChanges:
    """Adds policies to a run, and removes them: in learners, env runners, evaluations and ``algorithm.policies``.

    Args:
        algorithm: The run. Its env runners and learners must be built already, with the initial policies.

    Attributes:
        league: The standings of the run's league; None if the run has no league.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        run: Any = algorithm
        config, agents = run.config, list(run.env_runner_group.observation_space)
        self._algorithm, self._config = algorithm, config
        self._base: Mapping[str, RLModuleSpec] = run.module_spec.rl_module_specs
        self._specs = dict(self._base)
        self._added: dict[str, dict[str, Any]] = {}
        self._trained = [policy_id for policy_id in self._specs if config.is_trained(policy_id)]
        self.league: Standings | None = None
        if config.league is not None:
            if len(self._specs) > 1 or config.policy_mapping_fn is not None or len(agents) == 1:
                raise ValueError(
                    f"{type(config).__name__}.league: expected one policy and no policy_mapping_fn for several agents, "
                    f"since the league adds their opponents and maps them, got {', '.join(self._specs)} for {agents}. "
                    "Set policies='shared', or leave the league out."
                )
            self.league = Standings(config.league, next(iter(self._specs)), agents, self.update)

    def build_modules_of(self, runners: EnvRunnerGroup) -> None:
        """Build the modules of new ``runners``, so that they act with the current policies."""
        base = {name: spec for name, spec in self._base.items() if self._specs.get(name) is spec}
        runners.build_modules(MultiRLModuleSpec(base or dict(self._specs)), self._algorithm.learner_group.module)
        self.show(runners)

    def show(self, runners: EnvRunnerGroup) -> None:
        """Make ``runners`` act with the current policies and, if the run has a league, with its current mapping."""
        algorithm, mapping_fn = self._algorithm, None
        is_free = runners is algorithm.env_runner_group or self._config.evaluation_policy_mapping_fn is None
        if self.league is not None and self.league.games and is_free:
            mapping_fn = self.league.matches(algorithm.run_seed)
        specs = MultiRLModuleSpec(dict(self._specs))
        runners.set_policies(specs, algorithm.learner_group.module, [*self._trained], mapping_fn)

    def add(self, policy_id: str, copy_of: str | None, spec: RLModuleSpec | None, train: bool) -> None:
        """Add a policy; see :meth:`algorithms.Algorithm.add_policy`."""
        where = f"add_policy({policy_id!r})"
        if (copy_of is None) == (spec is None):
            got = "neither" if spec is None else "both"
            raise ValueError(f"{where}: expected one of copy_of and spec, got {got}. Name a policy, or pass a spec.")
        if policy_id in self._specs or policy_id == "timers":
            known = ", ".join(map(repr, self._specs))
            raise ValueError(f"{where}: expected an id other than {known} and 'timers'. Choose another one.")
        if copy_of is not None:
            self._add_copy(where, policy_id, copy_of, train)
        elif spec is not None:
            self._add_new(where, policy_id, spec, train)
        try:
            self.update()
        except Exception:  # env runners refused it: take it back everywhere, so that the run can go on
            self._remove(policy_id)
            self.update()
            raise

    def _add_copy(self, where: str, policy_id: str, copy_of: str, train: bool) -> None:
        """Add a policy with the spec and the weights of the policy ``copy_of``."""
        if copy_of not in self._specs:
            raise unknown(f"{where}, copy_of", "policies", self._specs, copy_of, "Name a policy that exists.")
        # A checkpoint names the policy of the config that a copy comes from, also for a copy of a copy.
        origin = self._added.get(copy_of, {"of": copy_of})
        overrides = self._config.policy_overrides.get(origin.get("of", copy_of), {})
        if train and overrides:
            raise ValueError(
                f"{where}: expected train=False, or a policy without policy_overrides to copy, got {copy_of!r}, "
                f"whose {', '.join(overrides)} a copy would not learn with. Set them for the whole run."
            )
        weights = self._algorithm.learner_group.module[copy_of].get_state()
        self._add(policy_id, self._specs[copy_of], train, {**origin, "train": train}, weights)

    def _add_new(self, where: str, policy_id: str, spec: RLModuleSpec, train: bool) -> None:
        """Add a policy with new weights, for agents with the spaces in ``spec``, or else with those of the first
        agent."""
        runners: Any = self._algorithm.env_runner_group
        pairs = [(space, runners.action_space[agent]) for agent, space in runners.observation_space.items()]
        full_spec = self._config.for_module(policy_id).get_rl_module_spec(*pairs[0], spec)
        pair = full_spec.observation_space, full_spec.action_space
        if pair not in pairs:
            got = " and ".join(short_space(space) for space in pair if space is not None)
            remedy = "Name those of an agent: RLModuleSpec(observation_space=..., action_space=...)."
            raise ValueError(f"{where}: expected the spaces of an agent, got {got}. {remedy}")
        self._add(policy_id, full_spec, train, {"spec": encode(full_spec), "train": train})

    def _add(self, policy_id: str, spec: RLModuleSpec, train: bool, origin: Origin, weights: Weights = None) -> None:
        self._algorithm.learner_group.add_module(policy_id, spec, train, weights)
        self._specs[policy_id] = spec
        self._added |= {} if origin is None else {policy_id: origin}
        self._trained += [policy_id] if train else []

    def remove(self, policy_id: str) -> None:
        """Remove a policy; see :meth:`algorithms.Algorithm.remove_policy`."""
        where = f"remove_policy({policy_id!r})"
        if policy_id not in self._specs:
            raise unknown(where, "policies", self._specs, policy_id, "Name a policy that exists.")
        maps = self._algorithm.policies.policy_map.static, self._config.evaluation_policy_mapping_fn
        if any(isinstance(by_agent, Mapping) and policy_id in by_agent.values() for by_agent in maps):
            got = "one that policy_mapping_fn names. Map by a function, which may return others later."
            raise ValueError(f"{where}: expected a policy that no agent is mapped to, got {got}")
        if self._trained == [policy_id]:
            raise ValueError(f"{where}: expected another policy that is trained, got the last one. Add one before.")
        if self.league is not None and [*self.league.games] == [policy_id]:
            got = "the last one: a league without opponents. Keep it."
            raise ValueError(f"{where}: expected another snapshot, got {got}")
        self._remove(policy_id)
        self.update()

    def _remove(self, policy_id: str) -> None:
        self._algorithm.learner_group.remove_module(policy_id)
        del self._specs[policy_id]
        self._added.pop(policy_id, None)
        self._trained = [name for name in self._trained if name != policy_id]
        if self.league is not None:
            self.league.games.pop(policy_id, None)

    def update(self) -> None:
        """Pass the current policies to all env runners, the metrics, ``algorithm.policies`` and
        ``algorithm.policies_changed()``."""
        algorithm: Any = self._algorithm
        algorithm.module_spec = MultiRLModuleSpec(dict(self._specs))
        for runners in algorithm.all_runners():
            self.show(runners)
        algorithm.policies.follow([*self._specs])
        algorithm.metrics.keep_modules(self._specs)
        algorithm.policies_changed(self._trained)

    def get_state(self) -> dict[str, Any]:
        """Return a dict with the section ``policies``: the policies added and removed, and the standings of the league.
        Return an empty dict if nothing was added or removed and the run has no league."""
        removed = [policy_id for policy_id in self._base if policy_id not in self._specs]
        if not (self._added or removed or self.league):
            return {}
        league = None if self.league is None else self.league.get_state()
        return {"policies": {"added": dict(self._added), "removed": removed, "league": league}}

    def set_state(self, state: Mapping[str, Any], allow: Sequence[str] | None = None) -> None:
        """Add and remove policies until the run has those of ``state``. The state holds no weights.

        Args:
            state: A result of :meth:`get_state`.
            allow: Import paths that specs in ``state`` may use; None allows all.
        """
        base, state = self._base, state.get("policies", {"added": {}, "removed": (), "league": {}})
        gone = {*state["removed"], *state["added"]}  # an added policy may have the id of a removed one, and comes later
        wanted: dict[str, Origin] = {name: None for name in base if name not in gone} | state["added"]
        for policy_id in [*self._specs]:
            if policy_id not in wanted or wanted[policy_id] != self._added.get(policy_id):
                self._remove(policy_id)
        self.update()  # everything drops what was removed, since another policy may get its id
        for policy_id, origin in wanted.items():
            if policy_id in self._specs:
                continue
            if origin is None:
                spec, train = base[policy_id], self._config.is_trained(policy_id)
            else:
                spec, train = base[origin["of"]] if "of" in origin else _decoded(origin["spec"], allow), origin["train"]
            self._add(policy_id, spec, train, origin)
        if self.league is not None:
            self.league.set_state(state["league"])
        self.update()


def _decoded(form: Any, allow: Sequence[str] | None) -> RLModuleSpec:
    """Return the spec that ``encode()`` turned into ``form``. Raise ``ValueError`` if ``form`` needs an import that
    ``allow`` lacks."""
    decoder = Decoder("checkpoint", allow)
    spec = decoder.read(form, "policies", RLModuleSpec)
    decoder.refuse_missing()
    return spec


def _specs_by_id(config: MultiAgentConfig, agents: Sequence[AgentID]) -> dict[str, RLModuleSpec]:
    """Return the spec of each policy by id: the spec in ``config``, or an empty spec if ``config`` only names the
    policy."""
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
