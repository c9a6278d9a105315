"""DQN, SAC and TD3 with several agents: what their buffers hold, one agent as today's run, clocks, checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from algorithms.algorithm import Algorithm
from algorithms.dqn import DQN
from algorithms.ppo import PPOCatalog, PPOModule
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule import Columns, RLModuleSpec
from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.testing.data import clone, differences
from tests.algorithms.dqn.conftest import tiny
from tests.algorithms.test_multi_agent import CART, MAPPING, Tags, mapping_fn
from tests.rlmodule.agents.envs import CartPoles, OneAgent, ScriptedEnv, random_script

ID = "default_policy"
AGENTS: list[AgentID] = ["a", "b", "c"]
GAMMA = 0.9


def tags(**values: Any) -> Any:
    policies = {"policies": ["pair", "late"], "policy_mapping_fn": MAPPING}
    return tiny(Tags, **policies | values)


# --- against lists of what the agents went through --------------------------------------------------------------------


class Step:
    """What an agent observed and did, what it got until it observed again, and how that ended."""

    def __init__(self, obs: Any, action: int) -> None:
        self.obs, self.action, self.reward = tuple(obs.tolist()), action, 0.0
        self.following: Any = None
        self.terminated = self.truncated = False


def lives_in(env: ScriptedEnv) -> list[tuple[AgentID, int, list[Step]]]:
    """Agent, number of the episode and complete steps of all that acted, from the script and the actions it got."""
    lives: list[tuple[AgentID, int, list[Step]]] = []
    current: dict[AgentID, list[Step]] = {}
    latest: dict[AgentID, np.ndarray] = {}
    episode, t = -1, 0

    for kind, actions in env.calls:
        episode, t = (episode + 1, 0) if kind == "reset" else (episode, t + 1)
        current = {} if kind == "reset" else current
        now = env.scripts[episode % len(env.scripts)][t]
        for agent, action in actions.items() if kind == "step" else ():
            current[agent].append(Step(latest[agent], action))
        for agent, reward in now.rewards.items():
            if current.get(agent):
                current[agent][-1].reward += reward
        for agent in now.observers:
            latest[agent] = np.array([env.possible_agents.index(agent), episode, t], np.float32)
            if agent not in current:
                current[agent] = []
                lives.append((agent, episode, current[agent]))
            elif current[agent]:
                current[agent][-1].following = tuple(latest[agent].tolist())
        for agent in [*current]:
            flags = [{agent, "__all__"} & {*ended} != set() for ended in (now.terminated, now.truncated)]
            if any(flags):
                for step in current.pop(agent)[-1:]:
                    step.terminated, step.truncated = flags
    return [(agent, n, [step for step in steps if step.following]) for agent, n, steps in lives]


def window(steps: list[Step], i: int, n_step: int) -> tuple[float, Any, float]:
    """Discounted reward, the observation after it and its discount, of the window from step ``i``."""
    part = steps[i : i + n_step]
    reward = sum(GAMMA**k * step.reward for k, step in enumerate(part))
    return reward, part[-1].following, 0.0 if part[-1].terminated else GAMMA ** len(part)


POLICIES: dict[str, tuple[list[str], Any]] = {
    "shared": ([ID], None),
    "two": (["p", "q"], {"a": "q", "b": "p", "c": "q"}),
    "by episode": (["p", "q"], lambda agent, episode: "pq"[(episode.number + AGENTS.index(agent)) % 2]),
}


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from([*POLICIES]),
    fragment=st.integers(1, 5),
    n_step=st.integers(1, 4),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_windows_are_those_of_lists_of_steps(seed: int, kind: str, fragment: int, n_step: int) -> None:
    """Agents act in turns and at once, die, return, and are rewarded while they wait."""
    rng = np.random.default_rng(seed)
    scripts = iter([[random_script(rng) for _ in range(3)] for _ in range(2)])
    ids, mapping = POLICIES[kind]
    config = tiny(lambda _: ScriptedEnv(next(scripts), AGENTS), n_step=n_step, gamma=GAMMA, replay_capacity=2000)
    config.training(num_steps_sampled_before_learning_starts=2000).env_runners(rollout_fragment_length=fragment)
    with config.multi_agent(policies=ids, policy_mapping_fn=mapping).build() as algo:
        assert isinstance(algo, DQN)
        algo.train()
        expected: dict[str, dict[Any, Any]] = {policy: {} for policy in ids}
        runner: Any = algo.env_runner_group.local_runner
        for e, guard in enumerate(runner.envs):
            for agent, number, steps in lives_in(guard.env):
                policy = {
                    "shared": ID,
                    "two": "p" if agent == "b" else "q",
                    "by episode": "pq"[(number + AGENTS.index(agent)) % 2],
                }[kind]
                for i, step in enumerate(steps):
                    expected[policy][e, step.obs] = step.action, *window(steps, i, n_step)
        for policy, replay in algo.replays.items():
            places = np.flatnonzero(replay.sampleable)
            assert len(places) == len(expected[policy]) > 0
            names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.DISCOUNTS)
            batch = replay.gather_rows(places)
            for place, obs, *got in zip(places.tolist(), *(batch[name].tolist() for name in names), strict=True):
                e = place % replay.num_envs // (replay.num_envs // 2)
                action, reward, following, discount = expected[policy].pop((e, tuple(obs)))
                assert got[0] == action
                assert (got[1], got[3]) == pytest.approx((reward, discount), abs=1e-5)
                if discount:
                    assert tuple(got[2]) == following


# --- one agent --------------------------------------------------------------------------------------------------------

SINGLE: dict[str, Callable[[], Any]] = {
    "DQN": lambda: tiny(n_step=3, prioritized_replay=True, training_intensity=4.0),
    "rainbow": lambda: tiny(noisy=True, dueling=True, num_atoms=11, v_min=0.0, v_max=50.0, rollout_fragment_length=3),
    "LSTM": lambda: tiny(
        model_config={"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}, burn_in_len=2
    ),
    "SAC": lambda: continuous(SACConfig),
    "TD3": lambda: continuous(TD3Config),
}


def continuous(of: type[Any]) -> Any:
    quick: dict[str, Any] = {"num_envs_per_env_runner": 2, "train_batch_size_per_learner": 16, "seed": 3}
    quick |= {"num_steps_sampled_before_learning_starts": 32, "num_env_steps_per_iteration": 64}
    return of(
        env="Pendulum-v1", **quick, replay_capacity=256, training_intensity=4.0, model_config={"fcnet_hiddens": [8]}
    )


@pytest.mark.parametrize("name", SINGLE)
def test_a_run_with_one_agent_is_that_of_its_env(name: str) -> None:
    single = SINGLE[name]()
    env = single.env
    several = single.copy().environment(lambda _: OneAgent(env)).multi_agent(policies="own")
    with single.build() as one, several.build() as other:
        for _ in range(3):
            expected, result = one.train(), other.train()
            assert result["learners"] == {"agent": expected["learners"][ID]}
            assert result["replay_buffer"] == {"agent": expected["replay_buffer"]}
            assert result["env_runners"]["episode_len_mean"] == pytest.approx(
                expected["env_runners"]["episode_len_mean"], nan_ok=True
            )
        assert differences(other.get_module("agent").get_state(), one.get_module().get_state()) == []
        assert differences(other.replays["agent"].get_state(), one.replay.get_state()) == []
        assert other.replay is other.replays["agent"]


# --- several ----------------------------------------------------------------------------------------------------------


def test_each_policy_has_its_own_clock_batches_and_settings() -> None:
    """Of every 5 steps of an env, "pair" has 10 rows and "late" 3."""
    own = {"n_step": 2, "gamma": 0.5, "target_network_update_freq": 40, "lr": 1e-3, "epsilon": 0.25, "dueling": True}
    run = tags(training_intensity=2.0, num_env_steps_per_iteration=500, replay_capacity=4000, epsilon=0.5)
    run.multi_agent(policy_overrides={"late": {**own, "training_intensity": 4.0, "prioritized_replay": True}})
    with run.build() as algo:
        learned = algo.train()["learners"]
        pair, late = (algo.get_module(name) for name in ("pair", "late"))
        assert [module.model_config.dueling for module in (pair, late)] == [False, True]
        assert [learned[name]["epsilon"] for name in ("pair", "late")] == [0.5, 0.25]
        assert [learned[name]["learning_rate"] for name in ("pair", "late")] == [5e-4, 1e-3]
        assert "prioritized_replay_beta" in learned["late"]
        assert "prioritized_replay_beta" not in learned["pair"]
        learner = algo.learner_group.learner
        # rows up to the vector step before which fewer than 32 are stored, of 1,000 and 300 in all
        assert learner.num_gradient_steps["pair"] == (1000 - 32 + 4) * 2 // 16
        untrained = 32 // 6 * 6
        assert abs(learner.num_gradient_steps["late"] - (300 - untrained) * 4 / 16) <= 2
        pairs, lates = learned["pair"]["num_target_updates"], learned["late"]["num_target_updates"]
        assert pairs == 500 // 20 - 1
        assert 500 // 40 - 3 <= lates <= 500 // 40
        for name, n_step, gamma in (("pair", 1, 0.99), ("late", 2, 0.5)):
            discounts = {*algo.replays[name].sample(64).batch[Columns.DISCOUNTS].tolist()}
            assert discounts <= {0.0, *(float(np.float32(gamma**k)) for k in range(1, n_step + 1))}
            assert float(np.float32(gamma**n_step)) in discounts


def test_policies_that_do_not_train_have_no_replay_and_act_greedily() -> None:
    with tags(policies_to_train=["late"]).build() as algo:
        before = clone(algo.get_module("pair").get_state())
        result = algo.train()
        assert [*algo.replays] == [*result["replay_buffer"]] == ["late"]
        assert [*algo.train()["learners"]] == ["late"]
        assert differences(algo.get_module("pair").get_state(), before) == []
        assert float(algo.get_module("pair").epsilon) == 0


def test_settings_of_nets_reach_policies_with_a_spec_of_their_own() -> None:
    specs = {"pair": RLModuleSpec(model_config={"fcnet_hiddens": [4]}), "late": RLModuleSpec()}
    run = tags(policies=specs, dueling=True, policy_overrides={"pair": {"num_atoms": 3, "v_min": 0.0, "v_max": 1.0}})
    module = run.build_learner_group().module
    nets = [module[name].model_config for name in specs]
    assert [(net.dueling, net.num_atoms, net.fcnet_hiddens) for net in nets] == [(True, 3, (4,)), (True, 1, (16,))]
    with tags(dueling=True).build() as algo:
        algo.add_policy("new", spec=specs["pair"])
        assert algo.get_module("new").model_config.dueling
    specs["pair"] = RLModuleSpec(model_config={"dueling": False})
    with pytest.raises(ValueError, match=r"dueling: expected one value, got True. model_config has False"):
        tags(policies=specs, dueling=True).build_learner_group()


def test_settings_of_nets_do_not_concern_a_policy_with_another_catalog() -> None:
    specs = {"pair": RLModuleSpec(), "late": RLModuleSpec(module_class=PPOModule, catalog_class=PPOCatalog)}
    module = tags(policies=specs, policies_to_train=["pair"], dueling=True).build_learner_group().module
    assert isinstance(module["late"], PPOModule)


def acting_as(agent: AgentID) -> RLModuleSpec:
    return RLModuleSpec(None, Tags().observation_spaces[agent], Tags().action_spaces[agent])


def test_columns_are_the_agents_that_may_act_with_a_policy() -> None:
    with tags().build() as algo:
        assert {name: replay.num_envs for name, replay in algo.replays.items()} == {"pair": 4, "late": 2}
        with pytest.raises(AttributeError, match=r"DQN\.replay: expected a run that trains one policy, got 'pair', 'l"):
            algo.replay  # noqa: B018
    specs = {"pair": acting_as("b"), "late": acting_as("late"), "spare": acting_as(1)}
    with tags(policies=specs, policy_mapping_fn=mapping_fn).build() as algo:
        assert {name: replay.num_envs for name, replay in algo.replays.items()} == {"pair": 4, "late": 2, "spare": 4}
        assert {*algo.train()["learners"]} == {"pair", "late"}  # nobody acted with "spare"
    with tags(policies=specs).build() as algo:
        assert [*algo.replays] == ["pair", "late"]


def test_a_policy_learns_from_fewer_sequences_than_a_batch_has() -> None:
    """A ring of 18 rows has at most three complete sequences of 5, and a batch 16 steps."""
    run: Any = tiny(lambda _: OneAgent("CartPole-v1"), policies="own", num_envs_per_env_runner=1, replay_capacity=18)
    run.training(num_steps_sampled_before_learning_starts=16)
    run.rl_module(model_config={"fcnet_hiddens": [8], "use_gru": True, "lstm_cell_size": 4, "max_seq_len": 5})
    with run.build() as algo:
        assert [*algo.train()["learners"]] == ["agent"]


@pytest.mark.parametrize("fragment", [1, 3, 4, 7])
def test_agents_with_memory_are_sampled_in_fragments_of_any_length(fragment: int) -> None:
    nets = {"fcnet_hiddens": [8], "use_gru": True, "lstm_cell_size": 4, "max_seq_len": 4}
    with tags(rollout_fragment_length=fragment, model_config=nets, burn_in_len=2).build() as algo:
        algo.train()
        assert {*algo.train()["learners"]} == {"pair", "late"}
        for replay in algo.replays.values():
            assert replay.num_drawable >= replay.num_transitions - 12 * replay.num_envs


def test_a_policy_waits_for_its_steps_though_the_columns_it_uses_are_full() -> None:
    """Agent 1 could act with "pair", so agent "b" has half of its 64 places, but never does."""
    specs = {"pair": acting_as("b"), "late": acting_as("late"), "spare": acting_as(1)}
    run = tags(policies=specs, policy_mapping_fn=lambda agent, episode: "spare" if agent == 1 else MAPPING[agent])
    run.training(num_steps_sampled_before_learning_starts=60).replay(replay_capacity=64)
    with run.reporting(num_env_steps_per_iteration=200).build() as algo:
        algo.train()
        assert algo.replays["pair"].num_transitions == 32
        assert algo.learner_group.learner.num_gradient_steps["pair"] == pytest.approx((200 - 60) / 2, abs=2)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "the batch": (
        lambda: tags(policy_overrides={"pair": {"train_batch_size_per_learner": 8}}),
        r"expected some of .*, got 'train_batch_size_per_learner'. All policies have the same: write \.training\(",
    ),
    "checkpoints": (
        lambda: tags(policy_overrides={"pair": {"replay_in_checkpoints": False}}),
        r"All policies have the same: write \.replay\(replay_in_checkpoints",
    ),
    "settings that contradict each other": (
        lambda: tags(policy_overrides={"pair": {"n_step": (3, 1)}}).build(),
        r"policy_overrides\['pair'\] makes DQNConfig\.n_step: expected a pair \(least, most\)",
    ),
    "a small buffer": (
        lambda: tags(replay_capacity=32, rollout_fragment_length=12).build(),
        r"replay_capacity: expected at least 48 for policy 'pair', 12 steps of 4 agents in all envs, got 32",
    ),
    "no policies": (lambda: tiny(Tags).build(), r"needs \.multi_agent\(policies='shared'\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_told_when_the_run_is_built(case: str) -> None:
    build, message = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=message):
        build()


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_saved_run_continues_with_its_buffers(tmp_path: Path) -> None:
    overrides = {"late": {"n_step": 2, "prioritized_replay": True}}
    with tags(policy_overrides=overrides, training_intensity=1.3).build() as algo:
        algo.train()
        algo.train()
        path, before = algo.save(tmp_path / "ck"), clone(algo.get_state())
        algo.env_runner_group.reset()  # a resumed run starts new episodes
    results = []
    for _ in range(2):
        with Algorithm.from_checkpoint(path, env=Tags) as loaded:
            assert isinstance(loaded, DQN)
            for name, replay in loaded.replays.items():
                assert differences(replay.get_state(), before["replay"][name]) == []
            assert loaded.get_state()["steps_owed"] == before["steps_owed"]
            results.append((loaded.train()["learners"], clone(loaded.get_state()["replay"])))
    assert differences(*results) == []
    assert {*results[0][0]} == {"pair", "late"}
    with Algorithm.from_checkpoint(path, env=Tags, replay_in_checkpoints=False) as loaded:
        assert isinstance(loaded, DQN)
        assert [replay.num_transitions for replay in loaded.replays.values()] == [0, 0]


def test_a_resumed_run_may_train_other_policies(tmp_path: Path) -> None:
    with tags(policies_to_train=["late"]).build() as algo:
        algo.train()
        learner: Any = algo.learner_group.learner
        learner.load_module_state("pair", {name: x * 0 + 0.5 for name, x in learner.module["pair"].get_state().items()})
        late, path = clone(learner.target["late"].get_state()), algo.save(tmp_path / "late")
    with Algorithm.from_checkpoint(path, env=Tags, policies_to_train=None) as both:
        learner = both.learner_group.learner
        assert {float(x.detach().mean()) for x in learner.target["pair"].parameters()} == {0.5}
        assert differences(learner.target["late"].get_state(), late) == []
        assert {*both.train()["learners"]} == {"pair", "late"}
        pair, path = clone(learner.target["pair"].get_state()), both.save(tmp_path / "both")
    with Algorithm.from_checkpoint(path, env=Tags, policies_to_train=["pair"]) as fewer:
        learner = fewer.learner_group.learner
        assert differences(learner.target["pair"].get_state(), pair) == []
        assert {*fewer.train()["learners"]} == {*learner.get_state()["num_target_updates"]} == {"pair"}


def newest_for_the_second(agent: AgentID, episode: Any) -> str:
    return "main" if agent == CART[0] else episode.policies[-1]


def test_policies_that_come_and_go_have_buffers_while_they_learn(tmp_path: Path) -> None:
    run: Any = tiny(CartPoles, env_config={"num_agents": 2}, policies=["main"], training_intensity=1.0)
    with run.multi_agent(policy_mapping_fn=newest_for_the_second).build() as algo:
        assert isinstance(algo, DQN)
        algo.train()
        algo.add_policy("frozen", copy_of="main")
        algo.add_policy("second", copy_of="main", train=True)
        for _ in range(3):
            result = algo.train()
        assert {*algo.replays} == {*result["learners"]} == {"main", "second"}
        stored = {name: replay.num_transitions for name, replay in algo.replays.items()}
        assert 0 < stored["second"] < stored["main"]
        path = algo.save(tmp_path / "ck")
        algo.remove_policy("second")
        assert [*algo.train()["replay_buffer"]] == ["main"]
    with Algorithm.from_checkpoint(path, allow=[__name__, CartPoles.__module__]) as loaded:
        assert isinstance(loaded, DQN)
        assert {name: replay.num_transitions for name, replay in loaded.replays.items()} == stored
        loaded.train()
        assert {*loaded.train()["learners"]} == {"main", "second"}


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_callbacks_may_add_and_remove_policies_that_learn(name: str) -> None:
    """An iteration has 32 rollouts, and "second" has a row in each of them. It comes with the last rollout of the first
    iteration, and goes with one of the fourth, in which it has learned already."""
    calls = itertools.count(1)

    def change(algorithm: Any, rollout: Any) -> None:
        call = next(calls)
        if call == 32:
            algorithm.add_policy("second", copy_of="main", train=True)
        elif call == 3 * 32 + 16:
            assert {*rollout} == {"main", "second"}
            algorithm.remove_policy("second")

    run: Any = SINGLE[name]()
    env = run.env
    run.environment(lambda _: OneAgent(gym.make(env, max_episode_steps=4))).callbacks(on_sample_end=change)
    run.multi_agent(policies=["main"], policy_mapping_fn=newest_in_the_second_env)
    with run.build() as algo:
        results = [sorted(algo.train()["learners"]) for _ in range(5)]
        assert results == [["main"], ["main"], ["main", "second"], ["main"], ["main"]]
        assert [*algo.replays] == ["main"]


def newest_in_the_second_env(agent: AgentID, episode: Any) -> str:
    return episode.policies[-1] if episode.env_index else "main"


def test_a_policy_that_took_the_id_of_another_is_resumed_with_its_own_buffer(tmp_path: Path) -> None:
    specs = {"pair": acting_as("b"), "late": acting_as("late"), "spare": acting_as("b")}
    with tags(policies=specs, policy_mapping_fn=mapping_fn).build() as algo:
        algo.remove_policy("spare")
        algo.add_policy("spare", spec=acting_as("late"), train=True)
        algo.train()
        path = algo.save(tmp_path / "ck")
    with Algorithm.from_checkpoint(path, allow=["tests"]) as loaded:
        assert isinstance(loaded, DQN)
        assert {name: replay.num_envs for name, replay in loaded.replays.items()} == {"pair": 4, "late": 2, "spare": 2}
        assert {*loaded.train()["learners"]} == {"pair", "late"}


def test_a_policy_whose_buffer_cannot_be_is_not_added() -> None:
    run: Any = tiny(CartPoles, env_config={"num_agents": 2}, policies=["main"], rollout_fragment_length=4)
    memory = RLModuleSpec(model_config={"fcnet_hiddens": [8], "use_gru": True, "max_seq_len": 40})
    with run.multi_agent(policy_mapping_fn=newest_for_the_second).build() as algo:
        with pytest.raises(ValueError, match=r"ReplayBuffer\(capacity\): expected at least 79 steps of each of 4 envs"):
            algo.add_policy("second", spec=memory, train=True)
        assert [*algo.policies] == [*algo.learner_group.module] == ["main"]
        assert [*algo.train()["learners"]] == ["main"]
        algo.add_policy("second", copy_of="main", train=True)
        algo.train()
        assert [*algo.train()["replay_buffer"]] == ["main", "second"]


def test_a_policy_that_learns_may_be_added_next_to_a_shared_one() -> None:
    """All agents stay mapped to the shared one, so the new one has nothing to learn from."""
    run: Any = tiny(CartPoles, env_config={"num_agents": 2}, policies="shared")
    with run.build() as algo:
        algo.add_policy("second", copy_of=ID, train=True)
        assert [*algo.policies] == [ID, "second"]
        assert [*algo.train()["replay_buffer"]] == [*algo.replays] == [ID]
        algo.remove_policy("second")
        assert [*algo.policies] == [ID]


def test_a_shared_policy_continues_with_another_number_of_agents(tmp_path: Path) -> None:
    run: Any = tiny(CartPoles, env_config={"num_agents": 2}, policies="shared", training_intensity=1.0)
    with run.build() as algo:
        for _ in range(2):
            algo.train()
        path, weights = algo.save(tmp_path / "ck"), clone(algo.get_module().get_state())
    more_agents: dict[str, Any] = {"env": CartPoles, "env_config": {"num_agents": 3}}
    with pytest.raises(ValueError, match=r"expected num_envs 6, got num_envs 4\..*replay_in_checkpoints=False"):
        Algorithm.from_checkpoint(path, **more_agents)
    with Algorithm.from_checkpoint(path, **more_agents, replay_in_checkpoints=False) as more:
        assert isinstance(more, DQN)
        assert differences(more.get_module().get_state(), weights) == []
        assert (more.replay.num_envs, more.replay.num_transitions) == (6, 0)
        result = more.train()
        assert {*result["env_runners"]["num_agent_steps_sampled_lifetime"]} == {*CART[:3]}
        assert result["learners"][ID]["num_target_updates"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("ray_started")
def test_runners_and_learners_elsewhere_learn_the_same() -> None:
    here = tags(num_envs_per_env_runner=4, rollout_fragment_length=2, training_intensity=2.0)
    there = here.copy().env_runners(num_env_runners=2, num_envs_per_env_runner=2)
    there.learners(num_learners=2).training(train_batch_size_per_learner=8)
    expected: Any = {}
    result: Any = {}
    with here.build() as one, there.build() as other:
        for _ in range(3):
            expected, result = one.train(), other.train()
        assert result["replay_buffer"] == expected["replay_buffer"]
        assert result["learners"].keys() == expected["learners"].keys() == {"pair", "late"}
        for name in ("pair", "late"):
            assert differences(one.replays[name].get_state()["obs"], other.replays[name].get_state()["obs"]) == []
            for key, value in expected["learners"][name].items():
                assert result["learners"][name][key] == pytest.approx(value, rel=1e-3, abs=1e-4)
