"""What an env of several agents may not return or receive: one clear error each."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.envs.checks import EnvError
from rlmodule.envs.shared_counter import SharedCounter
from tests.rlmodule.agents.envs import Moment, ScriptedEnv

ACTS = Moment(["a", "b"])
END = Moment(truncated=["__all__"], final=["a", "b"])


class Answers(ScriptedEnv):
    """Returns `answer` from its second step."""

    def __init__(self, answer: Any, script: Sequence[Moment] = (ACTS, ACTS, ACTS, END)) -> None:
        super().__init__([script])
        self.answer = answer

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        if len([call for call in self.calls if call[0] == "step"]) < 2:
            return result
        return self.answer(*result) if callable(self.answer) else self.answer


def changed(part: int, **values: Any) -> Callable[..., Any]:
    """The step's own results, but for entries of one of the five dicts."""
    return lambda *results: tuple({**old, **values} if i == part else old for i, old in enumerate(results))


SPACE = r"shape \(3,\) and dtype float32"
STEP = [
    (
        None,
        TypeError,
        r"step\(\): expected a tuple \(obs, rewards, terminateds, truncateds, infos\), got NoneType None",
    ),
    ((1, 2, 3), TypeError, r"step\(\): expected a tuple \(obs, .*\), got a tuple of 3\. Return five dicts by agent"),
    (lambda *r: (np.zeros(3), *r[1:]), TypeError, r"obs: expected a dict by agent, got shape \(3,\)"),
    (lambda *r: (r[0], 1.0, *r[2:]), TypeError, r"rewards: expected a dict by agent, got float 1\.0"),
    (
        changed(0, d=np.zeros(3)),
        ValueError,
        r"obs: expected one of the possible_agents \['a', 'b', 'c'\], got 'd'\. Name all agents",
    ),
    (changed(1, d=1.0), ValueError, r"rewards: expected one of the possible_agents .*, got 'd'\. Name all"),
    (changed(2, __all=True), ValueError, r"terminateds: expected one of the possible_agents .*, got '__all'"),
    (changed(4, __all__={}), ValueError, r"infos: expected one of the possible_agents .*, got '__all__'"),
    (changed(0, a=np.zeros(2, np.float32)), ValueError, rf"obs\['a'\]: expected {SPACE}, got shape \(2,\)"),
    (changed(0, b=np.full(3, -9, np.float32)), ValueError, r"obs\['b'\]: expected values in \[-1\.0, .*\], got -9\.0"),
    (changed(1, b=float("nan")), ValueError, r"rewards\['b'\]: expected finite numbers, got nan\. Look for"),
    (changed(1, b=np.float16("inf")), ValueError, r"rewards\['b'\]: expected finite numbers, got inf\. Floats"),
    (changed(1, b="1"), TypeError, r"rewards\['b'\]: expected one real number, got str '1'\. Return float\(reward\)"),
    (changed(2, b=1), TypeError, r"terminateds\['b'\]: expected a bool, got int 1\. Return bool\(terminateds\['b'\]\)"),
    (changed(3, __all__=None), TypeError, r"truncateds\['__all__'\]: expected a bool, got NoneType None"),
    (changed(4, b=None), TypeError, r"infos\['b'\]: expected a dict, got NoneType None\. Return {} if it is empty"),
    (
        lambda obs, *r: ({"a": obs["a"]}, r[0], {"b": True}, *r[2:]),
        ValueError,
        r"obs: expected the final one of agent 'b', got the observations of \['a'\]\. Return it in the step in which",
    ),
    (
        lambda obs, *r: ({"a": obs["a"]}, r[0], {"__all__": True}, *r[2:]),
        ValueError,
        r"obs: expected the final one of agent 'b', got the observations of \['a'\]\. .* also if '__all__' ends it",
    ),
    (
        lambda obs, *r: ({}, *r),
        ValueError,
        r"obs: expected that of at least one agent, since .* are in play, got none\. .* end the episode with '__all__'",
    ),
]


@pytest.mark.parametrize(("answer", "kind", "text"), STEP)
def test_what_a_step_may_not_return(answer: Any, kind: type[Exception], text: str) -> None:
    guard = AgentEnvGuard(Answers(answer), env_index=3)
    guard.reset()
    guard.step({"a": 0, "b": 0})
    with pytest.raises(kind, match=rf"^env 3, step 2, {text}"):
        guard.step({"a": 0, "b": 0})


AFTER_B = (ACTS, Moment(["a"], terminated=["b"]))
GONE = [
    (Moment(["a"], {"b": 0.5}), r", rewards: expected none for agent 'b', which ended at step 1, got 0\.5\. Add it to"),
    (Moment(["a"], terminated=["b"]), r": expected nothing of agent 'b', which ended at step 1, got another flag"),
    (
        Moment(["a"], truncated=["b", "__all__"]),
        r": expected nothing of agent 'b', which ended at step 1, got another flag",
    ),
]


@pytest.mark.parametrize(("moment", "text"), GONE)
def test_what_may_not_come_of_an_agent_that_ended(moment: Moment, text: str) -> None:
    guard = AgentEnvGuard(ScriptedEnv([[*AFTER_B, moment]]))
    guard.reset()
    guard.step({"a": 0, "b": 0})
    with pytest.raises(ValueError, match=f"^env 0, step 2{text}"):
        guard.step({"a": 0})


def test_an_agent_that_ended_may_return_with_a_reward_and_end_again() -> None:
    script = [*AFTER_B, Moment(["a", "b"], {"b": 0.5}), Moment(["a"], {"b": 1.0}, truncated=["b"]), END]
    guard = AgentEnvGuard(ScriptedEnv([script]))
    guard.reset()
    acting = []
    for _ in range(3):
        guard.step(dict.fromkeys(guard.acting, 0))
        acting.append(guard.acting)
    assert acting == [["a"], ["a", "b"], ["a"]]
    assert guard.ended == {"b": (False, True)}


@pytest.mark.parametrize("returning", ["b", "c"])
def test_an_agent_may_start_in_the_last_step_whether_it_was_there_before_or_not(returning: str) -> None:
    guard = AgentEnvGuard(ScriptedEnv([[*AFTER_B, Moment(truncated=["__all__"], final=["a", returning])]]))
    guard.reset()
    guard.step({"a": 0, "b": 0})
    guard.step({"a": 0})
    assert guard.ended == {"a": (False, True), returning: (False, True)}


RESET = [
    (None, TypeError, r"reset\(\): expected a tuple \(obs, infos\), got NoneType None\. Return two dicts by agent"),
    (np.zeros(3), TypeError, r"reset\(\): expected a tuple \(obs, infos\), got shape \(3,\)"),
    (
        ({}, {}),
        ValueError,
        r"obs: expected that of at least one agent, got none\. Return the observations of the agents",
    ),
    (({"d": 1}, {}), ValueError, r"obs: expected one of the possible_agents \['a', 'b', 'c'\], got 'd'\. Name all"),
    (({"a": np.zeros(3)}, None), TypeError, r"infos: expected a dict by agent, got NoneType None"),
    (({"a": np.zeros(3)}, {"a": 1}), TypeError, r"infos\['a'\]: expected a dict, got int 1"),
    (({"a": np.zeros(2)}, {}), ValueError, rf"obs\['a'\]: expected {SPACE}, got shape \(2,\)"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), RESET)
def test_what_a_reset_may_not_return(answer: Any, kind: type[Exception], text: str) -> None:
    class Resets(ScriptedEnv):
        def reset(self, **_: Any) -> Any:
            return answer

    with pytest.raises(kind, match=f"^env 0, reset after step 0, {text}"):
        AgentEnvGuard(Resets([[ACTS]])).reset()


BOX = spaces.Box(-1, 1, (3,))
INIT = [
    ({"possible_agents": []}, TypeError, r", possible_agents: expected a list of str or int, got list \[\]\. Name all"),
    ({"possible_agents": {"a", "b"}}, TypeError, r", possible_agents: expected a list of str or int, got set {"),
    ({"possible_agents": "ab"}, TypeError, r", possible_agents: expected a list of str or int, got str 'ab'"),
    ({"possible_agents": [("a", 1)]}, TypeError, r", possible_agents: expected a list of str or int, got list \[\("),
    (
        {"possible_agents": [np.str_("a")]},
        TypeError,
        r", possible_agents: expected a list of str or int, got list .* as plain str or int, always in",
    ),
    ({"possible_agents": ["a", "a"]}, ValueError, r", possible_agents: expected names that differ, got \['a', 'a'\]"),
    (
        {"possible_agents": [1, "1"]},
        ValueError,
        r", possible_agents: expected names that differ, got \[1, '1'\]\. Name",
    ),
    ({"possible_agents": ["__all__"]}, ValueError, r", possible_agents: expected names that differ, got \['__all__'\]"),
    ({"observation_spaces": BOX}, TypeError, r", observation_spaces: expected a dict by agent, got Box"),
    (
        {"observation_spaces": {"a": BOX, "b": BOX}},
        ValueError,
        r", observation_spaces: expected a space for agent 'c', got the agents \['a', 'b'\]\. Add its space",
    ),
    ({"action_spaces": dict.fromkeys("abc")}, ValueError, r", action_spaces: expected a space for agent 'a', got None"),
]


@pytest.mark.parametrize(("attributes", "kind", "text"), INIT)
def test_what_an_env_may_not_declare(attributes: dict[str, Any], kind: type[Exception], text: str) -> None:
    env = ScriptedEnv([[ACTS]])
    vars(env).update(attributes)
    with pytest.raises(kind, match=f"^env 2{text}"):
        AgentEnvGuard(env, 2)


def test_an_env_without_an_attribute_is_refused() -> None:
    env = ScriptedEnv([[ACTS]])
    del env.action_spaces
    with pytest.raises(TypeError, match=r"^env 2: expected the attribute action_spaces, got a ScriptedEnv without it"):
        AgentEnvGuard(env, 2)


ACTIONS = [
    ({"a": 0}, r"expected those of the agents that act, \['a', 'c'\], got those of \['a'\]\. Pass one action for each"),
    ({"a": 0, "c": 0, "b": 0}, r"expected those .*, \['a', 'c'\], got those of \['a', 'c', 'b'\]\. Pass"),
    ({"a": 0, "c": 0, "d": 0}, r"expected those .*, got those of \['a', 'c', 'd'\]\. Pass"),
]


@pytest.mark.parametrize(("actions", "text"), ACTIONS)
def test_which_actions_are_refused(actions: dict[str, Any], text: str) -> None:
    guard = AgentEnvGuard(ScriptedEnv([[ACTS, Moment(["a", "c"], terminated=["b"])]]))
    guard.reset()
    guard.step({"a": 0, "b": 0})
    with pytest.raises(ValueError, match=f"^env 0, after step 1, actions: {text}"):
        guard.step(actions)


def test_an_agent_that_waits_may_not_act_nor_anybody_after_the_end() -> None:
    guard = AgentEnvGuard(ScriptedEnv([[ACTS, Moment(["a"]), END]]))
    with pytest.raises(ValueError, match=r"actions: expected reset\(\), got step\(\), although no episode is running"):
        guard.step({"a": 0})
    guard.reset()
    guard.step({"a": 0, "b": 0})
    with pytest.raises(ValueError, match=r"agents that act, \['a'\], got those of \['a', 'b'\]"):
        guard.step({"a": 0, "b": 0})
    guard.step({"a": 0})
    with pytest.raises(ValueError, match=r"actions: expected reset\(\), got step\(\)"):
        guard.step({})


class WrongFrom(ScriptedEnv):
    """Its observations have the wrong shape from a step on."""

    def __init__(self, step: int) -> None:
        super().__init__([[Moment(["a"])] * 300])
        self._wrong_from = step

    def _observe(self, agent: Any) -> np.ndarray:
        return np.zeros(3 if self._step < self._wrong_from else 2, np.float32)


def steps(guard: AgentEnvGuard, number: int) -> None:
    for _ in range(number):
        guard.step({"a": 0})


@pytest.mark.parametrize(("wrong_from", "found_at"), [(100, 100), (101, 200)])
def test_observations_are_checked_in_100_calls_and_then_in_1_of_100(wrong_from: int, found_at: int) -> None:
    guard = AgentEnvGuard(WrongFrom(wrong_from))
    guard.reset()
    with pytest.raises(ValueError, match=rf"^env 0, step {found_at}, obs\['a'\]"):
        steps(guard, 300)


def test_the_last_observations_can_be_checked_at_any_time() -> None:
    guard = AgentEnvGuard(WrongFrom(101))
    guard.reset()
    steps(guard, 150)
    with pytest.raises(ValueError, match=r"^env 0, step 150, obs\['a'\]"):
        guard.check_last()


def test_the_observations_of_the_last_reset_are_called_that() -> None:
    env = WrongFrom(101)
    guard = AgentEnvGuard(env)
    for _ in range(100):
        guard.reset()
    guard.step({"a": 0})
    env._wrong_from = 0
    guard.reset()
    with pytest.raises(ValueError, match=r"^env 0, reset after step 1, obs\['a'\]"):
        guard.check_last()


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3)])
def test_errors_of_the_env_say_where_and_with_what(error: BaseException) -> None:
    class Raises(ScriptedEnv):
        def step(self, actions: Any) -> Any:
            raise error

        def close(self) -> None:
            raise RuntimeError("cannot close")

    counter = SharedCounter()
    guard = AgentEnvGuard(Raises([[ACTS]]), 4, counter)
    guard.reset(seed=8)
    text = f"env 4 raised {type(error).__name__} at its step 1: "
    with pytest.raises(EnvError, match=f"^{re.escape(text)}.*; last seed 8, action {{'a': 0, 'b': 1}}") as raised:
        guard.step({"a": np.int64(0), "b": np.int64(1)})
    assert raised.value.place == {"env": 4, "call": "step()", "step": 1, "action": {"a": 0, "b": 1}, "seed": 8}
    assert counter.count == 1
    guard.close()  # is only logged


def test_rewards_become_numbers_and_final_observations_are_copied() -> None:
    final = np.zeros(3, np.float32)
    guard = AgentEnvGuard(Answers(lambda *_: ({"a": final, "b": final}, {"a": np.ones(1)}, {"a": True}, {}, {})))
    guard.reset()
    guard.step({"a": 0, "b": 0})
    obs, rewards, *_ = guard.step({"a": 0, "b": 0})
    final += 1
    assert type(rewards["a"]) is float
    assert (obs["a"].sum(), obs["b"].sum()) == (0, 3)
