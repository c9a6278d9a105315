"""MultiAgentPolicy: acts for several agents, each with its module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from catalog.base import Tree
from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.errors import unknown
from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.modules.policy import Policy
from rlmodule.modules.rl_module import MultiRLModule

State = Mapping[AgentID, tuple[str, Any]]
"""Agent → the id of its policy and the state of that policy, for each agent that has acted."""


class MultiAgentPolicy(dict[str, Policy]):
    """Acts for the agents of one env. Maps the id of each module to its :class:`Policy`.

    Nothing is stored between calls. Pass the state that one call returns to the next::

        state = None                                            # at the start of every episode of the env
        actions, state = policies.act(obs, state)

    If an agent ends and returns in the same episode of the env, remove its entry from the state in between.

    Args:
        modules: The modules to act with; they are put into eval mode.
        agents: All agents.
        policy_map: Maps agents to modules. A function is called once per agent and episode.
        generator: Draws actions for ``act(explore=True)``, for all modules; None creates one with seed 0.
    """

    def __init__(
        self,
        modules: MultiRLModule,
        agents: Sequence[AgentID],
        policy_map: PolicyMap,
        generator: torch.Generator | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        super().__init__({module_id: Policy(module, generator) for module_id, module in modules.items()})
        self._modules, self._agents, self._policy_map, self._generator = modules, agents, policy_map, generator

    def act(
        self,
        obs: Mapping[AgentID, Tree],
        state: State | None = None,
        *,
        rewards: Mapping[AgentID, float] | None = None,
        explore: bool = False,
    ) -> tuple[dict[AgentID, Tree], dict[AgentID, tuple[str, Any]]]:
        """Return the actions for the observations of agents of one env.

        Args:
            obs: The observations of the agents that act; leave out those that ended.
            state: The state that the last call returned; None at the start of an episode of the env.
            rewards: The sum of the rewards of each agent since it acted last. Required as in :meth:`Policy.act`.
            explore: Sample the actions; False takes the most likely ones.

        Returns:
            The actions by agent, and the next state.

        Raises:
            ValueError: If an agent is unknown, and as for :meth:`Policy.act`.
        """
        after, actions = dict(state or {}), dict[AgentID, Tree]()
        episode = MultiAgentEpisode(0, 0, self._agents, self._policy_map, np.zeros(len(self._agents)))
        for agent, seen in obs.items():
            if agent not in self._agents:
                remedy = "Pass what the env returned, by agent."
                raise unknown("MultiAgentPolicy.act(obs)", "agents", self._agents, agent, remedy)
            policy_id, memory = after[agent] if agent in after else (episode.policy_of(agent), None)
            reward = None if rewards is None else rewards.get(agent)
            actions[agent], memory = self[policy_id].act(seen, memory, reward=reward, explore=explore)
            after[agent] = policy_id, memory
        return actions, after

    def with_generator(self, generator: torch.Generator) -> MultiAgentPolicy:
        """Return policies with the same modules that draw from ``generator``."""
        return MultiAgentPolicy(self._modules, self._agents, self._policy_map, generator)

    def follow(self, policy_ids: Sequence[str]) -> None:
        """Act with the modules ``policy_ids`` from now on, which the modules of this object have."""
        self._policy_map.update(policy_ids, None)
        for module_id in [*self]:
            if module_id not in policy_ids or self[module_id].module is not self._modules[module_id]:
                del self[module_id]
        self.update({name: Policy(self._modules[name], self._generator) for name in policy_ids if name not in self})

    def __missing__(self, module_id: str) -> Policy:
        """Raise the KeyError of :class:`MultiRLModule` for an unknown id, which names the known ids."""
        self._modules[module_id]
        raise AssertionError("every module has a policy")
