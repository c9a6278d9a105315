"""MultiAgentEnv: the interface of a multi-agent env."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from gymnasium.spaces import Dict, Space

AgentID: TypeAlias = str | int
"""Name of an agent."""

ALL = "__all__"
"""Key of ``terminateds`` and ``truncateds`` whose flag ends the episode of the env, for all agents in play."""

# keys are Any, so that a subclass may declare dict[str, ...] or dict[int, ...]: type checkers treat dict as invariant
Start: TypeAlias = tuple[dict[Any, Any], dict[Any, dict[str, Any]]]
"""Observations and infos of a reset, by agent."""

Step: TypeAlias = tuple[dict[Any, Any], dict[Any, float], dict[Any, bool], dict[Any, bool], dict[Any, dict[str, Any]]]
"""Observations, rewards, terminateds, truncateds and infos of a step, by agent."""


class MultiAgentEnv(ABC):
    """Base class of multi-agent envs, whose actions and results are dicts by agent.

    The agents in the observations that ``reset`` and ``step`` return act next, except agents whose flags say that they
    ended. An agent is *in play* from its first observation to its end. An agent may pause: while it is in play but not
    in the observations, it does not act, keeps its memory, and may receive rewards.

    A flag of an agent ends the episode of that agent only. A flag ``"__all__"`` ends the episode of the env for all
    agents in play, and so does a step after which no agent is in play. The observations of a step include the final one
    of each agent that ends in it. An agent that ended may come back in a later step of the same episode of the env. A
    new episode of the agent then begins.

    A subclass sets `possible_agents`, `observation_spaces` and `action_spaces`, at the latest in ``__init__``.

    Attributes:
        possible_agents: All agents that may ever be in play. The list never changes.
        observation_spaces: Observation space of each possible agent.
        action_spaces: Action space of each possible agent.
        state_space: Space of the values that :meth:`state` returns; None if the env declares no such space.
        metadata: As in ``gymnasium.Env``: ``render_modes``, ``render_fps``.
        render_mode: As in ``gymnasium.Env``.
    """

    possible_agents: Sequence[AgentID]
    observation_spaces: Mapping[Any, Space[Any]]
    action_spaces: Mapping[Any, Space[Any]]
    state_space: Space[Any] | None = None
    metadata: Mapping[str, Any] = {"render_modes": []}
    render_mode: str | None = None

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        """Start an episode.

        Args:
            seed: Seed of the env's random numbers; None continues the current random streams.
            options: Options of the env.

        Returns:
            The observations of the agents that act first, and infos. Any agent may have an info.
        """

    @abstractmethod
    def step(self, actions: dict[Any, Any]) -> Step:
        """Advance the env by one step.

        Args:
            actions: The action of each agent that acts, and of no other agent.

        Returns:
            Observations, rewards, terminateds, truncateds and infos. Any agent that has not ended may have a reward. An
            agent that is missing from the rewards gets 0. An agent that is missing from a dict of flags does not end.
        """

    def state(self) -> Any:
        """Return the state of the whole env, for critics that see more than one agent does."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method state(), got an env without one.")

    def get_episode_state(self) -> Any:
        """Return the state from which :meth:`set_episode_state` continues the open episode when a run is resumed, as a
        tree of tensors and JSON values. The default is None: the run then repeats the episode from its seed and
        actions."""
        return None

    def set_episode_state(self, state: Any) -> dict[Any, Any]:
        """Continue an episode from a ``state`` that :meth:`get_episode_state` returned. It is called right after
        ``reset``. Return the observations of the last step before the state was saved, by agent."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method set_episode_state(), got none. Add it.")

    def render(self) -> Any:
        """Return a picture of the env, as ``gymnasium.Env.render`` does, or None if the env cannot be rendered."""
        return None

    def close(self) -> None:
        """Free the resources of the env."""


class AgentEnvWrapper(MultiAgentEnv):
    """Base class of wrappers and adapters. It forwards all methods except ``reset`` and ``step`` to the wrapped
    ``env``."""

    env: Any

    def state(self) -> Any:
        return self.env.state()

    def get_episode_state(self) -> Any:
        return self.env.get_episode_state()

    def set_episode_state(self, state: Any) -> dict[Any, Any]:
        return self.env.set_episode_state(state)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class AgentFieldWrapper(AgentEnvWrapper):
    """Base class of wrappers that add a field to each observation. An observation that is not a dict becomes another
    field. Subclasses set ``observation_spaces`` and define :meth:`_added`.

    Args:
        env: The env.
        key: Name of the new field.
        plain: Name of the field for observations that are not dicts.
    """

    def __init__(self, env: MultiAgentEnv, key: str, plain: str) -> None:
        self.env, self._key, self._plain = env, key, plain
        self.possible_agents, self.action_spaces = env.possible_agents, env.action_spaces
        self.metadata, self.render_mode, self.state_space = env.metadata, env.render_mode, env.state_space

    def _space_with(self, agent: AgentID, field: Space[Any], remedy: str) -> Dict:
        """Return the space of the new observations of ``agent``, where ``field`` is the space of the new field. Raise
        ValueError if the env's space already has a field of that name; ``remedy`` ends the text."""
        inner = self.env.observation_spaces[agent]
        fields = dict(inner.spaces) if isinstance(inner, Dict) else {self._plain: inner}
        if self._key in fields:
            where = f"observation space of agent {agent!r}: expected no field {self._key!r}"
            raise ValueError(f"{where}, got one. {remedy}")
        return Dict([*fields.items(), (self._key, field)])

    def _with(self, agent: AgentID, value: Any, entry: Any) -> dict[str, Any]:
        """Return the observation ``value`` of ``agent`` with ``entry`` as the new field."""
        entries = value if isinstance(self.env.observation_spaces[agent], Dict) else {self._plain: value}
        return {**entries, self._key: entry}

    @abstractmethod
    def _added(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the new observations by agent, from those of the env and their infos."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._added(obs, infos), infos

    def step(self, actions: dict[Any, Any]) -> Step:
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        return self._added(obs, infos), rewards, terminateds, truncateds, infos
