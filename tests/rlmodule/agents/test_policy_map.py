"""Which module an agent acts with, and what is wrong with a mapping."""

import pickle
import re
from typing import Any, cast

import numpy as np
import pytest

from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.policy_map import PolicyMap

EPISODE = cast("MultiAgentEpisode", None)


@pytest.mark.parametrize(
    ("agents", "ids", "mapping", "expected"),
    [
        (["a", "b"], ["p"], None, {"a": "p", "b": "p"}),
        (["a", 1], ["1", "a", "spare"], None, {"a": "a", 1: "1"}),
        (["a", 1], ["p", "q"], {1: "p", "a": "q"}, {"a": "q", 1: "p"}),
    ],
)
def test_a_mapping_that_no_episode_changes(agents: Any, ids: Any, mapping: Any, expected: Any) -> None:
    found = PolicyMap(agents, ids, mapping)
    assert found.static == expected
    assert [found.policy_of(agent, EPISODE) for agent in agents] == [expected[agent] for agent in agents]


def test_a_function_is_asked_each_time() -> None:
    answers = iter(["p", "q", "r"])
    found = PolicyMap(["a"], ["p", "q"], lambda agent, episode: next(answers))
    assert found.static is None
    assert [found.policy_of("a", EPISODE) for _ in range(2)] == ["p", "q"]
    text = "policy_mapping_fn, agent 'a': expected one of the policies ['p', 'q'], got 'r'."
    with pytest.raises(ValueError, match=re.escape(text)):
        found.policy_of("a", EPISODE)


@pytest.mark.parametrize(
    ("mapping", "got"),
    [
        (lambda agent, episode: {"b": "p"}[agent], "KeyError: 'a'"),
        (lambda agent: "p", "TypeError: "),
        (lambda agent, episode, worker: "p", "TypeError: "),
    ],
)
def test_a_function_that_raises_is_named(mapping: Any, got: str) -> None:
    text = f"evaluations, agent 'a': expected the id of a policy, got {got}"
    with pytest.raises(ValueError, match=re.escape(text) + r".*Write it as policy_mapping_fn\(agent, episode\)"):
        PolicyMap(["a"], ["p"], mapping, "evaluations").policy_of("a", EPISODE)


@pytest.mark.parametrize(
    ("ids", "mapping", "text"),
    [
        (["p", "q"], None, "since the policies p, q do not have the names of the agents, got None for ['red', 'blue']"),
        (["red", "q"], None, "got None for ['blue']"),
        (["p"], {"red": "p"}, "expected a policy for each agent, got none for ['blue']"),
        (["p"], {"red": "p", "blue": "p", "reds": "p"}, "got 'reds'. Name agents of the env. Did you mean 'red'?"),
        (
            ["pilot"],
            {"red": "pilto", "blue": "pilot"},
            "agent 'red': expected one of the policies ['pilot'], got 'pilto'",
        ),
        (["p"], {"red": None, "blue": "p"}, "agent 'red': expected one of the policies ['p'], got None"),
    ],
)
def test_wrong_mappings(ids: list[str], mapping: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        PolicyMap(["red", "blue"], ids, mapping)


def test_an_agent_that_is_a_number_is_suggested_as_a_number() -> None:
    with pytest.raises(ValueError, match=r"expected one of the agents \[0, 1\], got '0'\. .* Did you mean 0\?$"):
        PolicyMap([0, 1], ["p"], {"0": "p", 1: "p"})


def test_an_episode_that_is_over_keeps_its_policies_and_leaves_the_function() -> None:
    policy_map = PolicyMap(["a", "b", "c"], ["x", "y"], lambda agent, episode: {"a": "x", "b": "y"}[agent])
    episode = MultiAgentEpisode(0, 0, ["a", "b", "c"], policy_map, np.zeros(3))
    assert [episode.join(agent) for agent in "ab"] == ["x", "y"]
    episode.close()
    policy_map.update(["x", "z"], lambda agent, episode: "z")  # "y" is removed
    kept = pickle.loads(pickle.dumps(episode))  # a lambda cannot be pickled
    assert [kept.policy_of(agent) for agent in "ab"] == ["x", "y"]
    assert kept.policies == ["x", "y"]
    with pytest.raises(ValueError, match=r"policy_mapping_fn: expected one of the agents \['a', 'b'\], got 'c'"):
        kept.policy_of("c")


def test_an_episode_that_is_over_knows_the_policies_of_a_fixed_mapping() -> None:
    episode = MultiAgentEpisode(0, 0, ["a", "b"], PolicyMap(["a", "b"], ["x"]), np.zeros(2))
    episode.join("a")
    episode.close()
    assert {agent: episode.policy_of(agent) for agent in episode.returns} == {"a": "x", "b": "x"}
