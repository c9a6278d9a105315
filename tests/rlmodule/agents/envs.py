"""Envs of several agents, for tests: one that follows a script, CartPoles in one env, and any env as that of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlmodule.agents.multi_agent_env import ALL, AgentID, MultiAgentEnv, Step


@dataclass(frozen=True)
class Moment:
    """What one call of a `ScriptedEnv` returns: the first of a script is the reset."""

    acts: Sequence[AgentID] = ()
    """Agents that observe and act next."""
    rewards: Mapping[AgentID, float] = field(default_factory=dict)
    terminated: Sequence[AgentID] = ()
    """Agents that end, with their final observations; ``"__all__"`` alone ends all, then `final` has who is in play."""
    truncated: Sequence[AgentID] = ()
    final: Sequence[AgentID] = ()

    @property
    def observers(self) -> list[AgentID]:
        named = [*self.acts, *self.terminated, *self.truncated, *self.final]
        return [agent for agent in dict.fromkeys(named) if agent != ALL]

    @property
    def ends_all(self) -> bool:
        return ALL in (*self.terminated, *self.truncated)


class ScriptedEnv(MultiAgentEnv):
    """Returns what its scripts say, one script per episode, and starts again with the first one after the last.

    The observation of an agent is ``[index of the agent, number of the episode, step]``, so no two are equal. Actions
    are Discrete(`num_actions`). ``calls`` has what came: ``("reset", seed)`` and ``("step", actions)``.
    """

    def __init__(
        self, scripts: Sequence[Sequence[Moment]], agents: Sequence[AgentID] = ("a", "b", "c"), num_actions: int = 3
    ) -> None:
        self.scripts = scripts
        self.possible_agents = list(agents)
        self.observation_spaces = {agent: spaces.Box(-1.0, 1e6, (3,), np.float32) for agent in agents}
        self.action_spaces = {agent: spaces.Discrete(num_actions) for agent in agents}
        self.calls: list[tuple[str, Any]] = []
        self._episode, self._step = -1, 0

    @property
    def moment(self) -> Moment:
        return self.scripts[self._episode % len(self.scripts)][self._step]

    def _observe(self, agent: AgentID) -> np.ndarray:
        return np.array([self.possible_agents.index(agent), self._episode, self._step], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.calls.append(("reset", seed))
        self._episode, self._step = self._episode + 1, 0
        return {agent: self._observe(agent) for agent in self.moment.observers}, {}

    def step(self, actions: dict[AgentID, Any]) -> Step:
        self.calls.append(("step", dict(actions)))
        self._step += 1
        now = self.moment
        return (
            {agent: self._observe(agent) for agent in now.observers},
            dict(now.rewards),
            dict.fromkeys(now.terminated, True),
            dict.fromkeys(now.truncated, True),
            {agent: {"step": self._step} for agent in now.observers},
        )


def random_script(
    rng: np.random.Generator, agents: Sequence[AgentID] = ("a", "b", "c"), most_steps: int = 12
) -> list[Moment]:
    """A valid script with starts, deaths, returns, pauses, turns and off-turn rewards. Rewards are multiples of 1/4."""

    def some(of: Sequence[AgentID], chance: float) -> list[AgentID]:
        return [agent for agent in of if rng.random() < chance]

    def at_least_one(of: Sequence[AgentID], chance: float) -> list[AgentID]:
        return some(of, chance) or [of[int(rng.integers(len(of)))]]

    in_play = set(first := at_least_one(agents, 0.6))
    acted = set(first)
    script = [Moment(acts=first)]
    last = int(rng.integers(1, most_steps + 1))
    for step in range(1, last + 1):
        here = [agent for agent in agents if agent in in_play]
        rewards = {agent: float(rng.integers(-8, 9)) / 4 for agent in some(here, 0.6)}
        # rewards before the first observation of an agent are valid, too
        rewards |= dict.fromkeys(some([a for a in agents if a not in acted], 0.1), 0.25)
        if step == last and rng.random() < 0.5:
            flag = {"terminated": [ALL]} if rng.random() < 0.5 else {"truncated": [ALL]}
            own = some(here, 0.2) if "truncated" in flag else []
            final = here + some([agent for agent in agents if agent not in in_play], 0.2)  # some start as they end
            script.append(Moment(rewards=rewards, final=final, **{**flag, "terminated": flag.get("terminated", own)}))
            return script
        ended = here if step == last else some(here, 0.25)
        terminated = some(ended, 0.5)
        truncated = [agent for agent in ended if agent not in terminated]
        absent = [agent for agent in agents if agent not in in_play]
        starts = [] if step == last else some(absent, 0.4)
        in_play = (in_play - set(ended)) | set(starts)
        waiting = [agent for agent in agents if agent in in_play and agent not in starts]
        acts = starts + some(waiting, 0.6)
        if in_play and not acts:
            acts = at_least_one(waiting, 0.6)
        acted |= set(acts)
        script.append(Moment(acts=acts, rewards=rewards, terminated=terminated, truncated=truncated))
        if not in_play:
            return script
    return script


class CartPoles(MultiAgentEnv):
    """Independent copies of an env, one per agent; the reset seeds agent ``i`` with ``seed + i``.

    Args:
        num_agents: Number of agents, called ``cart_0``, ``cart_1``, ….
        at_end: What follows when the episode of a copy ends: its agent *leaves* until all have left, or *rejoins* in
            the next step, in which it does not act; or this *ends* the episode of the env for all.
        env_id: Id of the env.
        env_config: Settings of the env.
    """

    def __init__(
        self,
        num_agents: int = 4,
        at_end: Literal["leaves", "rejoins", "ends"] = "leaves",
        env_id: str = "CartPole-v1",
        **env_config: Any,
    ) -> None:
        self.at_end = at_end
        self.envs = {f"cart_{i}": gym.make(env_id, **env_config) for i in range(num_agents)}
        self.possible_agents = [*self.envs]
        self.observation_spaces = {agent: env.observation_space for agent, env in self.envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self.envs.items()}
        self._gone: set[AgentID] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._gone = set()
        results = {
            a: env.reset(seed=None if seed is None else seed + i) for i, (a, env) in enumerate(self.envs.items())
        }
        return {agent: obs for agent, (obs, _) in results.items()}, {
            agent: info for agent, (_, info) in results.items()
        }

    def step(self, actions: dict[AgentID, Any]) -> Step:
        obs, rewards, terminateds, truncateds, infos = result = {}, {}, {}, {}, {}
        returning = self._gone if self.at_end == "rejoins" else set()
        for agent, env in self.envs.items():
            if agent in actions:
                for part, value in zip(result, env.step(actions[agent]), strict=True):
                    part[agent] = value
            elif agent in returning:
                obs[agent], infos[agent] = env.reset()
        self._gone = self._gone - returning
        ended = {agent for agent in actions if terminateds[agent] or truncateds[agent]}
        self._gone |= ended
        if self.at_end == "ends" and ended:
            truncateds[ALL] = True
        return obs, rewards, terminateds, truncateds, infos

    def close(self) -> None:
        for env in self.envs.values():
            env.close()


class OneAgent(MultiAgentEnv):
    """A Gymnasium env as the env of one agent."""

    def __init__(self, env: str | gym.Env[Any, Any], agent: AgentID = "agent") -> None:
        self.env = gym.make(env, disable_env_checker=True) if isinstance(env, str) else env
        self.agent = agent
        self.possible_agents = [agent]
        self.observation_spaces = {agent: self.env.observation_space}
        self.action_spaces = {agent: self.env.action_space}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return tuple({self.agent: part} for part in self.env.reset(seed=seed, options=options))

    def step(self, actions: dict[AgentID, Any]) -> Any:
        return tuple({self.agent: part} for part in self.env.step(actions[self.agent]))

    def close(self) -> None:
        self.env.close()
