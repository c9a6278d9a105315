"""ModuleColumns: which module acts in which slots, and with which noise."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from catalog.explain.explain import short_space
from rlmodule.agents.columns import AgentColumns
from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.agents.policy_map import PolicyMap, PolicyMappingFn
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.sampling.random_streams import ActionNoise, RandomStreams


class ModuleColumns(dict[str, AgentColumns]):
    """The :class:`AgentColumns` of each module that can act in a slot, by the id of the module.

    Args:
        env: An env of the runner, which has the agents and their spaces.
        slots_of_env: Slots of each env, ``[envs, agents]``.
        first_env_index: Index of the first env in the run.
        streams: The random streams of the runner, from which those of the slots derive.
        settings: Settings of the runner, which say whether to record action distributions and which final observations.

    Attributes:
        module: The modules that act.
        trained: Ids of the modules that are trained.
        policy_map: Maps agents to modules.
    """

    module: MultiRLModule
    policy_map: PolicyMap

    def __init__(
        self,
        env: AgentEnvGuard,
        slots_of_env: np.ndarray,
        first_env_index: int,
        streams: RandomStreams,
        settings: Any,
    ) -> None:
        super().__init__()
        self._env = env
        self._agents = list(env.possible_agents)
        self._slots_of_env = slots_of_env
        self._first = first_env_index
        self._streams = streams
        self._settings = settings
        # States of the noise of slots by env, for modules that do not act now, or not yet.
        self._saved_noise: list[dict[str, Any]] = [{} for _ in slots_of_env]
        self.trained: set[str] = set()

    def act_with(self, module: MultiRLModule, trained: set[str], policy_map: PolicyMap) -> None:
        """Begin with the modules in ``module``. No agent is in play.

        Raises:
            ValueError: If an agent's spaces differ from those of its module.
        """
        self.module = module
        self.trained = trained
        self.policy_map = policy_map
        self._begin_again(self.noise_by_env())

    def follow(self, trained: Collection[str], mapping_fn: PolicyMappingFn | None) -> bool:
        """Continue with the modules that :attr:`module` has now; see :meth:`AgentRunner.set_policies`. Return whether
        all episodes must begin again, because a module was replaced under its id, or a function maps agents that had a
        fixed module."""
        was_static = self.policy_map.static
        self.trained = {*trained}
        self.policy_map.update([*self.module], mapping_fn)
        existing = set(self.module)
        self._saved_noise = [
            {key: noise for key, noise in of_env.items() if key.rpartition("/")[0] in existing}
            for of_env in self._saved_noise
        ]
        replaced = [name for name in self.keys() & existing if self[name].module is not self.module[name]]
        begins_again = bool(replaced) or was_static is not self.policy_map.static
        if begins_again:
            self._begin_again(self.noise_by_env())
        for module_id in self.module:
            if module_id not in self:
                self._add(module_id)
        return begins_again

    def _begin_again(self, noise: list[dict[str, Any]]) -> None:
        """Create the columns of all modules. The noise of each slot continues from ``noise``."""
        self._saved_noise = noise
        self.clear()
        for module_id in self.module:
            self._add(module_id)

    def _add(self, module_id: str) -> None:
        """Create the columns of the module ``module_id`` if any agent can be mapped to it. Raise ValueError if the
        spaces of such an agent differ from those of the module."""
        module = self.module[module_id]
        spaces = module.observation_space, module.action_space
        env = self._env
        fits = [(env.observation_spaces[agent], env.action_spaces[agent]) == spaces for agent in self._agents]
        static = self.policy_map.static
        # A function may map an agent differently in each episode: then any agent whose spaces fit may need a column.
        acts = fits if static is None else [static[agent] == module_id for agent in self._agents]
        misfits = np.flatnonzero(np.greater(acts, fits))
        if len(misfits):
            raise self.misfit(self._agents[misfits[0]], module_id)
        if any(acts):
            slots = self._slots_of_env[:, acts].ravel()
            num = len(self._agents)
            owners = [(self._first + slot // num, self._agents[slot % num]) for slot in slots.tolist()]
            noise = self._noise_of(module_id, slots.tolist())
            records = self._settings.records_action_dist and module_id in self.trained
            self[module_id] = AgentColumns(module, slots, owners, noise, records, self._settings.records_final_obs)

    def misfit(self, agent: AgentID, module_id: str) -> ValueError:
        """Return the error for ``agent``, whose spaces are not those of the module ``module_id``."""
        module = self.module[module_id]
        env = self._env
        expected = short_space(env.observation_spaces[agent]), short_space(env.action_spaces[agent])
        got = short_space(module.observation_space), short_space(module.action_space)
        return ValueError(
            f"agent {agent!r}: expected a module with its spaces, {' and '.join(expected)}, got {module_id!r} with "
            f"{' and '.join(got)}. Map agents with different spaces to different modules."
        )

    def _noise_of(self, module_id: str, slots: list[int]) -> ActionNoise:
        """Return the action noise of ``slots`` for the module ``module_id``. Each slot continues from its saved state,
        or begins a new stream if it has none. If a function maps agents to modules, a slot can have several modules.
        Each of them then has another stream for the slot, so that no two modules draw the same noise."""
        more = () if self.policy_map.static is not None else (zlib.crc32(module_id.encode()),)
        num = len(self._agents)
        noise = ActionNoise([self._streams.new_stream(self._first * num + slot, *more) for slot in slots])
        saved = [self._saved_noise[slot // num].get(f"{module_id}/{slot % num}") for slot in slots]
        noise.set_state([state or new for state, new in zip(saved, noise.get_state(), strict=True)])
        return noise

    def noise_by_env(self) -> list[dict[str, Any]]:
        """Return the noise states of each env, under the key ``<module_id>/<i>`` for the agent with index ``i``."""
        noise = [dict(of_env) for of_env in self._saved_noise]
        for module_id, columns in self.items():
            for slot, state in zip(columns.slots.tolist(), columns.noise.get_state(), strict=True):
                env, agent = divmod(slot, len(self._agents))
                noise[env][f"{module_id}/{agent}"] = state
        return noise

    def set_noise(self, by_env: Sequence[Mapping[str, Any]]) -> None:
        """Continue from the noise states ``by_env``, as :meth:`noise_by_env` returns them. No agent is in play."""
        self._saved_noise = [dict(of_env) for of_env in by_env]
        if self:  # otherwise no module acts yet
            self._begin_again(self._saved_noise)
