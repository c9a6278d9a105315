"""PettingZoo's envs through the adapters: nothing is lost at ends and between turns, and both kinds give the same."""

import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from mpe2 import simple_spread_v3
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec
from pettingzoo.utils.wrappers import BaseParallelWrapper

from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.multi_agent_env import AgentID, MultiAgentEnv
from rlmodule.agents.pettingzoo import AECAdapter, ParallelAdapter, adapted
from tests.rlmodule.agents.envs import Moment, OneAgent

AGENTS = ["a", "b", "c"]
LIVES = [
    Moment(["a", "b"]),
    Moment(["a", "b"], {"a": 1.0, "b": 2.0}),
    Moment(["a", "c"], {"a": 3.0, "b": 4.0, "c": 0.5}, terminated=["b"]),  # c is new
    Moment(["c"], {"a": 5.0, "c": 6.0}, truncated=["a"]),
    Moment([], {"c": 7.0}, terminated=["c"], truncated=["c"]),
]


class Spaces:
    possible_agents = AGENTS
    metadata: dict[str, Any] = {"name": "lives", "render_modes": []}  # noqa: RUF012
    render_mode = None
    _observations = dict.fromkeys(AGENTS, spaces.Box(0, 100, (2,), np.float32))
    _actions = {agent: spaces.Discrete(3, seed=1) for agent in AGENTS}  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        return self._observations[agent]

    def action_space(self, agent: str) -> Any:
        return self._actions[agent]


class Lives(Spaces, ParallelEnv[str, np.ndarray, int]):
    """Follows a script; agents come late and die one by one. The observation is ``[index of the agent, step]``."""

    def __init__(self, script: list[Moment] = LIVES) -> None:
        self.script = script

    def _obs(self) -> dict[str, np.ndarray]:
        observers = self.script[self.now].observers
        return {str(agent): np.array([AGENTS.index(str(agent)), self.now], np.float32) for agent in observers}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.now, self.agents = 0, [str(agent) for agent in self.script[0].acts]
        return self._obs(), {agent: {"seed": seed} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.now += 1
        moment, obs = self.script[self.now], self._obs()
        self.agents = [str(agent) for agent in moment.acts]
        return (
            obs,
            {agent: moment.rewards.get(agent, 0.0) for agent in obs},
            {agent: agent in moment.terminated for agent in obs},
            {agent: agent in moment.truncated for agent in obs},
            {agent: {"step": self.now} for agent in obs},
        )


Row = tuple[Any, int, float, bool, bool, Any]


def rows_by_agent(env: MultiAgentEnv, num_episodes: int) -> dict[AgentID, list[Row]]:
    """(obs, action, sum of rewards up to the next obs, terminated, truncated, next obs) of the steps of each agent.

    The action follows from the agent's own observation.
    """
    guard, rows = AgentEnvGuard(env), defaultdict[AgentID, list[Row]](list)
    for episode in range(num_episodes):
        obs, _ = guard.reset(seed=episode)
        opened = dict[AgentID, tuple[Any, int]]()
        received = defaultdict[AgentID, float](float)
        while not guard.is_over:
            actions = dict[AgentID, int]()
            for agent in guard.acting:
                actions[agent] = int.from_bytes(np.asarray(obs[agent]).tobytes()[-4:], "little") % 3
                opened[agent] = obs[agent], actions[agent]
            obs, rewards, *_ = guard.step(actions)
            for agent, reward in rewards.items():
                received[agent] += reward if agent in opened else 0.0  # those before the first action are no row's
            for agent in obs:
                if agent in opened:
                    ended = guard.ended.get(agent, (False, False))
                    rows[agent].append((*opened.pop(agent), received.pop(agent, 0.0), *ended, obs[agent]))
    return rows


def assert_same(ours: dict[AgentID, list[Row]], theirs: dict[AgentID, list[Row]]) -> None:
    assert ours.keys() == theirs.keys()
    for agent, rows in ours.items():
        assert [row[1:5] for row in rows] == [row[1:5] for row in theirs[agent]]
        for ours_row, theirs_row in zip(rows, theirs[agent], strict=True):
            np.testing.assert_array_equal(ours_row[0], theirs_row[0])
            np.testing.assert_array_equal(ours_row[5], theirs_row[5])


@pytest.mark.parametrize("env_fn", [Lives, simple_spread_v3.parallel_env], ids=["lives", "simple_spread"])
def test_a_parallel_env_and_its_aec_form_give_the_same_transitions(env_fn: Callable[[], Any]) -> None:
    parallel = rows_by_agent(ParallelAdapter(env_fn()), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parallel_to_aec() asks for more than the API does
        assert_same(parallel, rows_by_agent(AECAdapter(parallel_to_aec(env_fn())), 2))
    assert sum(map(len, parallel.values())) == (2 * 7 if env_fn is Lives else 2 * 3 * 25)


def random_lives(rng: np.random.Generator) -> list[Moment]:
    """A script of a parallel env: agents come, go and return; the last step ends who is left."""
    live, moments = ["a", "b"], [Moment(["a", "b"])]
    for last in [False] * int(rng.integers(8)) + [True]:
        ends = {agent: (0.3 if not last else 1.0) > rng.random() for agent in live}
        terminated = [agent for agent in live if ends[agent] and rng.random() < 0.5]
        truncated = [agent for agent in live if ends[agent] and agent not in terminated]
        starts = [agent for agent in AGENTS if agent not in live and not last and rng.random() < 0.4]
        live = [agent for agent in live if not ends[agent]] + starts
        # none for the agent that starts: in the AEC form, it observes later
        rewards = {agent: float(rng.integers(-9, 9)) for agent in AGENTS if agent not in starts}
        moments.append(Moment(live, rewards, terminated=terminated, truncated=truncated))
        if not live:
            break
    return moments


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(30))
def test_random_lives_are_the_same_in_both_forms(seed: int) -> None:
    script = random_lives(np.random.default_rng(seed))
    parallel = rows_by_agent(ParallelAdapter(Lives(script)), 1)
    assert_same(parallel, rows_by_agent(AECAdapter(parallel_to_aec(Lives(script))), 1))
    assert sum(map(len, parallel.values())) == sum(len(moment.acts) for moment in script)


def test_both_forms_of_simple_spread_give_the_same_transitions() -> None:
    assert_same(
        rows_by_agent(adapted(simple_spread_v3.parallel_env(max_cycles=5)), 2),
        rows_by_agent(adapted(simple_spread_v3.env(max_cycles=5)), 2),
    )


class Back(Spaces, ParallelEnv[str, np.ndarray, int]):
    """A multi-agent env of ours as a parallel env of PettingZoo."""

    def __init__(self, env: MultiAgentEnv) -> None:
        self.env, self.possible_agents = env, [*env.possible_agents]
        self._observations, self._actions = env.observation_spaces, env.action_spaces

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = self.env.reset(seed=seed)
        self.agents = [*obs]
        return obs, {agent: infos.get(agent, {}) for agent in obs}

    def step(self, actions: dict[str, int]) -> Any:
        obs, *parts = self.env.step({agent: actions[agent] for agent in self.agents})
        defaults = 0.0, False, False, {}
        filled = [{a: part.get(a, none) for a in obs} for part, none in zip(parts, defaults, strict=True)]
        self.agents = [agent for agent in obs if not (filled[1][agent] or filled[2][agent])]
        return obs, *filled


ROUND_TRIPS: dict[str, Callable[[], Any]] = {
    "the env of these tests": Lives,
    "parallel": lambda: Back(ParallelAdapter(Lives())),
    "parallel, twice": lambda: Back(ParallelAdapter(Back(ParallelAdapter(Lives())))),
    "simple_spread": lambda: Back(ParallelAdapter(simple_spread_v3.parallel_env(max_cycles=5))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_envs_follow_the_api_after_a_round_trip(case: str) -> None:
    from pettingzoo.test import api_test, parallel_api_test  # warns when it is imported

    parallel_api_test(ROUND_TRIPS[case](), num_cycles=20)
    api_test(parallel_to_aec(ROUND_TRIPS[case]()), num_cycles=20)


def test_parallel_final_observations_come_on_the_step_of_death() -> None:
    env = ParallelAdapter(Lives())
    obs, infos = env.reset(seed=4)
    assert (list(obs), infos) == (["a", "b"], {"a": {"seed": 4}, "b": {"seed": 4}})
    seen = []
    for moment in LIVES[:-1]:
        obs, rewards, terminated, truncated, infos = env.step(dict.fromkeys(moment.acts, 0))
        seen.append(({agent: value[1] for agent, value in obs.items()}, rewards, terminated, truncated, {*infos}))
    assert seen == [
        ({"a": 1, "b": 1}, {"a": 1, "b": 2}, {}, {}, {"a", "b"}),
        ({"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 4, "c": 0.5}, {"b": True}, {}, {"a", "b", "c"}),
        ({"a": 3, "c": 3}, {"a": 5, "c": 6}, {}, {"a": True}, {"a", "c"}),
        ({"c": 4}, {"c": 7}, {"c": True}, {"c": True}, {"c"}),
    ]


class Common(BaseParallelWrapper[str, np.ndarray, int]):
    """Adds an entry that belongs to no agent to some of the results."""

    def __init__(self, env: Any, *places: int) -> None:
        super().__init__(env)
        self.places = places

    def _with_common(self, result: tuple[Any, ...]) -> Any:
        places = {place % len(result) for place in self.places}
        return tuple({**part, "common": 1.0} if i in places else part for i, part in enumerate(result))

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_common(super().reset(*args, **kwargs))

    def step(self, actions: Any) -> Any:
        return self._with_common(super().step(actions))


def test_parallel_infos_of_no_agent_are_left_out() -> None:
    assert_same(rows_by_agent(adapted(Common(Lives(), -1)), 1), rows_by_agent(adapted(Lives()), 1))


@pytest.mark.parametrize(("places", "name"), [((0, -1), "obs"), ((1, -1), "rewards")])
def test_parallel_observations_and_rewards_of_no_agent_are_refused(places: tuple[int, ...], name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: expected one of the possible_agents .*, got 'common'"):
        rows_by_agent(adapted(Common(Lives(), *places)), 1)


class Relay(Spaces, AECEnv[str, np.ndarray, int]):
    """a, b and c take turns. The second move of a ends c, which is removed at its own turn, after b has moved."""

    rewards_after = ({"a": 1, "b": 2}, {"a": 4}, {"b": 8, "c": 16}, {"c": 32}, {"a": 64}, {"b": 128})

    def __init__(self, removes: bool = True) -> None:
        super().__init__()
        self._removes = removes
        self.stepped = list[tuple[str, int | None]]()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.now, self.agent_selection = AGENTS[:], 0, "a"
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations, self.truncations = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, False)
        self.infos = {agent: {"seed": seed} for agent in AGENTS}

    def observe(self, agent: str) -> np.ndarray:
        return np.array([AGENTS.index(agent), self.now], np.float32)

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        self.stepped.append((agent, action))
        following = [other for other in AGENTS[AGENTS.index(agent) + 1 :] + AGENTS if other in self.agents]
        if self.terminations[agent] or self.truncations[agent]:
            if self._removes:
                self._was_dead_step(action)
                self.agent_selection = next((other for other in following if other != agent), agent)
            return
        self.now += 1
        self._cumulative_rewards[agent] = 0.0
        self.rewards = {other: float(self.rewards_after[self.now - 1].get(other, 0)) for other in self.agents}
        self._accumulate_rewards()
        if self.now == 4:
            self.terminations["c"] = True
        if self.now == 6:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = following[0]


def test_aec_ends_rewards_and_turns_by_hand() -> None:
    relay = Relay()
    env = AECAdapter(relay)
    obs, infos = env.reset(seed=3)
    assert ({agent: value[1] for agent, value in obs.items()}, infos) == ({"a": 0}, {a: {"seed": 3} for a in AGENTS})
    seen = []
    for agent in "abcaba":
        obs, rewards, terminated, truncated, _ = env.step({agent: 1})
        paid = {name: reward for name, reward in rewards.items() if reward}
        seen.append(({name: value[1] for name, value in obs.items()}, paid, terminated, truncated))
    both = {"a": False, "b": False}, {"a": True, "b": True}
    assert seen == [
        ({"b": 1}, {"a": 1, "b": 2}, {}, {}),
        ({"c": 2}, {"a": 4}, {}, {}),
        ({"a": 3}, {"b": 8, "c": 16}, {}, {}),
        ({"b": 4}, {"c": 32}, {}, {}),  # c is flagged, and ends when its turn comes
        ({"c": 5, "a": 5}, {"a": 64}, {"c": True}, {"c": False}),
        ({"b": 6, "a": 6}, {"b": 128}, *both),
    ]
    moves = [("a", 1), ("b", 1), ("c", 1), ("a", 1), ("b", 1), ("c", None), ("a", 1), ("b", None), ("a", None)]
    assert relay.stepped == moves


def test_a_reset_in_the_middle_of_an_aec_episode_brings_the_dead_back() -> None:
    guard = AgentEnvGuard(AECAdapter(Relay()))
    for num_moves in (4, 6):  # c is flagged after four moves, and not removed yet
        guard.reset()
        ended = []
        for agent in "abcaba"[:num_moves]:
            guard.step({agent: 1})
            ended.append([*guard.ended])
    assert ended == [[], [], [], [], ["c"], ["b", "a"]]


def test_aec_rewards_between_own_turns_add_up() -> None:
    rows = rows_by_agent(AECAdapter(Relay()), 1)
    assert {agent: [row[2:5] for row in rows] for agent, rows in rows.items()} == {
        "a": [(1 + 4, False, False), (64, False, False), (0, False, True)],
        "b": [(8, False, False), (128, False, True)],
        "c": [(16 + 32, True, False)],
    }


class PaysTheDead(Relay):
    """As above, and the move of b between the end of c and its removal pays c."""

    rewards_after = (*Relay.rewards_after[:4], {"a": 64, "c": 256}, Relay.rewards_after[5])


def rewards_by_last(env: Relay) -> dict[AgentID, list[float]]:
    """The rewards of an episode that PettingZoo's ``last()`` returns, without those before an agent's first action."""
    env.reset()
    rewards = defaultdict[AgentID, list[float]](list)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        rewards[agent].append(float(reward))
        env.step(None if terminated or truncated else 0)
    return {agent: received[1:] for agent, received in rewards.items()}


@pytest.mark.parametrize("env_class", [Relay, PaysTheDead])
def test_what_an_agent_is_paid_before_its_removal_is_part_of_its_last_reward(env_class: type[Relay]) -> None:
    rows = rows_by_agent(AECAdapter(env_class()), 1)
    assert {agent: [row[2] for row in steps] for agent, steps in rows.items()} == rewards_by_last(env_class())
    assert [row[3:5] for row in rows["c"]] == [(True, False)]


def test_rewards_that_stay_in_place_when_the_dead_are_removed_count_once() -> None:
    class Keeps(Relay):
        def _clear_rewards(self) -> None:
            pass

    assert_same(rows_by_agent(AECAdapter(Keeps()), 1), rows_by_agent(AECAdapter(Relay()), 1))


def test_connect_four_by_hand() -> None:
    guard = AgentEnvGuard(adapted(pettingzoo.make("aec", "classic/connect_four-v3")))
    obs, _ = guard.reset(seed=1)
    for move, column in enumerate([0, 1, 0, 1, 0, 1, 0]):
        player = f"player_{move % 2}"
        assert guard.acting == [player]
        assert obs[player]["action_mask"].tolist() == [1] * 7
        obs, rewards, *_ = guard.step({player: column})
    assert (rewards, guard.is_over) == ({"player_0": 1, "player_1": -1}, True)
    assert guard.ended == {"player_0": (True, False), "player_1": (True, False)}
    assert obs["player_0"]["observation"][:, 0, 0].tolist() == [0, 0, 1, 1, 1, 1]
    assert obs["player_1"]["observation"][:, 0, 1].tolist() == [0, 0, 1, 1, 1, 1]


def test_connect_four_masks_a_full_column() -> None:
    guard = AgentEnvGuard(adapted(pettingzoo.make("aec", "classic/connect_four-v3")))
    obs, _ = guard.reset()
    for move in range(6):
        obs, *_ = guard.step({f"player_{move % 2}": 3})
    assert obs["player_0"]["action_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1]


def test_the_state_and_the_attributes_of_the_env_can_be_seen() -> None:
    env = adapted(simple_spread_v3.parallel_env(render_mode="rgb_array"))
    env.reset(seed=1)
    assert env.state().shape == (54,)
    assert (env.render_mode, env.metadata["name"]) == ("rgb_array", "simple_spread_v3")
    assert env.render().shape[-1] == 3
    env.close()


def test_adapted_returns_an_own_env_as_it_is() -> None:
    env = OneAgent("CartPole-v1")
    assert adapted(env) is env


def broken(moment: Moment, *, agents: list[str] | None = None) -> Lives:
    class Broken(Lives):
        def step(self, actions: Any) -> Any:
            results = super().step(actions)
            self.agents = self.agents if agents is None else agents
            return results

    return Broken([Moment(["a", "b"]), moment])


PARALLEL = [
    (
        broken(Moment(["a"])),
        r"agents: expected agents to leave in the step .* got \['a'\] after \['a', 'b'\].*'b' is wr",
    ),
    (
        broken(Moment([], terminated=["a"], final=["b"]), agents=[]),
        r"agents: expected agents to leave in .*'b' is wrong",
    ),
    (broken(Moment(["a"], terminated=["b"]), agents=["a", "b"]), r"agents: .* of which \['b'\] ended: 'b' is wrong"),
    (broken(Moment(["a"]), agents=["a", "b"]), r", observations: expected one of each agent in env.agents .* for 'b'"),
]


@pytest.mark.parametrize(("env", "text"), PARALLEL)
def test_what_a_parallel_env_may_not_do(env: Lives, text: str) -> None:
    adapter = ParallelAdapter(env)
    adapter.reset()
    with pytest.raises(ValueError, match=f"^Broken.?{text}"):
        adapter.step({"a": 0, "b": 0})


def test_an_aec_env_has_to_remove_the_dead() -> None:
    env = AECAdapter(Relay(removes=False))
    env.reset()
    for agent in "abca":
        env.step({agent: 0})
    with pytest.raises(
        ValueError, match=r"^Relay\.step\(None\): expected it to remove 'c', which ended, got the agents"
    ):
        env.step({"b": 0})


def test_an_env_has_to_name_its_agents_and_their_spaces() -> None:
    class Nameless(ParallelEnv[str, Any, Any]):
        pass

    class Spaceless(Lives):
        def action_space(self, agent: str) -> Any:
            return super().action_space(agent) if agent != "c" else None

    with pytest.raises(ValueError, match=r"^Nameless: expected the attribute possible_agents, got an env without it"):
        adapted(Nameless())
    text = (
        r"^Spaceless\.action_space\('c'\): expected a space, got None\. Return one for each of possible_agents, \['a', "
    )
    with pytest.raises(ValueError, match=text):
        adapted(Spaceless())
