"""Action masks of several agents that come in their infos."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.mask_wrapper import AgentMasksFromInfo
from tests.rlmodule.agents.envs import CartPoles, Moment, ScriptedEnv


class Masks(ScriptedEnv):
    """The info of an agent allows the action that is the step modulo 3."""

    def __init__(self, dict_obs: bool = False, key: str = "action_mask") -> None:
        super().__init__([[Moment(["a"]), Moment(["b"], terminated=["a"]), Moment(truncated=["b"])]])
        self.dict_obs, self.key = dict_obs, key
        if dict_obs:
            self.observation_spaces = {a: spaces.Dict(place=s) for a, s in self.observation_spaces.items()}

    def _with_infos(self, obs: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
        infos = {agent: {self.key: np.eye(3, dtype=np.int8)[self._step % 3]} for agent in obs}
        return ({agent: {"place": value} for agent, value in obs.items()} if self.dict_obs else obs), infos

    def reset(self, **_: Any) -> Any:
        return self._with_infos(super().reset()[0])

    def step(self, actions: Any) -> Any:
        obs, *outcome, _ = super().step(actions)
        obs, infos = self._with_infos(obs)
        return (obs, *outcome, infos)


def test_masks_that_nothing_reads_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    AgentEnvGuard(AgentMasksFromInfo(Masks())).reset()
    assert not caplog.messages
    for _ in range(2):
        AgentEnvGuard(Masks()).reset()
    text = "Masks: nothing reads the mask in infos, so every action may be taken. To forbid actions, wrap the env in "
    assert caplog.messages == [text + "rlmodule.agents.AgentMasksFromInfo."]


@pytest.mark.parametrize(("dict_obs", "field"), [(False, "observations"), (True, "place")])
def test_masks_become_a_field_of_the_observation(dict_obs: bool, field: str) -> None:
    guard = AgentEnvGuard(AgentMasksFromInfo(Masks(dict_obs)))
    obs, _ = guard.reset()
    assert obs["a"]["action_mask"].tolist() == [1, 0, 0]
    obs, *_ = guard.step({"a": 0})
    assert {agent: value["action_mask"].tolist() for agent, value in obs.items()} == {"a": [0, 1, 0], "b": [0, 1, 0]}
    assert obs["b"][field].tolist() == [1, 0, 1]
    assert guard.observation_spaces["b"] == spaces.Dict(
        [(field, spaces.Box(-1.0, 1e6, (3,), np.float32)), ("action_mask", spaces.MultiBinary(3))]
    )


def test_what_has_no_masks_is_refused() -> None:
    env = AgentMasksFromInfo(Masks(key="legal"))
    with pytest.raises(
        ValueError, match=r"^info of agent 'a': expected a field 'action_mask', got the fields \['legal'\]"
    ):
        env.reset()
    assert AgentMasksFromInfo(Masks(key="legal"), mask_key="legal").reset()[0]["a"]["legal"].tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match=r"^observation space of agent 'a': expected no field 'place', got one"):
        AgentMasksFromInfo(Masks(dict_obs=True), mask_key="place")
    with pytest.raises(ValueError, match=r"^action space of agent 'cart_0': expected a Discrete space, got Box"):
        AgentMasksFromInfo(CartPoles(1, env_id="Pendulum-v1"))


class Stateful(Masks):
    """Begins alike at each reset, and hands out a state, from which it cannot return infos."""

    def reset(self, **_: Any) -> Any:
        self._episode = -1
        return super().reset()

    def get_episode_state(self) -> Any:
        return {"step": self._step}

    def set_episode_state(self, state: Any) -> Any:
        raise AssertionError


def test_an_open_episode_is_repeated_since_a_state_has_no_masks() -> None:
    saved, other = (AgentEnvGuard(AgentMasksFromInfo(Stateful())) for _ in range(2))
    saved.reset(seed=1)
    saved.step({"a": 0})
    _, goes_on = other.continue_episode({0: saved.get_open_episode()})
    assert goes_on
    assert other.step({"b": 0})[0]["b"]["action_mask"].tolist() == [0, 0, 1]
