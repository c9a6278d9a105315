"""The loop we measure ourselves against must itself be right."""

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bare_ppo import Storage, advantages_and_targets, gae, train
from benchmarks.jobs import JOBS, Job

SHORT = Job("CartPole-v1", 2, 32, num_epochs=2, minibatch_size=16, lr=1e-3, entropy_coeff=0.01, vf_loss_coeff=0.5)


class Sum(torch.nn.Module):
    """A critic whose values are easy to foretell: the sum of the observation."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.sum(-1, keepdim=True)


def oracle(
    rewards: np.ndarray, values: np.ndarray, after: np.ndarray, ended: np.ndarray, g: float, lam: float
) -> np.ndarray:
    """GAE as its sum says, for one env: each step's later errors in the same episode, weighted by (g·lam)^k."""
    out = np.zeros_like(rewards)
    for t in range(len(rewards)):
        for k in range(t, len(rewards)):
            out[t] += (g * lam) ** (k - t) * (rewards[k] + g * after[k] - values[k])
            if ended[k]:
                break
    return out


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 4), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_equals_the_sum_over_each_episode(seed: int, steps: int, envs: int, lam: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, after = rng.normal(size=(3, steps, envs))
    terminated, truncated = rng.random((2, steps, envs)) < 0.15
    after[terminated] = 0.0
    ended = (terminated | truncated).astype(np.float64)
    expected = np.stack(
        [oracle(rewards[:, n], values[:, n], after[:, n], ended[:, n], 0.9, lam) for n in range(envs)], 1
    )
    r, v, a, e = (torch.from_numpy(x) for x in (rewards, values, after, ended))
    np.testing.assert_allclose(gae(r, v, a, e, gamma=0.9, lambda_=lam).numpy(), expected, atol=1e-10)


def test_truncation_bootstraps_from_the_final_observation_and_termination_from_nothing() -> None:
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    store = Storage(env, 2)
    env.close()
    store.obs[:] = torch.randn(store.obs.shape)
    store.rewards[:] = torch.randn(store.rewards.shape)
    store.truncated[0, 0] = 1  # env 0 is cut off in the first step, env 1 ends there, env 2 goes on
    store.terminated[0, 1] = 1
    after, final = torch.randn(3, 4), torch.randn(4)
    got, targets = advantages_and_targets(replace(SHORT, lambda_=0.0), Sum(), store, after, [(0, 0, final)])
    values, nexts = store.obs.sum(-1), torch.stack([store.obs[1].sum(-1), after.sum(-1)])
    nexts[0, 0], nexts[0, 1] = final.sum(), 0
    expected = store.rewards + SHORT.gamma * nexts
    torch.testing.assert_close(targets, expected)
    raw = (expected - values).numpy()
    np.testing.assert_allclose(got.numpy(), (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)


def test_two_timed_iterations() -> None:
    result = train(SHORT, 4 * SHORT.batch_size, seed=0)
    assert result["steps_per_s"] > 0
    assert 5 < result["late_return"] < 64


def test_same_seed_same_data() -> None:
    first, again, other = (train(SHORT, 1, seed)["late_return"] for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_continuous_actions() -> None:
    job = Job("Pendulum-v1", 2, 16, num_epochs=1, minibatch_size=16, lr=1e-3, entropy_coeff=0.0, vf_loss_coeff=0.5)
    assert math.isnan(train(job, 1, seed=0)["late_return"])  # an episode lasts 200 steps


def test_truncated_episodes_are_counted() -> None:
    job = Job("Pendulum-v1", 1, 128, num_epochs=1, minibatch_size=64, lr=1e-3, entropy_coeff=0.0, vf_loss_coeff=0.5)
    assert -2000 < train(job, 1, seed=0)["late_return"] < 0


@pytest.mark.slow
def test_it_learns() -> None:
    assert train(JOBS["cartpole"], 60_000, seed=0)["late_return"] > 120
