"""RestartingAgentEnv: replaces an env of several agents that raises, so that the other envs of a runner continue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.multi_agent_env import AgentID, Step
from rlmodule.envs.checks import EnvError
from rlmodule.envs.restarting import Restarts

logger = logging.getLogger("rlmodule.envs.make")


class RestartingAgentEnv:
    """Replaces an env of several agents in its guard by a new one when it raises, as `RestartingEnv` does.

    A step that raises returns nothing, and ends the episode of the env. The next reset makes the new env.

    Args:
        guard: The first env.
        make: Makes another env.

    Attributes:
        env_index, possible_agents, observation_spaces, action_spaces, ended, is_over: As of an `AgentEnvGuard`.
        has_failed: Whether the last step raised.

    Raises:
        EnvError: From ``reset`` and ``step``, if several envs in a row fail before their first step.
    """

    def __init__(self, guard: AgentEnvGuard, make: Callable[[], AgentEnvGuard]) -> None:
        self._restarts = Restarts(guard, make)
        self.env_index, self.possible_agents = guard.env_index, guard.possible_agents
        self.observation_spaces, self.action_spaces = guard.observation_spaces, guard.action_spaces
        self.ended: dict[AgentID, tuple[bool, bool]] = {}
        self.is_over, self.has_failed = True, False

    @property
    def env(self) -> Any:
        """The current env, without its guard."""
        return self._restarts.guard.env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env, or a new one if it failed."""
        self.has_failed = False
        return self._restarts.reset(seed, options)

    def step(self, actions: dict[AgentID, Any]) -> Step:
        """Step the env. If it raises, end its episode."""
        guard: AgentEnvGuard = self._restarts.guard
        try:
            result = guard.step(actions)
        except EnvError as error:
            self._restarts.note(error)
            logger.warning("%s. It is restarted.", str(error).partition("\n\n")[0])
            self.ended, self.is_over, self.has_failed = {}, True, True
            return {}, {}, {}, {}, {}
        self._restarts.has_stepped = True
        self.ended, self.is_over = guard.ended, guard.is_over
        return result

    def check_last(self) -> None:
        """Check the last observations even if no check was due."""
        self._restarts.guard.check_last()

    def close(self) -> None:
        """Close the env."""
        self._restarts.guard.close()
