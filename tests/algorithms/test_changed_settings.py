"""Settings that are given to from_checkpoint(): each acts on the run that continues, or is named."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import Algorithm, AlgorithmConfig
from algorithms.a2c import A2CConfig
from algorithms.appo import APPOConfig
from algorithms.ddpg import DDPGConfig
from algorithms.dqn import DQNConfig
from algorithms.impala import IMPALAConfig
from algorithms.iql import IQLConfig
from algorithms.marwil import MARWILConfig
from algorithms.ppo import PPOConfig
from algorithms.replay.prioritized import Priorities, PrioritizedReplay, with_exponent
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from catalog.settings import settings_of
from rlmodule.testing.data import clone, differences
from tests.algorithms.offline.data import cartpole
from tests.algorithms.replay.test_hindsight import Line
from tests.rlmodule.agents.envs import CartPoles

ID = "default_policy"
SMALL: dict[str, Any] = {
    "seed": 1,
    "num_envs_per_env_runner": 2,
    "model_config": {"fcnet_hiddens": [4]},
    "train_batch_size_per_learner": 16,
}
REPLAY = SMALL | {
    "num_steps_sampled_before_learning_starts": 32,
    "num_env_steps_per_iteration": 60,
    "replay_capacity": 200,
    "training_intensity": 4.0,
    "prioritized_replay": True,
    "target_network_update_freq": 8,
}
STREAM = {"minibatch_size": 8, "num_epochs": 3, "num_env_steps_per_iteration": 32, "target_network_update_freq": 16}
RUNS: dict[str, AlgorithmConfig] = {
    "PPO": PPOConfig(**SMALL, minibatch_size=8, num_epochs=3, use_kl_loss=True).environment("Pendulum-v1"),
    "novelty": PPOConfig(**SMALL, minibatch_size=8, num_epochs=3, rnd_coeff=1.0).environment("Pendulum-v1"),
    "A2C": A2CConfig(**SMALL).environment("Pendulum-v1"),
    "IMPALA": IMPALAConfig(**SMALL, num_env_steps_per_iteration=32).environment("Pendulum-v1"),
    "APPO": APPOConfig(**SMALL, **STREAM).environment("Pendulum-v1"),
    "DQN": DQNConfig(**REPLAY, noisy=True, epsilon=0.5).environment("CartPole-v1"),
    "SAC": SACConfig(**REPLAY).environment("Pendulum-v1"),
    "TD3": TD3Config(**REPLAY, num_quantiles=3).environment("Pendulum-v1"),
    "hindsight": DQNConfig(**REPLAY, n_step=1, her_ratio=0.5).environment(Line),
    "data": DQNConfig(**REPLAY, num_offline_updates=5, num_updates_per_iteration=5).environment("CartPole-v1"),
    "MARWIL": MARWILConfig(**SMALL, num_updates_per_iteration=5).environment("CartPole-v1"),
    "IQL": IQLConfig(**REPLAY, num_updates_per_iteration=5).environment("CartPole-v1"),
    "TD3+BC": TD3Config(**REPLAY, bc_coeff=0.5).environment("Pendulum-v1"),
    "CQL": SACConfig(**REPLAY, cql_alpha=1.0, cql_num_actions=3).environment("Pendulum-v1"),
}
FROM_DATA = ("data", "MARWIL", "IQL")
"""Runs that learn from a data set, which the fixture names."""
CLASSES = {"DDPG": DDPGConfig} | {name: type(config) for name, config in RUNS.items()}


def opposite_reward(achieved: Any, desired: Any, infos: Any) -> Any:
    """The reward of :class:`Line` for the goals on the other side."""
    return Line().compute_reward(-achieved, desired, infos)


ACTS: dict[str, dict[str, Any]] = {
    "PPO": {
        "num_envs_per_env_runner": 4,
        "gamma": 0.5,
        "lr": 1e-5,
        "grad_clip": 1e-3,
        "clip_rewards": "sign",
        "sample_ahead": 1,
        "train_batch_size_per_learner": 32,
        "minibatch_size": 16,
        "num_epochs": 1,
        "lambda_": 0.5,
        "clip_param": 1e-4,
        "vf_loss_coeff": 0.1,
        "vf_clip_param": 0.01,
        "vf_huber_delta": 0.01,
        "entropy_coeff": 0.2,
        "use_kl_loss": False,
        "kl_coeff": 5.0,
        "kl_target": 1e-9,
        "target_kl": 1e-9,
        "adaptive_lr_kl": 1e-9,
    },
    "novelty": {"rnd_coeff": 0.1},
    "A2C": {"lambda_": 0.5, "minibatch_size": 8, "num_epochs": 2, "sample_ahead": 1},
    "IMPALA": {"rollout_fragment_length": 4, "vtrace_clip_pg_rho_threshold": 0.1},
    "APPO": {
        "lambda_": 0.5,
        "clip_param": 1e-4,
        "num_env_steps_per_iteration": 48,
        "target_network_update_freq": 1000,
        "tau": 0.5,
        "vtrace_clip_rho_threshold": 0.1,
        "vtrace_clip_pg_rho_threshold": 0.1,
    },
    "DQN": {
        "epsilon": 0.0,
        "td_error_loss_fn": "mse",
        "n_step": 2,
        "tau": 0.5,
        "double_q": False,
        "target_network_update_freq": 100,
        "num_steps_sampled_before_learning_starts": 150,
        "training_intensity": 8.0,
        "rollout_fragment_length": 4,
        "num_env_steps_per_iteration": 30,
        "prioritized_replay_alpha": 0.0,
        "prioritized_replay_beta": 0.9,
        "prioritized_replay_eps": 0.5,
        "replay_in_checkpoints": False,
    },
    "SAC": {"actor_lr": 1e-5, "critic_lr": 1e-5, "alpha_lr": 0.0, "target_entropy": -3.0, "initial_alpha": 0.01}
    | {"target_critics": 1, "policy_value": "mean"},
    "TD3": {"policy_delay": 1, "target_noise": 0.9, "target_noise_clip": 0.01, "exploration_noise": 0.9}
    | {"drop_quantiles": 1},
    "data": {"num_offline_updates": 10, "data_share": 0.1},
    "MARWIL": {"beta": 0.5, "vf_loss_coeff": 0.1, "norm_rate": 0.5, "n_step": 3} | {"num_updates_per_iteration": 3},
    "IQL": {"expectile": 0.9, "beta": 0.5, "max_weight": 1e-3},
    "TD3+BC": {"bc_coeff": 5.0, "normalize_q": True, "critic_bc_coeff": 0.5},
    "CQL": {"cql_alpha": 5.0, "cql_num_actions": 2},
    "hindsight": {"her_ratio": 1.0, "her_strategy": "final", "her_reward_fn": opposite_reward},
}
"""By algorithm: a value of each setting with which the run continues in another way."""

REFUSED: dict[str, dict[str, Any]] = {
    "DQN": {"dueling": True, "num_atoms": 3, "v_min": -1.0, "v_max": 1.0, "noisy": False, "prioritized_replay": False}
    | {"frame_stack_axis": 0, "replay_capacity": 40},
    "SAC": {"num_critics": 1, "num_quantiles": 3, "burn_in_len": 2, "normalize_rewards": True},
    "novelty": {"rnd_coeff": 0.0, "rnd_dim": 3},
    "data": {"data": cartpole(3)},
}
"""By algorithm: a value of each setting that does not fit what was saved, so that the error names it or the state."""

NAMED = {"seed", "sigma0"}
"""Settings that act on new runs only: a warning names them."""

ASIDE = {"env", "env_config", "num_env_runners", "gym_env_vectorize_mode", "num_cpus_per_env_runner"} | {
    "env_step_timeout_s",
    "grad_clip_by",
}
"""Settings of the env and of processes, and the unit of ``grad_clip``, from which every run is built."""

SECTIONS_ASIDE = {"learners", "rl_module", "multi_agent", "evaluation", "callbacks", "fault_tolerance"} | {
    "reporting",
    "checkpointing",
}
"""Sections of settings that a run is built from, without a state that could replace them."""


def test_the_tables_above_hold_every_setting_that_affects_learning() -> None:
    rows = (NAMED | ASIDE).union(*ACTS.values(), *REFUSED.values())
    names = {
        name
        for config_class in CLASSES.values()
        for name, item in settings_of(config_class).items()
        if item.section not in SECTIONS_ASIDE
    }
    assert sorted(names - rows) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each run after an iteration."""
    paths = {}
    for name, config in RUNS.items():
        paths[name] = tmp_path_factory.mktemp("changed") / name
        config = config.copy()
        if name in FROM_DATA:
            config.data = str(cartpole(2).save(tmp_path_factory.mktemp("data") / "data"))
        with config.build() as algorithm:
            algorithm.train()
            algorithm.save(paths[name])
    return paths


def continued(path: Path, **given: Any) -> dict[str, Any]:
    """State and metrics of the run after one more iteration."""
    with Algorithm.from_checkpoint(path, allow=["tests"], **given) as algorithm:
        result = algorithm.train()
        state = clone(algorithm.get_state())
    parts = {name: state.get(name) for name in ("learners", "replay", "env_runners")}
    return parts | {"metrics": result["learners"]}


@pytest.fixture(scope="module")
def unchanged(saved: dict[str, Path]) -> dict[str, Any]:
    """Each run after one more iteration without changes."""
    return {name: continued(path) for name, path in saved.items()}


@pytest.mark.parametrize(("run", "name"), [(run, name) for run, values in ACTS.items() for name in values])
def test_a_setting_that_is_given_acts(saved: dict[str, Path], unchanged: dict[str, Any], run: str, name: str) -> None:
    assert differences(continued(saved[run], **{name: ACTS[run][name]}), unchanged[run])


@pytest.mark.parametrize("run", list(RUNS))
def test_settings_that_are_given_as_they_were_change_nothing(
    saved: dict[str, Path], unchanged: dict[str, Any], run: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("kl_coeff", "initial_alpha", "prioritized_replay_alpha", "model_config", "seed", "lr")
    given = {name: getattr(RUNS[run], name) for name in names if name in settings_of(type(RUNS[run]))}
    assert differences(continued(saved[run], **given), unchanged[run]) == []
    assert "without effect" not in caplog.text
    assert "acts on" not in caplog.text


@pytest.mark.parametrize(("run", "name"), [(run, name) for run, values in REFUSED.items() for name in values])
def test_a_setting_that_does_not_fit_the_state_is_refused(saved: dict[str, Path], run: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"got what does not fit\. .*expected"):
        Algorithm.from_checkpoint(saved[run], **{name: REFUSED[run][name]})


def test_an_env_that_is_given_too_is_not_blamed(saved: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"^checkpoint .* expected capacity 40, got capacity 200"):
        Algorithm.from_checkpoint(saved["DQN"], replay_capacity=40, env="CartPole-v1")
    with pytest.raises(ValueError, match=r"^from_checkpoint\(env=\): expected an env with the spaces"):
        Algorithm.from_checkpoint(saved["DQN"], replay_capacity=40, env="Acrobot-v1")


NETS = {"fcnet_hiddens": [4]}


@pytest.mark.parametrize(
    ("run", "given", "named"),
    [
        ("DQN", {"sigma0": 0.1}, "model_config.sigma0 of 'default_policy' without effect"),
        (
            "PPO",
            {"model_config": NETS | {"fcnet_kernel_initializer": "zeros_"}},
            "model_config.fcnet_kernel_initializer",
        ),
        (
            "PPO",
            {"model_config": NETS | {"functions": {"value": {"head_fcnet_kernel_initializer_kwargs": {"gain": 0.1}}}}},
            "model_config.functions['value']['head_fcnet_kernel_initializer_kwargs'] of",
        ),
        ("TD3", {"seed": 9}, "seed=9 acts on evaluation, and on envs and policies that are added"),
    ],
)
def test_a_setting_for_new_runs_is_named(
    saved: dict[str, Path], caplog: pytest.LogCaptureFixture, run: str, given: dict[str, Any], named: str
) -> None:
    with caplog.at_level(logging.WARNING):
        Algorithm.from_checkpoint(saved[run], **given).stop()
    [warning] = [record.message for record in caplog.records if record.name == "algorithms.run.checkpoints"]
    assert named in warning


# --- settings that the saved state would replace ----------------------------------------------------------------------


@pytest.mark.parametrize(("given", "moved"), [({}, 0.1), ({"alpha_lr": 0.0}, 1e-6)], ids=["learned", "fixed"])
def test_the_temperature_begins_with_an_initial_alpha_that_is_given(
    saved: dict[str, Path], given: Any, moved: float
) -> None:
    with Algorithm.from_checkpoint(saved["SAC"], initial_alpha=0.01, **given) as algorithm:
        assert algorithm.get_module().log_temperature().item() == pytest.approx(math.log(0.01))
        algorithm.train()
        assert algorithm.get_module().log_temperature().item() == pytest.approx(math.log(0.01), abs=moved)


def test_a_kl_coeff_that_is_given_replaces_the_adapted_one_once(saved: dict[str, Path], tmp_path: Path) -> None:
    with Algorithm.from_checkpoint(saved["PPO"], kl_coeff=5.0) as algorithm:
        assert algorithm.train()["learners"][ID]["kl_coeff"] == 5.0
        adapted = algorithm.learner_group.get_state()["kl_coeff"][ID]
        algorithm.save(tmp_path / "later")
    assert adapted == 2.5
    with Algorithm.from_checkpoint(tmp_path / "later") as algorithm:
        assert algorithm.train()["learners"][ID]["kl_coeff"] == adapted


def test_a_kl_coeff_of_one_policy_is_for_that_policy(tmp_path: Path) -> None:
    config = PPOConfig(**SMALL, minibatch_size=8, num_epochs=1, use_kl_loss=True)
    config.environment(CartPoles, env_config={"num_agents": 2}).multi_agent(policies="own")
    config.multi_agent(policy_overrides={"cart_0": {"kl_coeff": 0.5}})
    with config.build() as algorithm:
        algorithm.train()
        before = algorithm.learner_group.get_state()["kl_coeff"].copy()
        algorithm.save(tmp_path / "c")
    given = {"env": CartPoles, "policy_overrides": {"cart_0": {"kl_coeff": 4.0}}}
    with Algorithm.from_checkpoint(tmp_path / "c", **given) as algorithm:
        assert algorithm.learner_group.get_state()["kl_coeff"] == before | {"cart_0": 4.0}


def test_priorities_get_an_alpha_that_is_given(saved: dict[str, Path]) -> None:
    def priorities(**given: Any) -> np.ndarray:
        with Algorithm.from_checkpoint(saved["DQN"], **given) as algorithm:
            return algorithm.replay.priorities.get_state()["values"].numpy()

    before = priorities()
    assert np.ptp(before[before > 0]) > 0.01
    np.testing.assert_allclose(priorities(prioritized_replay_alpha=0.3), before ** (0.3 / 0.6))
    np.testing.assert_array_equal(priorities(prioritized_replay_alpha=0.0), (before > 0).astype(float))


@pytest.mark.parametrize(("before", "alpha"), [(0.6, 1.0), (1.0, 0.3), (0.5, 0.0), (0.0, 0.7)])
def test_priorities_of_another_exponent_are_those_of_the_same_errors(before: float, alpha: float) -> None:
    errors, leaves = np.array([0.5, 4.0, 0.0, 2.0]), np.arange(4)
    made = []
    for exponent in (before, alpha):
        priorities = Priorities(PrioritizedReplay(alpha=exponent), 6)  # two leaves cannot be drawn
        priorities.insert(leaves)
        priorities.update(leaves, errors)
        made.append(priorities.get_state())
    expected = made[0] if before == 0 else made[1]  # the errors are not in priorities of exponent 0
    got = with_exponent(made[0], before, alpha)
    torch.testing.assert_close(got["values"], expected["values"])
    assert got["greatest"] == pytest.approx(expected["greatest"])
