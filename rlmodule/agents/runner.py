"""AgentRunner: steps multi-agent envs, and fills one rollout for each module.

A step of the runner consists of one forward pass of each module for all its agents that act in any env, one step of
each env, and one pass over the dicts that the envs return. All other work is done on whole arrays.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch

from rlmodule.agents.columns import AgentColumns
from rlmodule.agents.episode import AgentEpisode, MultiAgentEpisode
from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.make import make_agent_envs
from rlmodule.agents.module_columns import ModuleColumns
from rlmodule.agents.multi_agent_env import AgentID, Step
from rlmodule.agents.multi_rollout import MultiRollout
from rlmodule.agents.policy_map import PolicyMap, PolicyMappingFn
from rlmodule.data.rollout import Rollout
from rlmodule.envs.checks import EnvError, check_finite
from rlmodule.envs.infos import own_value
from rlmodule.envs.restarting import TRIES, Restarts
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.subprocesses import close_in_time
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.sampling.accounts import BaseRunner, EpisodeStats
from rlmodule.sampling.random_streams import RandomStreams

logger = logging.getLogger("rlmodule.envs.make")

_NOTHING: Step = {}, {}, {}, {}, {}
# The first episode of a restarted runner has this number, times the number of restarts.
_EPISODES_OF_AN_INCARNATION = 2**32


class AgentRunner(BaseRunner):
    """Collects rollouts from ``num_envs_per_env_runner`` multi-agent envs. An episode that is open at the end of a call
    of :meth:`sample` continues in the next call.

    A *slot* is one agent of one env. Its number is ``env · A + agent``, for ``A`` possible agents. The interface is
    that of :class:`EnvRunner`.

    :meth:`sample` returns rollouts by module, whose data no later call changes, with the columns of
    :class:`EnvRunner`'s. No agent has more rows than there were steps. The ``stats`` are:

    - ``episode_returns``, ``episode_lengths``, ``episode_slots``: of the env episodes that finished, in order
      of time: the sum of the rewards of all agents, the number of steps, and the env (its index in the runner).
    - ``agent_episodes``: the agent episodes that finished, each an :class:`AgentEpisode`. An agent that ended
      and returned has several in one env episode.
    - ``multi_agent_episodes``: the env episodes that finished, each a :class:`MultiAgentEpisode`.
    - ``agent_steps``, ``module_steps``: number of complete rows, by agent and by id of the module.
    - ``rewards_before_acting``: by agent, the sum of the rewards that it got while it had no open row. These
      rewards are part of returns, but no action led to them.
    - ``env_step``, ``forward``, ``bookkeeping``: seconds per phase.
    - ``episode_infos``: for each env episode that finished, the infos of its last step, by agent. Only if the
      settings record infos.
    - ``num_env_steps_lost``: lost steps by cause, if an env raised and was restarted. Its open episode is
      truncated at the last observations of its agents. Neither this env episode nor the episodes of its agents
      count as finished.

    Args:
        settings: A multi-agent config, or the result of its ``for_runners()``: the env, the number of envs,
            ``policy_mapping_fn``, whether to record action distributions, and which final observations.
        run_seed: Seed of the run; the random streams of each env, and the action noise of each slot, derive from it.
        first_env_index: Index of this runner's first env among all envs of the run.
        role: ``"env"``, or ``"evaluation_env"`` for random streams that differ from those of training.
        on_env: Called with each new env, also with one that replaces an env that raised. All envs are closed if a call
            for the first ones raises.
        incarnation: Number of earlier runners of the same envs, such as those of a worker that was restarted. Each
            incarnation draws different random numbers.
        step_counter: See :class:`BaseRunner`.

    Attributes:
        device: The device of the modules, the CPU.
        envs: The envs, each in an :class:`AgentEnvGuard`.
        agents: The possible agents of each env.
        observation_space, action_space: Spaces by agent.
        module: The modules that act; set by :meth:`set_module`.

    Raises:
        ValueError, TypeError, ImportError, RuntimeError: If the env cannot be made, see :func:`make_agent_envs`.
    """

    rollout_class: ClassVar[type] = MultiRollout
    module: MultiRLModule

    def __init__(
        self,
        settings: Any,
        *,
        run_seed: int,
        first_env_index: int = 0,
        role: str = "env",
        on_env: Callable[[Any], None] | None = None,
        incarnation: int = 0,
        step_counter: SharedCounter | None = None,
    ) -> None:
        super().__init__(settings, first_env_index, role, step_counter)
        num_envs = self.num_envs
        self.device = torch.device("cpu")
        self._make = functools.partial(
            make_agent_envs, settings.env, settings.env_config, step_counter=self.step_counter
        )
        restarts = settings.restart_failed_sub_environments
        self.envs = self._make(num_envs, first_env_index=first_env_index, tries=TRIES if restarts else 1)
        self._restarts = [
            Restarts(guard, functools.partial(self._replace, e)) for e, guard in enumerate(self.envs) if restarts
        ]
        self._guards: Sequence[Any] = self._restarts or self.envs  # they reset the envs
        self._on_env = on_env
        try:
            if on_env is not None:
                for env in self.envs:
                    on_env(env)
        except BaseException:
            self.stop()
            raise
        self.agents = list(self.envs[0].possible_agents)
        self.observation_space, self.action_space = self.envs[0].observation_spaces, self.envs[0].action_spaces
        num_slots = num_envs * len(self.agents)
        self._slots_of_env = np.arange(num_slots).reshape(num_envs, -1)
        self._slot_of = [dict(zip(self.agents, slots, strict=True)) for slots in self._slots_of_env.tolist()]
        envs = range(first_env_index, first_env_index + num_envs)
        self._streams = RandomStreams(run_seed, role, envs, incarnation=incarnation)
        self._columns = ModuleColumns(self.envs[0], self._slots_of_env, self._first, self._streams, settings)
        self._first_obs: dict[int, dict[AgentID, Any]] = {}  # results of resets, until the next fragment begins
        self._num_episodes = [incarnation * _EPISODES_OF_AN_INCARNATION] * num_envs
        self._totals = EpisodeStats(num_envs, resets_in_a_step=False)
        self._earned = np.zeros(num_slots)  # reward of each slot since its last complete row
        self._returns = np.zeros(num_slots)
        self._warned = False
        self._joined: list[int] = []  # slots of agents that started in this step
        self._routes: list[dict[AgentID, tuple[AgentColumns, int]]] = [{} for _ in envs]  # for agents in play
        self._episode_of: dict[int, MultiAgentEpisode] = {}

    def set_module(self, module: MultiRLModule, policy_map: PolicyMap | None = None) -> None:
        """Act with the modules in ``module`` from now on, and put them into eval mode. The next call of :meth:`sample`
        starts new episodes.

        Args:
            module: The modules by id, on the CPU.
            policy_map: Maps agents to modules; None uses ``policy_mapping_fn`` of the settings.

        Raises:
            ValueError: If an agent's spaces differ from those of its module.
        """
        self.module = module
        trained = {module_id for module_id in module if self._settings.is_trained(module_id)}
        if policy_map is None:
            policy_map = PolicyMap(self.agents, [*module], self._settings.policy_mapping_fn)
        self._columns.act_with(module, trained, policy_map)
        self._is_running = False

    def set_policies(self, trained: Collection[str], mapping_fn: PolicyMappingFn | None) -> None:
        """Continue with the modules that :attr:`module` has now. Open episodes end with the modules they began with.
        But if a module was replaced under its id, or ``mapping_fn`` replaces a fixed mapping, the next call of
        :meth:`sample` starts new episodes.

        Args:
            trained: Ids of the modules that are trained; the other modules only act.
            mapping_fn: Replaces the function that maps agents to modules; None keeps it.
        """
        if self._columns.follow(trained, mapping_fn):
            self._is_running = False

    def _reset(self, seeds: list[int]) -> None:
        self._first_obs = {e: self._guards[e].reset(seed=seed)[0] for e, seed in enumerate(seeds)}
        for columns in self._columns.values():
            columns.clear()
        self._earned[:] = 0.0

    def _replace(self, e: int) -> AgentEnvGuard:
        """Replace env ``e`` with a new one, and return it."""
        [self.envs[e]] = self._make(1, first_env_index=self._first + e, like=self.envs[e])
        if self._on_env is not None:
            self._on_env(self.envs[e])
        return self.envs[e]

    def _begin(self, num_steps: int) -> None:
        self._rewards = np.zeros((num_steps, self.num_envs), np.float32)
        self._ended = np.zeros((num_steps, self.num_envs), bool)
        self._stats: dict[str, Any] = {
            "agent_episodes": [],
            "multi_agent_episodes": [],
            "module_steps": Counter(),
            "rewards_before_acting": Counter(),
        }
        self._faults = []
        self._agent_steps = np.zeros(len(self.agents), np.int64)
        for module_id in [*self._columns.keys() - set(self.module)]:
            if not self._columns[module_id].in_play.any():  # the last episode of a removed module has ended
                del self._columns[module_id]
        for columns in self._columns.values():
            columns.begin(num_steps)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _interact(self, num_steps: int, explore: bool) -> dict[str, float]:
        if self._first_obs:
            self._start(0, self._first_obs)
            self._first_obs = {}
        in_env = in_forward = 0.0
        for t in range(num_steps):
            before = perf_counter()
            with self._inference_mode:
                actions = self._act(explore, self._steps + t)
            decided = perf_counter()
            results = [self._step(t, e, of_env) for e, of_env in enumerate(actions)]
            stepped = perf_counter()
            self.progress += 1
            in_forward += decided - before
            in_env += stepped - decided
            self._store(t, results)
            if over := np.flatnonzero(self._ended[t]).tolist():
                before = perf_counter()
                observations = {e: self._guards[e].reset()[0] for e in over}
                in_env += perf_counter() - before
                self._start(t + 1, observations)
        return {"env_step": in_env, "forward": in_forward}

    def _act(self, explore: bool, step: int) -> list[dict[AgentID, Any]]:
        """Choose the actions of all agents that are ready after ``step`` steps. Return them for each env, by agent."""
        actions: list[dict[AgentID, Any]] = [{} for _ in self.envs]
        for columns in self._columns.values():
            if not len(columns.ready):
                continue
            acting, chosen = columns.act(explore, self._streams.generator, step)
            for column, action in zip(acting, chosen, strict=True):
                env, agent = columns.owners[column]
                actions[env - self._first][agent] = action
        return actions

    def _step(self, t: int, e: int, actions: dict[AgentID, Any]) -> Step:
        """Step env ``e``. If it raises and restarts are enabled, end its episode, drop the actions of this step, and
        return empty results. The next reset replaces the env."""
        if not self._restarts:
            return self.envs[e].step(actions)
        result = self._restarts[e].step_or_error(actions)
        if not isinstance(result, EnvError):
            return result
        logger.warning("%s. It is restarted.", str(result).partition("\n\n")[0])
        self._faults.append((t, e))
        self._ended[t, e] = True
        for columns, column in self._routes[e].values():
            columns.cut(column)
        self._earned[self._slots_of_env[e]] = 0.0
        return _NOTHING

    def _store(self, t: int, results: Sequence[Step]) -> None:
        """Store the results of step ``t`` of every env in the columns and the statistics."""
        self._joined.clear()
        self._earn(t, [rewards for _, rewards, *_ in results])
        left: list[tuple[int, AgentID, AgentColumns, int]] = []
        for e, (result, env) in enumerate(zip(results, self.envs, strict=True)):
            episode = self._episode_of[e]
            episode.length += 1
            if result is _NOTHING:
                continue
            self._observe(e, result[0])
            for agent, flags in env.ended.items():
                columns, column = self._routes[e].pop(agent)
                columns.ended.append(column)
                columns.flags.append(flags)
                left.append((e, agent, columns, column))
            if env.is_over:
                self._ended[t, e] = True
                self._stats["multi_agent_episodes"].append(episode)
                if self._settings.records_episode_infos:
                    self._stats.setdefault("episode_infos", []).append(own_value(result[4]))  # reset() may change it
        if self._joined:
            self._set_aside(np.array(self._joined))
        for columns in self._columns.values():
            columns.advance(self._steps + t + 1, self._earned)
        for ended in left:
            self._leave(*ended)

    def _earn(self, t: int, by_env: Sequence[Mapping[AgentID, float]]) -> None:
        """Add the rewards of step ``t``, given for each env by agent, to the sums of the slots. Record their total for
        each env."""
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
        """Pass the observations of env ``e``, by agent, to the columns of the agents' modules."""
        routes = self._routes[e]
        for agent, seen in obs.items():
            columns, column = routes[agent] if agent in routes else self._join(e, agent)
            columns.observers.append(column)
            columns.seen.append(seen)

    def _join(self, e: int, agent: AgentID) -> tuple[AgentColumns, int]:
        """Start an episode of ``agent`` in env ``e``. Return the :class:`AgentColumns` of its module, and the agent's
        column there."""
        module_id, slot = self._episode_of[e].join(agent), self._slot_of[e][agent]
        columns = self._columns.get(module_id)
        if columns is None or slot not in columns.column_of:
            raise self._columns.misfit(agent, module_id)
        self._joined.append(slot)
        route = self._routes[e][agent] = columns, columns.column_of[slot]
        return route

    def _leave(self, e: int, agent: AgentID, columns: AgentColumns, column: int) -> None:
        """Record the return and length of the episode that ``agent`` has ended in env ``e``."""
        slot, module_id = self._slot_of[e][agent], self._episode_of[e].policy_of(agent)
        length = int(columns.cursor[column] - columns.began[column])
        agent_episode = AgentEpisode(agent, module_id, float(self._returns[slot]), length)
        self._returns[slot] = 0.0
        self._episode_of[e].leave(agent_episode)
        self._stats["agent_episodes"].append(agent_episode)

    def _start(self, t: int, observations: Mapping[int, Mapping[AgentID, Any]]) -> None:
        """Begin new episodes in the envs that were reset after ``t`` steps of the fragment. ``observations`` maps their
        indices to the first observations, by agent."""
        for e, obs in observations.items():
            self._set_aside(self._slots_of_env[e])
            self._num_episodes[e] += 1
            if ended := self._episode_of.get(e):
                ended.close()
            self._begin_episode(e)
            self._observe(e, obs)
        for columns in self._columns.values():
            columns.advance(self._steps + t, self._earned)

    def _begin_episode(self, e: int) -> MultiAgentEpisode:
        """Create the :class:`MultiAgentEpisode` of the newest episode of env ``e``. No agent has joined it yet."""
        self._routes[e] = {}
        returns = self._returns.reshape(self.num_envs, -1)[e]  # a view
        returns[:] = 0.0
        number = self._num_episodes[e] - 1
        episode = MultiAgentEpisode(self._first + e, number, self.agents, self._columns.policy_map, returns)
        self._episode_of[e] = episode
        return episode

    def _set_aside(self, slots: np.ndarray) -> None:
        """Move the rewards of ``slots`` that belong to no row to the statistic ``rewards_before_acting``."""
        for slot in slots[self._earned[slots] != 0].tolist():
            agent = self.agents[slot % len(self.agents)]
            self._stats["rewards_before_acting"][agent] += float(self._earned[slot])
            self._earned[slot] = 0.0

    # --- after the loop -----------------------------------------------------------------------------------------------

    def _rollout_of(self, num_steps: int, explore: bool, policy_version: int) -> MultiRollout:
        # the guards have checked each reward, but the sum over agents may be too large for float32
        check_finite(self._rewards, "reward of all agents", self._steps + 1, self._first)
        modules: dict[str, Rollout] = {}
        slots: dict[str, np.ndarray] = {}
        for module_id, columns in self._columns.items():
            if num_rows := int(columns.cursor.sum()):
                np.add.at(self._agent_steps, columns.slots % len(self.agents), columns.cursor)
                self._stats["module_steps"][module_id] += num_rows
            columns.carry()
            # modules that are not trained only act: their rows are counted, and nobody reads them
            finished = columns.finish(explore) if module_id in self._columns.trained else None
            if finished is not None:
                rollout, slots_of_rows = finished
                rollout.policy_version, rollout.first_env_index = policy_version, self._first
                modules[module_id] = rollout
                env, agent = np.divmod(slots_of_rows, len(self.agents))
                slots[module_id] = np.stack([self._first + env, agent], 1)
        of_envs = self._totals.finished(self._rewards, self._ended, self._steps, self._faults)
        agent_steps = dict(zip(self.agents, self._agent_steps.tolist(), strict=True))
        stats = self._stats | of_envs | {"agent_steps": agent_steps}
        if stats["rewards_before_acting"] and not self._warned:
            self._warned = True
            logger.warning(
                "agents %s got rewards before they had acted. These count in returns, but no module learns from them.",
                [*stats["rewards_before_acting"]],
            )
        return MultiRollout(
            modules=modules,
            slots=slots,
            num_env_steps=num_steps * self.num_envs - len(self._faults),
            policy_version=policy_version,
            first_env_index=self._first,
            stats=stats,
        )

    # --- errors -------------------------------------------------------------------------------------------------------

    def _check_values(self, error: Exception) -> None:
        for env in self.envs if not isinstance(error, EnvError) else ():
            env.check_last()

    # --- state --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of each env, by its index in the run; see :meth:`BaseRunner.get_state`. It also has the
        number of the env's episodes and the noise of its agents. An open episode also has the open row and the memory
        of each agent."""
        state, noise = super().get_state(), self._columns.noise_by_env()
        for e, env_state in enumerate(state.values()):
            env_state |= {"episodes": self._num_episodes[e], "noise": noise[e]}
        return state

    def _episodes(self) -> Iterable[Mapping[str, Any]]:
        for e, env in enumerate(self.envs):
            episode = env.get_open_episode()
            if e in self._first_obs:
                del episode["obs"]  # no step was taken: it begins again when resumed
                yield episode
                continue
            rows = [
                [agent, module_id, columns.open_row(columns.column_of[slot])]
                for module_id, columns in self._columns.items()
                for agent, slot in self._slot_of[e].items()
                if slot in columns.column_of
            ]
            earned = self._earned[self._slots_of_env[e]].tolist()
            yield episode | self._episode_of[e].get_state() | {"earned": earned, "rows": rows}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state({index: {**env_state, "noise": None} for index, env_state in state.items()})
        env_states = [state.get(str(self._first + e), {}) for e in range(self.num_envs)]
        self._num_episodes = [
            env_state.get("episodes", env_state.get("incarnation", 0) * _EPISODES_OF_AN_INCARNATION)
            for env_state in env_states
        ]
        self._columns.set_noise([env_state.get("noise", {}) for env_state in env_states])

    def _continue(self, plans: Sequence[Mapping[str, Any]]) -> Sequence[tuple[Any, bool]]:
        by_index = dict(enumerate(plans, self._first))
        return [guard.continue_episode(by_index) for guard in self._guards]

    def _take_up(self, episodes: Sequence[Mapping[str, Any]], observations: Sequence[Any]) -> None:
        self._first_obs = {}
        self._earned[:] = 0.0
        open_rows: dict[str, dict[int, Any]] = {module_id: {} for module_id in self._columns}
        for e, (episode, obs) in enumerate(zip(episodes, observations, strict=True)):
            if episode:
                self._continue_episode(e, episode, open_rows)
            else:
                self._first_obs[e] = obs
        for module_id, columns in self._columns.items():
            columns.resume(open_rows[module_id])

    def _continue_episode(self, e: int, saved: Mapping[str, Any], open_rows: Mapping[str, dict[int, Any]]) -> None:
        """Continue the ``saved`` episode of env ``e`` with the policies that its agents had. Enter the rows that were
        open into ``open_rows``, by module and column."""
        episode = self._begin_episode(e)
        episode.set_state(saved)
        self._earned[self._slots_of_env[e]] = saved["earned"]
        for agent in episode.agents:
            columns = self._columns[episode.policy_of(agent)]
            self._routes[e][agent] = columns, columns.column_of[self._slot_of[e][agent]]
        for agent, module_id, row in saved["rows"]:
            slot = self._slot_of[e][agent]
            # The mapping may have changed since: a module may be gone, or no longer play this agent.
            if module_id in open_rows and slot in self._columns[module_id].column_of:
                open_rows[module_id][self._columns[module_id].column_of[slot]] = row

    def _can_continue(self, slot: int, saved: Mapping[str, Any]) -> bool:
        """Return whether the agents in the ``saved`` episode of an env can still act with the modules that they had. If
        not, log a warning."""
        fits = len(saved.get("returns", self.agents)) == len(self.agents)  # as many agents as there were
        for agent, module_id in saved.get("policies", ()):
            columns = self._columns.get(module_id)
            fits &= columns is not None and self._slot_of[slot].get(agent) in columns.column_of
        if not fits:
            logger.warning(
                "env %d: expected agents with the policies of the saved episode, %s, got others. The episode is cut, "
                "and a new one begins.", self._first + slot, dict(saved["policies"]),
            )  # fmt: skip
        return fits

    def stop(self) -> None:
        """Close the envs. Interrupt them if they take longer than a few seconds."""
        closing = ExitStack()
        for env in self.envs:
            closing.callback(env.close)
        close_in_time(closing, f"{len(self.envs)} envs with several agents")
