"""The state of the whole env in the observations of its agents."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.state_wrapper import WithState
from tests.rlmodule.agents.envs import Moment, ScriptedEnv


class Stateful(ScriptedEnv):
    """Its state is the number of the step, and it can continue from a state."""

    state_space = spaces.Box(0, 9, (1,), np.float32)

    def __init__(self) -> None:
        super().__init__([[Moment(["a"])] + [Moment(["a", "b"])] * 5])

    def state(self) -> Any:
        return np.array([self._step])

    def get_episode_state(self) -> Any:
        return {"at": [self._episode, self._step]}

    def set_episode_state(self, state: Any) -> Any:
        self._episode, self._step = state["at"]
        return {agent: self._observe(agent) for agent in self.moment.observers}


def test_an_open_episode_continues_from_the_state_of_the_env() -> None:
    saved, other = (AgentEnvGuard(WithState(Stateful())) for _ in range(2))
    saved.reset(seed=1)
    saved.step({"a": 0})
    saved.step({"a": 0, "b": 0})
    _, goes_on = other.continue_episode({0: saved.get_open_episode()})
    assert goes_on
    obs, *_ = other.step({"a": 0, "b": 0})
    assert {agent: [x.tolist() for x in one.values()] for agent, one in obs.items()} == {
        "a": [[0, 0, 3], [3]],
        "b": [[1, 0, 3], [3]],
    }
