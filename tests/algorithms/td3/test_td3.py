"""TD3 and DDPG as algorithms: settings, exploration, what they act in, what they refuse, and exact resuming."""

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms import Algorithm
from algorithms.ddpg import DDPG, DDPGConfig
from algorithms.td3 import TD3, TD3Config, TD3Module
from catalog import DeterministicAction, SquashedGaussian
from rlmodule import Columns, RLModule, RLModuleSpec
from rlmodule.testing.data import differences
from rlmodule.testing.module_contract import RLModuleContract
from tests.algorithms.td3.conftest import QUICK, SPACES, tiny
from tests.turns import taking_turns

NESTED = spaces.Dict(
    arm=spaces.Box(-1, 1, (2, 2)), grip=spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.Box(-3, 3, (2,))])
)
IMAGE = spaces.Dict(camera=spaces.Box(0, 255, (12, 12, 3), np.uint8), pose=spaces.Box(-1, 1, (2,)))


class Reach(gym.Env):
    """Ends after 10 steps; the reward is the mean of all numbers of the action."""

    def __init__(self, acted: spaces.Space, observed: spaces.Space = SPACES[0]) -> None:
        self.observation_space, self.action_space = observed, acted

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        reward = float(np.mean(spaces.flatten(self.action_space, action)))
        return self.observation_space.sample(), reward, False, self.steps == 10, {}


class _Contract(RLModuleContract):
    observed: spaces.Space = SPACES[0]
    acted: spaces.Space = SPACES[1]
    model_config: dict[str, Any] = {"fcnet_hiddens": [8]}  # noqa: RUF012

    def make(self) -> RLModuleSpec:
        return TD3Config(model_config=self.model_config).get_rl_module_spec(self.observed, self.acted)


class TestModule(_Contract):
    pass


class TestNestedModule(_Contract):
    observed, acted = IMAGE, NESTED


class TestRecurrentModule(_Contract):
    model_config = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}  # noqa: RUF012


class TestRecurrentCritics(_Contract):
    acted = NESTED
    model_config = {**TestRecurrentModule.model_config, "vf_share_layers": False}  # noqa: RUF012


def test_defaults_are_those_of_the_papers() -> None:
    config, older = TD3Config(), DDPGConfig()
    ours = (config.policy_delay, config.target_noise, config.target_noise_clip, config.tau, config.num_critics)
    assert ours == (2, 0.2, 0.5, 0.005, 2)
    assert (older.policy_delay, older.target_noise, older.num_critics) == (1, 0, 1)
    assert older.algo_class is DDPG


def test_a_net_setting_has_one_place() -> None:
    spec = RLModuleSpec(model_config={"num_critics": 2})
    with pytest.raises(ValueError, match=r"DDPGConfig\.num_critics: expected one value, got 1\. model_config has 2"):
        DDPGConfig(rl_module_spec=spec).get_rl_module_spec(*SPACES)
    with pytest.raises(
        ValueError, match=r"got 'num_critics', a setting of the algorithm\. Write \.training\(num_critics="
    ):
        TD3Config().rl_module(model_config={"num_critics": 1})


def test_a_subclass_may_turn_target_noise_off() -> None:
    class Plain(TD3Config):
        target_noise = 0.0
        target_noise_clip = 0.3

    Plain(**QUICK).environment("Pendulum-v1").validate()


def test_exploration_noise_is_large_before_learning_starts_and_a_schedule_after_that() -> None:
    config = TD3Config(num_steps_sampled_before_learning_starts=500)
    assert [config.noise_at(9_999, step) for step in (0, 499, 500, 10_000)] == [1, 1, 0.1, 0.1]
    config.training(exploration_noise=[[0, 0.5], [100, 0.1]])
    assert [config.noise_at(step, 0) for step in (0, 50, 200)] == pytest.approx([0.5, 0.3, 0.1])


@pytest.mark.parametrize("cls", [TD3Config, DDPGConfig])
def test_one_iteration_reports_what_it_did(cls: type[TD3Config]) -> None:
    with cls(**QUICK).environment("Pendulum-v1").build() as algorithm:
        assert isinstance(algorithm, TD3)
        first, second = algorithm.train(), algorithm.train()
    numbers = second["learners"]["default_policy"]
    assert {"qf_loss", "policy_loss", "td_error_mean", "qf_mean", "exploration_noise"} <= numbers.keys()
    assert numbers["exploration_noise"] == pytest.approx(0.1)
    assert first["env_runners"]["num_env_steps_sampled_lifetime"] == 64


@pytest.mark.parametrize("acted", [SPACES[1], NESTED, spaces.Box(-1, 1, (2, 3), np.float64)], ids=["box", "tree", "64"])
@pytest.mark.parametrize(
    "observed", taking_turns([SPACES[0], IMAGE, spaces.Discrete(4)]), ids=["vector", "image", "discrete"]
)
def test_any_observation_and_nested_boxes_of_any_rank(observed: spaces.Space, acted: spaces.Space) -> None:
    config = tiny(Reach, env_config={"observed": observed, "acted": acted}, num_env_steps_per_iteration=48)
    with config.build() as algorithm:
        algorithm.train()
        results = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(results["policy_loss"])


@pytest.mark.parametrize("memory", ["use_lstm", "use_attention"])
@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.end_to_end)])
def test_memories_learn_from_stored_sequences(memory: str, shared: bool) -> None:
    model = {"fcnet_hiddens": [16], memory: True, "max_seq_len": 4, "vf_share_layers": shared}
    with tiny(model_config=model, burn_in_len=2, prioritized_replay=True, n_step=2).build() as algorithm:
        algorithm.train()
        results = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(results["qf_loss"])


def test_noise_reaches_what_acts_and_evaluation_has_none() -> None:
    with tiny(exploration_noise=0.0).build() as algorithm:
        assert isinstance(algorithm, TD3)
        algorithm.train()
        acting = algorithm.env_runner_group.module
        batch = {Columns.OBS: torch.zeros(1000, 3)}
        inputs = acting.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS]
        generator = torch.Generator().manual_seed(1)
        assert acting.action_dist_cls.from_logits(inputs).sample(generator).unique().numel() == 1
        algorithm._set_exploration("default_policy", 0.5)
        drawn = acting.action_dist_cls.from_logits(inputs).sample(generator)
        assert drawn.unique().numel() > 500
        obs = np.zeros(3, np.float32)
        assert algorithm.policy.act(obs)[0] == algorithm.policy.act(obs)[0]


def test_a_checkpoint_has_all_that_later_updates_depend_on(tmp_path: Path) -> None:
    with tiny(n_step=3, policy_delay=3).build() as algorithm:
        assert isinstance(algorithm, TD3)
        algorithm.train()
        algorithm.save(tmp_path / "kept")
        with Algorithm.from_checkpoint(tmp_path / "kept") as other:
            assert type(other) is TD3
            for each in (algorithm, other):
                for step in range(7):
                    each.learner_group.step_on_batch(each.replay.sample(16).batch, env_steps=100 + step)
            states = [each.learner_group.get_state() for each in (algorithm, other)]
            assert differences(*states) == []


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acted", "where"),
    [
        (spaces.Discrete(3), "action_space of TD3 and DDPG: expected a Box of floats with finite bounds on all sides"),
        (spaces.Dict(x=SPACES[1], n=spaces.MultiBinary(2)), "action_space['n'] of TD3 and DDPG: expected a Box of"),
        (spaces.Box(-np.inf, 1, (2,)), "action_space: expected a Box of floats with finite bounds on all sides, for D"),
    ],
    ids=["discrete", "part", "unbounded"],
)
def test_actions_that_are_no_bounded_boxes_are_refused_at_build(acted: spaces.Space, where: str) -> None:
    config = tiny(Reach, env_config={"acted": acted})
    with pytest.raises(ValueError, match=re.escape(where)):
        config.build()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"target_noise": 0.0, "target_noise_clip": 0.3},
            "target_noise_clip: expected its default without target_noise",
        ),
        ({"policy_delay": 0}, "policy_delay=): expected"),
        ({"exploration_noise": -0.1}, "exploration_noise=): expected"),
        ({"replay_capacity": 8}, "replay_capacity: expected at least 16"),
        ({"model_config": {"custom_action_dist": SquashedGaussian}}, "expected DeterministicAction for each part"),
        ({"model_config": {"normalize_actions": False}}, "normalize_actions: expected True"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tiny(**settings).build()


def test_a_module_without_critics_is_refused_by_name() -> None:
    class Bare(RLModule):
        def setup(self) -> None:
            self.net = torch.nn.Linear(3, 1)

        def _forward(self, batch: Any) -> Any:
            return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}

    spec = RLModuleSpec(module_class=Bare, model_config={"custom_action_dist": DeterministicAction})
    config = TD3Config(**{name: value for name, value in QUICK.items() if name != "model_config"})
    with pytest.raises(TypeError, match=r"expected a module that implements ActionValueAPI .*ExplorationAPI"):
        config.environment("Pendulum-v1").rl_module(rl_module_spec=spec).build()


def test_explain_names_the_policy_and_the_critics() -> None:
    with tiny().build() as algorithm:
        assert isinstance(algorithm.get_module(), TD3Module)
        text = algorithm.explain()
    assert re.search(r"class +DeterministicAction, 1 inputs", text)
    assert "critics" in text
