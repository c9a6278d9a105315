"""Runs with several agents: policies of a config, one agent as today's run, metrics, evaluation, checkpoints, Ray."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from algorithms.run.callbacks import FinishedEpisode
from algorithms.run.video import player_of
from rlmodule import MultiRLModuleSpec, RLModuleSpec
from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.multi_agent_env import MultiAgentEnv
from rlmodule.testing.data import differences
from tests.rlmodule.agents.envs import CartPoles, Moment, OneAgent, ScriptedEnv

ID = "default_policy"
SMALL = {"fcnet_hiddens": [8]}


class Tags(MultiAgentEnv):
    """Agents 1 and "b" play until step `length`, "late" starts in step 2. Rewards are 1, 10 and 100 in each step.

    The observations of "late" have another width, so its policy must be another one.
    """

    def __init__(self, length: int = 5, width: int = 3) -> None:
        self.possible_agents, self.length = [1, "b", "late"], length
        narrow, wide = (spaces.Box(-1.0, 100.0, (n,), np.float32) for n in (2, width))
        self.observation_spaces = {1: narrow, "b": narrow, "late": wide}
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(2))

    def _obs(self) -> dict[Any, Any]:
        playing = self.possible_agents[: 3 if self.t > 1 else 2]
        return {agent: np.full(self.observation_spaces[agent].shape or (), self.t, np.float32) for agent in playing}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, actions: dict[Any, Any]) -> Any:
        self.t += 1
        rewards = {agent: {1: 1.0, "b": 10.0, "late": 100.0}[agent] for agent in actions}
        return self._obs(), rewards, {"__all__": self.t == self.length}, {}, {}


def config(env: Any = CartPoles, **settings: Any) -> PPOConfig:
    values: dict[str, Any] = {"num_envs_per_env_runner": 2, "train_batch_size_per_learner": 64, "minibatch_size": 32}
    values["model_config"] = SMALL
    return PPOConfig(env=env, seed=3, num_epochs=2, **values | settings)


def tags(**settings: Any) -> PPOConfig:
    return config(Tags, **{"policies": ["pair", "late"], "policy_mapping_fn": MAPPING} | settings)


MAPPING = {1: "pair", "b": "pair", "late": "late"}


def mapping_fn(agent: Any, episode: Any) -> str:
    return MAPPING[agent]


# --- which policies there are -----------------------------------------------------------------------------------------

CART = ["cart_0", "cart_1", "cart_2", "cart_3"]
WIDE = RLModuleSpec(model_config={"fcnet_hiddens": [5]})


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ("shared", [ID]),
        ("own", CART),
        (["x"], ["x"]),
        ({*CART}, CART),
        (lambda agents: {agent: RLModuleSpec() for agent in agents}, CART),
        (lambda agents: "own", CART),
        (MultiRLModuleSpec({"only": WIDE}), ["only"]),
    ],
    ids=["shared", "own", "list", "set", "specs of a function", "word of a function", "MultiRLModuleSpec"],
)
def test_policies_are_resolved_with_the_agents_of_the_env(policies: Any, expected: list[str]) -> None:
    group = config().multi_agent(policies=policies).build_learner_group()
    assert [*group.module] == expected


def test_learners_alone_take_the_spaces_of_an_env_or_of_agents() -> None:
    env: Any = Tags()
    spaces_by_agent: Any = env.observation_spaces, env.action_spaces
    for given in ({"env": env}, {"spaces": spaces_by_agent}, {}):
        module = tags().build_learner_group(**given).module
        assert [module[name].observation_space.shape for name in ("pair", "late")] == [(2,), (3,)]


def test_each_policy_has_its_own_spec_and_spaces_and_the_rest_of_the_config() -> None:
    with tags(policies={"pair": RLModuleSpec(), "late": WIDE}).build() as algo:
        pair, late = algo.get_module("pair"), algo.get_module("late")
        assert (pair.observation_space.shape, late.observation_space.shape) == ((2,), (3,))
        assert pair.model_config.fcnet_hiddens == (8,)
        assert late.model_config.fcnet_hiddens == (5,)
        assert {*algo.train()["learners"]} == {"pair", "late"}


def test_a_spec_names_what_differs_from_the_model_config_of_the_run() -> None:
    nets = {"fcnet_hiddens": [8], "fcnet_activation": "relu"}
    run = tags(policies={"pair": RLModuleSpec(), "late": WIDE}, model_config=nets)
    module = run.build_learner_group().module
    read = [
        (module[name].model_config.fcnet_hiddens, module[name].model_config.fcnet_activation) for name in run.policies
    ]
    assert read == [((8,), "relu"), ((5,), "relu")]


def test_a_policy_has_the_spaces_of_the_agents_that_a_function_maps_to_it() -> None:
    with tags(policy_mapping_fn=mapping_fn).build() as algo:
        shapes = {name: algo.get_module(name).observation_space.shape for name in ("pair", "late")}
        assert shapes == {"pair": (2,), "late": (3,)}
        assert {*algo.train()["learners"]} == {"pair", "late"}


def test_a_policy_that_a_function_uses_later_has_the_spaces_of_its_spec() -> None:
    def later(agent: Any, episode: Any) -> str:
        return "spare" if agent == "b" and episode.number else MAPPING[agent]

    seen, acts = Tags().observation_spaces["b"], spaces.Discrete(2)
    specs = {"pair": RLModuleSpec(), "late": RLModuleSpec(), "spare": RLModuleSpec(None, seen, acts)}
    with tags(policies=specs, policy_mapping_fn=later).build() as algo:
        assert {*algo.train()["learners"]} == {"pair", "late", "spare"}
    expected = r"policy 'spare': expected agents with the same spaces, .* maps no agent to the policy in the first epi"
    with pytest.raises(ValueError, match=expected):
        tags(policies=[*specs], policy_mapping_fn=later).build()


@pytest.mark.parametrize("num_agents", [1, 3])
def test_one_number_sets_agents_and_policies(num_agents: int) -> None:
    def generated(agents: list[Any]) -> dict[str, RLModuleSpec]:
        return {agent: RLModuleSpec(model_config={"fcnet_hiddens": [8 * n]}) for n, agent in enumerate(agents, 1)}

    generating = config(env_config={"num_agents": num_agents}, policies=generated)
    for of in (generating, generating.copy().multi_agent(policies="own")):
        with of.build() as algo:
            assert [*algo.train()["learners"]] == CART[:num_agents]
            widths = [algo.get_module(name).model_config.fcnet_hiddens for name in algo.policies]
            assert widths == [(8 * n if of is generating else 8,) for n in range(1, num_agents + 1)]


class Other(PPOCatalog):
    """Another catalog."""


class OtherModule(PPOModule):
    """Another module."""


def test_policies_may_have_catalogs_of_their_own() -> None:
    specs = {"pair": RLModuleSpec(catalog_class=Other), "late": RLModuleSpec(module_class=OtherModule)}
    with tags(policies=specs).build() as algo:
        modules = [algo.get_module(name) for name in ("pair", "late")]
        assert [type(module.catalog) for module in modules] == [Other, PPOCatalog]
        assert [type(module) for module in modules] == [PPOModule, OtherModule]
        assert {*algo.train()["learners"]} == {"pair", "late"}


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no mapping": (
        lambda: config(policies=["x", "y"]).build(),
        "policy_mapping_fn: expected a function or a dict, since the policies x, y do not have the names",
    ),
    "agent without mapping": (
        lambda: tags(policy_mapping_fn={1: "pair", "b": "pair"}).build(),
        r"expected a policy for each agent, got none for \['late'\]",
    ),
    "unknown policy": (
        lambda: tags(policy_mapping_fn=MAPPING | {"b": "pear"}).build(),
        r"agent 'b': expected one of the policies \['pair', 'late'\], got 'pear'",
    ),
    "unknown policy in evaluations": (
        lambda: tags(evaluation_policy_mapping_fn=dict.fromkeys(MAPPING, "pear")).build(),
        r"^evaluation_policy_mapping_fn, agent .*: expected one of the policies \['pair', 'late'\], got 'pear'",
    ),
    "a function that names an unknown policy": (
        lambda: tags(policy_mapping_fn=lambda agent, episode: "pear").build(),
        r"^policy_mapping_fn, agent .*: expected one of the policies \['pair', 'late'\], got 'pear'",
    ),
    "a function that raises in evaluations": (
        lambda: tags(evaluation_policy_mapping_fn=lambda agent, episode: {"b": "late"}[agent]).build(),
        r"^evaluation_policy_mapping_fn, agent .*: expected the id of a policy, got KeyError",
    ),
    "other spaces": (
        lambda: tags(policy_mapping_fn=dict.fromkeys(MAPPING, "pair")).build(),
        "policy 'pair': expected agents with the same spaces, got ",
    ),
    "other spaces than those of the spec": (
        lambda: tags(
            policies={"pair": RLModuleSpec(), "late": RLModuleSpec(None, spaces.Box(0, 1, (9,)), spaces.Discrete(2))}
        ).build(),
        "agent 'late': expected a module with its spaces",
    ),
    "nobody trained": (
        lambda: tags(policies_to_train=lambda policy_id: False).build(),
        "policies_to_train: expected at least one policy that agents act with \\(pair, late\\), got none",
    ),
    "nobody trained that acts": (
        lambda: config(
            policies=["x", "y"], policy_mapping_fn=dict.fromkeys(CART, "x"), policies_to_train=["y"]
        ).build(),
        r"policies_to_train: expected at least one policy that agents act with \(x\), got none",
    ),
    "unknown policy trained": (
        lambda: tags(policies_to_train=["pear"]).build(),
        r"policies_to_train: expected one of the policies \['pair', 'late'\], got 'pear'.*'pair'",
    ),
    "a function of more than a policy": (
        lambda: tags(policies_to_train=lambda policy_id, batch: True).build(),
        r"^policies_to_train, policy 'pair': expected whether it trains, got TypeError: .*to_train\(policy_id\)",
    ),
    "unknown policy overridden": (
        lambda: tags(policy_overrides={"pear": {"gamma": 0.5}}).build(),
        "policy_overrides: expected one of the policies ",
    ),
    "no policies": (lambda: config(policies=[]).build(), "expected at least one policy, not named 'timers', got none"),
    "the same twice": (
        lambda: config(policies=["a", "a"]).build(),
        r"PPOConfig\.policies: expected ids that differ, got \['a', 'a'\]",
    ),
    "timers": (lambda: config(policies=["timers"]).build(), "got 'timers', a section of the result"),
    "one agent": (lambda: PPOConfig(env="CartPole-v1", policies="own").build(), "got an id of Gymnasium"),
    "several agents": (lambda: config(CartPoles).build(), r"needs \.multi_agent\(policies='shared'\)"),
    "mapping alone": (
        lambda: config(policy_mapping_fn=MAPPING).build(),
        "policy_mapping_fn: expected nothing without policies",
    ),
    "async": (
        lambda: config(policies="own", gym_env_vectorize_mode="async").build(),
        "expected None or 'sync' with several agents",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_told_when_the_run_is_built(case: str) -> None:
    build, message = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_a_function_must_return_policies() -> None:
    with pytest.raises(TypeError, match=r"policies, the result of the function: expected 'shared', .* got None"):
        config(policies=lambda agents: None).build()
    with pytest.raises(TypeError, match=r"overrides\(policies=\): expected 'shared' \| 'own'"):
        config(policies=lambda agents: 3).build()


OVERRIDES = {
    "the batch": ({"train_batch_size_per_learner": 9}, r"All policies have the same: write \.training\(train_batch"),
    "runners": ({"num_env_runners": 2}, r"All policies have the same: write \.env_runners\(num_env_runners"),
    "a typo": ({"gama": 0.5}, r"got 'gama'. .*'gamma'"),
}


@pytest.mark.parametrize("case", OVERRIDES)
def test_overrides_are_settings_that_belong_to_one_policy(case: str) -> None:
    values, message = OVERRIDES[case]
    before = config(policies="own")
    with pytest.raises(
        TypeError, match=rf"^PPOConfig\.policy_overrides\['cart_0'\]: expected some of gamma, .*{message}"
    ):
        before.multi_agent(policy_overrides={"cart_0": values})
    assert before.policy_overrides == {}
    with pytest.raises(ValueError, match=r"policy_overrides\['a'\]\.gamma: expected finite float, >= 0 and <= 1"):
        before.multi_agent(policy_overrides={"a": {"gamma": 3.0}})


# --- what a run does --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [SMALL, {**SMALL, "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}])
def test_a_run_with_one_agent_is_that_of_its_env(model: dict[str, Any]) -> None:
    single = config("CartPole-v1", clip_rewards=0.5).rl_module(model_config=model)
    several = single.copy().environment(lambda env_config: OneAgent("CartPole-v1")).multi_agent(policies="own")
    with single.build() as one, several.build() as other:
        for _ in range(3):
            expected, result = one.train(), other.train()
            assert result["learners"] == {"agent": expected["learners"][ID]}
            for name in ("episode_return_mean", "episode_len_mean", "num_env_steps_sampled_lifetime"):
                assert result["env_runners"][name] == expected["env_runners"][name]
        assert differences(other.get_module("agent").get_state(), one.get_module().get_state()) == []
        expected, result = (algo.evaluate(num_episodes=3)["env_runners"] for algo in (one, other))
        assert result["episode_return_mean"] == expected["episode_return_mean"]


def test_metrics_are_by_env_by_agent_and_by_module() -> None:
    """Each episode has 5 steps; agents 1 and "b" act in all, "late" in those from 2 on."""
    with tags(rollout_fragment_length=32).build() as algo:
        played = algo.train()["env_runners"]
        assert played["episode_return_mean"] == 5 * 1 + 5 * 10 + 3 * 100
        assert played["episode_len_mean"] == 5
        assert played["num_env_steps_sampled_lifetime"] == 64
        assert played["num_episodes_lifetime"] == 2 * 6
        assert played["agent_episode_returns_mean"] == {1: 5.0, "b": 50.0, "late": 300.0}
        assert played["module_episode_returns_mean"] == {"pair": 27.5, "late": 300.0}
        # of the 7th episode, 2 steps: "late" has observed and not acted
        assert played["num_agent_steps_sampled_lifetime"] == {1: 64, "b": 64, "late": 36}
        assert played["num_module_steps_sampled_lifetime"] == {"pair": 128, "late": 36}
        assert algo.train()["env_runners"]["num_module_steps_sampled_lifetime"]["pair"] == 256
        evaluated = algo.evaluate(num_episodes=3)["env_runners"]
        assert evaluated["agent_episode_returns_mean"] == {1: 5.0, "b": 50.0, "late": 300.0}
        assert evaluated["module_episode_returns_mean"] == {"pair": 27.5, "late": 300.0}


TWICE = [
    Moment(["a", "b"]),
    Moment(["b"], {"a": 1.0, "b": 2.0}, terminated=["a"]),
    Moment(["a", "b"]),
    Moment(rewards={"a": 5.0, "b": 2.0}, final=["a", "b"], terminated=["__all__"]),
]


def shown(episode: FinishedEpisode) -> MultiAgentEpisode:
    """What a callback sees of the agents."""
    assert episode.multi_agent is not None
    return episode.multi_agent


def test_an_agent_that_returns_has_an_episode_each_time() -> None:
    """Agent "a" gets 1 in its first episode and 5 in its second, "b" 4 in its only one."""
    episodes = list[FinishedEpisode]()
    run = config(lambda _: ScriptedEnv([TWICE], "ab"), train_batch_size_per_learner=2 * 33)
    run.multi_agent(policies=["x", "y"], policy_mapping_fn={"a": "x", "b": "y"})
    with run.callbacks(on_episode_end=lambda algorithm, episode: episodes.append(episode)).build() as algo:
        for result in (algo.train(), algo.evaluate(num_episodes=2)):
            assert result["env_runners"]["agent_episode_returns_mean"] == {"a": 3.0, "b": 4.0}
            assert result["env_runners"]["module_episode_returns_mean"] == {"x": 3.0, "y": 4.0}
    assert {tuple(shown(one).returns.items()) for one in episodes} == {(("a", 6.0), ("b", 4.0))}
    assert {tuple(one[:3] for one in shown(episode).finished) for episode in episodes} == {
        (("a", "x", 1.0), ("a", "x", 5.0), ("b", "y", 4.0))
    }


def test_callbacks_see_the_returns_of_agents_and_the_rollouts_of_trained_modules() -> None:
    episodes, modules = list[FinishedEpisode](), list[set[str]]()
    watched = tags(policies_to_train=["pair"]).callbacks(
        on_episode_end=lambda algorithm, episode: episodes.append(episode),
        on_sample_end=lambda algorithm, rollout: modules.append({*rollout}),
    )
    with watched.build() as algo:
        before = {name: x.clone() for name, x in algo.get_module("late").get_state().items()}
        result = algo.train()
        assert [*result["learners"]] == ["pair"]
        assert differences(algo.get_module("late").get_state(), before) == []
        assert result["env_runners"]["num_module_steps_sampled_lifetime"]["late"] == 36
    assert modules == [{"pair"}]
    assert {tuple(shown(one).returns.items()) for one in episodes} == {((1, 5.0), ("b", 50.0), ("late", 300.0))}
    assert {one.episode_return for one in episodes} == {355.0}


def test_overrides_and_clipped_rewards_reach_the_modules() -> None:
    changed = {"cart_1": {"lr": 1e-2, "entropy_coeff": [[0, 0.0], [128, 0.2]]}}
    with config(policies="own", clip_rewards=0.25, policy_overrides=changed).build() as algo:
        rollout: Any = algo.sample()
        assert all((one["rewards"][one.valid] == 0.25).all() for one in rollout.values())
        learned = algo.train()["learners"]
        assert [learned[name]["learning_rate"] for name in CART] == [3e-4, 1e-2, 3e-4, 3e-4]
        assert learned["cart_1"]["entropy_coeff"] == pytest.approx(0.1)  # 64 of 128 env steps came before the batch


def test_an_evaluation_has_its_own_mapping() -> None:
    seen = list[Any]()

    def in_evaluation(agent: Any, episode: Any) -> str:
        seen.append((agent, episode.env_index))
        return "a"

    run = config(policies=["a", "b"], policy_mapping_fn=lambda agent, episode: "b", num_envs_per_env_runner=4)
    with run.multi_agent(evaluation_policy_mapping_fn=in_evaluation).build() as algo:
        seen.clear()  # from the trial while building
        assert [*algo.train()["learners"]] == ["b"]
        assert not seen
        algo.evaluate(num_episodes=4)
        assert {*seen} >= {(agent, env) for agent in CART for env in range(4)}


def test_an_evaluation_may_have_other_agents_with_a_mapping_of_their_own() -> None:
    acting = {"cart_0": "a", "cart_1": "b"}
    run = config(env_config={"num_agents": 2}, policies=["a", "b"], policy_mapping_fn=acting)
    run.multi_agent(evaluation_policy_mapping_fn=acting | {"cart_2": "a"})
    with run.evaluation(evaluation_env_config={"num_agents": 3}).build() as algo:
        played = algo.evaluate(num_episodes=2)["env_runners"]
    assert {*played["agent_episode_returns_mean"]} == {"cart_0", "cart_1", "cart_2"}


def test_an_evaluation_refuses_agents_with_other_spaces_each_time() -> None:
    with tags(evaluation_env_config={"width": 4}).build() as algo:
        for _ in range(2):
            with pytest.raises(
                ValueError, match=r"^agent 'late': expected a module with its spaces, Box\(4\) .*'late'"
            ):
                algo.evaluate(num_episodes=1)
        assert {*algo.train()["learners"]} == {"pair", "late"}


def test_policies_act_for_all_agents_as_the_modules_do() -> None:
    env = Tags()
    obs, _ = env.reset()
    with tags().build() as algo:
        actions, state = algo.policies.act(obs)
        for agent, action in actions.items():
            assert action == algo.policies["pair"].act(obs[agent])[0]
        obs, *_ = env.step(actions)
        env.t = 2
        actions, state = algo.policies.act(env._obs(), state)
        assert {agent: policy_id for agent, (policy_id, _) in state.items()} == MAPPING
        with pytest.raises(ValueError, match=r"expected one of the agents \[1, 'b', 'late'\], got 'lat'.*'late'"):
            algo.policies.act({"lat": obs["b"]})
        with pytest.raises(AttributeError, match=r"PPO\.policy: expected a run with one policy, got 'pair', 'late'"):
            _ = algo.policy
        with pytest.raises(KeyError, match="expected one of pair, late"):
            algo.get_module()
        assert algo.explain().startswith("pair\nPPOCatalog")
        assert "\n\nlate\nPPOCatalog" in algo.explain()


def test_a_flowchart_of_several_modules_has_that_of_each_in_a_frame() -> None:
    with tags().build() as algo:
        chart = algo.explain("mermaid").splitlines()
        frames = [line for line in chart if line.startswith("    subgraph ")]
        assert frames == ['    subgraph m0["pair"]', '    subgraph m1["late"]']
        assert (chart[0], chart.count("    end")) == ("flowchart LR", 2)
        for number, name in enumerate(("pair", "late")):
            begin = chart.index(frames[number]) + 1
            inside = chart[begin : chart.index("    end", begin)]
            assert [line.replace(f"m{number}n", "n") for line in inside] == (
                algo.get_module(name).explain("mermaid").splitlines()[1:]
            )
            assert inside[0].startswith(f"    m{number}n0[")
            assert inside[2] == f"    m{number}n0 --> m{number}n1"


def test_agents_keep_their_memories_and_need_rewards_that_their_modules_see() -> None:
    model = {**SMALL, "use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_reward": True}
    with tags(model_config=model).build() as algo:
        obs = np.ones(2, np.float32)
        _, state = algo.policies.act({1: obs})
        _, alone = algo.policies["pair"].act(obs)
        _, both = algo.policies.act({"b": obs}, state)
        assert both[1] is state[1]  # it waits
        _, after = algo.policies.act({1: 2 * obs}, both, rewards={1: 3.0, "b": 1.0})
        _, expected = algo.policies["pair"].act(2 * obs, alone, reward=3.0)
        assert differences(after[1][1], expected) == []
        with pytest.raises(ValueError, match="expected the reward of the last"):
            algo.policies.act({1: obs}, both)


def test_a_run_with_one_shared_policy_has_that_policy() -> None:
    with config(policies="shared").build() as algo:
        assert algo.policy is algo.policies[ID]
        assert algo.get_module() is algo.get_module(ID)


class Pictures(Tags):
    """Counts its frames."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode, self.metadata = render_mode, {"render_modes": ["rgb_array"], "render_fps": 5}

    def render(self) -> Any:
        return np.full((32, 32, 3), 20 * self.t, np.uint8)


def test_agents_play_for_films(tmp_path: Path) -> None:
    with config(Pictures, policies=["a", "b"], policy_mapping_fn={1: "a", "b": "a", "late": "b"}).build() as algo:
        result = algo.evaluate(num_episodes=1, num_videos=1, video_dir=tmp_path)
        assert [(one["episode_return"], one["episode_len"]) for one in result["videos"]] == [(355.0, 5)]
        assert result["env_runners"]["episode_return_mean"] == 355.0


def test_videos_have_the_mapping_of_evaluations() -> None:
    obs = {agent: np.ones(4, np.float32) for agent in CART}
    run = config(policies=["a", "b"], policy_mapping_fn=dict.fromkeys(CART, "a"))
    for of_evaluation, expected in ((None, "a"), (dict.fromkeys(CART, "b"), "b")):
        with run.multi_agent(evaluation_policy_mapping_fn=of_evaluation).build() as algo:
            state: Any = player_of(algo).act((obs, {}, []))[1]
        assert {agent: policy_id for agent, (policy_id, _) in state.items()} == dict.fromkeys(CART, expected)


@pytest.mark.parametrize("acting", [None, {"cart_0": "a", "cart_1": "a", "cart_2": "b"}])
def test_videos_have_the_agents_of_evaluations(acting: Any) -> None:
    policies = ["a"] if acting is None else ["a", "b"]
    run = config(env_config={"num_agents": 2}, policies=policies, policy_mapping_fn=dict.fromkeys(CART[:2], "a"))
    run.evaluation(evaluation_env_config={"num_agents": 3}).multi_agent(evaluation_policy_mapping_fn=acting)
    if acting is None:
        run.multi_agent(policy_mapping_fn=None)
    with run.build() as algo:
        algo.add_policy("c", copy_of="a")
        obs = {agent: np.ones(4, np.float32) for agent in CART[:3]}
        state: Any = player_of(algo).act((obs, {}, []))[1]
    assert {agent: policy_id for agent, (policy_id, _) in state.items()} == (acting or dict.fromkeys(CART[:3], "a"))


# --- checkpoints, workers ---------------------------------------------------------------------------------------------


def trained(algo: Algorithm) -> Any:
    result = algo.train()
    return result["learners"], {n: x for n, x in result["env_runners"].items() if n != "num_env_steps_per_second"}


def test_a_saved_run_continues(tmp_path: Path) -> None:
    with tags(policies_to_train=["late"], policy_overrides={"late": {"gamma": 0.9}}).build() as algo:
        algo.train()
        algo.evaluate(num_episodes=2)
        path = algo.save(tmp_path / "ck")
        with Algorithm.from_checkpoint(path, env=Tags) as loaded:
            assert vars(loaded.config)["policy_overrides"] == {"late": {"gamma": 0.9}}
            assert differences(loaded.learner_group.get_state(), algo.learner_group.get_state()) == []
            assert loaded.metrics.get_state() == algo.metrics.get_state()
            first, second = trained(loaded), trained(loaded)
            assert (trained(algo), trained(algo)) == (first, second)
        with Algorithm.from_checkpoint(path, allow=[__name__], policies_to_train=None) as both:
            assert {*both.train()["learners"]} == {"pair", "late"}
        with Algorithm.from_checkpoint(path, env=Tags) as again:
            assert (trained(again), trained(again)) == (first, second)


def test_a_checkpoint_continues_with_another_number_of_agents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with config(env_config={"num_agents": 2}, policies="shared").build() as algo:
        algo.train()
        path = algo.save(tmp_path / "ck")
    with Algorithm.from_checkpoint(path, env=CartPoles, env_config={"num_agents": 3}) as more:
        assert {*more.train()["env_runners"]["num_agent_steps_sampled_lifetime"]} == {*CART[:3]}
    assert len(caplog.messages) == 2  # one for each env
    assert all("expected agents with the policies of the saved episode" in one for one in caplog.messages)


@pytest.mark.parametrize("num_agents", [1, 3])
def test_a_checkpoint_with_other_policies_is_refused_by_their_names(tmp_path: Path, num_agents: int) -> None:
    with config(env_config={"num_agents": 2}, policies="own").build() as algo:
        path = algo.save(tmp_path / "ck")
    message = rf"expected its policies {', '.join(CART[:2])}, got {', '.join(CART[:num_agents])}\. .*add_policy\(\)"
    with pytest.raises(ValueError, match=message):
        Algorithm.from_checkpoint(path, env=CartPoles, env_config={"num_agents": num_agents})


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize(
    ("num_learners", "minibatch_size", "trained"),
    [(2, None, ["a", "b"]), pytest.param(1, 16, ["a"], marks=pytest.mark.faults)],
)
def test_runners_and_learners_elsewhere_learn_the_same(
    num_learners: int, minibatch_size: int | None, trained: list[str]
) -> None:
    """Two learners share each batch; only a whole one is the same for one learner and for two."""
    here = config(num_envs_per_env_runner=4, policies=["a", "b"], minibatch_size=minibatch_size).multi_agent(
        policy_mapping_fn=dict.fromkeys(CART, "a") | {"cart_3": "b"}, policies_to_train=trained
    )
    there = here.copy().env_runners(num_env_runners=2, num_envs_per_env_runner=2)
    there.learners(num_learners=num_learners).training(train_batch_size_per_learner=64 // num_learners)
    result: dict[str, Any] = {}
    with here.build() as one, there.build() as other:
        for _ in range(2):
            expected, result = one.train(), other.train()
            assert (
                result["env_runners"]["num_agent_steps_sampled_lifetime"]
                == (expected["env_runners"]["num_agent_steps_sampled_lifetime"])
            )
            assert result["learners"].keys() == expected["learners"].keys() == {*trained}
            for module_id, numbers in expected["learners"].items():
                for name, value in numbers.items():
                    assert result["learners"][module_id][name] == pytest.approx(value, rel=1e-3, abs=1e-5)
        assert result["workers"]["num_env_steps_lost_lifetime"] == 0


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize("num_env_runners", [0, 2])
def test_callbacks_see_the_agents_of_an_episode_wherever_it_was_played(num_env_runners: int) -> None:
    episodes = list[FinishedEpisode]()
    same_spaces = {"env_config": {"width": 2}, "policy_mapping_fn": lambda agent, episode: MAPPING[agent]}
    watched = tags(**same_spaces).callbacks(on_episode_end=lambda algorithm, episode: episodes.append(episode))
    with watched.env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=2).build() as algo:
        algo.train()
        algo.train()
        algo.evaluate(num_episodes=2)
    numbers: dict[tuple[bool, int], list[int]] = {}
    for one in episodes:  # long after they ended
        agents = shown(one)
        assert (agents.env_index, agents.length, agents.agents) == (one.env_index, one.length, [])
        assert agents.returns == {1: 5.0, "b": 50.0, "late": 300.0}
        assert {agent: agents.policy_of(agent) for agent in agents.returns} == MAPPING
        assert agents.policies == ["pair", "late"]
        numbers.setdefault((one.in_evaluation, one.env_index), []).append(agents.number)
    assert len(numbers) == 2 * max(num_env_runners, 1) + 2
    assert all(of_env == [*range(len(of_env))] and len(of_env) > 0 for of_env in numbers.values())


def test_a_run_of_one_agent_imports_nothing_for_several_and_no_compiler() -> None:
    code = (
        "import sys\nfrom algorithms.ppo import PPOConfig\n"
        "with PPOConfig(env='CartPole-v1', train_batch_size_per_learner=64).build() as algo:\n"
        "    algo.train()\n    algo.set_state(algo.get_state())\n"
        "ours = [name for name in sys.modules if name.startswith(('rlmodule', 'algorithms'))]\n"
        "print([name for name in ours if 'agent' in name.partition('.')[2]], 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["['algorithms.multi_agent_config']", "False"]  # settings of all algorithms


class SingleConfig(AlgorithmConfig):
    """A config of an algorithm for one agent."""

    algo_class = Algorithm  # type: ignore[assignment]

    def default_learner_class(self) -> Any: ...

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec()


def test_a_config_without_several_agents_says_which_have_them() -> None:
    with pytest.raises(AttributeError, match="Derive your config from EpisodeLearnerConfig or ReplayConfig"):
        SingleConfig().multi_agent(policies="own")
    with pytest.raises(TypeError, match="Derive your config from EpisodeLearnerConfig or ReplayConfig"):
        SingleConfig(policies="own")
