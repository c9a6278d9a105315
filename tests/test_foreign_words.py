"""Words, calls and overrides of other libraries: each raises one error, which says what to write here."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from torch import nn

from algorithms.a2c import A2CConfig
from algorithms.appo import APPOConfig
from algorithms.bc import BCConfig
from algorithms.cli import main
from algorithms.dqn import DQNCatalog, DQNConfig, DQNLearner
from algorithms.impala import IMPALAConfig
from algorithms.ppo import PPO, PPOCatalog, PPOConfig, PPOLearner, PPOModule
from algorithms.registry import config_class
from algorithms.run.callbacks import Callbacks
from algorithms.td3 import TD3Catalog
from catalog import Catalog, Categorical, ModelConfig
from catalog.base import as_encoder
from rlmodule import BatchLearner, EpisodeLearner, RLModule, RLModuleSpec
from rlmodule.envs.make import make_vector_env

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)
BY_FIELD = spaces.Dict(speed=OBS, place=OBS)


# --- hooks with other signatures --------------------------------------------------------------------------------------


@classmethod
def of_the_class(cls: Any, observation_space: Any, **kwargs: Any) -> Any: ...
@classmethod
def with_framework_by_keyword(cls: Any, action_space: Any, *, framework: str) -> Any: ...
@classmethod
def with_a_dict(cls: Any, observation_space: Any, model_config_dict: Any, action_space: Any = None) -> Any: ...
def with_framework(self: Any, framework: str) -> Any: ...
def with_default_framework(self: Any, framework: str = "torch") -> Any: ...
def by_keyword(self: Any, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Any: ...
def with_config(self: Any, module_id: str, config: Any = None) -> Any: ...
def with_sample_shape(self: Any, sample_shape: Any = ()) -> Any: ...
def of_the_object(self: Any, space: Any) -> Any: ...
def without_default(self: Any, batch: Any, **kwargs: Any) -> Any: ...


SIGNATURES = [
    (Catalog, "_get_encoder_config", of_the_class, "def _get_encoder_config(self, observation_space, model_config)."),
    (PPOCatalog, "_get_encoder_config", with_a_dict, "model_config_dict: Pass model_config={...}."),
    (
        PPOCatalog,
        "_get_dist_cls_from_action_space",
        with_framework_by_keyword,
        "def _get_dist_cls_from_action_space(self, action_space). framework: Leave it out",
    ),
    (PPOCatalog, "get_action_dist_cls", with_framework, "Write def get_action_dist_cls(self). framework: Leave it out"),
    (DQNCatalog, "build_encoder", with_framework, "Write def build_encoder(self). framework: Leave it out"),
    (DQNCatalog, "build_af_head", with_default_framework, "Write def build_af_head(self). framework: Leave it out"),
    (ModelConfig, "build", with_framework, "Write def build(self)."),
    (
        PPOLearner,
        "compute_loss_for_module",
        by_keyword,
        "got def compute_loss_for_module(self, *, module_id, config, batch, fwd_out). "
        "Write def compute_loss_for_module(self, module_id, batch, fwd_out).",
    ),
    (DQNLearner, "compute_loss_for_module", by_keyword, "def compute_loss_for_module(self, module_id, batch, fwd_out)"),
    (Categorical, "sample", with_sample_shape, "Write def sample(self, generator=None). sample_shape: One action"),
    (Categorical, "required_input_dim", of_the_object, "Write @classmethod def required_input_dim(cls, space)."),
]


@pytest.mark.parametrize(
    ("base", "name", "method", "remedy"), SIGNATURES, ids=[f"{base.__name__}.{name}" for base, name, *_ in SIGNATURES]
)
def test_a_hook_with_another_signature_is_refused_with_ours(base: type, name: str, method: Any, remedy: str) -> None:
    with pytest.raises(TypeError, match=rf"^Mine\.{name}\(\): .*{re.escape(remedy)}"):
        type("Mine", (base,), {name: method})


HOOKS = [
    (EpisodeLearner, "_postprocess_episodes", "preprocess_train_data(rollout)"),
    (PPOLearner, "_preprocess_train_data", "preprocess_train_data(rollout)"),
    (PPOLearner, "prepare_batch", "preprocess_train_data(rollout)"),
    (PPOLearner, "after_gradient_based_update", "after_update(module_id, batch)"),
    (BatchLearner, "preprocess_train_data", "prepare_batch(module_id, batch)"),
    (DQNLearner, "preprocess_train_data", "prepare_batch(module_id, batch)"),
    (DQNLearner, "_postprocess_episodes", "prepare_batch(module_id, batch)"),
    (DQNLearner, "additional_update_for_module", "after_gradient_step(module_id)"),
    (DQNLearner, "before_gradient_based_update", "before_gradient_step(module_id)"),
    *(
        (learner, name, remedy)
        for learner in (PPOLearner, DQNLearner)
        for name, remedy in (
            ("compute_loss", "compute_loss_for_module(module_id, batch, fwd_out)"),
            ("compute_losses", "compute_loss_for_module(module_id, batch, fwd_out)"),
            ("configure_optimizers_for_module", "configure_optimizer_for_module(module_id, parameters)"),
            ("postprocess_gradients", "configure_optimizer_for_module()"),
            ("should_module_be_updated", "Use .multi_agent(policies_to_train=[...])"),
        )
    ),
    (RLModule, "compute_self_supervised_loss", "ExtraLossAPI"),
    (RLModule, "get_train_action_dist_cls", "get_action_dist_cls() of a catalog"),
]


@pytest.mark.parametrize(("base", "name", "remedy"), HOOKS, ids=[f"{base.__name__}.{name}" for base, name, _ in HOOKS])
def test_a_hook_that_nothing_calls_is_refused(base: type, name: str, remedy: str) -> None:
    with pytest.raises(TypeError, match=rf"^Mine\.{name}\(\): .*one that nothing calls\. .*{re.escape(remedy)}"):
        type("Mine", (base,), {name: with_config})


@pytest.mark.parametrize(
    ("base", "name", "hook"),
    [
        (PPOCatalog, "build_encodr", "build_encoder"),
        (PPOLearner, "compute_loss_for_modules", "compute_loss_for_module"),
        (RLModule, "forward_explore", ""),
        (RLModule, "_step", ""),
    ],
)
def test_a_hook_that_is_misspelt_by_a_letter_is_told(base: type, name: str, hook: str) -> None:
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("always")
        type("Mine", (base,), {name: with_config})
    expected = f"Mine.{name}(): expected the name of a hook, got one that nothing here calls. Did you mean {hook}()?"
    assert [str(warning.message) for warning in printed] == [expected] * bool(hook)


class Positional(PPOCatalog):
    def __init__(self, observation_space: Any, action_space: Any, model_config_dict: Any) -> None:
        super().__init__(observation_space, action_space, model_config_dict)


class Passing(Positional):
    """Takes whatever modules pass."""

    def __init__(self, *args: Any, width: int = 3, **kwargs: Any) -> None:
        Catalog.__init__(self, *args, **kwargs)


class Bare(PPOModule):
    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space=observation_space, action_space=action_space)


def test_an_init_that_cannot_be_called_is_refused_where_the_class_is_named() -> None:
    expected = (
        r"^Positional\.__init__\(\): expected the arguments \(self, observation_space, action_space, .*"
        r"got def __init__\(self, observation_space, action_space, model_config_dict\)\. Write def __init__\(self, .*"
        r"model_config_dict: Pass model_config={\.\.\.}\. Or override _determine_components_hook\(\)"
    )
    with pytest.raises(TypeError, match=expected):
        RLModuleSpec(catalog_class=Positional)
    with pytest.raises(TypeError, match=r"^Bare\.__init__\(\): .* Or override setup\(\)"):
        RLModuleSpec(module_class=Bare)
    assert Positional(OBS, ACTIONS, {"fcnet_hiddens": [8]}).latent_dims == (8,)  # alone, it may take what it likes
    spec = RLModuleSpec(PPOModule, OBS, ACTIONS, catalog_class=Passing)
    assert type(spec.build().catalog) is Passing


def test_hooks_of_ones_own_and_further_arguments_are_welcome() -> None:
    class Mine(PPOLearner):
        def helper(self, *, module_id: str) -> None: ...

        def compute_loss_for_module(self, module_id: str, *args: Any, **kwargs: Any) -> Any: ...

    class Other(PPOCatalog):
        @staticmethod
        def build_encoder(width: int = 3) -> nn.Module: ...  # type: ignore

        def _get_dist_cls_from_action_space(self, space: Any, name: str = "") -> Any: ...  # type: ignore


def test_on_episode_start_of_callbacks_is_refused_with_what_is_there() -> None:
    with pytest.raises(
        TypeError, match=r"got on_episode_start\. Callbacks see episodes when they end: .*on_episode_end"
    ):
        type("Mine", (Callbacks,), {"on_episode_start": with_config})


# --- calls ------------------------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    'PPO("MlpPolicy", env)': (
        lambda: PPO("MlpPolicy", "CartPole-v1"),  # type: ignore
        "PPO(): expected a config, got 'MlpPolicy', 'CartPole-v1'. Write PPOConfig().environment('CartPole-v1').bui",
    ),
    'PPO("MlpPolicy", env=env, verbose=1)': (
        lambda: PPO("MlpPolicy", env=gym.Env, verbose=1),  # type: ignore
        "Write PPOConfig().environment(...).build()",
    ),
    'PPO("CartPole-v1")': (
        lambda: PPO("CartPole-v1"),  # type: ignore
        "got 'CartPole-v1'. Write PPOConfig().environment('CartPole-v1').build()",
    ),
    "PPO.load": (lambda: PPO.load("model"), "PPO.load: expected"),  # type: ignore
    "PPO.restore": (lambda: PPO.restore("model"), "Call Algorithm.from_checkpoint(path)"),  # type: ignore
    "catalog_class=": (
        lambda: PPOConfig().rl_module(catalog_class=PPOCatalog),  # type: ignore
        "Use .rl_module(rl_module_spec=RLModuleSpec(catalog_class=...))",
    ),
    "offline_data": (
        lambda: PPOConfig().offline_data(input_=["data"]),  # type: ignore
        "Use .offline(data='folder') of BC, MARWIL, IQL, DQN",
    ),
    "offline(dataset_num_iters_per_learner=)": (
        lambda: BCConfig().offline(dataset_num_iters_per_learner=1),  # type: ignore
        "Use .offline(num_updates_per_iteration=...).",
    ),
    "multi_agent(algorithm_config_overrides_per_module=)": (
        lambda: PPOConfig().multi_agent(algorithm_config_overrides_per_module={}),  # type: ignore
        "Use .multi_agent(policy_overrides={'policy_1': {'gamma': 0.9}})",
    ),
    "multi_agent(count_steps_by=)": (
        lambda: PPOConfig().multi_agent(count_steps_by="agent_steps"),  # type: ignore
        "batch sizes count steps of the env",
    ),
    "experimental": (
        lambda: PPOConfig().experimental(_disable_preprocessor_api=True),  # type: ignore
        "Leave it out: there are no such settings.",
    ),
    "learner_config_dict=": (
        lambda: PPOConfig().training(learner_config_dict={"bonus": 0.1}),  # type: ignore
        "Declare its entries in MyTraining(PPOTraining), and set training = Section(MyTraining)",
    ),
    "rl_module(features_extractor_class=)": (
        lambda: PPOConfig().rl_module(features_extractor_class=nn.Linear),  # type: ignore
        "It is custom_model, or override build_encoder() of a catalog. Model settings go into .rl_module(model_config",
    ),
    "rl_module(net_arch=)": (
        lambda: PPOConfig().rl_module(net_arch=[64]),  # type: ignore
        "The widths are fcnet_hiddens,",
    ),
    "env_to_module_connector=": (
        lambda: PPOConfig().env_runners(env_to_module_connector=print),  # type: ignore
        "There are no connectors: wrap the env, or override build_encoder()",
    ),
    "module_to_env_connector=": (
        lambda: PPOConfig().env_runners(module_to_env_connector=print),  # type: ignore
        "There are no connectors: wrap the env.",
    ),
    "training(anneal_lr=)": (
        lambda: PPOConfig().training(anneal_lr=True),  # type: ignore
        "Use points for the learning rate: .training(lr=[[0, 2.5e-4], [500_000, 0.0]]).",
    ),
    "training(norm_adv=)": (
        lambda: PPOConfig().training(norm_adv=True),  # type: ignore
        "Leave it out: PPO and APPO standardise advantages over each train batch, A2C and IMPALA do not.",
    ),
    "training(vtrace=)": (
        lambda: IMPALAConfig().training(vtrace=True),  # type: ignore
        "Leave it out: IMPALA and APPO have V-trace",
    ),
    "training(broadcast_interval=)": (
        lambda: IMPALAConfig().training(broadcast_interval=1),  # type: ignore
        "Leave it out: weights are sent after each update",
    ),
    "training(circular_buffer_num_batches=)": (
        lambda: APPOConfig().training(circular_buffer_num_batches=4),  # type: ignore
        "Use .training(num_epochs=...), the passes over each train batch; earlier batches are not kept.",
    ),
    "training(use_kl_loss=)": (
        lambda: APPOConfig().training(use_kl_loss=True),  # type: ignore
        "PPO has it. For other algorithms, leave it out.",
    ),
    "training(max_policy_lag=)": (
        lambda: APPOConfig().training(max_policy_lag=1000),  # type: ignore
        "Leave it out: nothing is dropped. Results have the lag",
    ),
    "training(use_rms_prop=)": (
        lambda: A2CConfig().training(use_rms_prop=False),  # type: ignore
        "Override configure_optimizer_for_module() of a learner.",
    ),
    "training(use_sde=)": (lambda: PPOConfig().training(use_sde=True), "there is no gSDE."),  # type: ignore
    "min_sample_timesteps_per_iteration=": (
        lambda: PPOConfig().reporting(min_sample_timesteps_per_iteration=1000),  # type: ignore
        "Use .reporting(num_env_steps_per_iteration=...); PPO and A2C sample one train batch.",
    ),
    "environment(an env with an id)": (
        lambda: PPOConfig().environment(gym.make("CartPole-v1")),  # type: ignore
        "got an env of class CartPoleEnv. Write .environment('CartPole-v1'), or .environment(make) with",
    ),
    "environment(an env without an id)": (
        lambda: PPOConfig(env=Shares()),  # type: ignore
        "PPOConfig(env=): expected an id, a class or a factory, since a run makes several envs, got an env of class "
        "Shares. Write .environment(Shares), or .environment(make)",
    ),
    "learner_connector=": (
        lambda: PPOConfig().learners(learner_connector=print),  # type: ignore
        "There are no connectors: override preprocess_train_data(rollout)",
    ),
    "env_runners(explore=)": (
        lambda: PPOConfig().env_runners(explore=False),  # type: ignore
        "Leave it out: training samples actions. Evaluations have .evaluation(evaluation_explore=...)",
    ),
    "exploration()": (
        lambda: DQNConfig().exploration(explore=True),  # type: ignore
        "DQN has .training(epsilon=...), TD3 .training(exploration_noise=...)",
    ),
    "training(lr_schedule=)": (
        lambda: PPOConfig().training(lr_schedule=[[0, 1e-3]]),  # type: ignore
        "Use points for the learning rate: .training(lr=[[0, 3e-4], [1_000_000, 0.0]]).",
    ),
    "training(entropy_coeff_schedule=)": (
        lambda: PPOConfig().training(entropy_coeff_schedule=[[0, 0.1]]),  # type: ignore
        "Use points: .training(entropy_coeff=[[0, 0.01], [1_000_000, 0.0]]).",
    ),
    "environment(disable_env_checking=)": (
        lambda: PPOConfig().environment("CartPole-v1", disable_env_checking=True),  # type: ignore
        "Leave it out: envs are checked in their first 100 steps",
    ),
    "training(num_iters=)": (
        lambda: PPOConfig().training(num_iters=10),  # type: ignore
        "Pass the env steps of all of them to learn(num_env_steps=...).",
    ),
    "resources(num_gpus=)": (
        lambda: PPOConfig().learners(num_gpus=1),  # type: ignore
        "Use .learners(num_gpus_per_learner=1).",
    ),
    "a search space as a setting": (
        lambda: PPOConfig().training(lr={"grid_search": [1e-3, 1e-4]}),  # type: ignore
        "got the search space {'grid_search': [0.001, 0.0001]}. Pass it next to the config: "
        "algorithms.ray_tune.tuner(config, {'lr': ...}, num_env_steps=...).",
    ),
    "a search space in a setting": (
        lambda: PPOConfig().environment("CartPole-v1", env_config={"size": [{"grid_search": [1, 2]}]}),
        "got the search space {'grid_search': [1, 2]}.",
    ),
    "a search space of a net": (
        lambda: PPOConfig().rl_module(model_config={"fcnet_hiddens": {"grid_search": [[64], [32]]}}),
        "model_config.fcnet_hiddens: expected a value, got the search space",
    ),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=list(CALLS))
def test_a_call_is_refused_with_what_to_write(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, AttributeError), match=re.escape(message)):
        call()


METHODS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "learn(10_000, callback)": (
        lambda algo: algo.learn(10_000, len),
        "expected its documented arguments, got <built-in function len>. Call learn(num_env_steps=10000).",
    ),
    "learn(total_timesteps=)": (
        lambda algo: algo.learn(total_timesteps=10_000, progress_bar=True),
        "got total_timesteps=, progress_bar=. Call learn(num_env_steps=10000). Pass progress=True.",
    ),
    "learn(callback=)": (
        lambda algo: algo.learn(num_env_steps=1, callback=print),
        "got callback=. Call learn(num_env_steps=1). Use config.callbacks(...) before build().",
    ),
    "learn(steps=)": (lambda algo: algo.learn(steps=1), "got steps=. Call learn(num_env_steps=...)."),
    "learn(num_iters=)": (
        lambda algo: algo.learn(num_iters=10),
        "Call learn(num_env_steps=...). Or call train() so many times",
    ),
    "learn()": (
        lambda algo: algo.learn(),
        "learn(): expected num_env_steps, got nothing. Call learn(num_env_steps=...).",
    ),
    "predict": (lambda algo: algo.predict(0), "Call policy.act(obs), which returns the action and the next state."),
    "evaluate(n_eval_episodes=)": (
        lambda algo: algo.evaluate(n_eval_episodes=2),
        "Algorithm.evaluate(): expected its documented arguments, got n_eval_episodes=. Pass num_episodes=...",
    ),
    "evaluate(deterministic=)": (lambda algo: algo.evaluate(deterministic=True), "explore=False, the default,"),
    "policy.act(deterministic=)": (
        lambda algo: algo.policy.act(np.zeros(4, np.float32), deterministic=True),
        "Policy.act(): expected its documented arguments, got deterministic=. Leave it out: explore=False",
    ),
    "policy.act(action_masks=)": (lambda algo: algo.policy.act(None, action_masks=[True]), "the field action_mask"),
    "policy.predict": (lambda algo: algo.policy.predict(0), "Policy.predict: expected one of its methods or attribut"),
    "policy.acts": (lambda algo: algo.policy.acts, "got 'acts'. help(Policy) lists them. Did you mean 'act'?"),
    "set_env": (lambda algo: algo.set_env(None), "Call Algorithm.from_checkpoint(path, env=...)."),
}


@pytest.fixture(scope="module")
def algorithm() -> Any:
    with PPOConfig().environment("CartPole-v1").build() as made:
        yield made


@pytest.mark.parametrize(("call", "message"), METHODS.values(), ids=list(METHODS))
def test_a_method_is_refused_with_what_to_write(algorithm: PPO, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((TypeError, AttributeError, ValueError), match=re.escape(message)):
        call(algorithm)


def test_a_search_object_of_tune_is_refused_as_a_setting() -> None:
    tune = pytest.importorskip("ray.tune")
    with pytest.raises(
        TypeError, match=r"got the search space <ray\.tune.*Pass it next to the config: algorithms\.ray_t"
    ):
        PPOConfig().training(gamma=tune.uniform(0.9, 0.99))


KEYS = {
    "episode_reward_mean": "Use result['env_runners']['episode_return_mean'].",
    "num_env_steps_sampled_lifetime": "It is in the section env_runners",
    "timesteps_total": "Use result['env_runners']['num_env_steps_sampled_lifetime'].",
    "info": "result['learners']['default_policy']",
    "evaluation": "It is in results of iterations that evaluate",
    "training_iterations": "docs/metrics.md lists them. Did you mean 'training_iteration'?",
}


def test_a_key_that_a_result_lacks_names_the_one_in_its_place() -> None:
    config = PPOConfig(env="CartPole-v1", num_envs_per_env_runner=2, train_batch_size_per_learner=32)
    with config.training(minibatch_size=32).build() as algorithm:
        result, evaluation = algorithm.train(), algorithm.evaluate(num_episodes=1)
    for key, remedy in KEYS.items():
        with pytest.raises(KeyError, match=re.escape(remedy)):
            result[key]
    for section in (result["env_runners"], evaluation["env_runners"]):
        with pytest.raises(KeyError, match=r"Use result.*'episode_return_mean'"):
            section["episode_reward_mean"]
    assert result.get("episode_reward_mean") is None
    assert json.loads(json.dumps(result))["training_iteration"] == 1
    assert repr(pickle.loads(pickle.dumps(result))) == repr(result)  # equal, also where no episode ended: NaN


def test_the_steps_to_learn_may_be_given_by_position() -> None:
    config = PPOConfig(env="CartPole-v1", num_envs_per_env_runner=2, train_batch_size_per_learner=32)
    with config.training(minibatch_size=32).build() as algorithm:
        assert algorithm.learn(33)["env_runners"]["num_env_steps_sampled_lifetime"] == 64


def test_an_env_that_tune_registered_is_refused_with_what_to_pass() -> None:
    with pytest.raises(
        ValueError, match=r"names of RLlib's register_env\(\) are not read\): \.environment\(make_env\)"
    ):
        make_vector_env("my_env", {}, 1)


COMMANDS_OF_OTHERS = {
    "optimize": "Search from Python, with tuner() of algorithms.ray_tune.",
    "enjoy": "Use rlmodule evaluate CKPT --render.",
    "record-video": "Use rlmodule evaluate CKPT --video FOLDER.",
    "load": "Use rlmodule train --load CKPT.",
    "eval": "Did you mean 'evaluate'?",
}


@pytest.mark.parametrize(("command", "remedy"), COMMANDS_OF_OTHERS.items(), ids=list(COMMANDS_OF_OTHERS))
def test_a_command_of_others_names_ours(command: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "runs"]) == 2
    assert remedy in capsys.readouterr().err


FLAGS_OF_OTHERS = {
    "--stop-iters": "Use --num-env-steps.",
    "--stop-reward": "Use --target-return.",
    "--n-trials": "Search from Python, with tuner() of algorithms.ray_tune.",
    "--lr-schedule": "Use --lr '[[0, 3e-4], [1000000, 0.0]]'.",
    "--num-gpus": "Use --num-gpus-per-learner 1.",
}


@pytest.mark.parametrize(("flag", "remedy"), FLAGS_OF_OTHERS.items(), ids=list(FLAGS_OF_OTHERS))
def test_a_flag_of_others_names_ours(flag: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "CartPole-v1", flag, "1"]) == 2
    assert remedy in capsys.readouterr().err


# --- algorithms -------------------------------------------------------------------------------------------------------

ALGORITHMS_OF_OTHERS = {
    "a3c": "Use A2C, or IMPALA if env runners should not wait for the learner.",
    "IMPACT": "Use APPO, which has its target net and clipping.",
    "apex_dqn": "Use DQN with prioritized_replay=True",
    "RecurrentPPO": "Use PPO with model_config={'use_lstm': True}.",
    "rainbow": "Use DQN: DQNConfig.rainbow(v_min=..., v_max=...)",
    "TQC": "It is SAC with other settings: SACConfig.tqc(), .redq() or .droq().",
    "FlashSAC": "It is SAC with other settings: SACConfig.flash().",
    "CrossQ": "It is not here yet. Use SAC.",
}


@pytest.mark.parametrize(("name", "remedy"), ALGORITHMS_OF_OTHERS.items(), ids=list(ALGORITHMS_OF_OTHERS))
def test_an_algorithm_that_is_not_here_names_the_one_in_its_place(name: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {name!r}. {remedy}")) as caught:
        config_class(name)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("import algorithms.a3c", "got 'a3c'. Use A2C, or IMPALA"),
        ("from algorithms.crossq import CrossQConfig", "got 'crossq'. It is not here yet. Use SAC."),
        ("from algorithms import TRPO", "got 'TRPO'. Use PPO."),
        ("from algorithms import CrossQConfig", "got 'CrossQConfig'. It is not here yet."),
        ("from algorithms import APPOConfig", "Write from algorithms.appo import APPOConfig."),
        ("from algorithms import PPOConfig", "Write from algorithms.ppo import PPOConfig."),
        ("from algorithms import SAC", "Write from algorithms.sac import SAC."),
        ("import algorithms.nothing", "No module named 'algorithms.nothing'"),
    ],
)
def test_an_import_of_an_algorithm_that_is_not_there_says_what_to_write(statement: str, remedy: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=re.escape(remedy)):
        exec(statement)


WRONG_ACTIONS = [
    (
        DQNCatalog,
        spaces.MultiDiscrete([2, 3]),
        "DQN: expected a Discrete space",
        "Use PPO or SAC, which take Box, Multi",
    ),
    (DQNCatalog, spaces.Box(-1, 1, (2,)), "DQN: expected a Discrete space", "Use PPO or SAC, which take Box, Multi"),
    (TD3Catalog, ACTIONS, "TD3 and DDPG: expected a Box of floats", "Use DQN, PPO or SAC for such actions."),
    (TD3Catalog, spaces.MultiBinary(2), "TD3 and DDPG: expected a Box of floats", "Use PPO or SAC for such actions."),
    (TD3Catalog, spaces.Dict(a=ACTIONS), "['a'] of TD3 and DDPG: expected a Box", "Use PPO or SAC for such actions."),
]


@pytest.mark.parametrize(
    ("catalog_class", "actions", "expected", "remedy"),
    WRONG_ACTIONS,
    ids=[f"{catalog_class.__name__}-{type(actions).__name__}" for catalog_class, actions, *_ in WRONG_ACTIONS],
)
def test_actions_that_an_algorithm_does_not_take_name_those_that_do(
    catalog_class: type[Catalog], actions: spaces.Space[Any], expected: str, remedy: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(remedy)) as caught:
        catalog_class(OBS, actions)
    assert expected in str(caught.value)
    assert "custom_action_dist" not in str(caught.value)


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space", [OBS, spaces.Discrete(3), spaces.Box(0, 255, (3, 16, 16), np.uint8), BY_FIELD], ids=str
)
@pytest.mark.parametrize("build", ["build_encoder", "build_actor_critic_encoder"])
def test_encoders_take_the_observation_itself_as_tensors(space: spaces.Space, build: str) -> None:
    encoder = getattr(PPOCatalog(space, ACTIONS), build)()
    obs = space.sample()
    arrays = {key: part[None] for key, part in obs.items()} if isinstance(obs, dict) else np.asarray(obs)[None]
    batch = tree.map_structure(torch.from_numpy, arrays)
    with pytest.raises(TypeError, match=r"got a batch with obs\. Pass the observation itself: encoder\(obs\)\.latent"):
        encoder({"obs": batch})
    with pytest.raises(TypeError, match=r"got arrays\. Pass a tensor: torch\.from_numpy\(obs\)"):
        encoder(arrays)
    out = encoder(batch)
    with pytest.raises(TypeError, match=r"\['encoder_out'\]: .* Use out\.latent, or out\.actor and out\.critic"):
        out["encoder_out"]
    assert out[0] is next(iter(out))


def test_an_error_of_an_encoder_that_got_tensors_stays_as_it_is() -> None:
    class Faulty(nn.Module):
        def forward(self, obs: Any) -> Any:
            return obs.nothing

    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nothing'"):
        as_encoder(Faulty())(torch.zeros(2, 5))


def test_a_plain_net_from_build_actor_critic_encoder_is_refused() -> None:
    class Plain(PPOCatalog):
        def build_actor_critic_encoder(self) -> Any:
            return nn.Sequential(nn.Linear(4, 8))

    config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=RLModuleSpec(catalog_class=Plain))
    with pytest.raises(
        TypeError, match=r"Plain\.build_actor_critic_encoder\(\): .*got Sequential\. .*override build_enc"
    ):
        config.build()


# --- model settings ---------------------------------------------------------------------------------------------------

MODEL_SETTINGS = {
    "fcnet_weights_initializer": "It is fcnet_kernel_initializer.",
    "fcnet_weights_initializer_config": "They are fcnet_kernel_initializer_kwargs.",
    "lstm_weights_initializer": "It is lstm_kernel_initializer.",
    "head_fcnet_bias_initializer_config": "They are head_fcnet_bias_initializer_kwargs.",
    "post_fcnet_activation": "head_fcnet_activation of heads",
    "post_fcnet_weights_initializer": "head_fcnet_kernel_initializer of heads",
    "no_final_linear": "Override build_pi_head() of a catalog.",
    "framestack": "gymnasium.wrappers.FrameStackObservation",
    "dim": "gymnasium.wrappers.ResizeObservation",
    "grayscale": "gymnasium.wrappers.GrayscaleObservation",
    "zero_mean": "Set normalize_observations=True",
    "custom_preprocessor": "begin a custom_model with it",
    "encoder_latent_dim": "It is the last of fcnet_hiddens.",
    "features_extractor_class": "It is custom_model, or override build_encoder() of a catalog.",
    "features_extractor_kwargs": "They are custom_model_config.",
    "use_prev_action": "It is lstm_use_prev_action.",
    "ortho_init": "Leave it out: weights are orthogonal.",
    "log_std_init": "Leave it out: log_std starts at 0",
    "lstm_hidden_size": "It is lstm_cell_size.",
}


@pytest.mark.parametrize(("word", "remedy"), MODEL_SETTINGS.items(), ids=list(MODEL_SETTINGS))
def test_an_old_model_setting_names_the_one_in_its_place_alone(word: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=re.escape(remedy)) as caught:
        DQNConfig().rl_module(model_config={word: 1})
    assert len(str(caught.value)) < 250  # not all settings there are


def test_an_option_of_ones_own_has_its_place() -> None:
    spec = RLModuleSpec(PPOModule, OBS, ACTIONS, {"hidden": 64}, PPOCatalog)
    with pytest.raises(ValueError, match=r"into custom_model_config=\{'hidden': \.\.\.\}\.$"):
        spec.build()
    with pytest.raises(
        ValueError, match=r"^model_config\['depth'\]: .* into custom_model_config=\{'depth': \.\.\.\}\.$"
    ):
        DQNConfig().rl_module(model_config={"depth": 2})


# --- attributes of a learner ------------------------------------------------------------------------------------------

ATTRIBUTES = {
    "config": "Use self.settings; between updates, self.settings_of(module_id).",
    "metrics": "Return tensors to report with the loss: return loss, {'name': tensor}.",
    "get_optimizer": "Use self.optimizers[module_id].",
    "optimisers": "help(PPOLearner) lists them. Did you mean 'optimizers'?",
}


@pytest.mark.parametrize(("name", "remedy"), ATTRIBUTES.items(), ids=list(ATTRIBUTES))
def test_an_attribute_that_a_learner_lacks_names_what_it_has(algorithm: PPO, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"got {name!r}. {remedy}")):
        getattr(algorithm.learner_group.learner, name)


# --- environments -----------------------------------------------------------------------------------------------------

OLD_IDS = {
    "BreakoutNoFrameskip-v4": "Breakout",
    "SpaceInvadersDeterministic-v0": "SpaceInvaders",
    "Seaquest-ramNoFrameskip-v4": "Seaquest",
    "ale_py:BreakoutNoFrameskip-v4": "Breakout",
}


@pytest.mark.parametrize(("env_id", "game"), OLD_IDS.items(), ids=list(OLD_IDS))
@pytest.mark.parametrize("mode", [None, "sync"])
def test_an_old_id_of_an_atari_game_names_the_current_one(env_id: str, game: str, mode: Any) -> None:
    with pytest.raises(ValueError, match=rf"got an old one of an Atari game\. Use 'ALE/{game}-v5', whose frames"):
        make_vector_env(env_id, {}, 1, mode)


def test_plain_old_ids_name_the_current_one() -> None:
    ale_py = pytest.importorskip("ale_py")
    assert "Breakout-v4" in gym.registry, ale_py
    with pytest.raises(ValueError, match=r"Use 'ALE/Breakout-v5', whose frames"):
        make_vector_env("Breakout-v4", {}, 1)


def test_an_env_of_ones_own_may_be_called_like_an_old_game() -> None:
    gym.register("MineNoFrameskip-v4", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    try:
        make_vector_env("MineNoFrameskip-v4", {}, 1).close()
    finally:
        del gym.registry["MineNoFrameskip-v4"]


class Parallel:
    """As PettingZoo's envs are."""

    possible_agents = ("a", "b")


class Shares(gym.Env[Any, Any]):
    observation_space, action_space = OBS, ACTIONS

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), {"a": 1.0, "b": 0.0}, False, False, {}


def test_an_env_of_several_agents_is_refused() -> None:
    with pytest.raises(TypeError, match=r"needs \.multi_agent\(policies='shared'\)"):
        make_vector_env(Parallel, {}, 1)


def test_rewards_by_agent_are_refused() -> None:
    env = make_vector_env(Shares, {}, 1)
    env.reset(seed=1)
    with pytest.raises(TypeError, match=r"reward: expected one real number, got .* needs \.multi_agent\("):
        env.step(np.zeros(1, np.int64))
    env.close()
