"""BC and MARWIL: losses against plain loops, and runs that learn from data alone."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from algorithms import Algorithm
from algorithms.bc import BCConfig
from algorithms.marwil import MARWILConfig, MARWILLearner
from algorithms.marwil.learner import MOST_WEIGHT
from algorithms.ppo import PPOConfig
from rlmodule import Dataset, RLModuleSpec
from rlmodule.data.columns import Columns
from tests.algorithms.offline.data import cartpole, noise

ID = "default_policy"
SMALL: dict[str, Any] = {
    "model_config": {"fcnet_hiddens": [8]},
    "train_batch_size_per_learner": 16,
    "num_updates_per_iteration": 5,
    "seed": 1,
}


def learner_and_batch(**settings: Any) -> tuple[MARWILLearner, dict[str, Any]]:
    """Return a learner, and a batch of data."""
    config = MARWILConfig(data=noise(), **SMALL | {"n_step": 3} | settings)
    with config.build() as algorithm:
        batch = algorithm.data[ID].sample(16).batch  # type: ignore[attr-defined]
        return algorithm.learner_group.learner, batch  # type: ignore[attr-defined]


def test_the_loss_is_that_of_a_plain_loop() -> None:
    learner, batch = learner_and_batch(beta=0.7, vf_loss_coeff=0.3)
    module: Any = learner.module[ID]
    for _ in range(3):  # until values and advantages have scales
        learner.step_on_batch(batch, env_steps=0)
    module.eval()
    scale = float(learner.squared_advantage[ID]) ** 0.5
    total = 0.0
    for row in range(16):
        obs, after = batch[Columns.OBS][row : row + 1], batch[Columns.NEXT_OBS][row : row + 1]
        with torch.no_grad():
            out = module.forward_train({Columns.OBS: obs})
            value = float(module.compute_values({Columns.OBS: obs}))
            next_value = float(module.compute_values({Columns.OBS: after}))
            logp = torch.log_softmax(out[Columns.ACTION_DIST_INPUTS][0], -1)[batch[Columns.ACTIONS][row]]
        target = float(batch[Columns.REWARDS][row]) + float(batch[Columns.DISCOUNTS][row]) * next_value
        advantage = target - value
        weight = min(math.exp(0.7 * advantage / scale), MOST_WEIGHT)
        total += -weight * float(logp) + 0.3 * (advantage / float(module.value_scale())) ** 2
    prepared = learner.prepare_batch(ID, batch)
    learner.use_settings_of(ID)
    loss, _ = learner.compute_loss_for_module(ID, prepared, module.forward_train(prepared))
    assert float(loss.detach()) == pytest.approx(total / 16, rel=1e-5)


def test_squared_advantages_are_averaged_over_updates() -> None:
    learner, batch = learner_and_batch(norm_rate=0.25, lr=0.0)
    squares = []
    for _ in range(4):
        metrics = learner.step_on_batch(batch, env_steps=0)[ID]
        squares.append(float(metrics["advantage"].square().mean()))
    expected = squares[0]
    for square in squares[1:]:
        expected += 0.25 * (square - expected)
    assert float(learner.squared_advantage[ID]) == pytest.approx(expected, rel=1e-6)


def test_advantages_whose_squares_are_infinite_leave_the_average_as_it_was() -> None:
    learner, batch = learner_and_batch()
    learner.step_on_batch(batch, env_steps=0)
    before = float(learner.squared_advantage[ID])
    learner.step_on_batch(batch | {Columns.REWARDS: torch.full((16,), 1e25)}, env_steps=0)
    assert float(learner.squared_advantage[ID]) == before > 0
    learner.step_on_batch(batch, env_steps=0)
    assert math.isfinite(float(learner.squared_advantage[ID]))


def test_rows_weigh_the_same_before_advantages_have_a_scale() -> None:
    learner, batch = learner_and_batch()
    assert learner.step_on_batch(batch, env_steps=0)[ID]["weight"].tolist() == [1.0] * 16
    assert len({*learner.step_on_batch(batch, env_steps=0)[ID]["weight"].tolist()}) > 1


def test_marwil_with_beta_0_is_bc_to_the_bit() -> None:
    data, weights = noise(), []
    for config in (BCConfig(data=data, **SMALL), MARWILConfig(data=data, beta=0.0, **SMALL)):
        with config.build() as algorithm:
            algorithm.learn(num_updates=20)
            weights.append(algorithm.get_module().state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_bc_with_a_linear_net_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    observations = rng.normal(size=(400, 3)).astype(np.float32)
    actions = (observations @ rng.normal(size=(3, 2)) + 0.3 * rng.normal(size=(400, 2)) + 0.5).astype(np.float32)
    ends = np.arange(400) % 10 == 9
    data = Dataset.from_arrays(observations, actions, np.zeros(400), terminals=ends, timeouts=None)
    nets = {"fcnet_hiddens": [], "free_log_std": True, "normalize_observations": False}
    config = BCConfig(data=data, model_config=nets, train_batch_size_per_learner=400, seed=1, grad_clip=None)
    with config.training(lr=[[0, 0.05], [1500, 0.0005]]).build() as algorithm:
        algorithm.learn(num_updates=2000)
        with torch.no_grad():
            out = algorithm.get_module().forward_inference({Columns.OBS: torch.from_numpy(observations)})
    inputs = np.column_stack([observations, np.ones(400)])
    fitted = inputs @ np.linalg.lstsq(inputs, actions, rcond=None)[0]
    np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS][:, :2].numpy(), fitted, atol=0.02)


@pytest.mark.filterwarnings("ignore")
def test_bc_learns_cartpole_from_twenty_episodes() -> None:
    with BCConfig(data=cartpole(20), env="CartPole-v1", seed=1).build() as algorithm:
        algorithm.learn(num_updates=1500)
        assert algorithm.evaluate(num_episodes=20)["env_runners"]["episode_return_mean"] >= 490


def test_marwil_prefers_what_had_the_greater_return() -> None:
    """Two actions are as frequent; one of them has a reward."""
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=400)
    data = Dataset.from_arrays(
        np.zeros((400, 1), np.float32),
        actions,
        actions.astype(np.float32),
        terminals=np.ones(400),
        timeouts=None,
        action_space=gym.spaces.Discrete(2),
    )
    shares = {}
    for beta in (0.0, 1.0):
        config = MARWILConfig(data=data, **SMALL | {"train_batch_size_per_learner": 100, "lr": 0.01})
        with config.training(beta=beta).build() as algorithm:
            algorithm.learn(num_updates=400)
            logits = algorithm.get_module().forward_inference({Columns.OBS: torch.zeros(1, 1)})
            shares[beta] = float(logits[Columns.ACTION_DIST_INPUTS].softmax(-1)[0, 1])
    assert shares[0.0] == pytest.approx(actions.mean(), abs=0.05)
    # both advantages are half the range of rewards, that is one deviation: e / (e + 1/e)
    assert shares[1.0] == pytest.approx(math.e / (math.e + 1 / math.e), abs=0.05)


def test_ppo_goes_on_from_bc(tmp_path: Path) -> None:
    with BCConfig(data=cartpole(2), **SMALL).build() as cloned:
        cloned.learn(num_updates=20)
        cloned.save(tmp_path / "bc")
        expected = cloned.get_module().get_state()
    with PPOConfig(env="CartPole-v1", model_config=SMALL["model_config"], seed=2).build() as algorithm:
        algorithm.learner_group.load_modules(tmp_path / "bc")
        got = algorithm.get_module().get_state()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_actions_on_the_bounds_of_a_squashed_policy_are_moved_inside(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays(
        rng.normal(size=(50, 2)).astype(np.float32),
        np.sign(rng.normal(size=(50, 1))).astype(np.float32) * 2,
        np.zeros(50),
        terminals=np.arange(50) % 10 == 9,
        timeouts=None,
        action_space=gym.spaces.Box(-2.0, 2.0, (1,)),
    )
    nets = {"fcnet_hiddens": [8], "custom_action_dist": "SquashedGaussian"}
    with caplog.at_level(logging.WARNING), BCConfig(data=data, **SMALL | {"model_config": nets}).build() as algorithm:
        stored = algorithm.data[ID].sample(50).batch[Columns.ACTIONS]  # type: ignore[attr-defined]
        assert float(stored.abs().max()) == pytest.approx(1 - 1e-3)
        loss = algorithm.learn(num_updates=5)["learners"][ID]["total_loss"]
    assert caplog.text.count("lie on the bounds") == 1
    assert abs(loss) < 100
    with BCConfig(data=data, **SMALL).build() as algorithm:
        assert float(algorithm.data[ID].sample(50).batch[Columns.ACTIONS].abs().max()) == 1.0  # type: ignore[attr-defined]


def test_spec_of_bc_is_that_of_ppo() -> None:
    assert BCConfig().default_rl_module_spec() == PPOConfig().default_rl_module_spec()
    assert isinstance(BCConfig().default_rl_module_spec(), RLModuleSpec)
    assert issubclass(BCConfig().algo_class, Algorithm)
