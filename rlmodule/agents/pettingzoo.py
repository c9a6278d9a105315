"""Adapters for the two kinds of PettingZoo envs (https://pettingzoo.farama.org/api). PettingZoo itself is not imported.

A parallel env steps all live agents at once. An AEC env steps one agent after the other. An adapter turns either into a
`MultiAgentEnv` in which one step is one call of the env's ``step`` with actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from rlmodule.agents.multi_agent_env import AgentEnvWrapper, AgentID, MultiAgentEnv, Start, Step


def adapted(made: Any, where: str = "env") -> MultiAgentEnv:
    """Return ``made`` if it is a `MultiAgentEnv`. If it is an env of PettingZoo, return it in an adapter.

    Args:
        made: The object that a class or a factory returned.
        where: Name of the env, for the error text.

    Raises:
        TypeError: If ``made`` is not a multi-agent env.
        ValueError: If a PettingZoo env does not name its agents, or lacks the space of an agent.
    """
    if isinstance(made, MultiAgentEnv):
        return made
    names = set(dir(made))  # a PettingZoo wrapper lists only what its class defines
    remedy = "Return a MultiAgentEnv, or a parallel or AEC env of PettingZoo."
    got = "None" if made is None else f"an object of {type(made).__module__}.{type(made).__qualname__}"
    if isinstance(made, gym.Env | VectorEnv):
        got = f"an env of one agent ({type(made).__name__})"
        remedy = "Leave .multi_agent() out: it is for envs of several agents."
        if "possible_agents" in names:  # as RLlib's MultiAgentEnv has
            remedy = "Derive its class from rlmodule.agents.MultiAgentEnv, with the same dicts by agent."
    elif "agent_iter" in names:
        return AECAdapter(made)
    elif not names.isdisjoint({"possible_agents", "max_num_agents"}):
        return ParallelAdapter(made)
    raise TypeError(f"{where}: expected an env of several agents, got {got}. {remedy}")


class _Adapter(AgentEnvWrapper):
    """Base class of the adapters. It provides the agents, the spaces and all methods except ``reset`` and ``step``.

    Args:
        env: An env with the methods of PettingZoo.

    Raises:
        ValueError: If the env does not name its agents, or lacks the space of an agent.
    """

    def __init__(self, env: Any) -> None:
        self.env, self._name = env, type(env).__name__
        try:
            self.possible_agents = tuple(env.possible_agents)
        except AttributeError as error:
            remedy = "Set it in __init__ to all agents that may ever be in play."
            got = f"an env without it. {remedy}"
            raise ValueError(f"{self._name}: expected the attribute possible_agents, got {got}") from error
        self.observation_spaces = {agent: self._space("observation_space", agent) for agent in self.possible_agents}
        self.action_spaces = {agent: self._space("action_space", agent) for agent in self.possible_agents}
        # PettingZoo requires none of these
        self.state_space = getattr(env, "state_space", None)
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    def _space(self, method: str, agent: AgentID) -> Space[Any]:
        try:
            space = getattr(self.env, method)(agent)
        except (KeyError, AttributeError, NotImplementedError) as error:
            space = error
        if not isinstance(space, Space):
            got = f"{space!r}. Return one for each of possible_agents, {[*self.possible_agents]}."
            raise ValueError(f"{self._name}.{method}({agent!r}): expected a space, got {got}")
        return space

    def get_episode_state(self) -> None:
        """Return None, so that a resumed run repeats the episode, because PettingZoo envs have no method that saves a
        state."""

    def _known(self, values: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        return {agent: values[agent] for agent in self.possible_agents if agent in values}


class ParallelAdapter(_Adapter):
    """Adapts a parallel env of PettingZoo. All agents in ``env.agents`` act in each step.

    Infos that belong to no agent, such as ``infos["common"]``, are dropped.

    Raises:
        ValueError: From ``reset`` and ``step``, if an agent has no observation, leaves ``env.agents`` without a flag,
            or stays there with a flag.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        obs, infos = self.env.reset(seed=seed, options=options)
        self._live = list(self.env.agents)
        return self._of(self._live, obs), self._known(infos)

    def step(self, actions: dict[Any, Any]) -> Step:
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        live, now = self._live, list(self.env.agents)
        terminated = {agent: terminateds[agent] for agent in live if terminateds.get(agent, False)}
        truncated = {agent: truncateds[agent] for agent in live if truncateds.get(agent, False)}
        ended = terminated.keys() | truncated.keys()
        if wrong := [agent for agent in live if (agent in ended) == (agent in now)] if ended or live != now else []:
            raise ValueError(
                f"{self._name}.agents: expected agents to leave in the step whose terminations or truncations name "
                f"them, got {now} after {live}, of which {sorted(map(str, ended))} ended: {wrong[0]!r} is wrong. "
                "Correct the flags, or remove it in that step."
            )
        self._live = now
        return self._of([*now, *ended], obs), rewards, terminated, truncated, self._known(infos)

    def _of(self, agents: Iterable[AgentID], obs: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        try:
            # the guard refuses those of unknown agents
            return {agent: obs[agent] for agent in [*agents, *(obs.keys() - self.observation_spaces.keys())]}
        except KeyError as error:
            expected = "one of each agent in env.agents and of each that ended in the step"
            got = f"none for {error}. Return the final observation of an agent on the step of its end."
            raise ValueError(f"{self._name}, observations: expected {expected}, got {got}") from None


class AECAdapter(_Adapter):
    """Adapts an AEC env of PettingZoo. One agent acts in each step.

    An agent that ``terminations`` or ``truncations`` flag ends when the env selects it: it then observes for the last
    time, and is stepped with None, which removes it. Until then other agents may act, and the env may reward the agent
    for their actions, as the env's ``last()`` shows. The rewards of a step are ``env.rewards`` after that step. The env
    runner sums the rewards that an agent receives between its turns. Rewards are not read after a step with None, since
    some envs (Shimmy's OpenSpiel games) still hold the rewards of the step before.

    Raises:
        ValueError: From ``step``, if the env does not remove an agent that has ended and is stepped with None.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        self.env.reset(seed=seed, options=options)
        first = self.env.agent_selection
        return {first: self.env.observe(first)}, self._known(self.env.infos)

    def step(self, actions: dict[Any, Any]) -> Step:
        env = self.env
        (action,) = actions.values()
        env.step(action)
        obs, rewards, infos = dict[AgentID, Any](), dict(env.rewards), self._known(env.infos)
        terminated, truncated = dict[AgentID, bool](), dict[AgentID, bool]()
        while env.agents:
            selected, num_agents = env.agent_selection, len(env.agents)
            obs[selected] = env.observe(selected)
            flags = env.terminations[selected], env.truncations[selected]
            if not any(flags):
                break
            terminated[selected], truncated[selected] = flags
            env.step(None)
            if len(env.agents) >= num_agents:
                got = f"the agents {env.agents}. Call _was_dead_step(action) in step(), as PettingZoo requires."
                raise ValueError(f"{self._name}.step(None): expected it to remove {selected!r}, which ended, got {got}")
        return obs, rewards, terminated, truncated, infos
