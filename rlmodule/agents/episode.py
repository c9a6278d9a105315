"""MultiAgentEpisode: an episode of a multi-agent env, as policy mapping functions and callbacks see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.agents.policy_map import PolicyMap


class AgentEpisode(NamedTuple):
    """A finished episode of one agent.

    Attributes:
        agent: The agent.
        policy: Id of the module that it acted with.
        episode_return: Sum of its rewards.
        length: Number of steps in which it acted.
    """

    agent: AgentID
    policy: str
    episode_return: float
    length: int


class MultiAgentEpisode:
    """Shows an episode of one multi-agent env. It changes as the env advances, until the episode is over.

    Args:
        env_index: Index of the env in the run.
        number: Number of earlier episodes of the env.
        agents: All agents that may be in play.
        policy_map: Maps agents to modules.
        returns: Sum of the rewards of each agent since it last ended, or since the episode began, ``[A]`` for ``A``
            agents. The runner updates it in place.

    Attributes:
        env_index: Index of the env in the run.
        number: Number of earlier episodes of the env, including those before the run was resumed and those that were
            cut. If the env runner was restarted, a higher number, so that no two episodes of an env have the same.
        length: Number of env steps in this episode so far.
        finished: The episodes of agents that ended within this episode of the env, in the order in which they ended.
    """

    def __init__(
        self, env_index: int, number: int, agents: Sequence[AgentID], policy_map: PolicyMap, returns: np.ndarray
    ) -> None:
        self.env_index, self.number, self.length = env_index, number, 0
        self._in_play: dict[AgentID, None] = {}
        self._all_agents, self._policy_map, self._returns = agents, policy_map, returns
        self._policies: dict[AgentID, str] = {}
        self.finished: list[AgentEpisode] = []

    def __repr__(self) -> str:
        return (
            f"MultiAgentEpisode(env_index={self.env_index}, number={self.number}, length={self.length}, "
            f"returns={self.returns}, finished={self.finished})"
        )

    @property
    def agents(self) -> list[AgentID]:
        """The agents in play, in the order in which they started; none if the episode is over."""
        return list(self._in_play)

    @property
    def returns(self) -> dict[AgentID, float]:
        """Sum of all rewards in this episode so far, by agent. Includes agents that have not been in play."""
        totals = dict(zip(self._all_agents, self._returns.tolist(), strict=True))
        for finished in self.finished:
            totals[finished.agent] += finished.episode_return
        return totals

    @property
    def policies(self) -> list[str]:
        """Ids of all modules to which agents may currently be mapped."""
        return list(self._policy_map.ids)

    def policy_of(self, agent: AgentID) -> str:
        """Return the id of the module that ``agent`` acts with. It stays the same for the whole episode.

        Raises:
            ValueError: If the mapping function returns an unknown id, or if the episode is over, a function maps agents
                to modules, and ``agent`` was never in play.
        """
        if agent not in self._policies:
            self._policies[agent] = self._policy_map.policy_of(agent, self)
        return self._policies[agent]

    def join(self, agent: AgentID) -> str:
        """Add ``agent`` to the agents in play, and return the id of its module."""
        module_id = self.policy_of(agent)
        self._in_play[agent] = None
        return module_id

    def get_state(self) -> dict[str, Any]:
        """Return the state for :meth:`set_state`, as JSON values."""
        return {
            "length": self.length,
            "in_play": self.agents,
            "policies": [*map(list, self._policies.items())],
            "finished": [*map(list, self.finished)],
            "returns": self._returns.tolist(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`."""
        self.length, self._in_play = state["length"], dict.fromkeys(state["in_play"])
        self._policies, self.finished = dict(state["policies"]), [AgentEpisode(*fields) for fields in state["finished"]]
        self._returns[:] = state["returns"]

    def get_ended(self) -> list[Any]:
        """Return the arguments of :meth:`from_ended` for an episode that is over, as JSON values."""
        mapping = self._policy_map.static or {}  # close() made it fixed
        return [self.env_index, self.number, [*self._all_agents], self.policies, [*mapping.items()], self.get_state()]

    @classmethod
    def from_ended(
        cls,
        env_index: int,
        number: int,
        agents: Sequence[AgentID],
        policies: Sequence[str],
        mapping: Sequence[tuple[AgentID, str]],
        state: Mapping[str, Any],
    ) -> MultiAgentEpisode:
        """Return an episode that is over, from what its :meth:`get_ended` returned."""
        by_agent = dict(mapping)
        policy_map = PolicyMap([*by_agent], policies, by_agent)
        episode = cls(env_index, number, agents, policy_map, np.zeros(len(agents)))
        episode.set_state(state)
        return episode

    def leave(self, agent_episode: AgentEpisode) -> None:
        """Remove the agent of the ended ``agent_episode`` from the agents in play, and add it to ``finished``."""
        del self._in_play[agent_episode.agent]
        self.finished.append(agent_episode)

    def close(self) -> None:
        """Keep what the episode shows now, since the next episode begins. It can be pickled from now on."""
        self._returns = self._returns.copy()
        ids = dict.fromkeys([*self.policies, *self._policies.values()])  # some may be those of removed modules
        mapping = self._policy_map.static or self._policies
        self._policy_map = PolicyMap([*mapping], [*ids], mapping)
