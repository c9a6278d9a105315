"""IMPALA and APPO: what they learn from, that nothing is dropped, and how old the weights are that act."""

import logging
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from torch import Tensor

from algorithms import Algorithm, AlgorithmConfig
from algorithms.a2c import A2CConfig
from algorithms.appo import APPOConfig
from algorithms.impala import IMPALAConfig
from algorithms.impala.impala import IMPALALearner
from algorithms.ppo import PPOConfig
from algorithms.run import progress
from rlmodule import Columns, Rollout
from tests.algorithms.test_sample_ahead import LSTM, equal, weights
from tests.rlmodule.agents.envs import CartPoles

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs_per_env_runner": 2,
    "train_batch_size_per_learner": 32,
    "rollout_fragment_length": 8,
    "num_env_steps_per_iteration": 64,
    "minibatch_size": None,
    "num_epochs": 1,
    "seed": 3,
    "model_config": {"fcnet_hiddens": [8]},
}
REMOTE = {"num_env_runners": 2, "num_cpus_per_env_runner": 0.1}
STREAMS = pytest.mark.parametrize("config_class", [IMPALAConfig, APPOConfig])


def update_of(config: AlgorithmConfig, data: Rollout) -> list[Tensor]:
    """The weights after one update."""
    with config.build() as algorithm:
        algorithm.learner_group.update_from_episodes(data, env_steps=0)
        return weights(algorithm)


def rollout_of(config: AlgorithmConfig) -> Rollout:
    with config.build() as algorithm:
        (rollout,) = algorithm.env_runner_group.sample(32)
        return rollout


@pytest.mark.parametrize("model_config", [{"fcnet_hiddens": [8]}, LSTM], ids=["rows", "lstm"])
def test_without_lag_impala_takes_a_step_of_a2c(model_config: dict[str, Any]) -> None:
    quick = {**QUICK, "model_config": model_config, "lambda_": 0.9, "lr": 1e-3}
    impala = IMPALAConfig(**quick)
    a2c = A2CConfig(**{name: value for name, value in quick.items() if name != "num_env_steps_per_iteration"})
    a2c = a2c.update({"rollout_fragment_length": 16})
    data = rollout_of(impala)
    for expected, got in zip(update_of(a2c, data), update_of(impala, data), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_with_its_first_target_net_appo_takes_a_step_of_ppo() -> None:
    quick = {**QUICK, "lambda_": 0.9, "lr": 1e-3, "clip_param": 0.3}
    appo = APPOConfig(**quick)
    ppo = PPOConfig(**{name: value for name, value in quick.items() if name != "num_env_steps_per_iteration"})
    ppo = ppo.update({"rollout_fragment_length": 16})
    data = rollout_of(appo)
    for expected, got in zip(update_of(ppo, data), update_of(appo, data), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_appo_compares_with_the_target_policy_and_with_half_of_the_acting_one_at_least() -> None:
    with APPOConfig(**QUICK).build() as algorithm:
        learner: Any = algorithm.learner_group.learner
        (rollout,) = algorithm.env_runner_group.sample(32)
        acted = rollout[Columns.ACTION_LOGP].clone()
        logp = acted.clone()
        logp[::2] += 5  # actions that the acting policy took far more often than the target policy would
        rollout.columns[Columns.ACTION_LOGP] = logp
        with torch.no_grad():
            got = learner.compute_advantages("default_policy", rollout)[Columns.ACTION_LOGP]
    torch.testing.assert_close(got[1::2], acted[1::2], rtol=0, atol=1e-5)
    torch.testing.assert_close(got[::2], logp[::2] - np.log(2), rtol=0, atol=1e-5)


def test_the_target_net_of_appo_moves_by_its_clock() -> None:
    config = APPOConfig(**QUICK, target_network_update_freq=64).update({"lr": 0.1})
    with config.build() as algorithm:
        learner: Any = algorithm.learner_group.learner
        moves = []
        for _ in range(4):
            algorithm.train()
            moves.append(learner.targets.num_updates["default_policy"])
        # read at the count before each batch of 32: the third update is the first that comes after 64 steps
        assert moves == [0, 1, 2, 3]


@STREAMS
def test_without_processes_every_rollout_is_of_the_newest_weights_and_a_run_repeats(config_class: Any) -> None:
    found = []
    for _ in range(2):
        with config_class(**QUICK).build() as algorithm:
            lags = [algorithm.train()["stream"]["policy_lag_max"] for _ in range(3)]
            assert lags == [0, 0, 0]
            assert algorithm.env_steps == 192
            found.append(weights(algorithm))
    assert equal(*found)


@pytest.mark.usefixtures("ray_started")
@pytest.mark.parametrize("config_class", [IMPALAConfig, pytest.param(APPOConfig, marks=pytest.mark.end_to_end)])
def test_no_runner_and_no_learner_drops_a_step(config_class: Any) -> None:
    """Rows that are learned, and those that runners hold, are all steps that the envs made."""
    learned = []

    def on_sample_end(algorithm: Algorithm, rollout: Rollout) -> None:
        learned.append(rollout.num_env_steps)

    config = config_class(**QUICK | REMOTE, on_sample_end=on_sample_end)
    with config.build() as algorithm:
        for _ in range(3):
            result = algorithm.train()
        group: Any = algorithm.env_runner_group
        in_flight = [group.workers.in_flight(worker) for worker in range(2)]
        assert max(in_flight) <= 2
        group.finish()
        held = sum(rollout.num_env_steps for rollout in group.held)
        made = sum(group._known[worker].counter.count for worker in range(2))
        assert made == algorithm.env_steps + held
        assert algorithm.env_steps == sum(learned)
        assert result["workers"]["num_env_steps_lost_lifetime"] == 0
        assert 0 <= result["stream"]["policy_lag_min"] <= result["stream"]["policy_lag_max"] <= 6


@pytest.mark.usefixtures("ray_started")
def test_the_progress_line_says_who_waits_in_this_session(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BEFORE_LINE", 0.0)
    with IMPALAConfig(**QUICK | REMOTE).build() as algorithm:
        for _ in range(2):
            algorithm.learn(64, progress=True)
            *_, share = re.findall(r"(?:learner waits|runners wait) (\d+)%\n", capsys.readouterr().err)
            assert 0 <= int(share) <= 100


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_started")
def test_learners_in_other_processes_learn_from_every_rollout() -> None:
    config = IMPALAConfig(**QUICK | REMOTE, num_learners=1, num_cpus_per_learner=0.1)
    with config.build() as algorithm:
        result = {}
        for _ in range(4):
            result = algorithm.train()
        algorithm.get_state()  # waits for updates
        assert algorithm.env_steps == 256
        assert algorithm.learner_group.num_updates == 8
        assert result["workers"]["num_env_steps_dropped_lifetime"] == 0


class SlowCartPole(CartPoleEnv):
    """A CartPole whose steps take a while."""

    def step(self, action: Any) -> Any:
        time.sleep(0.03)
        return super().step(action)


class SlowIMPALALearner(IMPALALearner):
    """A learner whose updates take longer than rollouts."""

    def update_from_episodes(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return super().update_from_episodes(*args, **kwargs)


@pytest.mark.usefixtures("ray_started")
def test_runners_get_weights_while_rollouts_are_awaited() -> None:
    """Each update ends long before the next rollouts do, which begin with the weights of the update before."""
    config = IMPALAConfig(**QUICK | REMOTE | {"env": SlowCartPole}, num_learners=1, num_cpus_per_learner=0.1)
    with config.build() as algorithm:
        algorithm.train()
        assert min(algorithm.train()["stream"]["policy_lag_min"] for _ in range(4)) == 1


@pytest.mark.usefixtures("ray_started")
def test_updates_that_have_not_finished_count_in_the_lag() -> None:
    config = IMPALAConfig(**QUICK | REMOTE, num_learners=1, num_cpus_per_learner=0.1, learner_class=SlowIMPALALearner)
    with config.build() as algorithm:
        for _ in range(2):
            algorithm.train()
        # the learner is in one update and has another one queued
        assert max(algorithm.train()["stream"]["policy_lag_max"] for _ in range(3)) == 2


@pytest.mark.usefixtures("ray_started")
def test_what_runners_hold_is_saved_and_learned_from_after_a_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with IMPALAConfig(**QUICK | REMOTE).build() as algorithm, caplog.at_level(logging.WARNING):
        algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        held = sum(rollout.num_env_steps for rollout in algorithm.env_runner_group.held)
        algorithm.train()  # the run that was saved goes on, too
        algorithm.save(tmp_path / "another")
    assert held
    said = [record.getMessage() for record in caplog.records if "order" in record.getMessage()]
    assert len(said) == 1
    assert "num_env_runners=0" in said[0]
    with Algorithm.from_checkpoint(path) as resumed:
        assert sum(rollout.num_env_steps for rollout in resumed.env_runner_group.held) == held
        resumed.train()
        assert resumed.env_runner_group.num_env_steps_lost.total() == 0


def test_a_stream_without_processes_repeats_and_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with IMPALAConfig(**QUICK).build() as algorithm, caplog.at_level(logging.WARNING):
        algorithm.train()
        algorithm.save(tmp_path / "checkpoint")
    assert not caplog.records


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_started")
def test_rows_of_a_policy_that_was_replaced_while_they_were_sampled_are_not_learned() -> None:
    config = IMPALAConfig(**{**QUICK, **REMOTE, "env": CartPoles}).multi_agent(policies=["left", "right"])
    config.multi_agent(policy_mapping_fn=lambda agent, *_: "left" if agent == "cart_0" else "right")
    with config.build() as algorithm:
        algorithm.train()
        spec = algorithm.module_spec.rl_module_specs["right"]
        algorithm.learner_group.remove_module("right")
        algorithm.learner_group.add_module("right", spec)
        rollout: Any = algorithm.sample()
        assert "right" not in rollout.modules
        assert "left" in rollout.modules


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sample_ahead": 1}, "sample_ahead: expected 0, since the env runners of this algorithm never wait, got 1"),
        ({"train_batch_size_per_learner": 24}, "a whole number of rollouts of 8 steps from 2 environments.*got 24.*32"),
        (
            {"rollout_fragment_length": None, "num_envs_per_env_runner": 5},
            "expected a whole number of rollouts.*from 5 environments.*got 32.*works is 30",
        ),
    ],
)
def test_settings_that_cannot_stream_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IMPALAConfig(**{**QUICK, **values}).validate()


def test_rollouts_are_as_long_as_fills_the_batch() -> None:
    for batch, num_envs, length, count in ((256, 8, 32, 1), (512, 8, 32, 2), (96, 8, 12, 1), (1024, 16, 32, 2)):
        config = IMPALAConfig(train_batch_size_per_learner=batch, num_envs_per_env_runner=num_envs)
        assert config.get_rollout_fragment_length() == length
        assert config.rollouts_per_batch == count
