"""DQN's settings: what they take, and what must hold between them."""

import math
from typing import Any

import pytest

from algorithms.dqn import DQNCatalog, DQNConfig, DQNModelConfig
from algorithms.multi_agent_config import MultiAgentConfig
from algorithms.ppo import PPOCatalog
from catalog.settings import settings_of
from rlmodule import RLModuleSpec
from tests.algorithms.dqn.conftest import SPACES, tiny

NAN = math.nan

# Of every setting of DQN's own: values that are taken, values out of range, values of another type.
SETTINGS: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    "double_q": ([True, False], [], [1, "yes", None]),
    "dueling": ([True, False], [], [1, None]),
    "n_step": ([1, 3, (1, 5), [2, 4]], [0, (0, 3)], ["3", 1.5, (1, 2, 3), None]),
    "num_atoms": ([1, 51], [0], ["51", None, 1.5]),
    "v_min": ([None, -10, 0.5], [NAN], ["0", True]),
    "v_max": ([None, 10, 0.5], [NAN], ["0", True]),
    "num_quantiles": ([1, 200], [0], ["51", None, 1.5]),
    "noisy": ([True, False], [], [1, None]),
    "sigma0": ([0.5, 1], [0, -1, NAN], ["0.5", None]),
    "epsilon": (
        [None, 0, 1, 0.1, [[0, 1.0], [10, 0.1]]],
        [-0.1, 1.1, [[0, 2], [10, 0]], [[5, 1], [10, 0]]],
        ["1", True],
    ),
    "cql_alpha": ([0, 5.0], [-0.1, NAN], ["1", None]),
    "td_error_loss_fn": (["huber", "mse"], [], ["l1", None, 1]),
    "target_network_update_freq": ([0, 1, 500], [-1], ["1", None, 1.5]),
    "tau": ([0.005, 1], [0, 1.1, NAN], ["1", None]),
    "num_steps_sampled_before_learning_starts": ([0, 1000], [-1], ["1", None]),
    "training_intensity": ([None, 0.5, 16], [0, -1, NAN], ["1", True]),
    "burn_in_len": ([0, 20], [-1], ["1", None]),
    "normalize_rewards": ([True, False], [], [1, None]),
    "replay_capacity": ([1, 50_000], [0, -5], ["1", None, 1.5]),
    "prioritized_replay": ([True, False], [], [1, None]),
    "prioritized_replay_alpha": ([0, 0.6, 1], [-0.1, 1.1, NAN], ["1", None]),
    "prioritized_replay_beta": ([0, 1, [[0, 0.4], [10, 1]]], [-0.1, 1.1, NAN], ["1", None]),
    "prioritized_replay_eps": ([1e-6, 1], [0, -1, NAN], ["1", None]),
    "frame_stack_axis": ([None, 0, -1, {"camera": 0}], [], ["0", 1.5, {"camera": "x"}]),
    "her_ratio": ([0, 0.8, 1], [-0.1, 1.1, NAN], ["1", None]),
    "her_strategy": (["future", "final"], [], ["episode", None, 1]),
    "her_reward_fn": ([None, print], [], ["0", 1]),
    "replay_in_checkpoints": ([True, False], [], [1, None]),
    "num_env_steps_per_iteration": ([1, 1000], [0], ["1", None]),
    "data": ([None, "folder", {"a": "folder"}], [], [1, b"folder"]),
    "num_updates_per_iteration": ([1, 1000], [0], ["1", None]),
    "num_offline_updates": ([0, 1000], [-1], ["1", None]),
    "data_share": ([0, 0.5, 1], [-0.1, 1.1, NAN], ["1", None]),
}


def test_the_table_above_holds_every_setting() -> None:
    assert set(SETTINGS) == set(settings_of(DQNConfig)) - set(settings_of(MultiAgentConfig))


@pytest.mark.parametrize("name", list(SETTINGS))
def test_each_setting(name: str) -> None:
    section = getattr(DQNConfig(), settings_of(DQNConfig)[name].section)
    taken, outside, mistyped = SETTINGS[name]
    for value in taken:
        assert getattr(section(**{name: value}), name) == (
            tuple(value) if name == "n_step" and value == [2, 4] else value
        )
    for value in outside:
        with pytest.raises(ValueError, match=name):
            section(**{name: value})
    for value in mistyped:
        with pytest.raises(TypeError, match=name):
            section(**{name: value})


def test_settings_of_the_nets_are_those_of_the_model_config() -> None:
    for name in DQNConfig().net_settings:
        field = DQNModelConfig.__dataclass_fields__[name]
        assert settings_of(DQNConfig)[name].doc == field.metadata["doc"]
        assert getattr(DQNConfig(), name) == field.default


def test_rainbow_is_every_part_in_one_config() -> None:
    config = DQNConfig.rainbow(v_min=-5, v_max=5, n_step=4, lr=1e-4)
    assert (config.double_q, config.dueling, config.noisy, config.prioritized_replay) == (True,) * 4
    assert (config.num_atoms, config.v_min, config.v_max, config.n_step, config.lr) == (51, -5.0, 5.0, 4, 1e-4)
    assert config.epsilon_schedule == 0.0
    config.environment("CartPole-v1").validate()
    with pytest.raises(ValueError, match=r"v_min: expected a number, since num_atoms=51, got None"):
        DQNConfig.rainbow().environment("CartPole-v1").build()


def test_what_rllib_calls_otherwise_is_told() -> None:
    with pytest.raises(TypeError, match=r"replay_buffer_config.*Use \.replay\(replay_capacity="):
        DQNConfig().training(replay_buffer_config={"capacity": 10})


def test_noisy_nets_go_without_random_actions_unless_told() -> None:
    assert DQNConfig().epsilon_schedule == [[0, 1.0], [10_000, 0.05]]
    assert DQNConfig(noisy=True).epsilon_schedule == 0.0
    assert DQNConfig(noisy=True, epsilon=0.1).epsilon_schedule == 0.1


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"replay_capacity": 100}, ("replay_capacity", "at least 128", "train_batch_size_per_learner=128", "got 100")),
        (
            {"replay_capacity": 130, "n_step": (1, 17)},
            ("replay_capacity", "at least 136", "n_step=17 in each of 8 environments"),
        ),
        (
            {"replay_capacity": 130, "rollout_fragment_length": 20},
            ("replay_capacity", "at least 160", "one rollout of 8 environments"),
        ),
        ({"n_step": (5, 2)}, ("n_step", "(least, most)", "got (5, 2)")),
        ({"num_steps_sampled_before_learning_starts": 100}, ("learning_starts", "at least 128", "=128", "got 100")),
        (
            {"num_steps_sampled_before_learning_starts": 300, "num_learners": 3},
            ("learning_starts", "at least 384", "train_batch_size_per_learner=128 for each of 3 learners", "got 300"),
        ),
        ({"training_intensity": 0.1}, ("training_intensity", "at least 0.128", "1000 steps", "got 0.1")),
        (
            {"training_intensity": 1e9, "replay_capacity": 1000},
            ("training_intensity", "at most 128,000", "batches of 128", "got 1000000000.0"),
        ),
        ({"num_atoms": 51}, ("DQNConfig.v_min",)),
        (
            {"num_atoms": 51, "v_min": 0.0, "v_max": 1.0, "td_error_loss_fn": "mse"},
            ("DQNConfig.td_error_loss_fn", "its default with num_atoms > 1"),
        ),
        (
            {"num_quantiles": 5, "td_error_loss_fn": "mse"},
            ("DQNConfig.td_error_loss_fn", "its default with num_quantiles > 1"),
        ),
        (
            {"num_quantiles": 5, "num_atoms": 51, "v_min": 0.0, "v_max": 1.0},
            ("DQNConfig.num_quantiles", "expected 1, since num_atoms=51", "got 5"),
        ),
        ({"prioritized_replay_beta": 0.9}, ("prioritized_replay_beta", "without prioritized_replay", "got 0.9")),
        ({"num_atoms": 51, "v_min": 1.0, "v_max": 1.0}, ("v_max",)),
        ({"v_min": 0.0, "v_max": 1.0}, ("num_atoms",)),
    ],
)
def test_contradictions(values: dict[str, Any], parts: tuple[str, ...]) -> None:
    config = DQNConfig().environment("CartPole-v1").update(values)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at below
        config.build()
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_rollout_is_one_step_long() -> None:
    assert DQNConfig().get_rollout_fragment_length() == 1
    assert DQNConfig(rollout_fragment_length=4).get_rollout_fragment_length() == 4


def test_settings_of_the_nets_reach_the_catalog() -> None:
    config = tiny(dueling=True, num_atoms=11, v_min=0.0, v_max=5.0, model_config={"fcnet_hiddens": [8]})
    model_config = config.get_rl_module_spec(*SPACES).model_config
    assert isinstance(model_config, DQNModelConfig)
    assert (model_config.dueling, model_config.num_atoms, model_config.v_max) == (True, 11, 5.0)
    assert model_config.fcnet_hiddens == (8,)


def test_a_setting_of_the_nets_is_given_once() -> None:
    config = tiny().rl_module(rl_module_spec=RLModuleSpec(model_config=DQNModelConfig(dueling=True)), model_config=None)
    with pytest.raises(ValueError, match=r"DQNConfig\.dueling: expected one value, got False\. model_config has True"):
        config.get_rl_module_spec(*SPACES)


def test_a_catalog_that_does_not_know_a_switch_is_refused_with_it() -> None:
    class Mine(DQNCatalog):
        pass

    spec = RLModuleSpec(catalog_class=Mine)
    assert tiny(dueling=True, rl_module_spec=spec).get_rl_module_spec(*SPACES).model_config.dueling
    spec = RLModuleSpec(catalog_class=PPOCatalog)
    assert tiny(rl_module_spec=spec).get_rl_module_spec(*SPACES).catalog_class is PPOCatalog
    with pytest.raises(ValueError, match=r"DQNConfig\.dueling: expected a catalog_class derived from DQNCatalog"):
        tiny(dueling=True, rl_module_spec=spec).get_rl_module_spec(*SPACES)


def test_round_trip_as_json() -> None:
    config = DQNConfig.rainbow(v_min=-1, v_max=1, n_step=(1, 4)).environment("CartPole-v1")
    assert DQNConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert DQNConfig.from_dict(config.to_dict()).n_step == (1, 4)


def test_rainbow_is_not_called_on_a_config() -> None:
    with pytest.raises(TypeError, match=r"DQNConfig\.rainbow\(\): expected the class, got a config\. Begin with it"):
        DQNConfig().training(lr=1e-2).rainbow(v_min=0, v_max=1)


def test_rainbow_without_priorities_is_rainbow_without_their_settings() -> None:
    config = DQNConfig.rainbow(v_min=0, v_max=1, prioritized_replay=False)
    config.environment("CartPole-v1").validate()
    assert config.prioritized_replay_alpha == DQNConfig().prioritized_replay_alpha


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("num_epochs", "training_intensity"), ("buffer_size", "replay_capacity"), ("exploration_fraction", "epsilon")],
)
def test_names_of_others_are_answered_with_ours(theirs: str, ours: str) -> None:
    with pytest.raises(TypeError, match=rf"got the unknown name '{theirs}'.*{ours}"):
        DQNConfig().training(**{theirs: 1})
