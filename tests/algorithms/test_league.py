"""Policies added and removed while a run goes on, and leagues: self-play against earlier versions."""

import itertools
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.ppo import PPOCatalog, PPOConfig
from algorithms.run.league import League, Matches, Standings
from rlmodule import Columns, RLModuleSpec
from rlmodule.agents.cartpoles import CartPoles
from rlmodule.agents.episode import AgentEpisode, MultiAgentEpisode
from rlmodule.agents.multi_agent_env import MultiAgentEnv
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.testing.data import clone, differences
from tests.algorithms.dqn.conftest import tiny
from tests.waiting import wait_for

SMALL = {"fcnet_hiddens": [8]}


class Higher(MultiAgentEnv):
    """Two agents name 0, 1 or 2; after `length` steps the higher sum gets 1, the other -1."""

    def __init__(self, length: int = 3) -> None:
        self.possible_agents, self.length = ["x", "y"], length
        self.observation_spaces = dict.fromkeys("xy", spaces.Box(0.0, 1.0, (2,), np.float32))
        self.action_spaces = dict.fromkeys("xy", spaces.Discrete(3))

    def _obs(self) -> dict[str, Any]:
        return dict.fromkeys("xy", np.full(2, self.t / self.length, np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t, self.sums = 0, Counter[str]()
        return self._obs(), {}

    def step(self, actions: dict[Any, Any]) -> Any:
        self.t += 1
        self.sums.update(actions)
        over, lead = self.t == self.length, float(np.sign(self.sums["x"] - self.sums["y"]))
        return self._obs(), {"x": lead * over, "y": -lead * over}, {"__all__": over}, {}, {}


def newest(agent: str, episode: Any) -> str:
    """ "x" acts with "main", "y" with the policy that was added last."""
    return "main" if agent == "x" else episode.policies[-1]


def config(**settings: Any) -> PPOConfig:
    values: dict[str, Any] = {"num_envs_per_env_runner": 4, "train_batch_size_per_learner": 32, "minibatch_size": 16}
    values |= {"policies": ["main"], "policy_mapping_fn": newest, "model_config": SMALL}
    return PPOConfig(env=Higher, seed=3, num_epochs=2, **values | settings)


def state_of(algo: Algorithm, policy_id: str) -> dict[str, Any]:
    return {name: x.clone() for name, x in algo.get_module(policy_id).get_state().items()}


# --- policies that come and go ----------------------------------------------------------------------------------------


def test_a_copy_acts_and_stays_as_it_is_while_the_original_learns() -> None:
    with config().build() as algo:
        algo.train()
        moments = algo.learner_group.learner.optimizers["main"].state_dict()["state"][0]["exp_avg"].clone()
        original, policies = state_of(algo, "main"), algo.policies
        algo.add_policy("old", copy_of="main")
        assert differences(state_of(algo, "old"), original) == []
        learner = algo.learner_group.learner
        assert [*learner.optimizers] == [*learner.parameters] == ["main"]
        assert not any(p.requires_grad for p in algo.get_module("old").parameters())
        assert torch.equal(learner.optimizers["main"].state_dict()["state"][0]["exp_avg"], moments)
        obs = np.ones(2, np.float32)
        assert policies["old"].act(obs)[0] == policies["main"].act(obs)[0]
        assert policies is algo.policies

        result = algo.train()
        assert [*result["learners"]] == ["main"]
        assert differences(state_of(algo, "old"), original) == []
        assert differences(state_of(algo, "main"), original) != []
        assert result["env_runners"]["module_episode_returns_mean"].keys() == {"main", "old"}


def test_an_added_policy_may_have_nets_of_its_own_and_learn() -> None:
    with config().build() as algo, config().build() as other:
        for one in (algo, other):
            one.add_policy("wide", spec=RLModuleSpec(model_config={"fcnet_hiddens": [5]}), train=True)
        assert algo.get_module("wide").model_config.fcnet_hiddens == (5,)
        before = state_of(algo, "wide")
        assert differences(before, state_of(other, "wide")) == []  # by the run's seed
        assert {*algo.train()["learners"]} == {"main", "wide"}
        assert differences(before, state_of(algo, "wide")) != []
        algo.remove_policy("wide")
        assert [*algo.learner_group.learner.optimizers] == [*algo.policies] == ["main"]
        assert [*algo.train()["learners"]] == ["main"]


def test_open_episodes_go_on_when_policies_come_and_go() -> None:
    """Episodes have 3 steps and rollouts 8: at their ends, 2 steps of an episode are open."""
    seen = list[list[str]]()

    def note(algorithm: Any, rollout: Any) -> None:
        seen.append([one.policy for one in rollout.stats["agent_episodes"] if one.agent == "y"])

    short = config(num_envs_per_env_runner=1, train_batch_size_per_learner=8, minibatch_size=8)
    with short.callbacks(on_sample_end=note).build() as algo:
        algo.train()
        algo.add_policy("a", copy_of="main")
        algo.train()
        algo.add_policy("b", copy_of="main")
        algo.remove_policy("a")
        assert [*algo.policies] == ["main", "b"]
        steps = algo.train()["env_runners"]["num_agent_steps_sampled_lifetime"]
        assert seen == [["main", "main"], ["main", "a", "a"], ["a", "b", "b"]]
        assert steps == {"x": 24, "y": 24}
        algo.train()
        assert [*algo.env_runner_group.local_runner._columns] == ["main", "b"]  # type: ignore[attr-defined]


class Gated(Higher):
    """Waits in `step` while there is a file `closed`."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def step(self, actions: dict[Any, Any]) -> Any:
        while (self.folder / "closed").exists():
            (self.folder / "waits").touch()
            time.sleep(0.005)
        return super().step(actions)


def make_gated(config: Any) -> Gated:
    return Gated(**config)


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_started")
def test_weights_are_posted_while_policies_come_and_go(tmp_path: Path) -> None:
    """Also to a runner that has calls from before, in which it lacks a module, has one too many or one of other
    nets."""
    with config(num_env_runners=1).environment(make_gated, env_config={"folder": str(tmp_path)}).build() as algo:
        runners: Any = algo.env_runner_group

        def ask(version: int) -> None:
            runners.ask(8, policy_version=version, in_flight=2)

        for version, nets in enumerate(([5], [7], [8]), 1):
            (tmp_path / "closed").touch()
            ask(version - 1)
            wait_for((tmp_path / "waits").exists)
            if "other" in algo.policies:
                algo.remove_policy("other")
            algo.add_policy("other", spec=RLModuleSpec(model_config={"fcnet_hiddens": nets}), train=True)
            with torch.no_grad():
                for parameter in algo.learner_group.module.parameters():
                    parameter.add_(0.01)
            runners.post_weights(version)
            for name in ("closed", "waits"):
                (tmp_path / name).unlink()
            runners.finish()  # the calls from before
            runners.take(len(runners.held))
            ask(version)
            *_, last = runners.take(2)
            assert last.policy_version == version
            rows = last.modules["other"].valid_rows([Columns.OBS, Columns.ACTION_DIST_INPUTS])
            expected = runners.module["other"].forward_inference(rows)[Columns.ACTION_DIST_INPUTS]
            torch.testing.assert_close(rows[Columns.ACTION_DIST_INPUTS], expected)


def test_an_episode_ends_with_a_policy_that_was_removed() -> None:
    with config(num_envs_per_env_runner=1, train_batch_size_per_learner=8, minibatch_size=8).build() as algo:
        algo.add_policy("a", copy_of="main")
        algo.train()
        algo.remove_policy("a")
        rollout: Any = algo.sample_rollouts()[0]
        assert [one.policy for one in rollout.stats["agent_episodes"] if one.agent == "y"] == ["a", "main", "main"]
        assert sum(rollout.stats["module_steps"].values()) == 16
        algo.add_policy("a", copy_of="main")
        assert algo.train()["env_runners"]["module_episode_returns_mean"].keys() == {"main", "a"}


def test_an_evaluation_plays_with_the_policies_that_are_there() -> None:
    with config().build() as algo:
        algo.add_policy("a", copy_of="main")
        assert algo.evaluate(num_episodes=4)["env_runners"]["module_episode_returns_mean"].keys() == {"main", "a"}
        algo.add_policy("b", copy_of="main")
        algo.remove_policy("a")
        assert algo.evaluate(num_episodes=4)["env_runners"]["module_episode_returns_mean"].keys() == {"main", "b"}


def acts_as_it_learns(algo: Algorithm, runners: Any, policy_id: str) -> bool:
    """Whether the runners' module has the nets of the learner's, and its tensors."""
    acts, learned = runners.module[policy_id], algo.get_module(policy_id)
    tensors = dict(learned.named_parameters())
    return acts.model_config == learned.model_config and all(tensors[name] is x for name, x in acts.named_parameters())


@pytest.mark.parametrize("nets", [{"fcnet_hiddens": [8, 8]}, {"fcnet_hiddens": [8], "fcnet_activation": "relu"}])
def test_an_evaluation_plays_with_a_policy_that_was_replaced_before_it(nets: dict[str, Any]) -> None:
    with config(policies=["main", "other"]).build() as algo:
        algo.remove_policy("other")
        algo.add_policy("other", spec=RLModuleSpec(model_config=nets))
        algo.evaluate(num_episodes=2)
        assert all(acts_as_it_learns(algo, algo.all_runners()[1], name) for name in ("main", "other"))


def same_for_all(agent: str, episode: Any) -> str:
    return episode.policies[-1]


@pytest.mark.parametrize("evaluates_before", [False, True])
def test_no_initial_policy_has_to_stay(evaluates_before: bool, tmp_path: Path) -> None:
    with config(policy_mapping_fn=same_for_all).build() as algo:
        if evaluates_before:
            algo.evaluate(num_episodes=1)
        algo.add_policy("b", copy_of="main", train=True)
        algo.remove_policy("main")
        algo.train()
        assert [*algo.evaluate(num_episodes=1)["env_runners"]["module_episode_returns_mean"]] == ["b"]
        path = algo.save(tmp_path / "ck")
    with Algorithm.from_checkpoint(path, env=Higher, policy_mapping_fn=same_for_all) as loaded:
        assert [*loaded.train()["learners"]] == [*loaded.policies] == ["b"]
        assert [*loaded.evaluate(num_episodes=1)["env_runners"]["module_episode_returns_mean"]] == ["b"]


@pytest.mark.parametrize("train", [False, True])
def test_a_policy_that_was_replaced_acts_after_the_run_was_resumed(train: bool, tmp_path: Path) -> None:
    wide = RLModuleSpec(model_config={"fcnet_hiddens": [5]})
    with config(policies=["main", "copied", "wide"]).build() as algo:
        algo.train()
        for policy_id in ("copied", "wide"):
            algo.remove_policy(policy_id)
        algo.add_policy("copied", copy_of="main", train=train)
        algo.add_policy("wide", spec=wide, train=train)
        path = algo.save(tmp_path / "ck")
    with Algorithm.from_checkpoint(path, env=Higher, policy_mapping_fn=newest) as loaded:
        runners = loaded.env_runner_group
        for policy_id in ("main", "copied", "wide"):
            assert acts_as_it_learns(loaded, runners, policy_id)
            assert loaded.policies[policy_id].module is runners.module[policy_id]
        assert {*loaded.train()["learners"]} == ({"main", "wide"} if train else {"main"})
        assert acts_as_it_learns(loaded, runners, "wide")


def test_policies_have_the_same_order_after_the_run_was_resumed(tmp_path: Path) -> None:
    with config(policies=["main", "old"]).build() as algo:
        algo.add_policy("second", copy_of="main")
        algo.remove_policy("old")
        algo.add_policy("old", copy_of="main")
        path, ids = algo.save(tmp_path / "ck"), [*algo.policies]
    with Algorithm.from_checkpoint(path, env=Higher, policy_mapping_fn=newest) as loaded:
        assert [*loaded.policies] == ids == ["main", "second", "old"]


def test_a_policy_has_the_overrides_of_its_id_or_no_copy_of_it_learns() -> None:
    overrides = {"main": {"dueling": True, "lr": 0.1}}
    run: Any = tiny(Higher, policies=["main", "b"], policy_mapping_fn=newest, policy_overrides=overrides)
    with run.multi_agent(policy_mapping_fn=lambda agent, episode: episode.policies[0]).build() as algo:
        with pytest.raises(ValueError, match=r"got 'main', whose dueling, lr a copy would not learn with"):
            algo.add_policy("copy", copy_of="main", train=True)
        algo.add_policy("copy", copy_of="main")
        assert algo.get_module("copy").model_config.dueling
        algo.remove_policy("main")
        algo.add_policy("main", spec=RLModuleSpec(), train=True)
        assert algo.get_module("main").model_config.dueling


def test_an_earlier_state_has_the_policy_that_was_replaced_since() -> None:
    with config().build() as algo:
        algo.add_policy("other", copy_of="main")
        state, expected = clone(algo.get_state()), state_of(algo, "main")
        algo.remove_policy("other")
        algo.add_policy("other", spec=RLModuleSpec(model_config={"fcnet_hiddens": [5]}), train=True)
        algo.train()
        algo.set_state(state)
        assert differences(state_of(algo, "other"), expected) == []
        assert acts_as_it_learns(algo, algo.env_runner_group, "other")
        assert [*algo.train()["learners"]] == ["main"]


@pytest.mark.parametrize("event", ["on_sample_end", "on_episode_end"])
def test_a_callback_may_change_the_policies_that_train(event: str) -> None:
    """The rollout in which "other" was removed or replaced has rows of it, from which nothing learns."""
    changes = {2: "replace", 4: "remove"}

    def change(algorithm: Any, **_: Any) -> None:
        due = changes.pop(algorithm.metrics.iterations, None)
        if due is not None:
            algorithm.remove_policy("other")
        if due == "replace":
            algorithm.add_policy("other", spec=RLModuleSpec(model_config={"fcnet_hiddens": [5]}), train=True)

    with config(policies=["main", "other"], **{event: change}).build() as algo:
        results = [sorted(algo.train()["learners"]) for _ in range(6)]
    both = ["main", "other"]
    assert results == [both, both, ["main"], both, ["main"], ["main"]]


def test_a_policy_that_was_removed_leaves_the_metrics_though_it_still_plays() -> None:
    """Episodes have 3 steps and rollouts 8, so one with "a" is open when it is removed."""
    with config(num_envs_per_env_runner=1, train_batch_size_per_learner=8, minibatch_size=8).build() as algo:
        algo.add_policy("a", copy_of="main")
        assert {*algo.train()["env_runners"]["module_episode_returns_mean"]} == {"main", "a"}
        algo.remove_policy("a")
        played = algo.train()["env_runners"]
        assert played["module_episode_returns_mean"].keys() == {"main"}
        assert played["num_module_steps_sampled_lifetime"] == {"main": 8 + 8 + 7}
        assert played["num_agent_steps_sampled_lifetime"] == {"x": 16, "y": 16}


def test_added_policies_are_in_checkpoints(tmp_path: Path) -> None:
    with config(policies=["main", "spare"]).build() as algo:
        algo.add_policy("copy", copy_of="main")
        algo.add_policy("wide", spec=RLModuleSpec(model_config={"fcnet_hiddens": [5]}), train=True)
        algo.add_policy("second", copy_of="copy")
        algo.remove_policy("spare")
        algo.train()
        path = algo.save(tmp_path / "ck")
        state = algo.get_state()
        algo.remove_policy("second")
        algo.set_state(state)
        assert [*algo.policies] == ["main", "copy", "wide", "second"]
        with Algorithm.from_checkpoint(path, env=Higher, policy_mapping_fn=newest) as loaded:
            assert differences(loaded.get_state()["policies"], state["policies"]) == []
            assert differences(loaded.learner_group.get_state(), algo.learner_group.get_state()) == []
            assert [*loaded.policies] == ["main", "copy", "wide", "second"]
            assert [*loaded.learner_group.learner.optimizers] == ["main", "wide"]
            first = loaded.train()["learners"]
        with Algorithm.from_checkpoint(path, env=Higher, policy_mapping_fn=newest) as again:
            assert again.train()["learners"] == first


class Own(PPOCatalog):
    """A catalog that checkpoints name, and may not import."""


def test_a_checkpoint_imports_no_spec_that_is_not_allowed(tmp_path: Path) -> None:
    with config().build() as algo:
        algo.add_policy("own", spec=RLModuleSpec(catalog_class=Own))
        path = algo.save(tmp_path / "ck")
    objects: dict[str, Any] = {"env": Higher, "policy_mapping_fn": newest}
    with pytest.raises(ValueError, match=r"expected an import path that you allow, got 'tests.*:Own'"):
        Algorithm.from_checkpoint(path, **objects)
    with Algorithm.from_checkpoint(path, allow=[__name__], **objects) as loaded:
        assert type(loaded.get_module("own").catalog) is Own


WRONG: dict[str, tuple[Any, str]] = {
    "twice": (
        lambda a: a.add_policy("main", copy_of="main"),
        r"add_policy\('main'\): expected an id other than 'main'",
    ),
    "of an unknown one": (
        lambda a: a.add_policy("a", copy_of="mian"),
        r"copy_of: expected one of the policies .*'main'",
    ),
    "of nothing": (lambda a: a.add_policy("a"), "expected one of copy_of and spec, got neither"),
    "with a dot": (lambda a: a.add_policy("a.b", copy_of="main"), "expected ids without dots"),
    "with other spaces": (
        lambda a: a.add_policy("a", spec=RLModuleSpec(observation_space=spaces.Box(0, 1, (9,)))),
        "expected the spaces of an agent, got ",
    ),
    "removal of an unknown one": (lambda a: a.remove_policy("mian"), "expected one of the policies .*'main'"),
    "removal of the last": (lambda a: a.remove_policy("main"), "expected another policy that is trained, got the last"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_added_or_removed(case: str) -> None:
    call, message = WRONG[case]
    with config().build() as algo:
        before = algo.get_state().get("policies")
        with pytest.raises(ValueError, match=message):
            call(algo)
        assert algo.get_state().get("policies") == before
        algo.train()


def test_a_policy_with_agents_stays() -> None:
    by_agent = {"x": "main", "y": "other"}
    with config(policies=["main", "other", "spare"], policy_mapping_fn=by_agent).build() as algo:
        algo.remove_policy("spare")
        with pytest.raises(ValueError, match=r"remove_policy\('other'\): expected a policy that no agent is mapped to"):
            algo.remove_policy("other")
    later = False

    def mapping_fn(agent: Any, episode: Any) -> str:
        return "a" if agent == "y" and later else "main"

    with config(policy_mapping_fn=mapping_fn).build() as algo:
        algo.add_policy("a", copy_of="main")
        later = True
        algo.train()
        algo.remove_policy("a")
        with pytest.raises(ValueError, match=r"agent 'y': expected one of the policies \['main'\], got 'a'"):
            algo.train()
    single, several = (
        PPOConfig(env="CartPole-v1", train_batch_size_per_learner=64),
        "expected a run with several agents",
    )
    with single.build() as algo, pytest.raises(ValueError, match=rf"PPO\.add_policy\(\): {several}"):
        algo.add_policy("a", copy_of="default_policy")


# --- leagues ----------------------------------------------------------------------------------------------------------


def league(**settings: Any) -> PPOConfig:
    return config(policy_mapping_fn=None, league=League(**settings))


def standings(**settings: Any) -> Standings:
    return Standings(League(**settings), "main", ["x", "y"], lambda: None)


def test_chances_prefer_opponents_that_are_hard_to_beat() -> None:
    """Win rates are (wins + 1) / (games + 2)."""
    table = standings(power=2.0, self_play=0.1, newest=0.3)
    table.games = {"a": (8.0, 4.0), "b": (8.0, 7.0), "c": (0.0, 0.0)}
    assert table.win_rates() == {"a": 0.5, "b": 0.8, "c": 0.5}
    hard = 0.25 + 0.04 + 0.25
    expected = {"main": 0.1, "a": 0.6 * 0.25 / hard, "b": 0.6 * 0.04 / hard, "c": 0.6 * 0.25 / hard + 0.3}
    assert table.chances() == pytest.approx(expected)


def test_a_game_is_won_by_the_higher_mean_return() -> None:
    def episode(**returns: list[float]) -> SimpleNamespace:
        ends = [AgentEpisode(i, policy, one, 1) for policy, values in returns.items() for i, one in enumerate(values)]
        return SimpleNamespace(finished=ends)

    table = standings()
    table.games = {"a": (0.0, 0.0), "b": (0.0, 0.0)}
    episodes = [
        episode(main=[1.0], a=[0.0, 1.0]),  # won
        episode(main=[0.0], a=[0.0]),  # half
        episode(main=[-1.0], b=[1.0]),  # lost
        episode(main=[1.0, -1.0]),  # against itself
        episode(main=[1.0], gone=[0.0]),
    ]
    table.on_sample_end(algorithm=None, rollout=SimpleNamespace(stats={"multi_agent_episodes": episodes}))  # type: ignore
    table._count()
    assert table.games == {"a": (2.0, 1.5), "b": (1.0, 0.0)}
    table.on_sample_end(algorithm=None, rollout=SimpleNamespace(stats={"multi_agent_episodes": episodes[:2]}))  # type: ignore
    table._count()
    assert table.games == {"a": pytest.approx((2 + 2 * 0.99**2, 1.5 + 1.5 * 0.99**2)), "b": (1.0, 0.0)}


def test_an_agent_that_returns_counts_once_with_the_sum_of_its_returns() -> None:
    """The agent of "main" has 1 + 1 against 1.5, so its mean per agent is higher, and its mean per life lower."""
    table = standings()
    table.games = {"a": (0.0, 0.0)}
    lives = [AgentEpisode("x", "main", 1.0, 1), AgentEpisode("y", "a", 1.5, 2), AgentEpisode("x", "main", 1.0, 1)]
    table.on_sample_end(
        algorithm=None, rollout=SimpleNamespace(stats={"multi_agent_episodes": [SimpleNamespace(finished=lives)]})
    )  # type: ignore
    table._count()
    assert table.games == {"a": (1.0, 1.0)}


def test_a_callback_may_remove_a_snapshot_that_was_played() -> None:
    def drop_the_first(algorithm: Any, **_: Any) -> None:
        if len(algorithm.policies) > 2 and "main_0" in algorithm.policies:
            algorithm.remove_policy("main_0")

    with league(every=1).callbacks(on_train_result=drop_the_first).build() as algo:
        results = [algo.train()["league"] for _ in range(3)]
    assert [[*one["win_rates"]] for one in results] == [["main_0"], ["main_1"], ["main_1", "main_2"]]


def test_an_algorithm_with_replay_may_have_a_league(tmp_path: Path) -> None:
    run: Any = tiny(Higher, num_env_steps_per_iteration=32, policies="shared", league=League(every=1, max_snapshots=2))
    with run.build() as algo:
        initial = state_of(algo, "default_policy")
        results = [algo.train() for _ in range(3)]
        assert [one["league"]["num_snapshots"] for one in results] == [2, 2, 2]
        assert [*algo.policies][-1] == "default_policy_3"
        assert [*algo.replays] == [*results[-1]["learners"]] == ["default_policy"]
        steps = results[-1]["env_runners"]["num_module_steps_sampled_lifetime"]["default_policy"]
        assert 96 < steps < 192  # 2 of each env step in games against itself, else 1
        assert algo.replay.num_envs == 4
        assert differences(state_of(algo, "default_policy"), initial) != []
        path = algo.save(tmp_path / "ck")
        expected = algo.train()["league"]
    with Algorithm.from_checkpoint(path, env=Higher) as loaded:
        assert loaded.train()["league"] == expected


def test_matches_depend_on_seed_env_and_episode_and_follow_the_chances() -> None:
    chances = {"main": 0.2, "a": 0.5, "b": 0.3}

    def drawn(matches: Matches) -> list[tuple[str, ...]]:
        fixed: Any = {"agents": [], "finished": [], "policies": [*chances]}
        episodes: Any = [SimpleNamespace(env_index=e, number=n, **fixed) for e in range(2) for n in range(1000)]
        return [tuple(matches(agent, episode) for agent in "xyz") for episode in episodes]

    first, other = drawn(Matches(1, "xyz", "main", chances)), drawn(Matches(2, "xyz", "main", chances))
    assert drawn(Matches(1, "xyz", "main", chances)) == first != other
    counts = Counter(frozenset(Counter(one).items()) for one in first)
    assert {one: count / 2000 for one, count in counts.items()} == pytest.approx(
        {
            frozenset({("main", 3)}): 0.2,
            frozenset({("main", 1), ("a", 2)}): 0.5,
            frozenset({("main", 1), ("b", 2)}): 0.3,
        },
        abs=0.05,
    )
    seats = Counter(one.index("main") for one in first if len({*one}) > 1)
    assert [seats[seat] / 1600 for seat in range(3)] == pytest.approx([1 / 3] * 3, abs=0.05)


def test_a_league_keeps_as_many_snapshots_as_it_may_and_continues_from_a_checkpoint(tmp_path: Path) -> None:
    with league(every=2, max_snapshots=3).build() as algo:
        assert [*algo.policies] == ["main", "main_0"]
        initial, results = state_of(algo, "main"), [algo.train() for _ in range(7)]
        assert [one["league"]["num_snapshots"] for one in results] == [1, 2, 2, 3, 3, 3, 3]
        assert [*results[-1]["league"]["win_rates"]][-1] == "main_6"
        assert {*algo.policies} == {"main", *results[-1]["league"]["win_rates"]}
        for name in algo.policies:
            assert (differences(state_of(algo, name), initial) == []) == (name == "main_0")
        assert sum(games for games, _ in algo.get_state()["policies"]["league"].values()) > 20
        path = algo.save(tmp_path / "ck")
        with Algorithm.from_checkpoint(path, env=Higher) as loaded:
            assert loaded.config == algo.config
            assert differences(loaded.get_state()["policies"], algo.get_state()["policies"]) == []
            results = [loaded.train() for _ in range(2)]
            assert results[-1]["training_iteration"] == 9
            assert "main_8" in results[-1]["league"]["win_rates"]
        with Algorithm.from_checkpoint(path, env=Higher) as again:
            assert [again.train()["league"] for _ in range(2)] == [one["league"] for one in results]
        assert algo.policies.act({"x": np.ones(2, np.float32)})[1]["x"][0] == "main"  # also if "x" would be an opponent
        while len(algo.policies) > 2:
            algo.remove_policy([*algo.policies][-1])
        with pytest.raises(ValueError, match="expected another snapshot, got the last one: a league without opponents"):
            algo.remove_policy([*algo.policies][-1])
        algo.train()


def test_a_win_rate_is_a_reason_for_a_snapshot() -> None:
    with league(every=None, win_rate=0.52, self_play=0.0, max_snapshots=100).build() as algo:
        results = [algo.train()["league"] for _ in range(12)]
    for before, after in itertools.pairwise(results):
        assert after["num_snapshots"] - before["num_snapshots"] == (after["win_rate"] >= 0.52)
    assert results[-1]["num_snapshots"] > 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: League(self_play=1.0), "a league without opponents"),
        (lambda: League(self_play=0.7, newest=0.7), "at most 1 together with newest, got 0.7 and 0.7"),
        (lambda: League(every=None), "expected every or win_rate"),
        (lambda: League(max_snapshots=0), "expected finite int, >= 1, got 0"),
        (
            lambda: config(policies=["main", "b"], league=League()).build(),
            "expected one policy and no policy_mapping_fn",
        ),
        (lambda: config(league=League()).build(), "expected one policy and no policy_mapping_fn"),
        (
            lambda: league().environment(CartPoles, env_config={"num_agents": 1}).build(),
            r"for several agents, .*got main for \['cart_0'\]",
        ),
        (lambda: PPOConfig(env="CartPole-v1", league={}).build(), "league: expected nothing without policies"),
    ],
)
def test_leagues_that_cannot_be(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_run_without_a_league_gets_none_from_a_checkpoint(tmp_path: Path) -> None:
    with config(policy_mapping_fn=None).build() as algo:
        path = algo.save(tmp_path / "ck")
    with pytest.raises(ValueError, match=r"^from_checkpoint\(league=\): expected None, since the saved run has no lea"):
        Algorithm.from_checkpoint(path, env=Higher, league=League())
    Algorithm.from_checkpoint(path, env=Higher, league=None).stop()


def test_a_league_goes_on_with_fewer_snapshots_and_beside_policies_of_other_ids(tmp_path: Path) -> None:
    with league(every=1, max_snapshots=4).build() as algo:
        algo.add_policy("main_2", copy_of="main")
        assert [algo.train()["league"]["num_snapshots"] for _ in range(4)] == [2, 3, 4, 4]
        assert {"main_2", "main_2_"} <= {*algo.policies}
        path = algo.save(tmp_path / "ck")
    with Algorithm.from_checkpoint(path, env=Higher, league=League(every=1, max_snapshots=2)) as loaded:
        assert loaded.train()["league"]["num_snapshots"] == 2


def test_a_league_may_be_a_dict_of_settings() -> None:
    assert config(league={"every": 3}).league == League(every=3)
    with pytest.raises(TypeError, match=r"unknown name 'evry'.*'every'"):
        config(league={"evry": 3})


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_started")
def test_runners_and_learners_elsewhere_have_the_same_league() -> None:
    here = league(every=2, max_snapshots=2)
    there = here.copy().env_runners(num_env_runners=2, num_envs_per_env_runner=2).learners(num_learners=1)
    sent = list[int]()
    with here.build() as one, there.build() as other:
        for _ in range(3):
            expected, result = one.train(), other.train()
            assert result["league"] == expected["league"]
            assert (
                result["env_runners"]["num_module_steps_sampled_lifetime"]
                == expected["env_runners"]["num_module_steps_sampled_lifetime"]
            )
            assert result["learners"]["main"]["policy_loss"] == pytest.approx(
                expected["learners"]["main"]["policy_loss"], rel=1e-3, abs=1e-5
            )
            sent.append(result["workers"]["num_weight_bytes_sent_lifetime"])
        assert [*other.policies] == [*one.policies]
        assert {after - before for before, after in itertools.pairwise(sent)} == {sent[0]}  # of "main" alone
        runners: Any = other.env_runner_group
        runners.workers.restart(0)  # the new process knows what was added
        other.train()
        steps = other.train()["env_runners"]["num_module_steps_sampled_lifetime"]
        assert {*steps} >= {"main", "main_2"}
        assert runners.num_env_steps_lost.total() == 0


def test_an_agent_that_starts_late_gets_the_opponent_of_its_episode() -> None:
    """Even if the league has other chances by then; unless the opponent is gone."""
    agents, before, after = list("xyz"), Matches(1, "xyz", "main", {"a": 1.0}), Matches(1, "xyz", "main", {"b": 1.0})
    for number in range(20):
        policy_map = PolicyMap(agents, ["main", "a", "b"], before)
        episode = MultiAgentEpisode(0, number, agents, policy_map, np.zeros(3))
        first = {agent: episode.join(agent) for agent in "xy"}
        if number % 2:
            for agent in "xy":
                episode.leave(AgentEpisode(agent, first[agent], 0.0, 1))
        policy_map.update(["main", "a", "b"], after)
        everyone = first | {"z": episode.join("z")}
        assert sorted(everyone.values()) == ["a", "a", "main"]
        policy_map.update(["main", "b"], after)
        gone = MultiAgentEpisode(0, number, agents, PolicyMap(agents, ["main", "b"], after), np.zeros(3))
        gone.set_state(episode.get_state() | {"in_play": ["x", "y"], "policies": [*first.items()], "finished": []})
        assert gone.join("z") == ("main" if everyone["z"] == "main" else "b")
