"""PolicyMap: maps each agent to the module that it acts with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from catalog_rl import unknown
from rlmodule.agents.multi_agent_env import AgentID

if TYPE_CHECKING:
    from rlmodule.agents.episode import MultiAgentEpisode

PolicyMappingFn: TypeAlias = "Callable[[AgentID, MultiAgentEpisode], str]"
"""Takes an agent and the current episode of its env. Returns the id of the module that the agent acts with."""


class PolicyMap:
    """Maps each agent to the id of its module.

    Args:
        agents: All agents.
        policy_ids: Ids of the modules.
        mapping_fn: A function of agent and episode that returns a module id, called once for each agent of an episode;
            or a dict of module ids by agent. With None, all agents use the only module, or each agent uses the module
            that has its name.
        where: The setting, for error texts.

    Attributes:
        ids: Ids of the modules.
        mapping_fn: The function, or the module ids by agent.
        static: Module ids by agent; None if a function maps the agents in each episode.

    Raises:
        ValueError: If an agent has no module, or the dict names an unknown agent or module.
    """

    def __init__(
        self,
        agents: Sequence[AgentID],
        policy_ids: Sequence[str],
        mapping_fn: PolicyMappingFn | Mapping[Any, str] | None = None,
        where: str = "policy_mapping_fn",
    ) -> None:
        self.ids, self._where = list(policy_ids), where
        self.static: dict[AgentID, str] | None = None
        self.mapping_fn = mapping_fn = self._by_name(agents) if mapping_fn is None else mapping_fn
        if not isinstance(mapping_fn, Mapping):
            return
        for agent in mapping_fn:
            if agent not in agents:
                raise unknown(where, "agents", agents, agent, "Name agents of the env.")
        if missing := [agent for agent in agents if agent not in mapping_fn]:
            got = f"none for {missing}. Add them to the dict."
            raise ValueError(f"{where}: expected a policy for each agent, got {got}")
        self.static = {agent: self._checked(agent, mapping_fn[agent]) for agent in agents}

    def _by_name(self, agents: Sequence[AgentID]) -> dict[AgentID, str]:
        """Return the module ids by agent: the only id, or else the id that equals the agent's name."""
        if len(self.ids) == 1:
            return dict.fromkeys(agents, self.ids[0])
        if missing := [agent for agent in agents if str(agent) not in self.ids]:
            raise ValueError(
                f"policy_mapping_fn: expected a function or a dict, since the policies {', '.join(self.ids)} do not "
                f"have the names of the agents, got None for {missing}. Set it, for example "
                f"policy_mapping_fn=lambda agent, episode: {self.ids[0]!r}."
            )
        return {agent: str(agent) for agent in agents}

    def policy_of(self, agent: AgentID, episode: MultiAgentEpisode) -> str:
        """Return the id of the module that ``agent`` acts with in ``episode``.

        Raises:
            ValueError: If the mapping function returns an unknown id, or raises; if a dict lacks the agent.
        """
        if isinstance(mapping := self.mapping_fn, Mapping):
            if agent not in mapping:
                raise unknown(self._where, "agents", mapping, agent, "Ask for an agent that has a policy.")
            return mapping[agent]
        try:
            policy_id = mapping(agent, episode)
        except Exception as error:
            got = f"{type(error).__name__}: {error}. Write it as policy_mapping_fn(agent, episode), for all agents."
            raise ValueError(f"{self._where}, agent {agent!r}: expected the id of a policy, got {got}") from error
        return self._checked(agent, policy_id)

    def update(self, policy_ids: Sequence[str], mapping_fn: PolicyMappingFn | None) -> None:
        """Map agents to the modules ``policy_ids`` from now on. A ``mapping_fn`` replaces the current mapping; None
        keeps it."""
        self.ids = list(policy_ids)
        if mapping_fn is not None:
            self.mapping_fn, self.static = mapping_fn, None

    def _checked(self, agent: AgentID, policy_id: str) -> str:
        if policy_id not in self.ids:
            where = f"{self._where}, agent {agent!r}"
            raise unknown(where, "policies", self.ids, policy_id, "Name one of them; episode.policies lists them.")
        return policy_id
