"""Rows in the time of agents: equal to those of a slow sampler, on any schedule of starts, turns and ends."""

import zlib
from typing import Any

import numpy as np
import pytest
import torch
import tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from algorithms.ops.returns import generalized_advantages
from rlmodule import Columns, MultiRLModule, RLModule, Rollout
from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.multi_agent_env import AgentID, Step
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.runner import AgentRunner
from rlmodule.sampling.random_streams import ActionNoise
from rlmodule.seeding import numpy_stream
from tests.rlmodule.agents.envs import Moment, ScriptedEnv, random_script
from tests.rlmodule.agents.reference import Reference
from tests.rlmodule.agents.test_agent_runner import module_for
from tests.rlmodule.toys import Forgetful, Recurrent, SeesPast, Settings

AGENTS: list[AgentID] = ["a", "b", "c"]
LENGTH = 3  # of sequences
MODULES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "gru": {"module_class": Recurrent, "use_lstm": True, "max_seq_len": LENGTH},
    "past": {"module_class": Forgetful},
    "gru, past": {"module_class": SeesPast, "use_lstm": True, "max_seq_len": LENGTH},
}
MAPPINGS: dict[str, Any] = {
    "shared": {"a": "p", "b": "p", "c": "p"},
    "two": {"a": "q", "b": "p", "c": "q"},
    "by episode": lambda agent, episode: "pq"[(episode.number + episode.env_index + AGENTS.index(agent)) % 2],
}


def assert_equal(expected: Rollout, got: Rollout) -> None:
    assert expected.columns.keys() == got.columns.keys()
    for name in ("columns", "last_obs", "final_index", "final_obs", "state_in"):
        one, other = vars(expected)[name], vars(got)[name]
        assert (one is None) == (other is None)
        if name == "state_in" and one is not None:  # only sequences with valid rows matter
            used = expected.valid[::LENGTH]
            one, other = (tree.map_structure(lambda x, rows=used: x[rows], states) for states in (one, other))
        tree.map_structure(lambda x, y: torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-6), one, other)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    fragments=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    kind=st.sampled_from([*MODULES]),
    mapping=st.sampled_from([*MAPPINGS]),
)
def test_equal_to_the_slow_sampler(seed: int, fragments: list[int], kind: str, mapping: str) -> None:
    rng = np.random.default_rng(seed)
    scripts = [[random_script(rng) for _ in range(3)] for _ in range(2)]
    remaining = iter(scripts)
    runner = AgentRunner(
        Settings(env=lambda _: Counted(next(remaining)), num_envs_per_env_runner=2), run_seed=3, first_env_index=4
    )
    ids = ["p"] if mapping == "shared" else ["p", "q"]
    spaces = runner.observation_space["a"], runner.action_space["a"]
    modules: dict[str, RLModule] = {module_id: module_for(*spaces, **MODULES[kind]).eval() for module_id in ids}
    static = None if mapping == "by episode" else MAPPINGS[mapping]
    runner.set_module(MultiRLModule(modules), PolicyMap(AGENTS, ids, MAPPINGS[mapping]))

    def noise(module_id: str, slot: int) -> ActionNoise:
        more = () if static else (zlib.crc32(module_id.encode()),)
        return ActionNoise([numpy_stream(3, "action", 4 * 3 + slot, *more)])

    reference = Reference(
        [ScriptedEnv(of_env) for of_env in scripts],
        modules,
        lambda agent, e, number: static[agent] if static else "pq"[(number + e + 4 + AGENTS.index(agent)) % 2],
        noise,
    )
    steps_of_agents, rewards = 0, 0.0
    for steps in fragments:
        rollouts, slots, stats = reference.sample(steps)
        got = runner.sample(steps)
        assert got.num_env_steps == 2 * steps
        assert rollouts.keys() == got.modules.keys()
        for module_id, expected in rollouts.items():
            assert_equal(expected, got.modules[module_id])
            assert got.slots[module_id].tolist() == [[4 + slot // 3, slot % 3] for slot in slots[module_id]]
        episodes = [got.stats[f"episode_{name}"].tolist() for name in ("returns", "lengths", "slots")]
        assert list(zip(*episodes, strict=True)) == stats.pop("episodes")
        steps_of_agents += sum(rollout.num_env_steps for rollout in got.modules.values())
        rewards += sum(float(rollout[Columns.REWARDS].sum()) for rollout in got.modules.values())
        rewards += sum(got.stats["rewards_before_acting"].values())
        for agent in AGENTS:  # those that end in one step have no order
            ended = [one for one in got.stats["agent_episodes"] if one.agent == agent]
            assert ended == stats.get("agent_episodes", {}).get(agent, [])
        for name in ("module_steps", "rewards_before_acting"):
            assert got.stats[name] == stats.get(name, {}), name
    envs = [guard.env for guard in runner.envs if isinstance(guard.env, Counted)]
    num_open = sum(len(columns.in_play.nonzero()[0]) - len(columns.ready) for columns in runner._columns.values())
    assert steps_of_agents + num_open == sum(env.num_actions for env in envs)
    assert rewards + runner._earned.sum() == sum(env.rewards for env in envs)  # what open rows have earned is carried


class Counted(ScriptedEnv):
    """Counts the actions it gets and the rewards it gives."""

    num_actions, rewards = 0, 0.0

    def step(self, actions: dict[AgentID, Any]) -> Step:
        result = super().step(actions)
        self.num_actions += len(actions)
        self.rewards += sum(result[1].values())
        return result


TURNS = [
    Moment(acts=["a"]),
    Moment(acts=["b"], rewards={"a": 1.0}),
    Moment(acts=["a"], rewards={"a": 2.0, "b": 1.0}),
    Moment(acts=["b"], rewards={"b": -1.0}),
    Moment(final=["a", "b"], terminated=["__all__"], rewards={"a": -4.0, "b": 4.0}),
]


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        # a acts in steps 0 and 2, and earns 1 + 2 and 0 - 4; b in steps 1 and 3, and earns 1 - 1 and 4
        # a: -4 - 2 = -6, then 3 + 0.5 * 2 - 0 + 0.25 * -6 = 2.5; b: 4 - 3 = 1, then 0 + 0.5 * 3 - 1 + 0.25 * 1 = 0.75
        ([4], [[[2.5, 0.75], [-6.0, 1.0]]]),
        # a cut leaves a's second row open: its first one bootstraps from the observation of step 2
        ([3, 1], [[[4.0, 0.5]], [[-6.0, 1.0]]]),
    ],
)
def test_advantages_of_a_game_of_turns_by_hand(fragments: list[int], expected: list[Any]) -> None:
    """The value of an observation is its step, and both discounts are 0.5."""
    runner = AgentRunner(Settings(env=lambda _: ScriptedEnv([TURNS], "ab"), num_envs_per_env_runner=1), run_seed=3)
    module = module_for(runner.observation_space["a"], runner.action_space["a"])
    runner.set_module(MultiRLModule({"p": module}), PolicyMap("ab", ["p"]))
    for steps, advantages in zip(fragments, expected, strict=True):
        rollout = runner.sample(steps).modules["p"]
        values, following = rollout.split_values(rollout.rows_to_value()[:, 2])
        got = generalized_advantages(
            rollout[Columns.REWARDS],
            values,
            following,
            terminated_t=rollout[Columns.TERMINATEDS],
            truncated_t=rollout[Columns.TRUNCATEDS],
            valid_t=rollout.valid,
            gamma=0.5,
            lambda_=0.5,
        )
        assert got.tolist() == advantages


def test_mapping_functions_see_the_episode_and_are_asked_once_in_it() -> None:
    script = [
        Moment(acts=["a", "b"]),
        Moment(acts=["b"], terminated=["a"], rewards={"a": 2.0, "b": 1.0}),
        Moment(acts=["a", "c", "b"], rewards={"b": 1.0}),
        Moment(final=["a", "b", "c"], truncated=["__all__"]),
    ]
    asked = []

    def mapping(agent: AgentID, episode: MultiAgentEpisode) -> str:
        asked.append((agent, episode.number, episode.length, episode.agents, episode.returns))
        return "q" if agent == "c" and episode.policy_of("a") == "p" else "p"

    runner = AgentRunner(Settings(env=lambda _: ScriptedEnv([script]), num_envs_per_env_runner=1), run_seed=3)
    of = runner.observation_space["a"], runner.action_space["a"]
    modules = MultiRLModule({"p": module_for(*of), "q": module_for(*of)})
    runner.set_module(modules, PolicyMap(AGENTS, ["p", "q"], mapping))
    rollout = runner.sample(6)
    nothing = {"a": 0.0, "b": 0.0, "c": 0.0}
    once = [("a", 0, [], nothing), ("b", 0, ["a"], nothing), ("c", 2, ["b", "a"], {"a": 2.0, "b": 2.0, "c": 0.0})]
    expected = [(agent, n, *rest) for n in range(3) for agent, *rest in once]
    assert asked == expected[:-1]  # the third one has just begun
    assert {name: slots.tolist() for name, slots in rollout.slots.items()} == {"p": [[0, 0], [0, 1]], "q": [[0, 2]]}
    (current,) = runner._episode_of.values()
    assert (current.env_index, current.number, current.agents) == (0, 2, ["a", "b"])


def test_rewards_before_acting_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    script = [
        Moment(acts=["a"]),
        Moment(acts=["b"], rewards={"b": 0.5}),
        Moment(final=["a", "b"], terminated=["__all__"]),
    ]
    runner = AgentRunner(Settings(env=lambda _: ScriptedEnv([script], "ab"), num_envs_per_env_runner=1), run_seed=3)
    module = module_for(runner.observation_space["a"], runner.action_space["a"])
    runner.set_module(MultiRLModule({"p": module}), PolicyMap("ab", ["p"]))
    for count in (1, 2):
        stats = runner.sample(2 * count).stats
        assert stats["rewards_before_acting"] == {"b": 0.5 * count}
        assert [one[::2] for one in stats["agent_episodes"]] == [("a", 0.0), ("b", 0.5)] * count
        assert not stats["module_steps"]["p"] - 2 * count
    assert [record.message for record in caplog.records if "had acted" in record.message] == [
        "agents ['b'] got rewards before they had acted. These count in returns, but no module learns from them."
    ]


class Breaks(ScriptedEnv):
    """Raises in its third step."""

    def step(self, actions: dict[AgentID, Any]) -> Step:
        if self._step == 2:
            raise RuntimeError("broken")
        return super().step(actions)


def test_an_env_that_is_restarted_leaves_no_rewards_of_open_rows() -> None:
    """In its third step b has no complete row, but an open one that has earned 1; a has one complete row."""
    script = [
        Moment(acts=["a", "b"]),
        Moment(acts=["a"], rewards={"a": 2.0, "b": 1.0}),
        Moment(acts=["a"], rewards={"a": 3.0}),
    ]
    more = {"num_envs_per_env_runner": 1, "restart_failed_sub_environments": True}
    runner = AgentRunner(Settings(env=lambda _: Breaks([script], "ab"), **more), run_seed=3)
    of = runner.observation_space["a"], runner.action_space["a"]
    runner.set_module(MultiRLModule({"p": module_for(*of)}), PolicyMap("ab", ["p"]))
    got = runner.sample(3)
    rollout = got.modules["p"]
    assert rollout[Columns.REWARDS].tolist() == [[2.0], [3.0]]
    assert rollout[Columns.TRUNCATEDS].tolist() == [[False], [True]]
    assert rollout.final_obs.tolist() == [[0.0, 0.0, 2.0]]
    assert got.slots["p"].tolist() == [[0, 0]]
    assert got.num_env_steps == 2
    assert not any(got.stats[name] for name in ("rewards_before_acting", "agent_episodes", "multi_agent_episodes"))
    assert got.stats["num_env_steps_lost"] == {"env_raised": 1}
    assert runner.sample(1).stats["rewards_before_acting"] == {}
