"""Making envs of several agents from classes, factories and names, and what is refused."""

import copy
import sys
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces
from pettingzoo.utils import parallel_to_aec
from pettingzoo.utils.wrappers import BaseParallelWrapper

from rlmodule.agents.make import make_agent_envs
from rlmodule.agents.pettingzoo import AECAdapter, ParallelAdapter
from rlmodule.envs.make import make_vector_env
from rlmodule.envs.shared_counter import SharedCounter
from tests.rlmodule.agents.envs import CartPoles, Moment, OneAgent, ScriptedEnv
from tests.rlmodule.agents.test_pettingzoo import Lives


def test_a_class_gets_its_arguments_and_a_factory_one_dict() -> None:
    config = {"num_agents": 2, "nested": {"list": [1]}}
    received = []

    def factory(env_config: dict[str, Any]) -> CartPoles:
        received.append(copy.deepcopy(env_config))
        env_config["nested"]["list"].append(2)  # a copy of its own: the next call gets what the user wrote
        return CartPoles(env_config["num_agents"])

    for guards in (make_agent_envs(CartPoles, {"num_agents": 2}, 2), make_agent_envs(factory, config, 2)):
        assert [guard.possible_agents for guard in guards] == [("cart_0", "cart_1")] * 2
        assert guards[0].env is not guards[1].env
    assert received == [config, config] == [{"num_agents": 2, "nested": {"list": [1]}}] * 2


@pytest.mark.parametrize(
    ("name", "adapter", "agents"),
    [
        ("classic/rps-v2", ParallelAdapter, ("player_0", "player_1")),
        ("classic/connect_four", AECAdapter, ("player_0", "player_1")),  # only one of its forms exists; newest version
        ("mpe2.simple_spread_v3", ParallelAdapter, ("agent_0", "agent_1")),
        ("only_aec", None, None),
    ],
)
def test_names_of_pettingzoo(name: str, adapter: type | None, agents: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "only_aec":  # a module with env() alone
        module = ModuleType("tests.only_aec")
        vars(module)["env"] = lambda: parallel_to_aec(Lives())
        monkeypatch.setitem(sys.modules, "tests.only_aec", module)
        name, adapter, agents = "tests.only_aec", AECAdapter, ("a", "b", "c")
    (guard,) = make_agent_envs(name, {"N": 2} if "spread" in name else {}, 1)
    assert (type(guard.env), guard.possible_agents) == (adapter, agents)
    guard.close()


def test_indices_and_the_counter_of_steps() -> None:
    counter = SharedCounter()
    guards = make_agent_envs(OneAgent, {"env": "CartPole-v1"}, 2, first_env_index=6, step_counter=counter)
    assert [guard.env_index for guard in guards] == [6, 7]
    for guard in guards:
        guard.reset()
        guard.step({"agent": 0})
    assert counter.count == 2


class Differs(ScriptedEnv):
    """Its attribute is another one in the second env; counts how many are open."""

    made, opened = 0, 0

    def __init__(self, attribute: str, value: Any) -> None:
        super().__init__([[Moment(["a"])]])
        Differs.made += 1
        Differs.opened += 1
        if Differs.made == 2:
            vars(self)[attribute] = value

    def close(self) -> None:
        Differs.opened -= 1


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("possible_agents", ["b", "a", "c"]),
        ("action_spaces", dict.fromkeys("abc", spaces.Discrete(4))),
        ("observation_spaces", dict.fromkeys("abc", spaces.Discrete(4))),
    ],
)
def test_the_envs_of_a_run_have_the_same_agents_and_spaces(attribute: str, value: Any) -> None:
    Differs.made = Differs.opened = 0
    with pytest.raises(
        ValueError, match=rf"^env 4, {attribute}: expected those of env 3, .*, got .*Let them depend on"
    ):
        make_agent_envs(Differs, {"attribute": attribute, "value": value}, 3, first_env_index=3)
    assert (Differs.made, Differs.opened) == (2, 0)


@pytest.mark.parametrize("index", [0, 1])
def test_an_env_that_is_refused_is_closed(index: int) -> None:
    """Its action spaces lack agent "c"."""
    Differs.made, Differs.opened = 1 - index, 0
    spaces_of_two = dict.fromkeys("ab", spaces.Discrete(3))
    with pytest.raises(ValueError, match=rf"^env {index}, action_spaces: expected a space for agent 'c'"):
        make_agent_envs(Differs, {"attribute": "action_spaces", "value": spaces_of_two}, 2)
    assert (Differs.made, Differs.opened) == (2, 0)


def test_a_factory_that_returns_the_same_env_is_refused() -> None:
    env = CartPoles(1)
    with pytest.raises(ValueError, match=r"expected a new env from each call, got the same one\. Construct the env"):
        make_agent_envs(lambda _: env, {}, 2)


class NeedsMore:
    def __init__(self, needed: int) -> None:
        raise AssertionError


class LikeRLlib(gym.Env[Any, Any]):
    possible_agents = ("a",)


def missing_package(_: Any) -> Any:
    import mpe3  # type: ignore  # noqa: F401


def without_mpe2(_: Any) -> Any:
    raise ModuleNotFoundError("No module named 'mpe2'", name="mpe2")


SINGLE = r"expected an env of several agents, got an env of one agent \(\w+\)\. Leave \.multi_agent\(\) out"
REFUSED = [
    (
        "CartPole-v1",
        ValueError,
        "^env 'CartPole-v1': expected an env of several agents, got an id of Gymnasium. Leave",
    ),
    (
        "ALE/Pong-v5",
        ValueError,
        "^env 'ALE/Pong-v5': expected an env of several agents, got an id of Gymnasium. Leave",
    ),
    (lambda _: gym.make("CartPole-v1"), TypeError, SINGLE),
    (LikeRLlib, TypeError, r"got an env of one agent \(LikeRLlib\)\. Derive its class from rlmodule\.agents"),
    (lambda _: None, TypeError, "expected an env of several agents, got None. Return a MultiAgentEnv, or a parallel"),
    (lambda _: {}, TypeError, "expected an env of several agents, got an object of builtins.dict. Return a Multi"),
    ("classic/conect_four-v3", ValueError, "got an unknown one. Use an id of pettingzoo.make"),
    (
        "classic/rps-v9",
        ValueError,
        "^env 'classic/rps-v9': expected the name of an env of several agents, got an unknown",
    ),
    ("simple_spread", ValueError, "got an unknown one. Use an id of pettingzoo.make.* 'mpe2.simple_spread_v3'"),
    ("json.decoder", ValueError, "got an unknown one. .* or the path of a module with parallel_env.. or env.."),
    (
        "mpe2.simple_sprad_v3",
        ImportError,
        "^env .*: expected its packages, got No module named 'mpe2.simple_sprad_v3'. In",
    ),
    (
        "butterfly/pistonball-v6",
        ImportError,
        r"expected its packages, got Failed .*pip install 'pettingzoo\[butterfly\]'",
    ),
    (
        missing_package,
        ImportError,
        "^env missing_package: expected its packages, got No module named 'mpe3'. Install the",
    ),
    (without_mpe2, ImportError, r"got No module named 'mpe2'. Run: pip install \"catalog-rl\[multiagent\]\""),
    (
        NeedsMore,
        RuntimeError,
        r"^env NeedsMore: expected an env, got TypeError: .*'needed'. A class is called as cls\(",
    ),
    ("classic/rps-v2", RuntimeError, "expected an env, got TypeError: .*'unknown'. Check env_config against the argum"),
]


@pytest.mark.parametrize(("source", "kind", "text"), REFUSED)
def test_what_makes_no_env_of_several_agents(
    source: Any, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymunk", None)  # as if it were not installed
    with pytest.raises(kind, match=text):
        make_agent_envs(source, {"unknown": 1} if source == "classic/rps-v2" else {}, 1)


@pytest.mark.parametrize(
    "source",
    [CartPoles, lambda _: BaseParallelWrapper(Lives()), lambda _: parallel_to_aec(Lives())],
    ids=["own", "wrapped parallel", "wrapped AEC"],
)
def test_an_env_of_several_agents_without_the_setting_is_refused(source: Any) -> None:
    with pytest.raises(
        TypeError, match=r"expected a gymnasium\.Env or .*, got .* several agents needs \.multi_agent\("
    ):
        make_vector_env(source, {}, 1)


@pytest.mark.parametrize("name", ["classic/connect_four-v3", "mpe2.simple_spread_v3"])
def test_a_name_of_pettingzoo_without_the_setting_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^env '{name}': expected an id of Gymnasium's, got one of .*\.multi_agent\("
    ):
        make_vector_env(name, {}, 1)


@pytest.mark.parametrize("name", ["classic/rps-v9", "mpe2.simple_sprad_v3", "CartPole.v1-v1"])
def test_an_unknown_name_is_one_of_gymnasium(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^env '{name}': expected a registered id, got an unknown one"):
        make_vector_env(name, {}, 1)
