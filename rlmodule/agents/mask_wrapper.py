"""AgentMasksFromInfo: moves the action masks of agents from their infos into their observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from rlmodule.agents.multi_agent_env import AgentFieldWrapper, AgentID
from rlmodule.agents.pettingzoo import adapted
from rlmodule.envs.mask_wrapper import OBSERVATIONS


class AgentMasksFromInfo(AgentFieldWrapper):
    """Replaces each observation with ``{"observations": obs, "action_mask": infos[agent]["action_mask"]}``. If the
    observation is a dict, adds the mask to it as another field instead. Infos stay unchanged.

    Args:
        env: A `MultiAgentEnv`, or an env of PettingZoo, such as an OpenSpiel game from Shimmy. The actions of its
            agents must be Discrete, and an agent's info must have its mask whenever the agent observes.
        mask_key: Name of the mask in the infos and in the observations.

    Raises:
        ValueError: If an action space is not Discrete, an observation space already has a field `mask_key`, or, from
            ``reset`` and ``step``, if an info lacks the mask.
    """

    def __init__(self, env: Any, *, mask_key: str = "action_mask") -> None:
        super().__init__(adapted(env), mask_key, OBSERVATIONS)
        self.observation_spaces = {agent: self._masked_space(agent) for agent in self.possible_agents}

    def _masked_space(self, agent: AgentID) -> spaces.Dict:
        actions = self.action_spaces[agent]
        if not isinstance(actions, spaces.Discrete):
            remedy = "Return the mask in the observations of the env."
            raise ValueError(f"action space of agent {agent!r}: expected a Discrete space, got {actions}. {remedy}")
        remedy = "Leave the wrapper out if it is the mask; else set mask_key."
        return self._space_with(agent, spaces.MultiBinary(int(actions.n)), remedy)

    def get_episode_state(self) -> None:
        """Return None, so that a resumed run repeats the episode, because the state of the env has no infos, which hold
        the masks."""

    def _added(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        masked = {}
        for agent, value in obs.items():
            info = infos.get(agent, {})
            if self._key not in info:
                got = f"the fields {[*info]}. Have the env return it whenever the agent observes, also when it ends."
                raise ValueError(f"info of agent {agent!r}: expected a field {self._key!r}, got {got}")
            masked[agent] = self._with(agent, value, info[self._key])
        return masked
