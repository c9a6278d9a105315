"""AgentRunner: steps envs with several agents, and fills a rollout for each module.

A step is one forward pass of each module, over all its agents that act in any env, one step of each env, and one pass
over the dicts that the envs return. All other work is done with whole arrays.
"""

from __future__ import annotations

import functools
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import numpy as np
import torch

from catalog.explain.explain import short_space
from rlmodule.agents.columns import AgentColumns
from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.make import check_alike, make_agent_envs
from rlmodule.agents.multi_agent_env import AgentID, Step
from rlmodule.agents.multi_rollout import MultiRollout
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.restarting import RestartingAgentEnv
from rlmodule.envs.checks import EnvError, check_finite
from rlmodule.envs.infos import own_value
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.subprocesses import close_in_time
from rlmodule.modules.rl_module import MultiRLModule, RLModule
from rlmodule.sampling.episode_stats import EpisodeStats
from rlmodule.sampling.random_streams import ActionNoise, RandomStreams
from rlmodule.settings import RunnerSettings

logger = logging.getLogger("rlmodule.envs.make")


class AgentRunner:
    """Collects rollouts from ``num_envs_per_env_runner`` envs with several agents. Their episodes continue from one
    call to the next.

    A *slot* is an agent of an env: number ``env · A + agent``, for ``A`` possible agents. The runner accounts for every
    env step, as :class:`EnvRunner` does, of which this class has the interface.

    Args:
        settings: The env, the number of envs, whether action distributions are recorded.
        run_seed: Seed of the run; the random streams of each env, and the action noise of each slot, derive from it.
        first_env_index: Index of this runner's first env among all envs of the run.
        role: ``"env"``, or ``"evaluation_env"`` for random streams that differ from those of training.
        on_env: Called with each new env. All envs are closed if a call raises.
        incarnation: How many runners of these envs came before this one; the random streams of each differ.
        step_counter: Counts the calls of ``env.step`` before each is made. None creates a counter.

    Attributes:
        device: The device it acts on, the CPU.
        envs: The envs, each in a guard.
        agents: The possible agents of each env.
        observation_spaces, action_spaces: Spaces by agent.
        episodes: The current episode of each env.
        progress: Number of steps of every env; also grows while :meth:`sample` runs.
        num_env_steps_lost: Steps of fragments that ended in an error, by cause: ``env_raised`` counts the steps that
            raised, ``fragment`` all others.

    Raises:
        ValueError, TypeError, RuntimeError: If the env cannot be made, see :func:`make_agent_envs`.
    """

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        run_seed: int,
        first_env_index: int = 0,
        role: str = "env",
        on_env: Callable[[Any], None] | None = None,
        incarnation: int = 0,
        step_counter: SharedCounter | None = None,
    ) -> None:
        self._settings, self._first = settings, first_env_index
        self.step_counter = step_counter or SharedCounter()
        self.progress = 0
        self.num_env_steps_lost: Counter[str] = Counter()
        self.num_envs = num_envs = settings.num_envs_per_env_runner
        self.device = torch.device("cpu")
        self.envs: list[AgentEnvGuard | RestartingAgentEnv] = [*self._make_envs()]
        try:
            if on_env is not None:
                for env in self.envs:
                    on_env(env)
        except BaseException:
            self.stop()
            raise
        self.agents = list(self.envs[0].possible_agents)
        self.observation_spaces = dict(self.envs[0].observation_spaces)
        self.action_spaces = dict(self.envs[0].action_spaces)
        num_slots = num_envs * len(self.agents)
        self._slots_of_env = np.arange(num_slots).reshape(num_envs, -1)
        self._slot_of = [dict(zip(self.agents, slots, strict=True)) for slots in self._slots_of_env.tolist()]
        envs = range(first_env_index, first_env_index + num_envs)
        self._streams = RandomStreams(run_seed, role, envs, incarnation=incarnation)
        self._inference_mode = torch.inference_mode()  # creating one takes longer than entering it
        self._columns: dict[str, AgentColumns] = {}
        self._saved_noise: list[dict[str, Any]] = [{} for _ in envs]
        self._is_running = False  # if not, the next fragment starts new episodes
        self._first_obs: list[dict[AgentID, Any]] = []  # of a reset, until the next fragment begins
        self._steps = 0
        self._num_episodes = [0] * num_envs
        self._totals = EpisodeStats(num_envs, resets_in_a_step=False)
        self._earned = np.zeros(num_slots)  # since the last complete row
        self._returns = np.zeros(num_slots)
        self._warned = False
        self._joined: list[int] = []  # slots of agents that started in this step
        self._routes: list[dict[AgentID, tuple[AgentColumns, int]]] = [{} for _ in envs]  # of the agents in play
        self.episodes: list[MultiAgentEpisode] = []

    def _make_envs(self) -> Sequence[AgentEnvGuard | RestartingAgentEnv]:
        """Make the envs. If the settings say so, each is replaced when it raises."""
        settings = self._settings
        assert settings.env is not None
        make = functools.partial(make_agent_envs, settings.env, settings.env_config, step_counter=self.step_counter)
        guards = make(self.num_envs, first_env_index=self._first)

        def make_another(before: AgentEnvGuard) -> AgentEnvGuard:
            made = make(1, first_env_index=before.env_index)[0]
            check_alike(before, made)
            return made

        if not settings.restart_failed_sub_environments:
            return guards
        return [RestartingAgentEnv(guard, functools.partial(make_another, guard)) for guard in guards]

    def set_modules(self, modules: MultiRLModule, policy_map: PolicyMap) -> None:
        """Act with ``modules`` from now on, each for the agents that ``policy_map`` maps to it, and put them into eval
        mode. The next call of :meth:`sample` starts new episodes.

        Raises:
            ValueError: If an agent's spaces differ from those of its module, or a module is not on the CPU.
        """
        self._saved_noise = self._noise_by_env()
        self._modules, self._policy_map, self._is_running, self._columns = modules, policy_map, False, {}
        for module_id, module in modules.items():
            its = fits = [self._fits(agent, module) for agent in self.agents]
            if policy_map.static is not None:
                its = [policy_map.static[agent] == module_id for agent in self.agents]
            for agent, is_own, is_fitting in zip(self.agents, its, fits, strict=True):
                if is_own and not is_fitting:
                    raise self._misfit(agent, module_id)
            if any(its):
                self._check_device(module_id, module)
                slots = self._slots_of_env[:, its].ravel()
                keys = [self._noise_key(module_id, slot) for slot in slots.tolist()]
                noise = ActionNoise([self._streams.new_stream(*key) for key in keys])
                noise.set_state(self._noise_of(module_id, slots))
                owners = [(self._first + e, self.agents[i]) for e, i in map(self._place, slots.tolist())]
                records = self._settings.records_action_dist
                self._columns[module_id] = AgentColumns(module, slots, owners, noise, records)

    def _place(self, slot: int) -> tuple[int, int]:
        """Return env and agent of a slot, both by their places in this runner."""
        return divmod(slot, len(self.agents))

    def _fits(self, agent: AgentID, module: RLModule) -> bool:
        spaces = self.observation_spaces[agent], self.action_spaces[agent]
        return spaces == (module.observation_space, module.action_space)

    def _misfit(self, agent: AgentID, module_id: str) -> ValueError:
        module = self._modules[module_id]
        expected, got = (
            f"{short_space(observations)} and {short_space(actions)}"
            for observations, actions in (
                (self.observation_spaces[agent], self.action_spaces[agent]),
                (module.observation_space, module.action_space),
            )
        )
        return ValueError(
            f"agent {agent!r}: expected a module with its spaces, {expected}, got {module_id!r} with {got}. Map agents "
            "with different spaces to different modules."
        )

    def _check_device(self, module_id: str, module: RLModule) -> None:
        tensors = [*module.named_parameters(), *module.named_buffers()]
        if others := [f"{name} on {x.device}" for name, x in tensors if x.device != self.device]:
            raise ValueError(
                f"module {module_id!r} that acts: expected its tensors on {self.device}, as the envs are, got "
                f"{others[0]}. Move a copy there: copy.deepcopy(module).to(runner.device)."
            )

    def reset(self) -> None:
        """Start a new episode in every env, each with its own next seed."""
        seeds, self._is_running = self._streams.next_seeds(), False
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # restore it, in case an env changes it
            self._first_obs = [env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=True)]
        self._is_running = True
        self._totals.begin(self._steps)

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> MultiRollout:
        """Step every env ``num_steps`` times.

        Args:
            num_steps: Number of steps of each env; no agent has more rows.
            explore: Sample actions; False takes the most likely ones.
            policy_version: Stored in the rollout.

        Returns:
            Rollouts by module, whose data no later call changes, with the columns of :meth:`EnvRunner.sample`. The
            ``stats`` are:
            - ``episode_returns``, ``episode_lengths``, ``episode_slots``: of finished episodes of envs, in order of
              time: the sum of the rewards of all agents, the number of steps, and the env (its index in the runner).
            - ``agent_returns``, ``agent_lengths``: of finished episodes of agents, a list by agent. An agent that
              ended and returned has several in one episode of its env. The length counts its own steps.
            - ``episode_agent_returns``: of each finished episode of an env, the returns of its agents.
            - ``module_returns``: the returns of agents, by id of their module.
            - ``agent_steps``, ``module_steps``: number of complete rows, by agent and by id of the module.
            - ``rewards_before_acting``: by agent, the sum of the rewards that it got while it had no open row. They
              are part of returns, but no action led to them.
            - ``env_step``, ``forward``, ``bookkeeping``: seconds per phase.
            - ``episode_infos``: the ``info`` of the last step of each finished episode of an env, by agent, if the
              settings record it.
            - ``num_env_steps_lost``: lost steps by cause, if an env raised and was restarted. Its episode is truncated
              by what its agents last observed, and counts as finished neither for the env nor for them.

        Raises:
            ValueError: If an observation or reward is wrong or not finite, an action mask allows no action, or an
                agent is mapped to a wrong module; names env, step and agent.
            EnvError: If an env raises. The next call then starts new episodes.
        """
        start = perf_counter()
        if not self._is_running:
            self.reset()
        calls_before = self.step_counter.cell[0]
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                self._begin(num_steps)
                seconds = self._interact(num_steps, explore)
                self._check(is_finished=True)
                rollout = self._rollout_of(num_steps, explore)
        except BaseException as error:
            self._is_running = False  # the envs are ahead of the recorded rows, so start new episodes
            culprit = self._culprit(error)
            self._note_lost(culprit, calls_before)
            if culprit is error:
                raise
            raise culprit from error
        rollout.policy_version = policy_version
        for one in rollout.modules.values():
            one.policy_version, one.first_env_index = policy_version, self._first
        bookkeeping = perf_counter() - start - seconds["env_step"] - seconds["forward"]
        rollout.stats |= seconds | {"bookkeeping": bookkeeping}
        return rollout

    def _begin(self, num_steps: int) -> None:
        """Prepare a fragment. After a reset, begin its episodes."""
        self._rewards = np.zeros((num_steps, self.num_envs), np.float32)
        self._ended = np.zeros((num_steps, self.num_envs), bool)
        self._infos: list[dict[AgentID, Any]] = []
        self._returns_by_agent: list[dict[AgentID, float]] = []
        self._finished: list[tuple[AgentID, str, float, int]] = []
        self._before_acting: dict[AgentID, float] = {}
        self._faults: list[tuple[int, int]] = []  # step and env
        self._is_complete = False
        first_obs, self._first_obs = self._first_obs, []
        for columns in self._columns.values():
            if first_obs:
                columns.clear()
            columns.begin(num_steps)
        if first_obs:
            self._earned[:] = 0.0
            self.episodes = [self._new_episode(e) for e in range(self.num_envs)]
            self._start(0, range(self.num_envs), first_obs)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _interact(self, num_steps: int, explore: bool) -> dict[str, float]:
        """Step the envs and fill the columns. Return the seconds of each phase."""
        in_env = in_forward = 0.0
        for t in range(num_steps):
            before = perf_counter()
            with self._inference_mode:
                actions = self._act(explore)
            decided = perf_counter()
            results = [env.step(of_env) for env, of_env in zip(self.envs, actions, strict=True)]
            stepped = perf_counter()
            self.progress += 1
            in_forward += decided - before
            in_env += stepped - decided
            self._store(t, results)
            if np.count_nonzero(self._ended[t]):
                over = np.flatnonzero(self._ended[t]).tolist()
                before = perf_counter()
                observations = [self.envs[e].reset()[0] for e in over]
                in_env += perf_counter() - before
                for e in over:
                    self.episodes[e] = self._new_episode(e)
                self._start(t + 1, over, observations)
        self._is_complete = True
        return {"env_step": in_env, "forward": in_forward}

    def _act(self, explore: bool) -> list[dict[AgentID, Any]]:
        """Return the actions of each env, by agent."""
        actions: list[dict[AgentID, Any]] = [{} for _ in self.envs]
        for columns in self._columns.values():
            if len(columns.ready):
                who, chosen = columns.act(explore, self._streams.generator)
                for column, action in zip(who, chosen, strict=True):
                    env, agent = columns.owners[column]
                    actions[env - self._first][agent] = action
        return actions

    def _store(self, t: int, results: Sequence[Step]) -> None:
        """Store what step ``t`` of every env returned."""
        self._joined.clear()
        self._earn(t, [rewards for _, rewards, *_ in results])
        for e, (obs, _, _, _, infos) in enumerate(results):
            self.episodes[e].length += 1
            self._observe(e, obs)
            for agent, flags in self.envs[e].ended.items():
                columns, column = self._routes[e].pop(agent)
                columns.ended.append(column)
                columns.flags.append(flags)
            if self.envs[e].is_over:
                self._ended[t, e] = True
                if self.envs[e].has_failed:
                    self._cut(t, e)
                elif self._settings.records_episode_infos:
                    self._infos.append(own_value(infos))  # reset() may change it
        if self._joined:
            self._set_aside(np.array(self._joined))
        for columns in self._columns.values():
            columns.advance(t + 1, self._earned)
        for e, env in enumerate(self.envs):
            for agent in env.ended:
                self._leave(e, agent)
            if env.is_over and not env.has_failed:
                self._returns_by_agent.append(self.episodes[e].finished)

    def _earn(self, t: int, by_env: Sequence[Mapping[AgentID, float]]) -> None:
        """Add the rewards of step ``t``, of each env by agent."""
        slots: list[int] = []
        rewards: list[float] = []
        for slot_of, of_agents in zip(self._slot_of, by_env, strict=True):
            slots += map(slot_of.__getitem__, of_agents)
            rewards += of_agents.values()
        where, amounts = np.array(slots, np.int64), np.array(rewards, np.float64)
        self._earned[where] += amounts
        self._returns[where] += amounts
        self._rewards[t] = np.bincount(where // len(self.agents), amounts, self.num_envs)

    def _observe(self, e: int, obs: Mapping[AgentID, Any]) -> None:
        """Pass the observations of env ``e`` on to the modules of the agents."""
        routes = self._routes[e]
        for agent, seen in obs.items():
            columns, column = routes[agent] if agent in routes else self._join(e, agent)
            columns.observers.append(column)
            columns.seen.append(seen)

    def _join(self, e: int, agent: AgentID) -> tuple[AgentColumns, int]:
        """Let ``agent`` of env ``e`` start. Return the columns of its module, and which of them is its own."""
        module_id, slot = self.episodes[e].join(agent), self._slot_of[e][agent]
        columns = self._columns.get(module_id)
        if columns is None or slot not in columns.column_of:
            raise self._misfit(agent, module_id)
        self._joined.append(slot)
        route = self._routes[e][agent] = columns, columns.column_of[slot]
        return route

    def _leave(self, e: int, agent: AgentID) -> None:
        """Note return and length of the episode of ``agent`` of env ``e``, which has ended."""
        slot, module_id = self._slot_of[e][agent], self.episodes[e].policy_of(agent)
        total, self._returns[slot] = float(self._returns[slot]), 0.0
        length = self._columns[module_id].length_of(slot)
        self.episodes[e].leave(agent, total)
        self._finished.append((agent, module_id, total, length))

    def _cut(self, t: int, e: int) -> None:
        """End the episode of env ``e``, which raised in step ``t``, and drop what its agents did in that step."""
        self._faults.append((t, e))
        for columns, column in self._routes[e].values():
            columns.cut(t, column)
        self._earned[self._slots_of_env[e]] = 0.0

    def _new_episode(self, e: int) -> MultiAgentEpisode:
        """Return a new episode of env ``e``, without agents in play."""
        slots, number = self._slots_of_env[e], self._num_episodes[e]
        self._set_aside(slots)
        self._returns[slots] = 0.0
        self._num_episodes[e] += 1
        self._routes[e] = {}
        returns = self._returns[slots[0] : slots[-1] + 1]
        return MultiAgentEpisode(self._first + e, number, self.agents, self._policy_map, returns)

    def _start(self, t: int, envs: Sequence[int], observations: Sequence[Mapping[AgentID, Any]]) -> None:
        """Begin the new episodes of ``envs``, whose resets returned ``observations`` after ``t`` steps."""
        for e, obs in zip(envs, observations, strict=True):
            self._observe(e, obs)
        for columns in self._columns.values():
            columns.advance(t, self._earned)

    def _set_aside(self, slots: np.ndarray) -> None:
        """Move the rewards of ``slots``, which no row has, to ``rewards_before_acting``."""
        for slot in slots[self._earned[slots] != 0].tolist():
            agent = self.agents[slot % len(self.agents)]
            self._before_acting[agent] = self._before_acting.get(agent, 0.0) + float(self._earned[slot])
            self._earned[slot] = 0.0

    # --- after it -----------------------------------------------------------------------------------------------------

    def _check(self, is_finished: bool) -> None:
        """Check all observations and rewards of the fragment, whose steps are complete if it ``is_finished``."""
        for columns in self._columns.values():
            columns.check(self._steps, is_finished)
        check_finite(self._rewards, "reward of all agents", self._steps + 1, self._first)

    def _rollout_of(self, num_steps: int, explore: bool) -> MultiRollout:
        """Return the complete rows of all modules, and the statistics."""
        modules, slots, steps = {}, {}, np.zeros(len(self.agents), np.int64)
        for module_id, columns in self._columns.items():
            if (found := columns.finish(explore)) is not None:
                modules[module_id], own = found
                env, agent = np.divmod(own, len(self.agents))
                slots[module_id] = np.stack([self._first + env, agent], 1)
                np.add.at(steps, agent, modules[module_id].valid.sum(0).numpy())
        stats: dict[str, Any] = dict(self._totals.finished(self._rewards, self._ended, self._steps))
        if self._faults:
            raised = np.zeros_like(self._ended)
            raised[tuple(np.transpose(self._faults))] = True
            stats = {name: values[~raised[self._ended]] for name, values in stats.items()}
            stats["num_env_steps_lost"] = {"env_raised": len(self._faults)}
        stats |= {"agent_returns": {}, "agent_lengths": {}, "module_returns": {}}
        for agent, module_id, total, length in self._finished:
            stats["agent_returns"].setdefault(agent, []).append(total)
            stats["agent_lengths"].setdefault(agent, []).append(length)
            stats["module_returns"].setdefault(module_id, []).append(total)
        stats["episode_agent_returns"] = self._returns_by_agent
        stats["agent_steps"] = dict(zip(self.agents, steps.tolist(), strict=True))
        stats["module_steps"] = {module_id: one.num_env_steps for module_id, one in modules.items()}
        stats["rewards_before_acting"] = self._before_acting
        if self._settings.records_episode_infos and self._infos:
            stats["episode_infos"] = self._infos
        if self._before_acting and not self._warned:
            self._warned = True
            logger.warning(
                "agents %s got rewards while they had not acted yet. These count in returns, but nothing learns from "
                "them.",
                [*self._before_acting],
            )
        self._steps += num_steps
        return MultiRollout(
            modules=modules,
            slots=slots,
            num_env_steps=num_steps * self.num_envs - len(self._faults),
            first_env_index=self._first,
            stats=stats,
        )

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _culprit(self, error: BaseException) -> BaseException:
        """Return the error to raise for ``error``: that of a wrong value on which a module or an env failed, if any."""
        if isinstance(error, Exception) and not self._is_complete:
            try:
                self._check(is_finished=False)
                for env in self.envs if not isinstance(error, EnvError) else ():
                    env.check_last()
            except (TypeError, ValueError) as found:
                return error if str(found) == str(error) else found
        return error

    def _note_lost(self, error: BaseException, calls_before: int) -> None:
        """Add the steps of a fragment that ended in ``error`` to ``num_env_steps_lost``."""
        num = self.step_counter.count - calls_before
        is_step = isinstance(error, EnvError) and error.place.get("call") != "reset()"
        raised = min(num, len(self._faults) + is_step)
        self.num_env_steps_lost += Counter(env_raised=raised, fragment=num - raised)  # adding drops counts of 0

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _noise_key(self, module_id: str, slot: int) -> tuple[int, ...]:
        """Return the key of the action noise of a slot. If the module of an agent depends on the episode, so does the
        key: no two modules draw the same noise."""
        own = self._first * len(self.agents) + slot
        return (own,) if self._policy_map.static is not None else (own, zlib.crc32(module_id.encode()))

    def _noise_of(self, module_id: str, slots: np.ndarray) -> list[dict[str, Any]]:
        """Return the state of the noise of ``slots``, as it was saved, or at its start."""
        states = []
        for slot in slots.tolist():
            e, i = self._place(slot)
            saved = self._saved_noise[e].get(f"{module_id}/{i}")
            states.append(saved or self._streams.new_noise(*self._noise_key(module_id, slot)))
        return states

    def _noise_by_env(self) -> list[dict[str, Any]]:
        """Return the state of the noise of each env, by module and number of the agent."""
        noise = [dict(of_env) for of_env in self._saved_noise]
        for module_id, columns in self._columns.items():
            for slot, state in zip(columns.slots.tolist(), columns.noise.get_state(), strict=True):
                e, i = self._place(slot)
                noise[e][f"{module_id}/{i}"] = state
        return noise

    def get_state(self) -> dict[str, Any]:
        """Return counters and random streams by index of the env in the run. Envs are not saved: ``set_state`` starts
        new episodes."""
        by_env = zip(self._streams.get_state().items(), self._num_episodes, self._noise_by_env(), strict=True)
        return {
            index: one | {"steps": self._steps, "episodes": number, "noise": noise}
            for (index, one), number, noise in by_env
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore states from :meth:`get_state` of this or other runners; see :meth:`RandomStreams.set_state`."""
        streams = {index: {k: v for k, v in one.items() if k != "noise"} for index, one in state.items()}
        self._streams.set_state(streams)
        own = [state.get(str(self._first + e), {}) for e in range(self.num_envs)]
        self._saved_noise = [one.get("noise", {}) for one in own]
        self._num_episodes = [one.get("episodes", 0) for one in own]
        for module_id, columns in self._columns.items():
            columns.noise.set_state(self._noise_of(module_id, columns.slots))
        self._steps = max((one.get("steps", 0) for one in state.values()), default=0)
        self._is_running = False

    def stop(self) -> None:
        """Close the envs within a few seconds."""
        closing = ExitStack()
        for env in self.envs:
            closing.callback(env.close)
        close_in_time(closing, f"{len(self.envs)} envs with several agents")
