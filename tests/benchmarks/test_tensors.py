"""The envs in one tensor move as Gymnasium's do, and all sides train on them."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from benchmarks import bare_tensors, ours_tensors
from benchmarks.jobs import TENSOR_JOBS
from benchmarks.tensor_envs import Carts, Pendulums


def test_carts_move_as_cartpole_does_under_a_full_push() -> None:
    carts, cartpole = Carts(3), gym.make("CartPole-v1").unwrapped
    carts.reset(seed=0)
    cartpole.reset(seed=0)
    cartpole.state = carts.state[1].numpy().astype(np.float64)
    for action in (1, 0, 0, 1, 1):
        obs, *_ = carts.step(torch.full((3, 1), 2.0 * action - 1))
        expected, *_ = cartpole.step(action)
        np.testing.assert_allclose(obs[1].numpy(), expected, atol=1e-5)


def test_pendulums_move_and_are_rewarded_as_pendulum_is() -> None:
    pendulums, pendulum = Pendulums(3), gym.make("Pendulum-v1").unwrapped
    pendulums.reset(seed=0)
    pendulum.reset(seed=0)
    pendulum.state = pendulums.state[2].numpy().astype(np.float64)
    for torque in (2.0, -1.5, 0.3):
        obs, rewards, *_ = pendulums.step(torch.full((3, 1), torque))
        expected, reward, *_ = pendulum.step(np.array([torque], np.float32))
        np.testing.assert_allclose(obs[2].numpy(), expected, atol=1e-5)
        assert float(rewards[2]) == pytest.approx(float(reward), rel=1e-5)


def test_a_cart_that_ends_begins_again_and_keeps_its_last_observation() -> None:
    carts = Carts(2)
    carts.reset(seed=0)
    carts.age[:] = torch.tensor([498, 0])
    carts.step(torch.zeros(2, 1))
    obs, _, terminated, truncated, info = carts.step(torch.zeros(2, 1))
    assert truncated.tolist() == [True, False]
    assert not terminated.any()
    assert not torch.equal(info["final_obs"][0], obs[0])
    assert torch.equal(info["final_obs"][1], obs[1])
    assert carts.age.tolist() == [0, 2]
    assert carts.mean_return() == 2.0


@pytest.mark.parametrize("side", [ours_tensors, bare_tensors], ids=["ours", "bare"])
def test_both_sides_learn_to_balance_carts_for_longer(side: object) -> None:
    job = replace(TENSOR_JOBS["carts"], num_envs=64, minibatch_size=64 * 24 // 4, hiddens=(32,))
    curve = side.train(job, 64 * 24 * 12, seed=0)["curve"]  # type: ignore[attr-defined]
    assert len(curve) == 12
    assert curve[-1] > 1.5 * curve[0]
