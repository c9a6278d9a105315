"""PPO's settings, and what ``build()`` and the first iteration say to bad input."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from algorithms import AlgorithmConfig, League
from algorithms.ppo import PPO, PPOCatalog, PPOConfig, PPOLearner, PPOModule
from catalog import DefaultModelConfig
from catalog.settings import settings_of
from rlmodule import Columns, RLModule, RLModuleSpec

NAN, INF = math.nan, math.inf


def reads_well(error: BaseException, *parts: str) -> bool:
    """The four parts: where, what was expected, what came, what to do."""
    text = str(error)
    return bool(re.fullmatch(r"(?s)\S.*: expected .+, got .+\. \S.*[.?]", text)) and all(part in text for part in parts)


def small(env: Any = "CartPole-v1") -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
        .debugging(seed=0)
    )


# --- settings --------------------------------------------------------------------------------------------------------

# Of every setting of PPO's own: values that are taken, values out of range, values of another type.
SETTINGS: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    "minibatch_size": ([None, 1, 64], [0, -1], ["64", 1.5, True]),
    "num_epochs": ([1, 10], [0, -1], ["1", None, 1.5, True]),
    "lambda_": ([0, 0.95, 1], [-0.01, 1.01, NAN, INF], ["0.9", None, True, [0.9]]),
    "clip_param": ([0.1, 1, 5.0], [0, -0.2, NAN, INF], ["0.2", None, False]),
    "vf_loss_coeff": ([0, 0.5, 3], [-0.1, NAN, INF], ["1", None, True]),
    "vf_clip_param": ([None, 0.2, 10], [0, -1, NAN, INF], ["0.2", True]),
    "vf_huber_delta": ([None, 0.5, 10], [0, -1, NAN, INF], ["0.2", True]),
    "entropy_coeff": (
        [0, 0.01, [[0, 0.1], [1000, 0.0]]],
        [-0.01, NAN, [[0, 0.1]], [[0, 0.1], [10, -1]], [[5, 0.1], [10, 0]]],
        ["0", None, [0.1, 0.2]],
    ),
    "use_kl_loss": ([True, False], [], [1, "yes", None]),
    "kl_coeff": ([0, 0.2], [-0.1, NAN, INF], ["0.2", None]),
    "kl_target": ([0.01, 1], [0, -0.1, NAN, INF], ["0.01", None]),
    "target_kl": ([None, 0.01], [0, -0.1, NAN, INF], ["0.01", False]),
    "adaptive_lr_kl": ([None, 0.01], [0, -0.1, NAN, INF], ["0.01", False]),
    "rnd_coeff": ([0, 0.5, 10], [-0.1, NAN, INF], ["0.5", None, True]),
    "rnd_dim": ([1, 64], [0, -1], ["64", None, 1.5, True]),
    "policies": (
        [None, "shared", "own", ["a"], {"a": RLModuleSpec()}, list],
        [],
        ["all", 3, [1], {"a": None}, RLModuleSpec()],
    ),
    "policy_mapping_fn": ([None, {"a": "p", 1: "p"}, min], [], ["a", {"a": 1}]),
    "evaluation_policy_mapping_fn": ([None, {"a": "p"}, min], [], ["a", {"a": 1}]),
    "policies_to_train": ([None, ["a"], bool], [], ["a", [1], {"a": True}]),
    "policy_overrides": ([{}, {"a": {"gamma": 0.5}}], [], [None, {"a": 1}, {1: {}}, ["a"]]),
    "shared_parts": (
        [None, {}, {"trunk": "encoder"}, {"trunk": ["a.encoder", "b.encoder"]}],
        [],
        [{"trunk": 1}, ["a"]],
    ),
    "league": ([None, League(every=2)], [], ["a", 3, [1]]),
}


def test_the_table_above_holds_every_setting() -> None:
    assert set(SETTINGS) == set(settings_of(PPOConfig)) - set(settings_of(AlgorithmConfig))


@pytest.mark.parametrize("name", list(SETTINGS))
def test_each_setting(name: str) -> None:
    section = getattr(PPOConfig(), settings_of(PPOConfig)[name].section)
    taken, outside, mistyped = SETTINGS[name]
    for value in taken:
        assert getattr(section(**{name: value}), name) == value
    for values, kind in ((outside, ValueError), (mistyped, TypeError)):
        for value in values:
            with pytest.raises(kind) as caught:
                section(**{name: value})
            assert reads_well(caught.value, f"PPOConfig.{settings_of(PPOConfig)[name].section}({name}=)"), value


def test_the_learner_class_must_be_one() -> None:
    for value in (nn.Linear, PPOLearner.__init__, "PPOLearner", 3):
        with pytest.raises(TypeError, match="learner_class"):
            PPOConfig().learners(learner_class=value)  # type: ignore[arg-type]
    assert PPOConfig().learners(learner_class=PPOLearner).learner_class is PPOLearner


def test_a_misspelt_setting() -> None:
    with pytest.raises(TypeError) as caught:
        PPOConfig().training(clip_parm=0.1)  # type: ignore[call-arg]
    assert reads_well(caught.value, "PPOConfig.training()", "'clip_parm'", "Did you mean 'clip_param'?")


def test_a_setting_of_another_section() -> None:
    with pytest.raises(TypeError) as caught:
        PPOConfig().training(env="CartPole-v1")  # type: ignore[call-arg]
    assert reads_well(caught.value, ".environment(env=...)")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            lambda c: c.training(train_batch_size_per_learner=100, minibatch_size=128),
            ("PPOConfig.minibatch_size", "got 128", "100"),
        ),
        (
            lambda c: c.env_runners(num_envs_per_env_runner=8).training(train_batch_size_per_learner=100),
            ("PPOConfig.train_batch_size_per_learner", "got 100", "nearest batch size that works is 104"),
        ),
        (
            lambda c: c.env_runners(rollout_fragment_length=10),
            ("PPOConfig.train_batch_size_per_learner", "rollout_fragment_length=10", "is 20"),
        ),
        (
            lambda c: c.training(use_kl_loss=True, kl_coeff=0.0),
            ("PPOConfig.kl_coeff", "more than 0 with use_kl_loss", "got 0.0"),
        ),
        (
            lambda c: c.training(kl_coeff=0.5),
            ("PPOConfig.kl_coeff", "its default without use_kl_loss", "got 0.5", "Set that to True"),
        ),
        (
            lambda c: c.training(kl_target=0.02),
            ("PPOConfig.kl_target", "its default without use_kl_loss", "got 0.02", "target_kl ends the epochs"),
        ),
        (
            lambda c: c.training(lr=[[0, 1e-3], [100, 0.0]], adaptive_lr_kl=0.01),
            ("PPOConfig.lr", "a number with adaptive_lr_kl"),
        ),
        (lambda c: c.environment(None), ("PPOConfig.env", ".environment('CartPole-v1')")),
        (lambda c: c.environment("CartPole-v9"), ("'CartPole-v9'",)),
        (lambda c: c.environment("CartPol-v1"), ("'CartPol-v1'", "Did you mean 'CartPole-v1'?")),
        (
            lambda c: c.rl_module(
                model_config={"fcnet_hiddens": [4]}, rl_module_spec=RLModuleSpec(model_config={"fcnet_hiddens": [8]})
            ),
            ("PPOConfig.model_config", "rl_module_spec", "take it out"),
        ),
        (
            lambda c: c.rl_module(model_config={"fcnet_hidens": [4]}),
            ("model_config['fcnet_hidens']", "Did you mean 'fcnet_hiddens'?"),
        ),
        (lambda c: c.rl_module(model_config={"fcnet_hiddens": [0]}), ("model_config.fcnet_hiddens", "(0,)|[0]")),
    ],
    ids=[
        "minibatch > batch",
        "uneven batch",
        "inconsistent fragment",
        "a penalty of 0",
        "kl_coeff without the penalty",
        "kl_target without the penalty",
        "a schedule of an adapted learning rate",
        "no env",
        "unknown version",
        "misspelt id",
        "model_config twice",
        "misspelt model setting",
        "bad model setting",
    ],
)
def test_build_refuses(change: Callable[[PPOConfig], PPOConfig], parts: tuple[str, ...]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        change(small()).build()
    *rest, last = parts
    assert reads_well(caught.value, *rest)
    assert any(option in str(caught.value) for option in last.split("|"))


def test_the_penalty_of_one_policy_alone_reads_its_settings() -> None:
    config = PPOConfig().environment("CartPole-v1").multi_agent(policies=["a", "b"]).training(kl_coeff=0.5)
    with pytest.raises(ValueError, match=r"PPOConfig\.kl_coeff: expected its default without use_kl_loss"):
        config.validate()
    config.training(kl_coeff=0.2).multi_agent(
        policy_overrides={"a": {"lr": [[0, 1e-3], [10, 0.0]]}, "b": {"adaptive_lr_kl": 0.01}}
    )
    config.validate()
    config.multi_agent(policy_overrides={"a": {"lr": [[0, 1e-3], [10, 0.0]], "adaptive_lr_kl": 0.01}})
    with pytest.raises(ValueError, match=r"PPOConfig\.lr: expected a number with adaptive_lr_kl, got \[\[0"):
        config.validate()
    config.training(kl_coeff=0.5)
    config.multi_agent(policy_overrides={"a": {"use_kl_loss": True}}).validate()
    config.multi_agent(policy_overrides={"a": {"use_kl_loss": True, "kl_coeff": 1.0}, "b": {"kl_target": 0.1}})
    with pytest.raises(ValueError, match=r"PPOConfig\.kl_target: expected its default .*, got 0\.1\."):
        config.validate()


# --- what comes out --------------------------------------------------------------------------------------------------


def test_settings_arrive_where_they_count() -> None:
    class MyLearner(PPOLearner):
        pass

    config = small().training(lr=1e-4, grad_clip=0.3).learners(learner_class=MyLearner)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=(5, 6), vf_share_layers=True))
    with config.build() as algorithm:
        assert isinstance(algorithm, PPO)
        learner = algorithm.learner_group.learner
        assert type(learner) is MyLearner
        assert learner.optimizers["default_policy"].param_groups[0]["lr"] == 1e-4
        module = algorithm.get_module()
        assert isinstance(module, PPOModule)
        assert module.encoder.shared
        widths = [m.out_features for m in module.encoder.modules() if isinstance(m, nn.Linear)]
        assert widths == [5, 6]


def test_train_returns_numbers_for_everything() -> None:
    with small().build() as algorithm:
        for iteration in (1, 2):
            result = algorithm.train()
            assert result["training_iteration"] == iteration
            assert result["env_runners"]["num_env_steps_sampled_lifetime"] == 32 * iteration
            assert "episode_return_mean" in result["env_runners"]
            learned = result["learners"]["default_policy"]
            assert all(math.isfinite(value) for value in learned.values())
        assert algorithm.learner_group.num_updates == 4


def test_two_runs_with_one_seed_are_equal() -> None:
    ends = []
    for seed in (0, 0, 1):
        with small("Pendulum-v1").debugging(seed=seed).build() as algorithm:
            for _ in range(2):
                algorithm.train()
            ends.append(torch.cat([p.detach().flatten() for p in algorithm.get_module().parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


# --- there and back --------------------------------------------------------------------------------------------------


class MyCatalog(PPOCatalog):
    """Importable, so that a dict can name it."""


def test_to_dict_and_back() -> None:
    config = small().training(
        lr=[[0, 1e-3], [1000, 1e-4]], clip_param=0.3, vf_clip_param=0.5, entropy_coeff=[[0, 0.1], [500, 0.0]]
    )
    config.rl_module(
        rl_module_spec=RLModuleSpec(
            catalog_class=MyCatalog,
            observation_space=spaces.Box(-1, 1, (4,), np.float32),
            model_config=DefaultModelConfig(fcnet_hiddens=(7,)),
        )
    )
    data = json.loads(json.dumps(config.to_dict()))
    again = PPOConfig.from_dict(data)
    assert again == config
    assert again.rl_module_spec is not None
    assert again.rl_module_spec.catalog_class is MyCatalog
    with pytest.raises(ValueError, match="MyCatalog") as caught:
        PPOConfig.from_dict(data, allow=[])
    assert reads_well(caught.value, "PPOConfig.rl_module_spec", "allow=[")
    assert PPOConfig.from_dict(data, allow=[MyCatalog.__module__]) == config


def test_a_users_catalog_is_used() -> None:
    config = small().rl_module(rl_module_spec=RLModuleSpec(catalog_class=MyCatalog))
    with config.build() as algorithm:
        assert type(algorithm.get_module().catalog) is MyCatalog


# --- bad input -------------------------------------------------------------------------------------------------------


BOX, DISCRETE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


class Broken(gym.Env[Any, Any]):
    """An env that goes wrong in the way its arguments say."""

    def __init__(
        self,
        observation_space: spaces.Space[Any] = BOX,
        action_space: spaces.Space[Any] = DISCRETE,
        *,
        obs: Any = None,
        reward: Any = 1.0,
        faulty_from: int = 3,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.bad_obs, self.bad_reward, self.faulty_from, self.steps = obs, reward, faulty_from, 0

    def _obs(self) -> Any:
        return np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        bad = self.steps >= self.faulty_from
        obs = self.bad_obs if bad and self.bad_obs is not None else self._obs()
        return obs, self.bad_reward if bad else 1.0, False, False, {}


class Mute(RLModule):
    """Without a value function."""

    def setup(self) -> None:
        self.net = nn.Linear(2, 2)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}


def raising(env_config: dict[str, Any]) -> Broken:
    raise FileNotFoundError("level 7 is not there")


TEXT = spaces.Text(3)
BAD_INPUT: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "a factory that raises": (raising, RuntimeError, ("FileNotFoundError", "level 7 is not there", "raising")),
    "a factory that returns nothing": (lambda _: None, TypeError, ("None", "Return the env")),
    "an observation space without a branch": (
        lambda _: Broken(TEXT),
        ValueError,
        ("observation_space", "Text"),
    ),
    "an action space without a branch": (
        lambda _: Broken(action_space=TEXT),
        ValueError,
        ("action_space", "Text"),
    ),
    "a reward that is no number": (
        lambda _: Broken(reward="much"),
        TypeError,
        ("env 0, step 3", "reward", "'much'"),
    ),
    "a reward that is NaN": (lambda _: Broken(reward=NAN), ValueError, ("env 0, step ", "reward", "nan")),
    "an observation that is NaN": (
        lambda _: Broken(obs=np.array([0, NAN], np.float32)),
        ValueError,
        ("env 0, step 3, obs", "nan at index (1,)"),
    ),
    "an observation of another shape": (
        lambda _: Broken(obs=np.zeros(3, np.float32)),
        ValueError,
        ("env 0, step 3", "(3,)", "(2,)"),
    ),
    "an observation outside the bounds": (
        lambda _: Broken(obs=np.array([0, 5], np.float32)),
        ValueError,
        ("env 0, step 3", "5.0 at index (1,)", "[-1.0, 1.0]"),
    ),
}


@pytest.mark.parametrize("what", list(BAD_INPUT))
def test_bad_environments(what: str) -> None:
    env, kind, parts = BAD_INPUT[what]
    with pytest.raises(kind) as caught, small(env).build() as algorithm:
        algorithm.train()
    assert reads_well(caught.value, *parts), str(caught.value)


def test_a_space_deep_inside_is_named() -> None:
    inner = spaces.Dict({"sensors": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), TEXT])})
    with pytest.raises(ValueError, match="observation_space") as caught:
        small(lambda _: Broken(inner)).build()
    assert reads_well(caught.value, "'sensors'", "Text")


def test_a_module_without_a_value_function() -> None:
    config = small(lambda _: Broken()).rl_module(rl_module_spec=RLModuleSpec(module_class=Mute))
    with pytest.raises(TypeError) as caught:
        config.build()
    assert reads_well(caught.value, "PPOLearner", "'default_policy'", "ValueFunctionAPI (compute_values)", "got Mute")


def test_bad_input_leaves_the_config_as_it_was() -> None:
    config = small().training(minibatch_size=64)
    before = config.to_dict()
    with pytest.raises(ValueError, match="minibatch_size"):
        config.build()
    assert config.to_dict() == before
    config.minibatch_size = 16
    config.build().stop()


def test_specs_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RLModuleSpec().model_config = {}  # type: ignore[misc]
