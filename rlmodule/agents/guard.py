"""AgentEnvGuard: checks on the values that a multi-agent env returns, and on the actions that it receives."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tree
from gymnasium.spaces import Space

from catalog_rl import listed, unknown
from rlmodule.agents.multi_agent_env import ALL, AgentID, MultiAgentEnv, Start, Step
from rlmodule.envs.checks import (
    PLAIN,
    Guard,
    check_flag,
    check_info,
    check_member,
    describe,
    is_due,
    leaves_along,
    may_have_mask,
    not_finite,
    own,
    real_number,
    restored,
    to_array,
    warn_of_mask,
)
from rlmodule.envs.shared_counter import SharedCounter

_RESET, _STEP = ("obs", "infos"), ("obs", "rewards", "terminateds", "truncateds", "infos")


class AgentEnvGuard(Guard):
    """Checks the values that one multi-agent env returns. Errors name the env, the step and the agent.

    Observations are checked in the first 100 calls, and then in every 100th call. Everything else is checked in every
    call. Errors of the env itself, including ``sys.exit()``, are raised again as EnvError.
    ``step_counter`` counts every call of the env's ``step`` before it is made.

    Two values are corrected: a reward that is an array with one entry becomes a number, and the final observation of an
    agent is copied, since the next reset may overwrite it.

    Attributes:
        env: The env.
        env_index: Index of the env in the run.
        possible_agents: All agents that may ever be in play, in the env's order.
        observation_spaces: Observation space of each possible agent, in the same order.
        action_spaces: Action space of each possible agent, in the same order.
        acting: Agents that act next, in the order of the observations.
        ended: Agents that ended in the last step, each with ``(terminated, truncated)``; a flag for ``"__all__"``
            applies to every agent in play.
        is_over: Whether no episode is running, so that ``reset`` must be called next.

    Raises:
        TypeError, ValueError: From ``__init__``, if an attribute of the env is wrong; from ``reset`` and ``step``, if a
            value violates the API or is outside its space, or if the actions are not those of the agents that act.
        EnvError: From ``reset`` and ``step``, if the env raises.
    """

    def __init__(self, env: MultiAgentEnv, env_index: int = 0, step_counter: SharedCounter | None = None) -> None:
        super().__init__(env, env_index, step_counter)
        for name in ("possible_agents", "observation_spaces", "action_spaces"):
            if name not in dir(env):
                got = f"a {type(env).__name__} without it"
                raise TypeError(f"env {env_index}: expected the attribute {name}, got {got}. Set it in __init__.")
        self.possible_agents = self._agents_of(env)
        self.observation_spaces = self._spaces_of("observation_spaces", env.observation_spaces)
        self.action_spaces = self._spaces_of("action_spaces", env.action_spaces)
        known = frozenset(self.possible_agents)
        self._allowed = dict.fromkeys(_STEP, known) | dict.fromkeys(("terminateds", "truncateds"), known | {ALL})
        self._last: tuple[Mapping[AgentID, Any], str] = {}, ""  # observations, and the env and step they are from
        self.acting: list[AgentID] = []
        self.ended: dict[AgentID, tuple[bool, bool]] = {}
        self.is_over = True
        self._in_play: set[AgentID] = set()
        self._gone: dict[AgentID, int] = {}  # agents that ended and have not returned, with the step of their end

    def _agents_of(self, env: MultiAgentEnv) -> tuple[AgentID, ...]:
        where, agents = f"env {self.env_index}, possible_agents", env.possible_agents
        # the order of a set differs between processes
        wrong = isinstance(agents, str | set | frozenset) or not isinstance(agents, Iterable)
        if wrong or not (names := tuple(agents)) or any(type(name) not in (str, int) for name in names):
            remedy = "Name all agents that may ever be in play, as plain str or int, always in the same order."
            raise TypeError(f"{where}: expected a list of str or int, got {describe(agents)}. {remedy}")
        if len({*map(str, names)}) < len(names) or ALL in names:  # metrics and policies have their names as text
            remedy = f"Name each agent once, as 1 and '1' count as the same name, and none {ALL!r}."
            raise ValueError(f"{where}: expected names that differ, got {listed(names)}. {remedy}")
        return names

    def _spaces_of(self, name: str, given: Any) -> dict[AgentID, Space[Any]]:
        where = f"env {self.env_index}, {name}"
        if not isinstance(given, Mapping):
            raise TypeError(f"{where}: expected a dict by agent, got {describe(given)}. Set it in __init__.")
        for agent in self.possible_agents:
            if not isinstance(given.get(agent), Space):
                got = describe(given[agent]) if agent in given else f"the agents {listed(given)}"
                raise ValueError(f"{where}: expected a space for agent {agent!r}, got {got}. Add its space.")
        return {agent: given[agent] for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        """Reset the env. Check the observations and infos by agent, and return them."""
        where = f"env {self.env_index}, reset after step {self._steps}"
        result = self._begin_episode(seed, options)
        obs, infos = self._checked(where, "reset()", _RESET, result)
        if not obs:
            remedy = "Return the observations of the agents that act first."
            raise ValueError(f"{where}, obs: expected that of at least one agent, got none. {remedy}")
        for agent, info in infos.items():
            if "action_mask" in info and not may_have_mask(self.observation_spaces[agent]):
                warn_of_mask(type(self.env).__name__, "infos", wrapper="rlmodule.agents.AgentMasksFromInfo")
        if is_due(self._resets):
            self.check_last()
        self._begin(obs)
        return obs, infos

    def _begin(self, obs: Mapping[AgentID, Any]) -> None:
        """Begin an episode in which the agents in ``obs`` act first."""
        self._in_play, self._gone, self.ended, self.is_over = set(obs), {}, {}, False
        self.acting = [*obs]

    def get_open_episode(self) -> dict[str, Any]:
        """Return the open episode for :meth:`continue_episode`, in the format of :meth:`EnvGuard.get_open_episode`.
        ``actions`` has one entry per possible agent: the actions in the steps in which it acted."""
        observed = [torch.as_tensor(np.array(leaf)) for leaf in map(to_array, tree.flatten(self._seen()))]
        episode: dict[str, Any] = {"seed": self._first_seed, "number": self._episode, "obs": observed}
        if (state := self.env.get_episode_state()) is not None:
            play = {"acting": self.acting, "in_play": [*self._in_play], "gone": [*self._gone]}
            return episode | {"env_state": state} | play
        actions = [
            leaves_along(actions_of_step[agent] for actions_of_step in self._actions if agent in actions_of_step)
            for agent in self.possible_agents
        ]
        return episode | {"steps": len(self._actions), "actions": actions}

    def _seen(self) -> list[Any]:
        """Return a list: first an array of the indices of the agents that observed last, then their observations."""
        return [np.array([self.possible_agents.index(agent) for agent in self._last[0]]), *self._last[0].values()]

    def _repeat(self, episode: Mapping[str, Any]) -> list[Any]:
        where = f"env {self.env_index}, in the episode that was open"
        obs, _ = self.env.reset(seed=self.episode_seed)
        self._begin(obs)
        if "env_state" in episode:
            obs = self.env.set_episode_state(episode["env_state"])
            self.acting = episode["acting"]
            self._in_play, self._gone = {*episode["in_play"]}, dict.fromkeys(episode["gone"], 0)
        else:
            of = dict[AgentID, Iterator[Any]]()
            for (agent, space), leaves in zip(self.action_spaces.items(), episode["actions"], strict=True):
                of[agent] = restored(space, leaves)
            for _ in range(episode["steps"]):
                actions = self._kept({agent: next(of[agent]) for agent in self.acting})
                obs, _, terminateds, truncateds, _ = self.env.step(actions)
                self._update_agents(where, obs, terminateds, truncateds)
        self._last = obs, where
        return self._seen()

    def _kept(self, actions: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        """Store a copy of ``actions``, to repeat the episode when the run is resumed. Return ``actions`` in the order
        in which the agents observed."""
        in_order = {agent: actions[agent] for agent in self.acting}
        self._actions.append({agent: own(x) for agent, x in in_order.items()})
        return in_order

    def step(self, actions: dict[Any, Any]) -> Step:
        """Step the env with the actions of the agents that act. Check the five results by agent, and return them."""
        if self.is_over or actions.keys() != {*self.acting}:
            where = f"env {self.env_index}, after step {self._steps}, actions: expected"
            if self.is_over:
                raise ValueError(f"{where} reset(), got step(), although no episode is running. Call reset().")
            expected, got = listed(self.acting), listed(actions)
            remedy = "Pass one action for each of them, and no other."
            raise ValueError(f"{where} those of the agents that act, {expected}, got those of {got}. {remedy}")
        result = self._take_step(self._kept(actions))
        where = f"env {self.env_index}, step {self._steps}"
        obs, rewards, terminateds, truncateds, infos = self._checked(where, "step()", _STEP, result)
        if is_due(self._steps):
            self.check_last()
        for agent, reward in rewards.items():
            if not (type(reward) in PLAIN and math.isfinite(reward)):
                number = real_number(reward, place := f"{where}, rewards[{agent!r}]")
                if not math.isfinite(number):
                    raise not_finite(place, number, ())
                rewards = {**rewards, agent: number}  # a new dict, since the env may keep its own
        for agent in self._gone:
            if agent not in obs and rewards.get(agent, 0):
                ended = f"{agent!r}, which ended at step {self._gone[agent]}"
                got = f"{rewards[agent]}. Add it to the rewards of the step in which the agent ends."
                raise ValueError(f"{where}, rewards: expected none for agent {ended}, got {got}")
        self._update_agents(where, obs, terminateds, truncateds)
        if self.ended:
            obs = {agent: copy.deepcopy(value) if agent in self.ended else value for agent, value in obs.items()}
        return obs, rewards, terminateds, truncateds, infos

    def _checked(self, where: str, call: str, names: Sequence[str], result: Any) -> Any:
        """Return ``result``, the tuple that the env's ``call`` returned, and store its observations. Raise TypeError or
        ValueError unless it has a dict for each of ``names``, keyed by possible agents (or "__all__" in flags)."""
        if not isinstance(result, tuple) or len(result) != len(names):
            got = f"{describe(result)}. Return {'two' if names is _RESET else 'five'} dicts by agent."
            raise TypeError(f"{where}, {call}: expected a tuple ({', '.join(names)}), got {got}")
        for name, part in zip(names, result, strict=True):
            if not isinstance(part, dict):
                raise TypeError(f"{where}, {name}: expected a dict by agent, got {describe(part)}. Return one.")
            if not self._allowed[name].issuperset(part):
                agent = next(agent for agent in part if agent not in self._allowed[name])
                remedy = "Name all agents that may ever be in play from the start, or return nothing for it."
                raise unknown(f"{where}, {name}", "possible_agents", self.possible_agents, agent, remedy)
        for agent, info in result[-1].items():
            if type(info) is not dict:
                check_info(where, info, f"infos[{agent!r}]")
        self._last = result[0], where
        return result

    def check_last(self) -> None:
        """Raise ValueError if the last observations are wrong, even if no check was due. Call it after code that used
        these observations failed."""
        observations, where = self._last
        for agent, value in observations.items():
            check_member(self.observation_spaces[agent], value, lambda _: where, f"obs[{agent!r}]", self._steps)

    def _update_agents(self, where: str, obs: dict[AgentID, Any], terminateds: Any, truncateds: Any) -> None:
        """Update ``ended``, ``acting`` and ``is_over`` from the observations and flags that a step returned.

        Raises:
            TypeError, ValueError: If a flag is not a bool, or the dicts disagree on which agents end or act.
        """
        flagged: list[AgentID] = []
        for name, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
            for agent, flag in flags.items():
                if flag is not False:
                    check_flag(flag, where, f"{name}[{agent!r}]")
                    if flag:
                        flagged.append(agent)
        if not flagged and obs.keys() == {*self.acting}:
            # Most steps end here: the agents that acted act again.
            self.ended = {}
            self.acting = [*obs]
            return
        for agent in flagged:
            if agent in self._gone:
                expected = f"nothing of agent {agent!r}, which ended at step {self._gone[agent]}"
                got = "another flag. Leave it out of all dicts; an observation without a flag lets it return."
                raise ValueError(f"{where}: expected {expected}, got {got}")
        if ALL in flagged:
            flagged += [*obs, *self._in_play]
        ending = dict.fromkeys(agent for agent in flagged if agent != ALL)
        for agent in ending:
            if agent not in obs:
                remedy = "Return it in the step in which the agent ends, also if '__all__' ends it."
                got = f"the observations of {listed(obs)}"
                raise ValueError(f"{where}, obs: expected the final one of agent {agent!r}, got {got}. {remedy}")
        self.ended = {
            agent: (
                bool(terminateds.get(ALL) or terminateds.get(agent)),
                bool(truncateds.get(ALL) or truncateds.get(agent)),
            )
            for agent in ending
        }
        self.acting = [agent for agent in obs if agent not in ending]
        self._in_play = self._in_play.union(self.acting) - ending.keys()
        self._gone = {agent: step for agent, step in self._gone.items() if agent not in self.acting}
        self._gone |= dict.fromkeys(ending, self._steps)
        self.is_over = not self._in_play
        if not self.acting and not self.is_over:
            raise ValueError(
                f"{where}, obs: expected that of at least one agent, since {listed(self._in_play)} are in play, got "
                "none. Return the observations of those that act next, or end the episode with '__all__'."
            )
